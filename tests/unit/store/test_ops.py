"""Operations as data."""

from __future__ import annotations

from breakloop.store.limit_ops import BreakerSpec, BucketSpec, BudgetSpec, ChargeBudget, CheckBreaker, TakeTokens
from breakloop.store.ops import (
    ENFORCED,
    ActualUse,
    AdjustCharge,
    BreakerResult,
    CommitResult,
    CountFingerprint,
    Deny,
    FingerprintCount,
    FingerprintSpec,
    Settle,
    WindowWrite,
    blocked_at_once,
)
from tests.stores import NO_LIMITER, NO_OWNER, NO_RULE


def test_a_repeat_takes_the_limit_of_its_spec_unless_told() -> None:
    """An announced number replaces it; 0 is a number too (LD-6)."""
    spec = FingerprintSpec(60.0, 5)
    assert CountFingerprint(spec, "k", NO_OWNER).limit == 5
    assert CountFingerprint(spec, "k", NO_OWNER, own_limit=9).limit == 9
    assert CountFingerprint(spec, "k", NO_OWNER, own_limit=0).limit == 0


def test_operations_are_enforced_unless_they_say_otherwise() -> None:
    """Shadow is asked for, never the default (E-1)."""
    assert CountFingerprint(FingerprintSpec(60.0, 5), "k", NO_OWNER).group == ENFORCED
    assert TakeTokens(BucketSpec(1.0, 1.0), "k", 1.0, NO_LIMITER, NO_RULE).group == ENFORCED
    assert ChargeBudget(BudgetSpec(1), "k", 1, 9.0, NO_LIMITER, NO_RULE).group == ENFORCED
    assert CheckBreaker(BreakerSpec(1.0, 0.0), "k", 1.0, NO_LIMITER, NO_RULE).group == ENFORCED
    assert Deny(NO_OWNER).group == ENFORCED


def test_nothing_found_is_the_default() -> None:
    """A result that says nothing denies nothing (E-4)."""
    assert FingerprintCount(1) == (1, False, False, 0.0, 0, False, 0)
    assert BreakerResult(False, 7.0) == (False, 7.0, 0.0, "")
    assert CommitResult([]).denied_at == -1
    assert CommitResult([]).conflict is None
    assert CommitResult([]).at == 0.0


def test_a_loop_that_is_known_lets_one_request_pass_after_each_cooldown() -> None:
    """Within a minute, and blocks the first one there is (LD-6)."""
    spec = blocked_at_once(30.0, 2.0, 100.0)
    assert (spec.at_once, spec.limit, spec.window_s, spec.sliding, spec.denies) == (True, 1, 60.0, True, True)
    assert [spec.next_cooldown_s(before_s) for before_s in (None, 30.0, 60.0)] == [30.0, 60.0, 100.0]


def test_an_answer_without_usage_costs_nothing() -> None:
    """And a correction creates no account, unless it is told of one (L-5)."""
    assert ActualUse() == (0, 0)
    correction = AdjustCharge(BudgetSpec(1), "k", 1)
    assert (correction.known, correction.ends) == (0, 0.0)


def test_the_versions_of_a_window_begin_with_1() -> None:
    """And 0 is that of none (E-5)."""
    assert WindowWrite("k", 0, b"", 60.0).becomes == 1
    assert WindowWrite("k", 1, b"", 60.0).becomes == 2
    assert WindowWrite("k", 0, b"", 60.0, first=7, step=3).becomes == 7
    assert WindowWrite("k", 7, b"", 60.0, first=7, step=3).becomes == 10


def test_nothing_is_free_unless_asked_for() -> None:
    """Only a request whose end will be told joins others; only a spec that says so forgives (LD-6)."""
    spec = FingerprintSpec(60.0, 5)
    assert (spec.concurrent_free, spec.retry_free, spec.land_calls) == (0, 0, 0)
    assert (spec.sliding, spec.denies, spec.at_once) == (False, True, False)
    assert (spec.cooldown_s, spec.growth, spec.cooldown_max_s) == (0.0, 1.0, 0.0)
    assert CountFingerprint(spec, "k", NO_OWNER).tracked is False
    assert CountFingerprint(spec, "k", NO_OWNER, tracked=True).tracked is True
    assert Settle(spec, "k", 7.0).flight == 0


def test_commits_are_compared_by_what_they_did() -> None:
    """Stores keep their own time (S-1)."""
    assert CommitResult([1.0], 0, None, 7.0) == CommitResult([1.0], 0, None, 8.0)
