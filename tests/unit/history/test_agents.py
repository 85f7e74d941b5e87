"""The register of agents: they appear by themselves, with sums, settings, and what today cost."""

from __future__ import annotations

from breakloop.clock import FakeClock
from breakloop.history.store import History
from breakloop.model.events import Activity, AgentUse
from breakloop.model.records import AgentRecord
from tests.histories import NOTHING, detected, looped, used

MIDNIGHT = 1_800_057_600.0  # UTC


def test_an_agent_appears_and_is_added_up(history: History, clock: FakeClock) -> None:
    """Over its callers and over time (G-1)."""
    now = clock.now()
    first = Activity(
        agents={
            ("default", "key:1", "bot"): AgentUse(3, 1, 1, 10, 20, 30, now, "old"),
            ("default", "key:2", "bot"): AgentUse(1, 0, 0, 1, 2, 3, now + 1, "new"),
        }
    )
    history.write([detected(now), detected(now, shadow=True)], first, now + 1)
    history.write([], used(requests=10, last_at=now - 5), now + 2)
    history.write([], looped(stopped=2, stopped_microusd=70), now + 3)
    wanted = AgentRecord(
        project="default",
        agent="bot",
        callers=2,
        first_at=now + 1,
        last_at=now + 3,
        requests=14,
        denied=1,
        loops=1,
        input_tokens=11,
        output_tokens=22,
        cost_microusd=33,
        today_microusd=33,
        saved_microusd=70,
        model="new",
    )
    assert history.agent("default", "bot") == wanted
    assert history.agents() == [wanted]
    assert history.agent("other", "bot") is None
    assert history.agent("default", "nobody") is None


def test_today_begins_at_midnight(history: History, clock: FakeClock) -> None:
    clock.advance(MIDNIGHT - 1 - clock.now())
    history.write([], used(cost_microusd=5, last_at=clock.now()), clock.now())
    clock.advance(1)
    history.write([], used(cost_microusd=7, last_at=clock.now()), clock.now())
    history.write([], used("other", cost_microusd=100, last_at=clock.now()), clock.now())
    found = history.agent("default", "bot")
    assert found is not None
    assert (found.today_microusd, found.cost_microusd) == (7, 12)
    clock.advance(86_400)
    found = history.agent("default", "bot")
    assert found is not None
    assert (found.today_microusd, found.cost_microusd) == (0, 12)


def test_the_list(history: History, clock: FakeClock) -> None:
    """The last seen first; by project; by a part of the name, in any case, where % is a letter like others."""
    now = clock.now()
    for index, (project, agent) in enumerate(
        [("p", "Summariser"), ("q", "summer"), ("p", "100%_sure"), ("p", "writer")]
    ):
        history.write([], used(agent, project=project, requests=1, last_at=now + index), now + index)
    assert [one.agent for one in history.agents()] == ["writer", "100%_sure", "summer", "Summariser"]
    assert [one.agent for one in history.agents("p")] == ["writer", "100%_sure", "Summariser"]
    assert [one.agent for one in history.agents(find="SUM")] == ["summer", "Summariser"]
    assert [one.agent for one in history.agents(find="0%_")] == ["100%_sure"]
    assert [one.agent for one in history.agents(find="%")] == ["100%_sure"]
    assert [one.agent for one in history.agents(most=1)] == ["writer"]
    assert history.agents(find="nobody") == []


def test_settings_stay_whatever_happens(history: History, clock: FakeClock) -> None:
    """Settings at run time, also of an agent that was not seen yet (G-1)."""
    now = clock.now()
    history.set_agent("default", "bot", {"max_steps_per_run": 5, "nested": {"a": [1]}})
    found = history.agent("default", "bot")
    assert found is not None
    assert (found.settings, found.requests, found.first_at, found.callers) == (
        {"max_steps_per_run": 5, "nested": {"a": [1]}},
        0,
        0.0,
        0,
    )
    history.write([], used(requests=1, last_at=now), now)
    found = history.agent("default", "bot")
    assert found is not None
    assert (found.settings["max_steps_per_run"], found.requests, found.first_at, found.last_at) == (5, 1, now, now)
    history.set_agent("default", "bot", {})
    found = history.agent("default", "bot")
    assert found is not None
    assert (found.settings, found.requests) == ({}, 1)


def test_an_agent_without_a_name_is_one(history: History, clock: FakeClock) -> None:
    history.write([], used("", requests=2, last_at=clock.now()), clock.now())
    assert [(one.agent, one.requests) for one in history.agents()] == [("", 2)]
    assert history.totals(clock.now()).requests == 2


def test_callers_are_counted_once(history: History, clock: FakeClock) -> None:
    for hour in range(3):
        for caller in ("key:1", "key:2"):
            now = clock.now() + hour * 4000
            history.write([], used(caller=caller, requests=1, last_at=now), now)
    assert history.agents()[0].callers == 2


def test_only_loops_make_an_agent_too(history: History, clock: FakeClock) -> None:
    history.write([detected(clock.now())], NOTHING(), clock.now())
    assert [(one.agent, one.loops, one.last_at) for one in history.agents()] == [("bot", 1, clock.now())]
