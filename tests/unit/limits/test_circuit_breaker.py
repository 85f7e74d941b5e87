"""The breaker's words and data; how it counts is the store's, and in the contract suite."""

from __future__ import annotations

from breakloop.limits.base import MICROUSD, TOKENS
from breakloop.limits.circuit_breaker import CircuitBreakerLimiter
from breakloop.model.verdict import LimitState, Verdict
from breakloop.store.limit_ops import CheckBreaker
from breakloop.store.ops import BreakerResult
from tests.limiting import Ruled
from tests.stores import NO_RULE


def denial(breaker: CircuitBreakerLimiter, broken: BreakerResult) -> Verdict:
    verdict = Verdict(allowed=False)
    breaker.describe_denial(breaker.plan("brk:k", 1, Ruled(breaker), 0), broken, 0.0, verdict)
    return verdict


def test_what_is_counted() -> None:
    """In units, so that sums are exact (CB-1)."""
    op = CircuitBreakerLimiter(1000, 5).plan("brk:k", 900_000, NO_RULE, 2)
    assert isinstance(op, CheckBreaker)
    assert (op.key, op.amount, op.rule, op.group) == ("brk:k", 900_000, NO_RULE, 2)
    assert (op.spec.threshold, op.spec.reset_s) == (1_000_000, 300)
    assert CircuitBreakerLimiter(2.5, 0, unit=MICROUSD).spec.threshold == 2_500_000


def test_the_request_that_opens_it() -> None:
    """It is denied, told the rate, and when to come again; with jitter (CB-1, CB-2)."""
    verdict = denial(CircuitBreakerLimiter(1000, 5), BreakerResult(True, 1_000_000, 300.0, "opened"))
    assert (verdict.reason, verdict.retry_after_s, verdict.retry_jitter, verdict.never) == (
        "circuit_breaker_open", 300, True, False,
    )  # fmt: skip
    assert verdict.limit == LimitState("p", 1000, 60, 0, 300)
    assert (
        CircuitBreakerLimiter(1000, 5).reason_for(CircuitBreakerLimiter(1, 1).plan("k", 1, NO_RULE, 0))
        == verdict.reason
    )
    assert verdict.message == (
        "Circuit breaker open: 1000 were spent in a minute, and the threshold is 1000 a minute. "
        "It lets a request through again in 300 seconds."
    )


def test_while_it_is_open() -> None:
    """`Retry-After` is the time to the reset, rounded up, and never nothing (CB-2)."""
    breaker = CircuitBreakerLimiter(5000, 5, unit=TOKENS)
    verdict = denial(breaker, BreakerResult(True, 0.0, 12.3))
    assert verdict.retry_after_s == 13
    assert verdict.message == (
        "Circuit breaker open: spending reached its threshold of 5000 tokens a minute. "
        "It lets a request through again in 13 seconds."
    )
    assert denial(breaker, BreakerResult(True, 0.0, 0.0)).retry_after_s == 1


def test_only_an_operator() -> None:
    """Without a reset there is nothing to wait for (CB-2, L-4)."""
    verdict = denial(CircuitBreakerLimiter(2.5, 0, unit=MICROUSD), BreakerResult(True, 2_600_000, 0.0, "opened"))
    assert (verdict.retry_after_s, verdict.never, verdict.limit) == (None, True, None)
    assert verdict.message == (
        "Circuit breaker open: $2.60 were spent in a minute, and the threshold is $2.50 a minute. "
        "Only an operator closes it."
    )


def test_events() -> None:
    """What `breaker.opened` and `breaker.closed` tell, and whether somebody wants to be alerted (CB-2, G-2)."""
    breaker = CircuitBreakerLimiter(1000, 5, alert=True)
    op = breaker.plan("brk:k", 100_000, Ruled(breaker), 0)
    assert breaker.event_data(op, BreakerResult(True, 1_000_000.4, 300.0, "opened")) == {
        "policy": "p", "key": "brk:k", "rate": 1_000_000, "threshold": 1_000_000, "unit": "cost",
        "reset_seconds": 300, "alert": True,
    }  # fmt: skip
    assert CircuitBreakerLimiter(1000, 5).event_data(op, BreakerResult(True, 0.0, 300.0, "opened"))["alert"] is False
