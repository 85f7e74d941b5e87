"""The memory store beyond the contract: bounded, everything expires, nothing is kept for what is denied."""

from __future__ import annotations

from breakloop.store.limit_ops import (
    BreakerSpec,
    BucketSpec,
    BudgetSpec,
    ChargeBudget,
    CheckBreaker,
    TakeTokens,
    bucket_rows,
)
from breakloop.store.memory import MemoryStore
from breakloop.store.ops import CountFingerprint, FingerprintCount, FingerprintSpec, Op, WindowWrite
from tests.stores import NO_LIMITER, NO_OWNER, NO_RULE

NOW = 1_800_000_000.0
ONE = BucketSpec(1.0, 1.0)
COOLING = FingerprintSpec(60.0, 1, sliding=True, cooldown_s=30.0, growth=2.0, cooldown_max_s=900.0)


def test_it_is_bounded_and_says_what_it_dropped() -> None:
    """Unique requests without end do not make it grow; live entries that had to go are counted (S-1, Y-2)."""
    assert MemoryStore().kept()["counts"].max_entries == 1_000_000
    store = MemoryStore(100)
    for number in range(1000):
        store.commit(
            [
                TakeTokens(ONE, f"tb:{number}", 1, NO_LIMITER, NO_RULE),
                CountFingerprint(COOLING, f"cnt:{number}", NO_OWNER),
            ],
            NOW,
        )
    assert len(store) == 200
    assert store.evicted == 1800


def test_expired_entries_make_room_before_live_ones() -> None:
    """With time passing nothing alive has to go, and memory is given back without a sweep (S-1)."""
    store = MemoryStore(100)
    for number in range(1000):
        store.commit(
            [TakeTokens(ONE, f"tb:{number}", 1, NO_LIMITER, NO_RULE)], NOW + number * 0.05
        )  # a bucket is full again after 1 s
    assert store.evicted == 0
    assert len(store) <= 25


def test_the_least_recently_used_goes_first() -> None:
    """What is in use stays (S-1)."""
    store = MemoryStore(3)
    slow = FingerprintSpec(1000.0, 99)
    for key in ("a", "b", "c", "a", "d"):
        store.commit([CountFingerprint(slow, key, NO_OWNER)], NOW)
    results = [store.commit([CountFingerprint(slow, key, NO_OWNER)], NOW).results[0] for key in ("a", "c", "d")]
    assert results == [FingerprintCount(3), FingerprintCount(2), FingerprintCount(2)]
    assert store.evicted == 1


def test_everything_has_a_time_to_live() -> None:
    """Each entry begins with the time it expires, and that is never for ever (S-2)."""
    store = MemoryStore()
    ops: list[Op] = [
        TakeTokens(BucketSpec(0.5, 10.0), "tb:a", 4, NO_LIMITER, NO_RULE),
        CountFingerprint(FingerprintSpec(60.0, 5), "ld:a", NO_OWNER),
    ]
    store.commit([*ops, CountFingerprint(COOLING, "cnt:a", NO_OWNER)], NOW, [WindowWrite("win:a", 0, b"", 90.0)])
    store.commit([CountFingerprint(COOLING, "cnt:a", NO_OWNER)], NOW)
    assert store._limits["buckets"]["tb:a"][0] == NOW + 8  # full again
    assert store._repeats.counts["ld:a"][0] == NOW + 60
    assert store._repeats.cooldowns["cnt:a"][0] == NOW + 30 + 900
    assert store._windows["win:a"][0] == NOW + 90
    assert "cnt:a" not in store._repeats.counts  # the first request after the cooldown starts a new count


def test_a_denied_request_leaves_no_limit_behind() -> None:
    """Not even an entry (E-4)."""
    store = MemoryStore()
    spend = ChargeBudget(BudgetSpec(5), "cb:a", 5, NOW + 60, NO_LIMITER, NO_RULE)
    store.commit(
        [TakeTokens(ONE, "tb:a", 1, NO_LIMITER, NO_RULE), spend, TakeTokens(ONE, "tb:b", 2, NO_LIMITER, NO_RULE)], NOW
    )
    assert len(store) == 0


