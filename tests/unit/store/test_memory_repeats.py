"""Repeats in memory beyond the contract: bounded, and gone when their time is over."""

from __future__ import annotations

from breakloop.store.memory import MemoryFingerprints, MemoryStore
from breakloop.store.ops import CountFingerprint, FingerprintCount, FingerprintSpec, Settle
from tests.stores import NO_OWNER

NOW = 1_800_000_000.0
FREE = FingerprintSpec(60.0, 5, sliding=True, concurrent_free=2, retry_free=2)


def test_flights_and_what_was_taken_back_are_bounded() -> None:
    """A tenth of the bound each: they are short, or rare (Y-2, LD-6)."""
    store = MemoryStore(100)
    for number in range(500):
        store.commit([CountFingerprint(FREE, f"ld:{number}", NO_OWNER, tracked=True)], NOW)
        store.settle([Settle(FREE, f"ld:{number}", NOW, 1)], NOW, failed=True)
    assert (len(store._repeats.flights), len(store._repeats.taken_back)) == (10, 10)
    assert store.evicted == 400 + 490 + 490


def test_flights_and_what_was_taken_back_expire() -> None:
    """A flight after a second, the other after a window (S-2, LD-6)."""
    store = MemoryStore()
    store.commit([CountFingerprint(FREE, "ld:k", NO_OWNER, tracked=True)], NOW)
    store.settle([Settle(FREE, "ld:k", NOW, 1)], NOW + 5, failed=True)
    assert store._repeats.flights["ld:k"] == (NOW + 1, NOW, 1, 0, 0)
    assert store._repeats.taken_back["ld:k"] == (NOW + 65, (NOW + 5,))
    store.commit([CountFingerprint(FREE, "ld:other", NO_OWNER, tracked=True)], NOW + 6)
    assert list(store._repeats.flights) == ["ld:other"]


def test_untracked_requests_leave_no_flight_behind() -> None:
    """Whoever does not track pays nothing for those who do (Q-1)."""
    store = MemoryStore()
    store.commit([CountFingerprint(FREE, "ld:k", NO_OWNER)], NOW)
    assert len(store) == 1


def test_small_counts_are_not_made_anew() -> None:
    """Almost every result is one of these; larger ones are made (Q-1)."""
    repeats, spec = MemoryFingerprints(10), FingerprintSpec(60.0, 1000)
    first, second = (repeats.count(CountFingerprint(spec, key, NO_OWNER), NOW) for key in ("a", "b"))
    assert first is second
    assert [repeats.count(CountFingerprint(spec, "a", NO_OWNER), NOW) for _ in range(99)][-1] == FingerprintCount(100)


def test_a_block_that_changes_between_idle_and_sliding_begins_anew() -> None:
    """A reload while counts live; what the other kind has counted is of no use, and no reason to fail (B-3)."""
    idle, sliding = FingerprintSpec(60.0, 5, retry_free=2), FingerprintSpec(60.0, 5, sliding=True, retry_free=2)
    for first, then in ((idle, sliding), (sliding, idle)):
        store = MemoryStore()
        for _ in range(3):
            store.commit([CountFingerprint(first, "ld:k", NO_OWNER)], NOW)
        assert store.settle([Settle(then, "ld:k", NOW)], NOW, failed=True) == 0
        assert store.commit([CountFingerprint(then, "ld:k", NO_OWNER)], NOW + 1).results == [FingerprintCount(1)]


def test_what_another_store_found_is_blocked_here_too() -> None:
    """For as long, whatever kind of count it is; what did not trip is not taken over (S-3)."""
    cooling = FingerprintSpec(60.0, 2, sliding=True, cooldown_s=30.0, growth=2.0, cooldown_max_s=900.0)
    for spec, wait_s in (
        (cooling, 20.0),
        (FingerprintSpec(60.0, 2), 60.0),
        (FingerprintSpec(60.0, 2, sliding=True), 60.0),
    ):
        store = MemoryStore()
        op = CountFingerprint(spec, "ld:k", NO_OWNER)
        store.remember(op, FingerprintCount(2), NOW)
        assert len(store) == 0
        store.remember(op, FingerprintCount(3, True, True, wait_s), NOW)
        [found] = store.commit([op], NOW + 1).results
        assert isinstance(found, FingerprintCount)
        assert (found.hits, found.tripped, found.fresh) == (4, True, False)
        [later] = store.commit([op], NOW + 61).results
        assert later == FingerprintCount(1)
