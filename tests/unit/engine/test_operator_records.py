"""Holds, switches and overrides as records, and back."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from breakloop.engine.operator import held_key, hold_of, hold_value, override_of, switch_of
from breakloop.engine.quarantine import AGENT, CALLER, NAME, RUN, Hold, hold_key
from breakloop.policy.compiled import CompiledKillSwitch
from breakloop.store.orders import LIFTED, Order, read

NOW = 1_800_000_000.0
HOLDS = [
    Hold(AGENT, "p", "key:1", "a:b", NOW, math.inf, "it loops", clears=("win:p:1:", "cnt:p:x")),
    Hold(CALLER, "p", "key:1", "", NOW, NOW + 5, "they loop"),
    Hold(NAME, "p", "", "a", NOW, math.inf, "by hand", by="ann"),
    Hold(RUN, "p", "key:1", "a", NOW, math.inf, "50 steps", "run \ud800"),
]


def kept(hold: Hold) -> Order:
    """The record of a hold, after a trip through file or network."""
    record = read(Order("hold", hold_key(hold), hold_value(hold), hold.until, NOW).text())
    assert record is not None
    return record


@pytest.mark.parametrize("hold", HOLDS, ids=lambda hold: hold.binds)
def test_a_hold_comes_back_whole(hold: Hold) -> None:
    assert hold_of(kept(hold), NOW) == hold
    assert held_key(kept(hold)) == hold.key


def test_different_holds_have_different_keys() -> None:
    """Names that a client chooses are escaped."""
    one = Hold(AGENT, "p", "a:b", "c", NOW, math.inf, "")
    two = Hold(AGENT, "p", "a", "b:c", NOW, math.inf, "")
    assert len({hold_key(hold) for hold in (*HOLDS, one, two)}) == 6
    assert hold_key(one) == "agent:p:a%3Ab:c"


@pytest.mark.parametrize(
    "change",
    [{"why": 1}, {"since": "x"}, {"clears": "win:"}, {"clears": [1]}, {"agent": None}],
)
def test_a_hold_that_is_not_understood_is_left_alone(change: dict[str, Any]) -> None:
    record = kept(HOLDS[0])
    assert hold_of(replace(record, value=record.value | change), NOW) is None


def test_a_hold_of_the_future_begins_now() -> None:
    """The clock was set back while the process was stopped: it lasts as long as it was meant to, from now on (S-2)."""
    hold = replace(HOLDS[0], until=NOW + 60)
    for behind_s in (0.5, 3600.0):
        assert hold_of(kept(hold), NOW - behind_s) == replace(hold, since=NOW - behind_s, until=NOW - behind_s + 60)
    assert hold_of(kept(hold), NOW + 59) == hold


@pytest.mark.parametrize("of", [None, "agent", ["agent", "p"], ["agent", "p", "c", 1]])
def test_an_end_that_is_not_understood_ends_nothing(of: Any) -> None:
    assert held_key(Order("hold", "k", {"of": of}, LIFTED, NOW)) is None


def test_a_switch_comes_back_and_is_compiled() -> None:
    value = {"scope_key": "agent:id", "scope_value": "a", "route": "/v1/*", "reason": "why", "by": "ann"}
    made = switch_of(Order("switch", "id1", value, NOW + 5, NOW))
    assert made is not None
    assert (made.id, made.by, made.since, made.expires_at) == ("id1", "ann", NOW, NOW + 5)
    assert made.compiled(3) == CompiledKillSwitch(3, "agent:id", "a", "/v1/*", "why", NOW + 5, "id1")


@pytest.mark.parametrize(
    "value", [{}, {"scope_key": "new:thing", "scope_value": "a"}, {"scope_key": 1, "scope_value": []}]
)
def test_a_switch_of_another_version_is_left_alone(value: dict[str, Any]) -> None:
    """Or the next request would fail on a descriptor that does not exist here."""
    assert switch_of(Order("switch", "id1", value, math.inf, NOW)) is None


def test_an_override_comes_back() -> None:
    made = override_of(Order("override", "global_shadow", {"reason": "drill", "by": "ann"}, NOW + 5, NOW))
    assert made == ("global_shadow", "drill", NOW + 5, "ann", NOW)
    assert override_of(Order("override", "unheard_of", {"reason": "drill"}, NOW + 5, NOW)) is None
