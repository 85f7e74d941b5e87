"""Circuit breakers for an operator: listed, and closed at once."""

from __future__ import annotations

from typing import Any

import pytest

from breakloop.errors import StateError
from breakloop.policy.descriptors import ContextSettings
from breakloop.sdk.core import run_blocking
from tests.builders import SECRET, FailingStore, Json, World, at, bucket, bundle, call, policy, world


def breaking(minutes: int = 5, keys: tuple[str, ...] = ("header:x-team",), **more: Any) -> Json:
    rule = bucket(rate=10_000, burst=100_000, keys=list(keys), cost_source="header:x-cost")
    breaker = {"enabled": True, "spend_rate_threshold_per_minute": 1000, "auto_reset_after_minutes": minutes}
    return policy("p", rule, circuit_breaker=breaker, **more)


def spend(here: World, cost: int, team: str = "a") -> str:
    headers = {"x-team": team, "x-cost": str(cost), "authorization": "Bearer sk-secret"}
    verdict = here.decide(call(headers=headers))
    return "" if verdict.allowed else verdict.reason


def test_breakers_are_listed_with_their_state() -> None:
    """Open, half-open when its time has come, closed while it has a rate; whose, and in which unit (CB-2, X-1)."""
    here = world(bundle(breaking()))
    assert spend(here, 1000) == "circuit_breaker_open"
    assert spend(here, 400, "b") == ""
    now = here.clock.now()
    opened, closed = run_blocking(here.breakers.states())
    assert (opened.policy, opened.label, opened.state) == ("p", "header:x-team=a", "open")
    assert (opened.opened_at, opened.resets_at) == (now, now + 300)
    assert (opened.rate, opened.threshold, opened.unit, opened.project) == (1_000_000, 1_000_000, "cost", "default")
    assert (closed.label, closed.state, closed.rate) == ("header:x-team=b", "closed", 400_000)
    assert (closed.opened_at, closed.resets_at) == (None, None)
    here.clock.advance(300)
    [waiting] = run_blocking(here.breakers.states())
    assert (waiting.state, waiting.rate) == ("half-open", 0)


def test_an_operator_closes_one_at_once() -> None:
    """With nothing counted against it; told with `by: operator`; the others stay as they are (CB-2)."""
    here = world(bundle(breaking(0)))
    assert [spend(here, 1000), spend(here, 1000, "b"), spend(here, 1)] == ["circuit_breaker_open"] * 3
    [first, second] = run_blocking(here.breakers.states())
    assert (first.resets_at, second.label) == (None, "header:x-team=b")
    was = run_blocking(here.breakers.reset("p", first.key))
    assert was == first
    assert [spend(here, 999), spend(here, 1, "b")] == ["", "circuit_breaker_open"]
    [event] = here.named("breaker.closed")
    assert (event["policy"], event["key"], event["by"], event["unit"]) == ("p", first.key, "operator", "cost")
    assert run_blocking(here.breakers.reset("p", first.key)) is None


@pytest.mark.parametrize(
    ("named", "key"), [("q", "brk:default:p:r:a"), ("p", "brk:default:p:r:"), ("p", ""), ("p", "tb:default:p:r:a")]
)
def test_what_is_no_open_breaker_is_left_alone(named: str, key: str) -> None:
    here = world(bundle(breaking(0)))
    spend(here, 1000)
    assert run_blocking(here.breakers.states())[0].key == "brk:default:p:r:a"
    assert run_blocking(here.breakers.reset(named, key)) is None
    assert here.named("breaker.closed") == []
    assert spend(here, 1) == "circuit_breaker_open"


def test_a_key_that_begins_like_another() -> None:
    """The breaker "a" is closed by its own name, and "ab" is not closed with it (CB-2)."""
    here = world(bundle(breaking(0)))
    for team in ("ab", "a"):
        spend(here, 1000, team)
    assert run_blocking(here.breakers.reset("p", "brk:default:p:r:a")) is not None
    assert [one.label for one in run_blocking(here.breakers.states())] == ["header:x-team=ab"]


def test_keys_are_shown_as_a_digest() -> None:
    """Nothing of an API key is in it (Y-1)."""
    here = world(bundle(breaking(keys=("header:authorization", "header:x-team"))))
    spend(here, 1000)
    [one] = run_blocking(here.breakers.states())
    assert "secret" not in repr(one)
    assert one.label.endswith(", header:x-team=a")


def test_shadow_breakers_say_so() -> None:
    """Of a policy in shadow, and of all in global shadow (E-1, K-1)."""
    here = world(bundle(breaking(mode="shadow")))
    assert spend(here, 1000) == ""
    [one] = run_blocking(here.breakers.states())
    assert (one.state, one.shadow) == ("open", True)
    assert [event["shadow"] for event in here.named("breaker.opened")] == [True]
    assert run_blocking(here.breakers.reset("p", one.key)) is not None
    assert here.named("breaker.closed")[0]["shadow"] is True
    shadow = {"enabled": True, "reason": "drill", "expires_at": at(600)}
    here.use(bundle(breaking(), global_shadow=shadow))
    spend(here, 1000)
    assert [one.shadow for one in run_blocking(here.breakers.states())] == [True]
    enforced = world(bundle(breaking()))
    spend(enforced, 1000)
    assert [event["shadow"] for event in enforced.named("breaker.opened")] == [False]


def test_what_no_policy_has_any_more_is_not_listed() -> None:
    here = world(bundle(breaking()))
    spend(here, 1000)
    here.use(bundle(policy("other", bucket())))
    assert run_blocking(here.breakers.states()) == []
    assert run_blocking(world(load=False).breakers.states()) == []


def test_a_store_that_is_gone_is_said() -> None:
    """An operator is told, unlike a client (S-4)."""
    here = world(bundle(breaking()), store=FailingStore())
    with pytest.raises(StateError):
        run_blocking(here.breakers.states())


def test_an_agents_own_breaker_names_its_project() -> None:
    """`shard_by: agent` puts the agent beside the project in its key (CB-2, E-5)."""
    here = world(bundle(breaking(keys=("agent:id",))), settings=ContextSettings(secret=SECRET, shard_by_agent=True))
    here.decide(call(headers={"x-agent-id": "bot", "x-cost": "1000"}))
    [opened] = run_blocking(here.breakers.states())
    assert (opened.project, opened.label, opened.state) == ("default", "agent:id=bot", "open")
    assert opened.key.startswith("brk:default|bot:p:")
    assert run_blocking(here.breakers.reset("p", opened.key)) == opened
