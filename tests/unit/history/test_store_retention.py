"""What is dropped: by age, by number, never what goes on; a bounded number at a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from breakloop.history import store
from breakloop.history import store as retention
from breakloop.history.store import History, Retention
from breakloop.model.events import AGENT_KILLED, Activity
from breakloop.model.records import EventFilter, IncidentFilter
from tests.histories import NOTHING, Past, detected, told, used

DAY = 86_400
MIB = 1024 * 1024


def names(history: History) -> list[str]:
    return [event.name for event in history.events(EventFilter(most=1000))]


def test_by_age(past: Past) -> None:
    """Retention set (G-2)."""
    history, now = past.open(days=2), past.clock.now()
    history.write([told("old", now), detected(now, "old")], used("old", last_at=now), now)
    history.write([], Activity(shadow={("p", "a", "r", "x"): 1}), now)
    history.write([told("young", now + 2 * DAY), detected(now + 2 * DAY)], used(last_at=now + 2 * DAY), now + 2 * DAY)
    past.clock.advance(2 * DAY + 1)
    history.end_quiet(past.clock.now())
    assert history.purge(past.clock.now()) > 0
    assert names(history) == ["loop.detected", "young"]
    assert [one.agent for one in history.incidents(IncidentFilter())] == ["bot"]
    assert [one.agent for one in history.agents()] == ["bot"]
    assert len(history.shadow(0.0)) == 1
    assert history.purge(past.clock.now()) == 0
    past.clock.advance(10 * DAY)
    history.end_quiet(past.clock.now())
    history.purge(past.clock.now())
    assert names(history) == []
    assert history.shadow(0.0) == []
    assert history.curve(now - DAY, now + 3 * DAY, 3600, agent="bot")[0].requests == 0
    assert history.totals(0.0).loops == 0


def test_by_number(past: Past, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the number the oldest go, however young."""
    history, now = past.open(events=30), past.clock.now()
    for index in range(10):
        history.write([told(f"e{index}-{n}", now + index) for n in range(10)], NOTHING(), now + index)
    assert history.purge(now + 10) == 70
    assert names(history) == [f"e{index}-{n}" for index in (9, 8, 7) for n in range(9, -1, -1)]
    assert history.purge(now + 10) == 0


@pytest.mark.slow
def test_incidents_and_agents_are_bounded_too(past: Past) -> None:
    """Invented names do not fill the disk; what goes on, and what somebody has set, stays."""
    history, now = past.open(events=500), past.clock.now()
    held = told(AGENT_KILLED, now, agent="a0", expires_at=None)
    history.write([detected(now, "a0"), held], NOTHING(), now)
    history.set_agent("default", "set", {"a": 1})
    for index in range(1, 161):
        name = f"a{index}"
        history.write([detected(now + index, name)], used(name, caller=name, last_at=now + index), now + index)
    history.end_quiet(now + 2000)
    history.purge(now + 2000)
    found = history.incidents(IncidentFilter(most=500))
    assert [one.agent for one in found] == [f"a{index}" for index in range(160, 60, -1)] + ["a0"]
    assert history.incident(found[0].id) is not None
    assert [one.agent for one in history.agents(most=500)] == [f"a{index}" for index in range(160, 60, -1)] + ["set"]


def test_minutes_for_two_days_and_hours_for_the_rest(past: Past) -> None:
    history, now = past.open(days=10), past.clock.now()
    history.write([], used(requests=1, last_at=now), now)
    past.clock.advance(50 * 3600)
    assert history.purge(past.clock.now()) == 2
    assert history.curve(now, now + 60, 60)[0].requests == 1
    assert history.agents()[0].requests == 1
    past.clock.advance(9 * DAY)
    assert history.purge(past.clock.now()) > 0
    assert history.curve(now, now + 60, 60)[0].requests == 0


def test_audit_is_kept_for_a_year(past: Past) -> None:
    history, now = past.open(days=1), past.clock.now()
    history.add_audit("a", "operator", "x", "y", {}, now)
    history.purge(now + 364 * DAY)
    assert len(history.audit()) == 1
    history.purge(now + 366 * DAY)
    assert history.audit() == []


def test_a_purge_is_done_in_small_steps(past: Past, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer waits for one step at most; what is left waits for the next purge."""
    for module in (retention, store):
        monkeypatch.setattr(module, "BATCH", 10)
    monkeypatch.setattr(store, "ROUNDS", 3)
    history, now = past.open(events=5), past.clock.now()
    history.write([told("e", now) for _ in range(100)], NOTHING(), now)
    assert [history.purge(now) for _ in range(5)] == [30, 30, 30, 5, 0]
    assert len(names(history)) == 5


def test_pictures_go_with_their_incidents(past: Past) -> None:
    history, now = past.open(days=1), past.clock.now()
    mark = [now, "t", "a", "b", 1, False, "pass"]
    history.write([detected(now, steps=[mark])], NOTHING(), now)
    (incident,) = history.incidents(IncidentFilter())
    history.end_quiet(now + 700)
    assert history.purge(now + 700) == 0
    kept = history.incident(incident.id)
    assert kept is not None
    assert len(kept.steps) == 1
    dropped = history.purge(now + 10 * DAY)
    assert history.incident(incident.id) is None
    assert dropped == 8  # event, incident, picture, agent, 2 sums of the project, 2 of the agent


def test_the_file_stays_within_what_it_keeps(sqlite_past: Past) -> None:
    """Room that becomes free goes back to the disk; the file does not grow for ever (G-2)."""
    history, now = sqlite_past.open(events=1000), sqlite_past.clock.now()
    file = Path(sqlite_past.where)
    history.write([told("e", now, text="x" * 2000) for _ in range(6000)], NOTHING(), now)
    history.audit()
    assert history.purge(now) == 5000
    history.close()
    assert 2 < file.stat().st_size / MIB < 4  # of 15
    history.write([told("e", now + 1, text="x" * 2000) for _ in range(1000)], NOTHING(), now + 1)
    assert history.purge(now + 1) == 1000
    history.close()
    assert 2 < file.stat().st_size / MIB < 4


def test_bounds_follow_from_the_number_of_events() -> None:
    keep = Retention()
    assert (keep.days, keep.events, keep.incidents, keep.agents) == (30, 1_000_000, 50_000, 100_000)
    assert keep.agent_points == 1_000_000
    assert Retention(events=10).incidents == 100
