"""Limits in memory beyond the contract: bounded, gone when their time is over, and what is open stays open."""

from __future__ import annotations

import math
from struct import Struct

from breakloop.store.limit_ops import (
    BreakerSpec,
    BucketSpec,
    BudgetSpec,
    ChargeBudget,
    CheckBreaker,
    TakeTokens,
    account_in_redis,
    breaker_in_redis,
    bucket_rows,
)
from breakloop.store.memory import MemoryStore
from breakloop.store.ops import (
    AdjustCharge,
    BreakerResult,
    CountFingerprint,
    Deny,
    FingerprintCount,
    FingerprintSpec,
    Op,
)
from tests.stores import NO_LIMITER, NO_OWNER, NO_RULE

NOW = 1_800_000_000.0
HOUR = 3600.0
TEN = BucketSpec(0.5, 10.0)
HUNDRED = BudgetSpec(100)
QUICK = BreakerSpec(10.0, 60.0)
FOR_EVER = BreakerSpec(10.0, 0.0)


def charged(store: MemoryStore, key: str, cost: int, ends: float, now: float = NOW) -> int:
    (used,) = store.commit([ChargeBudget(HUNDRED, key, cost, ends, NO_LIMITER, NO_RULE)], now).results
    assert isinstance(used, int)
    return used


def meter(store: MemoryStore, key: str, amount: float, at: float = 0.0, spec: BreakerSpec = QUICK) -> BreakerResult:
    (result,) = store.commit([CheckBreaker(spec, key, amount, NO_LIMITER, NO_RULE)], NOW + at).results
    assert isinstance(result, BreakerResult)
    return result


def test_a_bucket_is_kept_until_it_is_full() -> None:
    """Corrected ones too (S-2)."""
    store = MemoryStore(10)
    store.commit([TakeTokens(TEN, "tb", 4.0, NO_LIMITER, NO_RULE)], NOW)
    assert store.kept()["buckets"]["tb"] == (NOW + 8, 6.0, NOW)
    store.correct([AdjustCharge(TEN, "tb", 9.0)], NOW + 2)
    assert store.kept()["buckets"]["tb"] == (NOW + 2 + 24, -2.0, NOW + 2)
    store.correct([AdjustCharge(TEN, "tb", -99.0)], NOW + 4)
    assert store.kept()["buckets"]["tb"] == (NOW + 4, 10.0, NOW + 4)


def test_buckets_that_hold_enough_beside_counts() -> None:
    """The bucket with the smallest share left is named, unless a count trips (S-2)."""
    small, large = (
        TakeTokens(BucketSpec(0.5, burst), f"tb:{burst}", 4.0, NO_LIMITER, NO_RULE) for burst in (10.0, 40.0)
    )
    for counts in (0, 1, 2):
        store = MemoryStore(10)
        found = [CountFingerprint(FingerprintSpec(60.0, 2), f"ld:{number}", NO_OWNER) for number in range(counts)]
        ops: list[Op] = [*found, large, small]
        rows = bucket_rows([large, small])
        assert rows is not None
        store.commit(ops, NOW)  # buckets that are new
        done = store.commit(ops, NOW, (), rows)
        assert (done.results[counts:], done.denied_at, done.tightest) == ([32.0, 2.0], -1, counts + 1)


def test_a_count_that_only_reports_beside_buckets() -> None:
    """It denies nothing, but no limit is named in its place (S-2)."""
    reporting = CountFingerprint(FingerprintSpec(60.0, 0, denies=False), "ld:a", NO_OWNER)
    bucket = TakeTokens(TEN, "tb", 1.0, NO_LIMITER, NO_RULE)
    store, rows = MemoryStore(10), bucket_rows([bucket])
    store.commit([bucket], NOW)
    done = store.commit([reporting, bucket], NOW, (), rows)
    assert (done.results[1:], done.denied_at, done.tightest) == ([8.0], -1, -1)


def test_an_opening_of_many_senders_beside_buckets() -> None:
    """A count that is only reported, because its sender sends many other requests, denies nothing (LD-1)."""
    bucket, spec = TakeTokens(TEN, "tb", 0.1, NO_LIMITER, NO_RULE), FingerprintSpec(60.0, 1)
    store, rows = MemoryStore(100), bucket_rows([bucket])
    opening = CountFingerprint(spec, "cnt:opening:00000000", NO_OWNER).within("mix:a")
    opening.opening = True
    others = [CountFingerprint(spec, f"cnt:other:{number:08}", NO_OWNER).within("mix:a") for number in range(1, 7)]
    done = [store.commit([other, opening, bucket], NOW, (), rows) for other in others]
    assert [one.denied_at for one in done] == [-1] * 6
    found = done[-1].results[1]
    assert isinstance(found, FingerprintCount)
    assert (found.hits, found.tripped, found.mixed, done[-1].tightest) == (6, True, True, -1)


