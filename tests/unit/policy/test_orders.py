"""What is ordered at run time: checked as in the bundle, and laid over it (K-1, K-2, K-3)."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

from breakloop.errors import OrderError
from breakloop.policy.compiled import CompiledKillSwitch
from breakloop.policy.orders import NO_ORDERS, Orders, check_override, checked_agent, checked_switch, checked_text
from tests.builders import START, at, bundle, call, world
from tests.each import each


def switch(value: str, **more: Any) -> CompiledKillSwitch:
    return CompiledKillSwitch(0, "header:x-team", value, id="a1", **more)


def test_without_orders_the_bundle_is_the_very_same() -> None:
    """The hot path is as it was."""
    here = world(bundle())
    assert here.engine.bundle is not None
    assert NO_ORDERS.over(here.engine.bundle) is here.engine.bundle
    assert Orders().over(here.engine.bundle) is here.engine.bundle


def test_a_switch_stops_as_one_of_the_bundle_does() -> None:
    """Reason, Retry-After, and the name that it can be lifted by (K-2, K-3)."""
    here = world(bundle())
    here.engine.apply_orders(Orders((switch("red", reason="INC-1", expires=START + 60),)))
    verdict = here.decide(call(headers={"x-team": "red"}))
    assert (verdict.reason, verdict.status, verdict.retry_after_s) == ("kill_switch", 429, 60)
    assert verdict.rule == "kill_switch/a1"
    assert verdict.message.endswith(": INC-1")
    assert here.decide(call(headers={"x-team": "blue"})).allowed
    here.clock.advance(60)
    assert here.decide(call(headers={"x-team": "red"})).allowed


def test_those_of_the_bundle_come_first_and_stay() -> None:
    """The first match wins (K-2)."""
    own = {"scope_key": "header:x-team", "scope_value": "red"}
    here = world(bundle(kill_switches=[own]))
    here.engine.apply_orders(Orders((switch("red"), switch("blue"))))
    assert here.decide(call(headers={"x-team": "red"})).rule == "kill_switches[0]"
    assert here.decide(call(headers={"x-team": "blue"})).rule == "kill_switch/a1"
    here.engine.apply_orders(NO_ORDERS)
    assert here.decide(call(headers={"x-team": "red"})).rule == "kill_switches[0]"
    assert here.decide(call(headers={"x-team": "blue"})).allowed


def test_orders_outlive_a_new_bundle() -> None:
    here = world(bundle())
    here.engine.apply_orders(Orders((switch("red"),)))
    here.use(bundle(bundle_version=2))
    assert here.decide(call(headers={"x-team": "red"})).reason == "kill_switch"


def test_orders_wait_for_the_first_bundle() -> None:
    """Orders wait for the first bundle (E-0)."""
    here = world(load=False)
    here.engine.apply_orders(Orders((switch("red"),)))
    assert here.decide(call(headers={"x-team": "red"})).reason == "no_bundle_loaded"
    here.use(bundle())
    assert here.decide(call(headers={"x-team": "red"})).reason == "kill_switch"


def test_the_override_skips_switches_of_both_kinds() -> None:
    """kill_switch_override active: kill switches are skipped, whoever set them (K-1)."""
    own = {"scope_key": "header:x-team", "scope_value": "blue"}
    here = world(bundle(kill_switches=[own]))
    here.engine.apply_orders(Orders((switch("red"),), kill_override_until=START + 10))
    assert here.decide(call(headers={"x-team": "red"})).allowed
    assert here.decide(call(headers={"x-team": "blue"})).allowed
    here.clock.advance(10)
    assert here.decide(call(headers={"x-team": "red"})).reason == "kill_switch"
    assert here.decide(call(headers={"x-team": "blue"})).reason == "kill_switch"


def test_the_longer_of_two_overrides_counts() -> None:
    """The bundle's own, and the one set at run time (K-1)."""
    shadow = {"enabled": True, "reason": "drill", "expires_at": at(100)}
    here = world(bundle(global_shadow=shadow))
    here.engine.apply_orders(Orders(shadow_until=START + 10))
    here.clock.advance(50)
    enforces = [here.engine.enforces]
    here.use(bundle())
    enforces.append(here.engine.enforces)
    here.engine.apply_orders(Orders(shadow_until=START + 60))
    assert [*enforces, here.engine.enforces] == [False, True, False]


