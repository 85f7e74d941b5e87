"""Incidents in the database: folded over batches, listed, ended by time, with their picture."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from breakloop.clock import FakeClock
from breakloop.history.store import History
from breakloop.model.events import AGENT_KILLED, AGENT_RELEASED, Activity, AgentUse, LoopUse
from breakloop.model.records import CLEARED, OPEN, STOPPED, EventFilter, Incident, IncidentFilter, StepMark
from tests.histories import NOTHING, Past, detected, looped, told

MARK = [1_800_000_000.0, "search", "aa", "bb", 10, False, "pass"]


def test_an_incident_over_several_batches(history: History, clock: FakeClock) -> None:
    """Everything that belongs to one loop, with what it spent and what stopping it saved (G-3)."""
    now = clock.now()
    history.write([detected(now, steps=[MARK], score={"total": 0.75})], NOTHING(), now)
    history.write([], looped(passed=2, passed_tokens=30, passed_microusd=400), now + 1)
    history.write([detected(now + 2, fingerprint="f2", hit_count=9)], NOTHING(), now + 2)
    history.write([], looped(fingerprint="f2", stopped=5, stopped_tokens=60, stopped_microusd=700), now + 3)
    (listed,) = history.incidents(IncidentFilter())
    assert listed == Incident(
        id=listed.id,
        state=STOPPED,
        project="default",
        agent="bot",
        caller="key:1",
        model="gpt",
        kind="tail",
        fingerprint="f2",
        policy="builtin",
        action="reject",
        evidence="the same 3 messages 5 times",
        shadow=False,
        first_at=now,
        last_at=now + 3,
        ended_at=None,
        detections=2,
        hit_count=9,
        cooldown_seconds=30,
        spent_requests=2,
        spent_tokens=30,
        spent_microusd=400,
        saved_requests=5,
        saved_tokens=60,
        saved_microusd=700,
    )
    steps = (StepMark(MARK[0], "search", "aa", "bb", 10, False, "pass"),)  # type: ignore[arg-type]
    assert history.incident(listed.id) == replace(listed, steps=steps, score={"total": 0.75})
    assert {event.incident for event in history.events(EventFilter())} == {listed.id}
    assert history.incident("nothing") is None


def test_a_new_score_leaves_the_steps_and_the_other_way_round(history: History, clock: FakeClock) -> None:
    now = clock.now()
    history.write([detected(now, score={"total": 1})], NOTHING(), now)
    history.write([detected(now + 1, steps=[MARK])], NOTHING(), now + 1)
    history.write([detected(now + 2, score={"total": 2})], NOTHING(), now + 2)
    found = history.incident(history.incidents(IncidentFilter())[0].id)
    assert found is not None
    assert (len(found.steps), found.score) == (1, {"total": 2})


def test_ten_quiet_minutes_end_it(history: History, clock: FakeClock) -> None:
    """Also when nothing else happens than that time passes."""
    now = clock.now()
    history.write([detected(now)], NOTHING(), now)
    assert history.end_quiet(now + 604) == []  # what happened may still be on its way
    assert history.incidents(IncidentFilter())[0].ended_at is None
    (over,) = history.end_quiet(now + 606)
    (found,) = history.incidents(IncidentFilter())
    assert (found.state, found.ended_at) == (CLEARED, now + 600)
    assert (over.name, over.at, over.project) == ("loop.cleared", now + 606, "default")
    known = {"agent": "bot", "caller": "key:1", "kind": "tail", "policy": "builtin", "shadow": False, "model": "gpt"}
    assert known.items() <= over.data.items()
    assert history.end_quiet(now + 606) == []
    history.write([over], NOTHING(), now + 607)
    assert [one.name for one in history.events(EventFilter(incident=found.id))] == [over.name, "loop.detected"]
    history.write([detected(now + 602)], NOTHING(), now + 602)
    assert len(history.incidents(IncidentFilter())) == 2


def test_one_that_is_held_goes_on_until_it_is_released(history: History, clock: FakeClock) -> None:
    now = clock.now()
    kill = told(AGENT_KILLED, now + 1, agent="bot", caller="", expires_at=None)
    history.write([detected(now, action="warn"), kill], NOTHING(), now)
    assert history.end_quiet(now + 86_400) == []
    assert history.incidents(IncidentFilter())[0].state == STOPPED
    history.write([told(AGENT_RELEASED, now + 86_401, agent="bot", caller="")], NOTHING(), now + 86_402)
    (found,) = history.incidents(IncidentFilter())
    assert (found.state, found.ended_at) == (CLEARED, now + 86_401)


def test_a_release_of_a_caller_ends_what_its_agents_did(history: History, clock: FakeClock) -> None:
    now = clock.now()
    history.write([detected(now, "a"), detected(now, "b"), detected(now, "c", caller="key:2")], NOTHING(), now)
    history.write([told(AGENT_RELEASED, now + 1, agent="", caller="key:1")], NOTHING(), now + 1)
    found = {one.agent: one.state for one in history.incidents(IncidentFilter())}
    assert found == {"a": CLEARED, "b": CLEARED, "c": STOPPED}


def test_the_last_use_is_when_the_agent_was_seen(history: History, clock: FakeClock) -> None:
    now = clock.now()
    history.write([detected(now)], NOTHING(), now)
    activity = Activity(
        agents={("default", "key:1", "bot"): AgentUse(last_at=now + 7.25)},
        loops={("default", "key:1", "bot", "f1"): LoopUse(stopped=1)},
    )
    history.write([], activity, now + 8)
    assert history.incidents(IncidentFilter())[0].last_at == now + 7.25


def test_filters_and_pages(history: History, clock: FakeClock) -> None:
    """Newest first; a page goes on behind the last one, also where many have the same time (X-1)."""
    now = clock.now()
    events = [
        detected(
            now + index // 4,
            f"a{index}",
            kind="exact" if index % 2 else "tail",
            action="warn" if index % 3 else "reject",
            policy=f"p{index % 2}",
            shadow=index % 5 == 0,
            project="x" if index == 7 else "default",
        )
        for index in range(20)
    ]
    history.write(events, NOTHING(), now)
    everything = history.incidents(IncidentFilter(most=500))
    assert len(everything) == 20
    assert [one.last_at for one in everything] == sorted((one.last_at for one in everything), reverse=True)
    pages: list[Incident] = []
    wanted = IncidentFilter(most=3)
    while page := history.incidents(wanted):
        pages += page
        wanted = IncidentFilter(most=3, before=page[-1].last_at, before_id=page[-1].id)
    assert pages == everything

    def agents(**chosen: object) -> set[str]:
        return {one.agent for one in history.incidents(IncidentFilter(**chosen, most=500))}  # type: ignore[arg-type]

    assert agents(state=OPEN, shadow=False) == {f"a{n}" for n in range(20) if n % 3 and n % 5}
    assert agents(kind="exact") == agents(policy="p1") == {f"a{n}" for n in range(1, 20, 2)}
    assert agents(shadow=True) == {"a0", "a5", "a10", "a15"}
    assert agents(project="x") == agents(agent="a7") == {"a7"}
    assert agents(before=now + 1) == {"a0", "a1", "a2", "a3"}
    assert agents(state=CLEARED) == set()


@pytest.mark.slow
def test_a_batch_of_very_many(history: History, clock: FakeClock) -> None:
    """More agents than a statement asks for at once; each finds its own again."""
    now = clock.now()
    names = [f"a{index}" for index in range(1200)]
    history.write([detected(now, name, caller=f"key:{name}") for name in names], NOTHING(), now)
    again = [detected(now + 1, name, caller=f"key:{name}") for name in names]
    history.write(again, NOTHING(), now + 1)
    history.write([told(AGENT_RELEASED, now + 2, caller=f"key:{name}") for name in names], NOTHING(), now + 2)
    found = history.incidents(IncidentFilter(most=500))
    assert {(one.detections, one.state) for one in found} == {(2, CLEARED)}
    assert history.totals(now - 60).incidents_open == 0


def test_held_for_ever_is_a_number_the_database_knows(past: Past) -> None:
    """Infinity comes back from the database as what it was."""
    history, now = past.open(), past.clock.now()
    history.write([detected(now), told(AGENT_KILLED, now, agent="bot", expires_at=None)], NOTHING(), now)
    again = past.open()
    again.write([detected(now + 1e8)], NOTHING(), now + 1e8)
    assert len(again.incidents(IncidentFilter(before=math.inf))) == 1