def test_full_buckets_are_changed_and_saved() -> None:
    """The one with the smallest share left counts, not the smallest one (S-1, S-2)."""
    small = TakeTokens(BucketSpec(1.0, 10.0), "tb:small", 1.0, NO_LIMITER, NO_RULE)
    large = TakeTokens(BucketSpec(1.0, 40.0), "tb:large", 36.0, NO_LIMITER, NO_RULE)
    store, rows = MemoryStore(10), bucket_rows([small, large])
    store.commit([small, large], NOW)
    buckets = store.kept()["buckets"]
    buckets.dirty = {}
    done = store.commit([small, large], NOW + 100, (), rows)
    assert (done.results, done.tightest) == ([9.0, 4.0], 1)
    assert [*buckets.items()] == [("tb:small", (NOW + 101, 9.0, NOW + 100)), ("tb:large", (NOW + 136, 4.0, NOW + 100))]
    assert [*buckets.dirty] == ["tb:small", "tb:large"]


def test_an_account_of_a_budget_that_was_lowered() -> None:
    """Once it is half spent, a denial moves it to those that are kept longest (S-2)."""
    store = MemoryStore(10)
    charged(store, "cb", 45, NOW + HOUR)
    assert "cb" in store.kept()["accounts"]
    lower = ChargeBudget(BudgetSpec(80), "cb", 50, NOW + HOUR, NO_LIMITER, NO_RULE)
    assert store.commit([lower], NOW).denied_at == 0
    assert "cb" in store.kept()["spent"]


def test_accounts_that_are_half_spent_are_kept_longest() -> None:
    """Those with less are in the table that is emptied first (S-2)."""
    store = MemoryStore(10)
    charged(store, "cb:some", 49, NOW + HOUR)
    charged(store, "cb:half", 50, NOW + HOUR)
    assert [*store.kept()["accounts"]] == ["cb:some"]
    assert [*store.kept()["spent"]] == ["cb:half"]


def test_correcting_keeps_nothing_for_what_is_full() -> None:
    """Giving back to a bucket that is full, or to an account that is gone, leaves nothing behind (Y-2)."""
    store = MemoryStore(10)
    store.correct([AdjustCharge(TEN, "tb", -1.0)], NOW)
    store.correct([AdjustCharge(TEN, "tb", 0.0)], NOW)
    store.correct([AdjustCharge(HUNDRED, "cb", 5)], NOW)
    assert len(store) == 0


def test_an_account_outlives_its_period_a_little() -> None:
    """For clocks that step back, and answers that come late; then it makes room (S-2)."""
    store = MemoryStore(10)
    charged(store, "cb:1", 10, NOW + 60)
    assert list(store.kept()["accounts"].values()) == [(NOW + 60 + HOUR, 10)]
    for late, amount in ((59, 10), (60, 7)):
        store.correct([AdjustCharge(HUNDRED, "cb:1", amount)], NOW + late + HOUR)
    assert list(store.kept()["accounts"].values()) == [(NOW + 60 + HOUR, 20)]
    charged(store, "cb:2", 1, NOW + 3 * HOUR, NOW + 60 + HOUR)
    assert list(store.kept()["accounts"]) == ["cb:2"]


def test_an_account_of_long_ago_is_kept_while_the_clock_is_behind() -> None:
    """However far it stepped back, others that come meanwhile do not push it out (S-2)."""
    store = MemoryStore(10)
    for key, used in (("cb:a", 60), ("cb:b", 60), ("cb:a", 120)):
        assert charged(store, key, 60, NOW - 2 * HOUR) == used


def test_a_correction_does_not_keep_an_account_alive() -> None:
    """Room is given by use; the end of a period stays where it was (S-1)."""
    store = MemoryStore(2)
    charged(store, "cb:1", 10, NOW + 60)
    charged(store, "cb:2", 10, NOW + 60)
    store.correct([AdjustCharge(HUNDRED, "cb:1", 5)], NOW + 1)
    assert store.kept()["accounts"]["cb:1"] == (NOW + 60 + HOUR, 15)
    charged(store, "cb:3", 10, NOW + 60)
    assert list(store.kept()["accounts"]) == ["cb:2", "cb:3"]