def test_fields_are_as_the_bundle_would_have_them() -> None:
    given = {"scope_key": "header:X_Team", "scope_value": "red", "route": "", "reason": ""}
    assert checked_switch(given, math.inf) == {
        "scope_key": "header:x-team",
        "scope_value": "red",
        "route": "",
        "reason": "",
    }


@each(
    "field, value, problem",
    [
        ("scope_key", "agent", "scope_key: "),
        ("scope_key", "", "scope_key: is required"),
        ("scope_value", "", "scope_value: is required"),
        ("scope_value", "  ", "scope_value: must not be empty"),
        ("scope_value", 5.5, "scope_value: must be text"),
        ("route", "v1", 'route: must begin with "/"'),
        ("reason", "x" * 257, "reason: must be at most 256 characters, got 257"),
        ("scope_key", "header:authorization", "scope_key: header:authorization is a secret"),
        ("scope_key", "header:X_Api_Key", "scope_key: header:x-api-key is a secret"),
        ("scope_key", "query:key", "scope_key: query:key is a secret"),
    ],
)
def test_what_is_wrong_is_said_by_field(field: str, value: Any, problem: str) -> None:
    """The same checks as in a bundle, and no secret is kept (K-3, Y-1)."""
    given = {"scope_key": "agent:id", "scope_value": "nightly", "route": "/v1/*", "reason": "why"} | {field: value}
    with pytest.raises(OrderError) as caught:
        checked_switch(given, START)
    assert any(said.startswith(problem) for said in caught.value.problems), caught.value.problems
    assert str(caught.value) == "; ".join(caught.value.problems)


@pytest.mark.parametrize(
    ("name", "reason", "expires_at", "problem"),
    [
        ("local_shadow", "why", START, "name: must be one of global_shadow, kill_switch_override"),
        ("global_shadow", "", START, "reason: is required"),
        ("global_shadow", " ", START, "reason: is required"),
        ("global_shadow", "x" * 257, START, "reason: must be at most 256 characters"),
        ("kill_switch_override", "why", None, "expires_at: is required"),
        ("kill_switch_override", "why", math.inf, "expires_at: is required"),
        ("kill_switch_override", "why", 1e13, "expires_at: is not a time"),
        ("kill_switch_override", "why", 1e17, "expires_at: is not a time"),
        ("kill_switch_override", "why", 1e300, "expires_at: is not a time"),
        ("kill_switch_override", "why", math.nan, "expires_at: is not a time"),
    ],
)
def test_an_override_needs_a_reason_and_an_end(name: str, reason: str, expires_at: float | None, problem: str) -> None:
    """An override needs a reason and an end (K-1)."""
    check_override("global_shadow", "drill", START)
    with pytest.raises(OrderError) as caught:
        check_override(name, reason, expires_at)
    assert any(said.startswith(problem) for said in caught.value.problems), caught.value.problems


def test_words_for_people_are_bounded() -> None:
    assert checked_text("by", "ann") == "ann"
    assert checked_text("by", "", required=False) == ""
    assert checked_text("by", "x" * 256)
    for wrong in ("", "  ", "x" * 257):
        with pytest.raises(OrderError, match="by: must"):
            checked_text("by", wrong)


def test_an_agents_settings_are_checked_as_in_the_bundle() -> None:
    """The same fields and words; what is not said is not made up, and None is left out (G-1, B-1)."""
    assert checked_agent({"allowed_hours": [8, 18], "active": None}) == {"allowed_hours": "08:00-18:00"}
    assert checked_agent({"rate_limit": {"requests_per_minute": 5}}) == {"rate_limit": {"requests_per_minute": 5}}
    for wrong in ({"budget": 1}, {"budget": None}, {"budget_usd_per_day": -1}, {"max_steps_per_run": "5"}):
        with pytest.raises(OrderError, match=next(iter(wrong))):
            checked_agent(wrong)


def test_what_is_refused_says_what_to_write_instead() -> None:
    """The same words as for the bundle (K-3)."""
    with pytest.raises(OrderError, match=re.escape('route: must begin with "/", got "v1" (write "/v1")')):
        checked_switch({"scope_key": "agent:id", "scope_value": "a", "route": "v1"}, math.inf)
    with pytest.raises(OrderError) as caught:
        checked_switch({"scope_key": "agent:id"}, math.inf)
    assert "()" not in str(caught.value)
