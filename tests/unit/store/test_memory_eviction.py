"""Which entries the memory store keeps while others are invented: accounts in use, and what denies."""

from __future__ import annotations

import pytest

from breakloop.store.limit_ops import BucketSpec, BudgetSpec, ChargeBudget, TakeTokens
from breakloop.store.memory import MemoryStore
from breakloop.store.ops import AdjustCharge, CountFingerprint, FingerprintCount, FingerprintSpec
from tests.stores import NO_LIMITER, NO_OWNER, NO_RULE

NOW = 1_800_000_000.0
FIVE = BudgetSpec(5)


def spend(store: MemoryStore, key: str, cost: int = 1, at: float = NOW) -> bool:
    """Charge a budget of 5; return whether it was allowed."""
    return store.commit([ChargeBudget(FIVE, key, cost, NOW + 3600, NO_LIMITER, NO_RULE)], at).denied_at < 0


def invent(store: MemoryStore, count: int, cost: int = 1, *, after: int = 0) -> None:
    for number in range(after, after + count):
        spend(store, f"cb:invented-{number}", cost)


@pytest.mark.parametrize("spent", [3, 4, 5])
def test_invented_accounts_do_not_evict_used_ones(spent: int) -> None:
    """However many there are: what is half used is kept apart, asked or not (S-1, L-2)."""
    store = MemoryStore(100)
    for _ in range(spent):
        spend(store, "cb:real")
    invent(store, 10_000)
    assert [spend(store, "cb:real") for _ in range(3)] == [True] * (5 - spent) + [False] * (spent - 2)
    assert len(store) == 101


def test_a_correction_counts_as_use() -> None:
    """An account that a result filled is kept like one that requests filled; a refund is applied in its place (L-5)."""
    store = MemoryStore(100)
    spend(store, "cb:real")
    store.correct([AdjustCharge(FIVE, "cb:real", 4)], NOW)
    invent(store, 1000)
    assert not spend(store, "cb:real")
    store.correct([AdjustCharge(FIVE, "cb:real", -4)], NOW)
    invent(store, 1000, after=1000)
    assert [spend(store, "cb:real") for _ in range(5)] == [True] * 4 + [False]


def test_an_account_that_is_less_than_half_used_is_kept_like_any_other() -> None:
    """Whether requests or results filled it (L-5, S-1)."""
    store = MemoryStore(100)
    spend(store, "cb:real")
    store.correct([AdjustCharge(FIVE, "cb:real", 1)], NOW)
    invent(store, 1000)
    assert [spend(store, "cb:real") for _ in range(6)] == [True] * 5 + [False]


def test_a_million_used_up_accounts_are_bounded_too() -> None:
    """A tenth of the bound is kept apart; what is beyond it is evicted like all others, the longest unasked first.
    Who still asks is still denied (S-1, Y-2)."""
    store = MemoryStore(100)
    for name in ("cb:asks", "cb:silent"):
        spend(store, name, 5)
    for part in range(100):
        invent(store, 100, 5, after=part * 100)
        assert not spend(store, "cb:asks")
    assert len(store) == 110
    assert store.evicted == 10_002 - 110
    assert spend(store, "cb:silent")


def test_used_up_accounts_take_no_room_from_each_other() -> None:
    """As many as before are known: those that do not fit among the used ones are among all (S-1)."""
    store = MemoryStore(100)
    for number in range(100):
        spend(store, f"cb:{number}", 5)
    assert store.evicted == 0
    assert not any(spend(store, f"cb:{number}") for number in range(100))
    assert (len(store), store.evicted) == (100, 0)


def test_a_large_request_that_is_denied_is_no_use() -> None:
    """An invented account is not kept for what it was denied (E-4)."""
    store = MemoryStore(100)
    spend(store, "cb:light")
    assert not spend(store, "cb:light", 6)
    invent(store, 100)
    assert all(spend(store, "cb:light") for _ in range(5))


def test_the_next_period_begins_with_nothing() -> None:
    """Also for what was kept apart (L-2)."""
    store = MemoryStore(100)
    spend(store, "cb:real", 5)
    later = ChargeBudget(FIVE, "cb:real", 5, NOW + 7200, NO_LIMITER, NO_RULE)
    assert store.commit([later], NOW + 3600).denied_at < 0


def test_a_denial_keeps_a_bucket() -> None:
    """Asking is using: invented buckets push out others before one that still denies (S-1)."""
    store = MemoryStore(100)
    slow = BucketSpec(0.001, 1.0)

    def take(key: str) -> bool:
        return store.commit([TakeTokens(slow, key, 1, NO_LIMITER, NO_RULE)], NOW).denied_at < 0

    assert take("tb:real")
    for number in range(1000):
        take(f"tb:{number}")
        assert number % 50 or not take("tb:real")


def test_a_charge_keeps_a_bucket() -> None:
    """Whoever pays is in use as well (S-1)."""
    store = MemoryStore(100)
    for number in range(1000):
        store.commit([TakeTokens(BucketSpec(0.001, 50.0), f"tb:{number}", 1, NO_LIMITER, NO_RULE)], NOW)
        if number % 50 == 0:
            [left] = store.commit([TakeTokens(BucketSpec(0.001, 50.0), "tb:real", 1, NO_LIMITER, NO_RULE)], NOW).results
            assert left == 49 - number // 50


def test_invented_fingerprints_do_not_end_a_cooldown() -> None:
    """Counts are apart from what is blocked (S-1, LD-2)."""
    store = MemoryStore(100)
    spec = FingerprintSpec(60.0, 1, sliding=True, cooldown_s=30.0, growth=2.0, cooldown_max_s=900.0)

    def tripped(key: str) -> bool:
        result = store.commit([CountFingerprint(spec, key, NO_OWNER)], NOW).results[0]
        return isinstance(result, FingerprintCount) and result.tripped

    assert [tripped("ld:real"), tripped("ld:real")] == [False, True]
    assert not any(tripped(f"ld:{number}") for number in range(10_000))
    assert tripped("ld:real")