def test_its_size_is_that_of_every_table() -> None:
    """What an operator sees as entries and evictions leaves nothing out (Y-2)."""
    store = MemoryStore(10)
    for number in range(11):
        ops: list[Op] = [
            TakeTokens(ONE, f"tb:{number}", 1, NO_LIMITER, NO_RULE),
            ChargeBudget(BudgetSpec(5), f"cb:{number}", 1, NOW + 60, NO_LIMITER, NO_RULE),
            CheckBreaker(BreakerSpec(9.0, 60.0), f"brk:{number}", 1.0, NO_LIMITER, NO_RULE),
            CheckBreaker(BreakerSpec(9.0, 60.0), f"open:{number}", 9.0, NO_LIMITER, NO_RULE, 1),
        ]
        store.commit(ops, NOW)
    assert len(store) == 10 + 10 + 10 + 1
    assert store.evicted == 1 + 1 + 1 + 10


def test_windows_have_a_smaller_bound() -> None:
    """They are the large ones (Q-3)."""
    store = MemoryStore(100)
    for number in range(50):
        store.commit([], NOW, [WindowWrite(f"win:{number}", 0, b"x", 90.0)])
    assert len(store) == 10


def test_what_is_kept_and_from_when_it_goes_on() -> None:
    """Every table but flights and what was taken back; time does not go back (S-1)."""
    store = MemoryStore(50)
    counted, limited = ["counts", "cooldowns", "traffic", "landed"], ["buckets", "accounts", "spent", "rates", "open"]
    assert list(store.kept()) == [*counted, *limited, "windows"]
    left_out = {id(table) for table in store._tables()} - {id(table) for table in store.kept().values()}
    assert left_out == {id(store._repeats.flights), id(store._repeats.taken_back)}
    store.resume(100.0)
    store.resume(50.0)
    assert store.latest == 100.0


def test_what_operators_look_up() -> None:
    """By the beginning of a key, so many at most, and nothing that has expired; of windows only their size."""
    store = MemoryStore(100)
    store.commit([TakeTokens(BucketSpec(1.0, 60.0), f"tb:{name}", 6, NO_LIMITER, NO_RULE) for name in "abc"], NOW)
    store.commit([], NOW, [WindowWrite("win:a", 0, b"12345", 100.0)])
    assert [(found["key"], found["kind"]) for found in store.look_up("tb:", 2)] == [
        ("tb:a", "buckets"),
        ("tb:b", "buckets"),
    ]
    [bucket] = store.look_up("tb:b", 2)
    assert bucket == {"key": "tb:b", "kind": "buckets", "expires_at": NOW + 6, "value": [54.0, NOW]}
    [window] = store.look_up("win:", 9)
    assert (window["kind"], window["value"]) == ("windows", [1, 5])
    store.commit([TakeTokens(ONE, "other", 1, NO_LIMITER, NO_RULE)], NOW + 6)
    assert [found["key"] for found in store.look_up("", 9)] == ["other", "win:a"]


def test_a_bucket_is_full_again_at_the_same_time_whichever_way_it_was_charged() -> None:
    """From full, then in part, refilled in part, beyond full, and with too little left (L-1)."""
    plain, quick = MemoryStore(), MemoryStore()
    ops = [TakeTokens(BucketSpec(0.5, 8.0), "tb:a", 3.0, NO_LIMITER, NO_RULE)]
    for after_s in (0.0, 1.0, 2.0, 2.5, 3.0, 20.0, 36.0):
        expected = plain.commit(ops, NOW + after_s)
        done = quick.commit(ops, NOW + after_s, (), bucket_rows(ops))
        assert done.results == expected.results
        assert [*quick.kept()["buckets"].items()] == [*plain.kept()["buckets"].items()]
