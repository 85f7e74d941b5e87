"""Limits in memory beyond the contract: bounded, gone when their time is over, and what is open stays open."""

from __future__ import annotations

import math

from breakloop.store.memory import MemoryLimits
from breakloop.store.ops import (
    AdjustCharge,
    BreakerResult,
    BreakerSpec,
    BucketSpec,
    BudgetSpec,
    ChargeBudget,
    CheckBreaker,
    TakeTokens,
)
from tests.stores import NO_LIMITER, NO_RULE

NOW = 1_800_000_000.0
HOUR = 3600.0
TEN = BucketSpec(0.5, 10.0)
HUNDRED = BudgetSpec(100)
QUICK = BreakerSpec(10.0, 60.0)
FOR_EVER = BreakerSpec(10.0, 0.0)


def charged(limits: MemoryLimits, key: str, cost: int, ends: float, now: float = NOW) -> int:
    op = ChargeBudget(HUNDRED, key, cost, ends, NO_LIMITER, NO_RULE)
    used = limits.used(op, now)
    limits.charge([(op, used)], {}, now)
    return used


def meter(limits: MemoryLimits, key: str, amount: float, at: float = 0.0, spec: BreakerSpec = QUICK) -> BreakerResult:
    return limits.check(CheckBreaker(spec, key, amount, NO_LIMITER, NO_RULE), NOW + at)


def test_a_bucket_is_kept_until_it_is_full() -> None:
    """Corrected ones too (S-2)."""
    limits = MemoryLimits(10)
    limits.charge([(TakeTokens(TEN, "tb", 4.0, NO_LIMITER, NO_RULE), 6.0)], {}, NOW)
    assert limits.buckets["tb"] == (NOW + 8, 6.0, NOW)
    limits.correct(AdjustCharge(TEN, "tb", 9.0), NOW + 2)
    assert limits.buckets["tb"] == (NOW + 2 + 24, -2.0, NOW + 2)
    limits.correct(AdjustCharge(TEN, "tb", -99.0), NOW + 4)
    assert limits.buckets["tb"] == (NOW + 4, 10.0, NOW + 4)


def test_correcting_keeps_nothing_for_what_is_full() -> None:
    """Giving back to a bucket that is full, or to an account that is gone, leaves nothing behind (Y-2)."""
    limits = MemoryLimits(10)
    limits.correct(AdjustCharge(TEN, "tb", -1.0), NOW)
    limits.correct(AdjustCharge(TEN, "tb", 0.0), NOW)
    limits.correct(AdjustCharge(HUNDRED, "cb", 5), NOW)
    assert not any(limits.tables())


def test_an_account_outlives_its_period_a_little() -> None:
    """For clocks that step back, and answers that come late; then it makes room (S-2)."""
    limits = MemoryLimits(10)
    charged(limits, "cb:1", 10, NOW + 60)
    assert list(limits.accounts.values()) == [(NOW + 60 + HOUR, 10)]
    for late, amount in ((59, 10), (60, 7)):
        limits.correct(AdjustCharge(HUNDRED, "cb:1", amount), NOW + late + HOUR)
    assert list(limits.accounts.values()) == [(NOW + 60 + HOUR, 20)]
    charged(limits, "cb:2", 1, NOW + 3 * HOUR, NOW + 60 + HOUR)
    assert list(limits.accounts) == ["cb:2"]


def test_an_account_of_long_ago_is_kept_while_the_clock_is_behind() -> None:
    """However far it stepped back, others that come meanwhile do not push it out (S-2)."""
    limits = MemoryLimits(10)
    for key, used in (("cb:a", 60), ("cb:b", 60), ("cb:a", 120)):
        assert charged(limits, key, 60, NOW - 2 * HOUR) == used


def test_a_correction_does_not_keep_an_account_alive() -> None:
    """Room is given by use; the end of a period stays where it was (S-1)."""
    limits = MemoryLimits(2)
    charged(limits, "cb:1", 10, NOW + 60)
    charged(limits, "cb:2", 10, NOW + 60)
    limits.correct(AdjustCharge(HUNDRED, "cb:1", 5), NOW + 1)
    assert limits.accounts["cb:1"] == (NOW + 60 + HOUR, 15)
    charged(limits, "cb:3", 10, NOW + 60)
    assert list(limits.accounts) == ["cb:2", "cb:3"]


def test_a_closed_breaker_is_kept_for_two_minutes() -> None:
    """As long as its spend is in the rate (S-2)."""
    limits = MemoryLimits(10)
    meter(limits, "brk", 4.0, 59)
    assert limits.rates["brk"] == (NOW + 120, NOW // 60, 4.0, 0.0, 0.0)
    meter(limits, "other", 1.0, 120)
    assert list(limits.rates) == ["other"]


def test_a_breaker_is_in_one_table() -> None:
    """The closed among the rates, the open by themselves; there and back (CB-2)."""
    limits = MemoryLimits(10)
    meter(limits, "brk", 4.0)
    meter(limits, "brk", 6.0)
    assert (len(limits.rates), limits.open["brk"]) == (0, (NOW + 60 + 86_400, NOW // 60, 10.0, 0.0, NOW))
    assert meter(limits, "brk", 1.0, 119).changed == "closed"
    assert (list(limits.rates), len(limits.open)) == (["brk"], 0)
    meter(limits, "brk", 10.0, 119, FOR_EVER)
    assert limits.open["brk"][0] == math.inf


def test_invented_keys_push_out_nothing_open() -> None:
    """The closed have their own room; among the open, one that is asked for stays longest (Y-2, CB-2)."""
    limits = MemoryLimits(30)
    meter(limits, "runaway", 10.0)
    for number in range(1000):
        meter(limits, f"invented:{number}", 1.0)
    assert meter(limits, "runaway", 1.0).open
    assert (len(limits.rates), limits.rates.evicted) == (30, 970)
    for number in range(10):
        meter(limits, f"large:{number}", 10.0)
        assert meter(limits, "runaway", 1.0).open
    assert len(limits.open) == 3


def test_an_open_breaker_that_nobody_asks_for_makes_room() -> None:
    """A day after its reset; one that only an operator closes does not (S-2)."""
    limits = MemoryLimits(30)
    meter(limits, "old", 10.0)
    meter(limits, "held", 10.0, 0.0, FOR_EVER)
    meter(limits, "new", 10.0, 60 + 86_400)
    assert list(limits.open) == ["held", "new"]


def test_what_is_denied_is_not_charged() -> None:
    """A group that was denied leaves no entry, the others do (E-4)."""
    limits = MemoryLimits(10)
    for group, key in ((1, "a"), (2, "b")):
        spend, bucket = (
            ChargeBudget(HUNDRED, key, 1, NOW + 9, NO_LIMITER, NO_RULE, group),
            TakeTokens(TEN, key, 1, NO_LIMITER, NO_RULE, group),
        )
        limits.charge([(spend, 1), (bucket, 9.0)], {1: 0}, NOW)
    assert (list(limits.accounts), list(limits.buckets)) == (["b"], ["b"])
