"""The token bucket's numbers, through the engine and on its own."""

from __future__ import annotations

from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from breakloop.limits.token_bucket import TokenBucket
from breakloop.model.call import Call
from breakloop.model.verdict import LimitState, Verdict
from breakloop.store.limit_ops import TakeTokens
from breakloop.store.memory import MemoryStore
from tests.builders import World, bucket, bundle, call, policy, world
from tests.each import each
from tests.stores import NO_RULE


def limited(rate: float = 10, burst: float = 10, **more: Any) -> World:
    return world(bundle(policy("p", bucket(rate=rate, burst=burst, **more))))


def passes(here: World, asked: Call, most: int = 100) -> int:
    for count in range(most):
        if not here.decide(asked).allowed:
            return count
    return most


def left(verdict: Verdict) -> int:
    assert verdict.limit is not None
    return verdict.limit.remaining


def test_ten_a_second() -> None:
    """Burst 10: ten pass, the 11th is denied with 1 s to wait; half a second later one passes and 4 remain (L-1)."""
    here = limited()
    for number in range(10):
        assert left(here.decide(call())) == 9 - number
    denied = here.decide(call())
    assert (denied.allowed, denied.reason, denied.status) == (False, "token_bucket_exceeded", 429)
    assert (denied.retry_after_s, denied.retry_jitter, denied.never) == (1, True, False)
    assert denied.limit == LimitState("p", 10, 1, 0, 1)
    here.clock.advance(0.5)
    assert left(here.decide(call())) == 4


def test_a_bucket_that_fills_at_once() -> None:
    """The window of the `RateLimit-Policy` field has whole seconds, at least one; a request takes one token (A-5)."""
    limiter = TokenBucket(10**8, 10)
    op = limiter.plan(call(), "tb:k", NO_RULE, 0)
    assert op.cost == 1
    assert limiter.describe_limit("p", op, 9.0) == LimitState("p", 10, 1, 9, 0)


def test_cost() -> None:
    """Burst 20 and cost 5: four pass (L-1)."""
    here = limited(1, 20, fixed_cost=5)
    assert passes(here, call()) == 4
    assert here.decide(call()).retry_after_s == 5
    here.clock.advance(5)
    assert passes(here, call()) == 1


def test_keys_are_isolated() -> None:
    """One caller's bucket is not another's, whatever characters the values hold (L-1)."""
    here = limited(1, 2, keys=["header:a", "header:b"])
    people = [("x", "y"), ("x|y", ""), ("x", "y|z"), ("x|y", "z"), ("x%7Cy", "z"), ("x:", "y"), ("x", ":y")]
    for a, b in people:
        if b:
            assert passes(here, call(headers={"a": a, "b": b})) == 2
    assert passes(here, call(headers={"a": "x", "b": "y"})) == 0


def test_it_never_holds_more_than_the_burst() -> None:
    """A long silence fills it, and no more (L-1)."""
    here = limited(10, 12)
    assert passes(here, call()) == 12
    here.clock.advance(10_000)
    assert passes(here, call()) == 12


def test_a_clock_that_goes_back_refills_nothing() -> None:
    """Neither the step back nor the way to where it was before (L-1)."""
    here = limited(1, 5)
    assert passes(here, call()) == 5
    here.clock.advance(-1)
    assert passes(here, call()) == 0
    here.clock.advance(1)
    assert passes(here, call()) == 0
    here.clock.advance(1)
    assert passes(here, call()) == 1


@each("source", ["header:X-Cost", "query:cost"])
@each(
    "value, cost",
    [("4", 4), ("2.5", 2.5), (None, 2), ("", 2), ("0", 2), ("-3", 2), ("abc", 2), ("nan", 2), ("inf", 2), ("1e999", 2)],
)
def test_cost_of_a_request(source: str, value: str | None, cost: float) -> None:
    """From a header or query field; nonsense, nothing and less cost the default: nobody gets in free (L-1)."""
    here = limited(1, 10, cost_source=source, default_cost=2)
    asked = call()
    if value is not None:
        asked = call(headers={"x-cost": value}) if source.startswith("header") else call(query=f"cost={value}")
    assert left(here.decide(asked)) == int(10 - cost)


