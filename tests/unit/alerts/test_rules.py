"""Which events a rule is about."""

from __future__ import annotations

from typing import Any

import pytest

from breakloop.alerts.rules import ANY, TYPES, AlertRule
from breakloop.model import events
from breakloop.model.events import Event
from tests.alert_world import NOW, killed, limited, loop, released
from tests.each import each

SHADOW = Event(events.SHADOW_WOULD_REJECT, NOW, {"policy": "p", "rule": "r", "reason": "x"})


def rule(*types: str, **others: Any) -> AlertRule:
    return AlertRule(name="r", type=list(types), targets=["mail"], **others)


def test_every_type_is_accepted() -> None:
    assert rule(*TYPES, ANY).type == [*TYPES, ANY]


@each(
    "types, event, wanted",
    [
        (("kill_switch",), killed(), True),
        (("kill_switch",), loop(), False),
        (("loop",), loop(), True),
        (("loop", "kill_switch"), killed(), True),
        (("limit",), limited(), True),
        (("shadow",), SHADOW, True),
        (("any",), loop(), True),
        (("any",), limited(), True),
        (("any",), released(), False),
        (("any",), SHADOW, False),
        (("agent.released",), released(), True),
        (("bundle",), Event(events.BUNDLE_EXPIRED, NOW, {}), True),
    ],
)
def test_types_and_names(types: tuple[str, ...], event: Event, wanted: bool) -> None:
    """`kill_switch` is `agent.killed`; names of events do too (G-4)."""
    assert rule(*types).matches(event) is wanted


def test_agents_and_projects() -> None:
    """Agents and projects: by patterns (G-4)."""
    assert rule("loop", agent="sum*").matches(loop())
    assert not rule("loop", agent="code-*").matches(loop())
    assert not rule("loop", agent="?*").matches(loop(""))
    assert not rule("loop", project="other").matches(loop())


@pytest.mark.parametrize(("least", "done", "wanted"), [("reject", "warn", False), ("reject", "reject", True), ("reject", "cut", True), ("reject", "kill", True), ("kill", "reject", False), ("warn", "odd", False), ("", "odd", True)])  # fmt: skip
def test_how_grave(least: str, done: str, wanted: bool) -> None:
    """Of loops, what was at least done about them (G-4)."""
    assert rule("loop", min_action=least).matches(loop(action=done)) is wanted
    assert rule("kill_switch", min_action=least).matches(killed())


def test_shadow_is_asked_for() -> None:
    """By default only what was enforced (G-4)."""
    assert not rule("loop").matches(loop(shadow=True))
    assert rule("loop", shadow=True).matches(loop(shadow=True))
    assert rule("any", shadow=True).matches(SHADOW)


def test_a_breaker_that_is_to_wake_nobody() -> None:
    """`alert: false` of its policy (CB-2)."""
    for alert in (True, False):
        assert rule("breaker").matches(Event(events.BREAKER_OPENED, NOW, {"alert": alert})) is alert