def test_a_closed_breaker_is_kept_for_two_minutes() -> None:
    """As long as its spend is in the rate (S-2)."""
    store = MemoryStore(10)
    meter(store, "brk", 4.0, 59)
    assert store.kept()["rates"]["brk"] == (NOW + 120, NOW // 60, 4.0, 0.0, 0.0)
    meter(store, "other", 1.0, 120)
    assert list(store.kept()["rates"]) == ["other"]


def test_a_closed_breaker_in_redis_is_shown_for_two_minutes() -> None:
    """As the memory store does; an open one is shown until it is reset (CB-2)."""
    minute = NOW // 60

    def shown(after_s: float, is_open: float = 0.0) -> float | None:
        value = Struct("<B6d").pack(ord("k"), NOW, minute, 6.0, 0.0, is_open, NOW)
        found = breaker_in_redis("brk", value, NOW + after_s)
        return None if found is None else found.rate

    assert (shown(0), shown(90), shown(119), shown(120)) == (6.0, 3.0, 0.1, None)
    assert shown(500, is_open=1.0) == 0.0
    assert breaker_in_redis("brk", None, NOW) is breaker_in_redis("brk", b"k", NOW) is None


def test_an_account_in_redis_is_shown_until_its_period_ends() -> None:
    """What is no account is left out (S-2, L-2)."""
    layout = Struct("<Bddd")
    value = layout.pack(ord("a"), NOW + 2 * HOUR, 3.0, 5.0)
    assert account_in_redis("cb", value, NOW) == ("cb", 3 * 2**30 + 5, NOW + HOUR)
    assert account_in_redis("cb", value, NOW + HOUR) is None
    for other in (None, b"", b"a", value + b"x", layout.pack(ord("b"), NOW + 2 * HOUR, 3.0, 5.0)):
        assert account_in_redis("cb", other, NOW) is None


def test_what_is_used_of_an_account() -> None:
    """Until it expires, an hour after its period (L-2)."""
    store = MemoryStore(10)
    charged(store, "cb", 7, NOW + HOUR)
    assert (store.account("cb"), store.account("other")) == (7, None)
    for after, used in ((2 * HOUR - 1, 7), (2 * HOUR, None)):
        store.commit([], NOW + after)
        assert store.account("cb") == used


def test_a_breaker_is_in_one_table() -> None:
    """The closed among the rates, the open by themselves; there and back (CB-2)."""
    store = MemoryStore(10)
    meter(store, "brk", 4.0)
    meter(store, "brk", 6.0)
    assert (len(store.kept()["rates"]), store.kept()["open"]["brk"]) == (
        0,
        (NOW + 60 + 86_400, NOW // 60, 10.0, 0.0, NOW),
    )
    assert meter(store, "brk", 1.0, 119).changed == "closed"
    assert (list(store.kept()["rates"]), len(store.kept()["open"])) == (["brk"], 0)
    meter(store, "brk", 10.0, 119, FOR_EVER)
    assert store.kept()["open"]["brk"][0] == math.inf


def test_invented_keys_push_out_nothing_open() -> None:
    """The closed have their own room; among the open, one that is asked for stays longest (Y-2, CB-2)."""
    store = MemoryStore(30)
    meter(store, "runaway", 10.0)
    for number in range(1000):
        meter(store, f"invented:{number}", 1.0)
    assert meter(store, "runaway", 1.0).open
    assert (len(store.kept()["rates"]), store.kept()["rates"].evicted) == (30, 970)
    for number in range(10):
        meter(store, f"large:{number}", 10.0)
        assert meter(store, "runaway", 1.0).open
    assert len(store.kept()["open"]) == 3


def test_an_open_breaker_that_nobody_asks_for_makes_room() -> None:
    """A day after its reset; one that only an operator closes does not (S-2)."""
    store = MemoryStore(30)
    meter(store, "old", 10.0)
    meter(store, "held", 10.0, 0.0, FOR_EVER)
    meter(store, "new", 10.0, 60 + 86_400)
    assert list(store.kept()["open"]) == ["held", "new"]


def test_what_is_denied_is_not_charged() -> None:
    """A group that was denied leaves no entry, the others do (E-4)."""
    store = MemoryStore(10)
    ops: list[Op] = [Deny(NO_OWNER, 3)]
    for group, key, cost in ((1, "a", 101), (2, "b", 1), (3, "c", 1)):
        ops += [
            TakeTokens(TEN, key, 1, NO_LIMITER, NO_RULE, group),
            ChargeBudget(HUNDRED, key, cost, NOW + 9, NO_LIMITER, NO_RULE, group),
        ]
    assert store.commit(ops, NOW).results == [None, 9.0, 101, 9.0, 1, None, None]
    assert (list(store.kept()["accounts"]), list(store.kept()["buckets"])) == (["b"], ["b"])


def test_an_account_of_another_store_is_kept_as_an_own_one_is() -> None:
    """From half of its budget on it cannot be evicted by invented ones, and it stays there (L-5)."""
    for used, place in ((49, "accounts"), (50, "spent")):
        store = MemoryStore()
        op = ChargeBudget(HUNDRED, "cb:p", 1, NOW + HOUR, NO_LIMITER, NO_RULE)
        store.remember_account(op, used, NOW + HOUR, NOW)
        assert (list(store._limits[place]), len(store), store.account("cb:p")) == (["cb:p"], 1, used)
        store.remember_account(op, 0, NOW + HOUR, NOW)
        assert (list(store._limits[place]), len(store), store.account("cb:p")) == (["cb:p"], 1, 0)
    unused = MemoryStore()
    unused.remember_account(ChargeBudget(HUNDRED, "cb:p", 1, NOW + HOUR, NO_LIMITER, NO_RULE), 0, NOW + HOUR, NOW)
    assert len(unused) == 0