def test_a_cost_over_the_burst_can_never_pass() -> None:
    """No `Retry-After`, no retry, and the message says why; the bucket is not touched (L-4)."""
    here = limited(1, 10, cost_source="header:x-cost")
    verdict = here.decide(call(headers={"x-cost": "11"}))
    assert (verdict.allowed, verdict.retry_after_s, verdict.never) == (False, None, True)
    assert verdict.message == "This request costs 11, more than the bucket holds (10)."
    assert verdict.limit == LimitState("p", 10, 10, 10, 0)
    assert here.decide(call(headers={"x-cost": "10"})).allowed


def test_slow_buckets() -> None:
    """One in ten seconds: the wait is told, and it is enough (L-1)."""
    here = limited(0.1, 1)
    assert passes(here, call()) == 1
    here.clock.advance(2.5)
    assert here.decide(call()).retry_after_s == 8
    here.clock.advance(8)
    assert passes(here, call()) == 1


def test_limit_state() -> None:
    """Quota, window to fill it, what remains and when it is full again (A-1)."""
    limiter = TokenBucket(2, 9)
    op = limiter.plan(call(), "k", NO_RULE, 0)
    assert limiter.describe_limit("p", op, 4.5) == LimitState("p", 9, 5, 4, 3)
    assert limiter.describe_limit("p", op, -0.25) == LimitState("p", 9, 5, 0, 5)


@given(
    rate=st.sampled_from([0.01, 0.02, 0.07, 0.1, 0.3, 1 / 3, 1 / 49, 0.7, 1, 1.1, 3, 7]),
    burst=st.integers(1, 50),
    cost=st.integers(1, 50),
    start=st.integers(0, 3),
)
@example(rate=1 / 49, burst=21, cost=3, start=0)
def test_whoever_waits_as_told_passes(rate: float, burst: int, cost: int, start: int) -> None:
    """`Retry-After` is the truth: after that many seconds the same request passes (A-2)."""
    burst = max(burst, int(rate) + 1, cost)
    limiter, store, now = TokenBucket(rate, burst, fixed_cost=cost), MemoryStore(), 1_800_000_000.0 + start / 7
    for _ in range(60):
        op = limiter.plan(call(), "k", NO_RULE, 0)
        assert isinstance(op, TakeTokens)
        result = store.commit([op], now).results[0]
        assert isinstance(result, float)
        if result < 0:
            wait_s = limiter.retry_after_s(op, result)
            assert wait_s is not None
            assert wait_s >= 1
            assert store.commit([op], now + wait_s).denied_at == -1
            return
    raise AssertionError("the bucket never emptied")


def test_what_explain_shows() -> None:
    """What a request takes, and what is left with it, or was there for it (L-1)."""
    limiter = TokenBucket(1, 10)
    op = TakeTokens(limiter.spec, "tb:k", 4.0, limiter, NO_RULE)
    assert [limiter.explain(op, left) for left in (6.0, 0.0, -1.0)] == [
        "reserves 4, 6 of 10 left",
        "reserves 4, 0 of 10 left",
        "reserves 4, only 3 of 10 available",
    ]


def test_a_denial_changes_nothing_that_is_shown_later() -> None:
    """The state of a full bucket is kept and shown again; that of a denial has the time until the retry (A-5)."""
    here = limited(0.1, 1)
    first = here.decide(call()).limit
    assert first == LimitState("p", 1, 10, 0, 10)
    here.clock.advance(4)
    assert here.decide(call()).limit == LimitState("p", 1, 10, 0, 6)
    here.clock.advance(6)
    assert here.decide(call()).limit == LimitState("p", 1, 10, 0, 10) == first
