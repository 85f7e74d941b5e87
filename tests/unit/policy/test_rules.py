"""Compiled rules: when they apply, which key they count under, what they do about a missing descriptor."""

from __future__ import annotations

from typing import Any

from breakloop.limits.circuit_breaker import CircuitBreakerLimiter
from breakloop.limits.token_bucket import TokenBucket
from breakloop.model.call import Call
from breakloop.policy.rules import BreakerRule, CompiledRule, FallbackRule, Match
from breakloop.store.limit_ops import TakeTokens
from breakloop.store.ops import Deny
from tests.builders import call


def value_of(name: str, call: Call) -> str | None:
    return call.header(name)


METER: Any = None  # a token bucket asks for no estimate


def rule(
    *keys: str, match: Match = (), rejects: bool = False, kind: type[CompiledRule] = CompiledRule, name: str = "r"
) -> CompiledRule:
    return kind(
        name,
        "p",
        match=match,
        limit_keys=tuple((key, lambda call, key=key: value_of(key, call)) for key in keys),  # type: ignore[misc]
        limiter=TokenBucket(1, 1),
        rejects_missing=rejects,
        status=429,
    )


def no_report(policy: str, rule: str, descriptor: str) -> None:
    raise AssertionError("nothing is missing")


def key_of(made: CompiledRule, asked: Call, project: str = "default", group: int = 0) -> str:
    (op,) = made.plan(asked, project, group, 7.0, METER, no_report)
    assert isinstance(op, TakeTokens)
    assert op.rule is made
    assert op.group == group
    return op.key


def test_keys_name_project_policy_rule_and_values() -> None:
    """Name-spaced by project, policy and rule; `shadow:` in front for shadow (S-2)."""
    asked = call(headers={"a": "x", "b": "y"})
    assert key_of(rule("a", "b"), asked) == "tb:default:p:r:x|y"
    assert key_of(rule("a"), asked, group=3) == "shadow:tb:default:p:r:x"
    assert key_of(rule(), asked) == "tb:default:p:r:"


def test_values_cannot_name_anothers_key() -> None:
    """Parts are escaped, so ("a|b", "c") and ("a", "b|c") count apart, and so do rules (S-2)."""
    made = rule("a", "b")
    one = key_of(made, call(headers={"a": "x|y", "b": "z"}))
    two = key_of(made, call(headers={"a": "x", "b": "y|z"}))
    assert one != two
    assert key_of(rule("a", name="r:x"), call(headers={"a": "y"})) != key_of(rule("a"), call(headers={"a": "x:y"}))
    assert key_of(rule(kind=FallbackRule), call()) != key_of(rule(), call())
    assert key_of(rule(kind=FallbackRule), call()) != key_of(rule(name="|r"), call())


def test_a_missing_descriptor_is_reported_and_skips() -> None:
    """The first missing one is named; with `on_missing: reject` the rule refuses (E-3)."""
    told: list[tuple[str, str, str]] = []

    def report(policy: str, rule: str, descriptor: str) -> None:
        told.append((policy, rule, descriptor))

    asked = call(headers={"a": "x"})
    assert rule("a", "b", "c").plan(asked, "default", 0, 7.0, METER, report) == ()
    refused = rule("b", rejects=True)
    (op,) = refused.plan(asked, "default", 2, 7.0, METER, report)
    assert isinstance(op, Deny)
    assert (op.owner, op.group) == (refused, 2)
    assert told == [("p", "r", "b"), ("p", "r", "b")]
    assert rule("a", "b", "c").missing_keys(asked) == ["b", "c"]


def test_match_is_equality_of_every_descriptor() -> None:
    """All of them; no match at all applies always (E-3)."""
    match: Match = ((lambda call: call.header("a"), "1"), (lambda call: call.header("b"), "2"))
    assert rule(match=match).applies(call(headers={"a": "1", "b": "2"}))
    assert not rule(match=match).applies(call(headers={"a": "1", "b": "3"}))
    assert not rule(match=match).applies(call(headers={"b": "2"}))
    assert rule().applies(call())
    assert not rule(match=match).applies(call())


def test_keys_and_charges_are_two_steps() -> None:
    """Whose it is can be remembered; what it costs is asked each time."""
    made, asked = rule("a"), call(headers={"a": "x"})
    keys = made.keys(asked, "default", 0, no_report)
    assert keys == ["tb:default:p:r:x"]
    (op,) = made.charges(asked, keys, 0, 7.0, METER)
    assert isinstance(op, TakeTokens)
    assert (op.key, op.cost) == ("tb:default:p:r:x", 1.0)


def test_whose_breaker_it_is() -> None:
    """The descriptors and their values, as keys hold them (CB-2, Y-1)."""
    made = BreakerRule(rule("header:x-team", "jwt:sub"), CircuitBreakerLimiter(10, 5))
    assert made.label("blue%7Cgreen|u") == "header:x-team=blue|green, jwt:sub=u"
    assert BreakerRule(rule(), CircuitBreakerLimiter(10, 5)).label("") == ""


def test_a_rule_that_counts_by_agent_is_in_the_agents_place() -> None:
    """Where the agent has one; every other rule is in the project's, whoever asks (E-5)."""
    asked = call(headers={"agent:id": "x", "b": "y"})
    asked.identity.shard = "default|x"
    assert key_of(rule("b", "agent:id"), asked) == "tb:default|x:p:r:y|x"
    assert key_of(rule("b"), asked) == "tb:default:p:r:y"
    assert rule("b", "agent:id").key(asked, "default", 1, "brk") == "shadow:brk:default|x:p:r:y|x"
    assert rule("b").key(asked, "default", 0, "brk") == "brk:default:p:r:y"
