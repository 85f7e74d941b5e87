"""Snoozes and settings of single agents, ordered at run time."""

from __future__ import annotations

from pathlib import Path

import pytest

from breakloop.engine.operator import Operator
from breakloop.errors import OrderError
from breakloop.model.verdict import Verdict
from breakloop.store.orders import FileOrderStore
from tests.builders import Json, World, bundle, call, chat, exact, policy, tail, world
from tests.unit.engine.test_procedure import stuck

RULES = bundle(
    policy("p", loop=[tail(max_hits=2), {"similarity": "steps"}]),
    agents={"bot*": {"rate_limit": {"requests_per_minute": 60}, "timezone": "Europe/Berlin"}},
)


def operated(rules: Json, folder: Path | None = None) -> tuple[World, Operator]:
    here = world(rules)
    operator = Operator(here.engine, FileOrderStore(folder, lambda _trouble: None), here.clock, here.events.append)
    operator.start()
    return here, operator


def asked(here: World, agent: str = "bot-1") -> Verdict:
    return here.engine.decide(call("/x", headers={"x-agent-id": agent}))


def test_a_loop_may_go_on_for_a_while() -> None:
    """By the fingerprint of its denial; other loops are stopped, and this one again when the time is over (LD-6)."""
    here, operator = operated(bundle(policy("p", loop=exact(2))))
    here.engine.decide(call("/x"))
    denied = here.engine.decide(call("/x"))
    assert denied.loop is not None
    operator.snooze(denied.loop.fingerprint, here.clock.now() + 100, "ann")
    assert [here.engine.decide(call("/x")).allowed for _ in range(5)] == [True] * 5
    assert [here.engine.decide(call("/y")).allowed for _ in range(2)] == [True, False]
    assert list(operator.snoozes()) == [denied.loop.fingerprint]
    here.clock.advance(101)
    assert [here.engine.decide(call("/x")).allowed for _ in range(2)] == [True, False]


def test_a_loop_of_steps_too() -> None:
    """What a detector with a memory finds is found, and passes (LD-4, LD-6)."""
    here, operator = operated(bundle(policy("p", loop={"similarity": "steps"})))
    verdicts = []
    for count in range(6):
        verdicts.append(here.engine.decide(chat(*stuck(count))))
        here.clock.advance(3)
    denied = verdicts[-1]
    assert denied.loop is not None
    operator.snooze(denied.loop.fingerprint, here.clock.now() + 1000, "ann")
    assert here.engine.decide(chat(*stuck(6))).allowed


def test_settings_of_an_agent_lie_over_those_of_the_bundle() -> None:
    """What is not set stays as the bundle has it; None takes a field back (G-1)."""
    here, operator = operated(RULES)
    assert asked(here).allowed
    assert operator.set_agent("bot-1", {"active": False}, "ann") == {"active": False}
    assert asked(here).reason == "agent_inactive"
    assert asked(here, "bot-2").allowed
    operator.set_agent("bot-1", {"active": None, "max_steps_per_run": 5}, "ann")
    assert operator.agent_settings() == {"bot-1": {"max_steps_per_run": 5}}
    verdict = asked(here)
    assert verdict.allowed
    assert verdict.limit is not None
    assert verdict.limit.quota == 60  # of the bundle's pattern
    operator.set_agent("bot-1", {"max_steps_per_run": None}, "ann")
    assert operator.agent_settings() == {}


def test_an_agent_that_the_bundle_does_not_know() -> None:
    """An agent that the bundle does not know (G-1)."""
    here, operator = operated(bundle())
    operator.set_agent("other", {"rate_limit": {"requests_per_minute": 2}}, "ann")
    assert [asked(here, "other").allowed for _ in range(3)] == [True, True, False]


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"active": "perhaps"}, "active"),
        ({"actve": True}, "actve"),
        ({"timezone": "Mars/Olympus"}, "timezone"),
    ],
)
def test_wrong_settings_change_nothing(settings: Json, problem: str) -> None:
    """In the words of the bundle (B-2)."""
    here, operator = operated(RULES)
    with pytest.raises(OrderError, match=problem):
        operator.set_agent("bot-1", settings, "ann")
    assert asked(here).allowed
    assert operator.agent_settings() == {}


def test_both_survive_a_restart(tmp_path: Path) -> None:
    """On disk before they are acknowledged (S-1)."""
    first, operator = operated(RULES, tmp_path)
    operator.set_agent("bot-1", {"active": False}, "ann")
    operator.snooze("f" * 32, first.clock.now() + 100, "ann")
    here, again = operated(RULES, tmp_path)
    assert asked(here).reason == "agent_inactive"
    assert again.snoozes() == {"f" * 32: first.clock.now() + 100}


def test_a_new_bundle_keeps_them() -> None:
    """Orders lie over whatever bundle is in force (B-3)."""
    here, operator = operated(RULES)
    operator.set_agent("bot-1", {"active": False}, "ann")
    here.engine.set_bundle(world(bundle()).engine.bundle)  # type: ignore[arg-type]  # a world has one
    assert asked(here).reason == "agent_inactive"
