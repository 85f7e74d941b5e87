"""Repeats in memory beyond the contract: bounded, and gone when their time is over."""

from __future__ import annotations

from collections.abc import Callable

from breakloop.store.memory import MemoryFingerprints, MemoryStore
from breakloop.store.ops import JOINED, CountFingerprint, FingerprintCount, FingerprintSpec, Settle, WindowWrite
from tests.each import each
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


# -- the last moment ---------------------------------------------------------------------------------------------------


def counted(store: MemoryStore, spec: FingerprintSpec, at: float, *, tracked: bool = False) -> FingerprintCount:
    [found] = store.commit([CountFingerprint(spec, "ld:p:f", NO_OWNER, tracked=tracked)], at).results
    assert isinstance(found, FingerprintCount)
    return found


def _idle(after_s: float) -> bool:
    store, spec = MemoryStore(), FingerprintSpec(60.0, 5)
    counted(store, spec, NOW)
    return counted(store, spec, NOW + after_s).hits == 2


def test_hits_that_left_the_window_do_not_push_out_others() -> None:
    """Only so many hits are kept, of those in the window (LD-1)."""
    store, spec = MemoryStore(), FingerprintSpec(60.0, 0, sliding=True)
    for at_s, hits in ((0.0, 200), (50.0, 150)):
        for _ in range(hits):
            counted(store, spec, NOW + at_s)
    assert counted(store, spec, NOW + 61.0).hits == 151


def _sliding(after_s: float) -> bool:
    store, spec = MemoryStore(), FingerprintSpec(60.0, 5, sliding=True)
    counted(store, spec, NOW)
    return counted(store, spec, NOW + after_s).hits == 2


def _tripped(after_s: float) -> bool:
    store, spec = MemoryStore(), FingerprintSpec(60.0, 0, sliding=True)
    counted(store, spec, NOW)
    return not counted(store, spec, NOW + after_s).fresh


def _one_of_two(after_s: float) -> bool:
    store, spec = MemoryStore(), FingerprintSpec(60.0, 5, sliding=True)
    counted(store, spec, NOW)
    counted(store, spec, NOW + 30.0)
    return counted(store, spec, NOW + after_s).hits == 3


def _cooldown(after_s: float) -> bool:
    store, spec = MemoryStore(), FingerprintSpec(60.0, 0, cooldown_s=60.0, cooldown_max_s=600.0, growth=2.0)
    counted(store, spec, NOW)
    return not counted(store, spec, NOW + after_s).fresh


def _growth(after_s: float) -> bool:
    store, spec = MemoryStore(), FingerprintSpec(60.0, 0, cooldown_s=10.0, cooldown_max_s=50.0, growth=2.0)
    counted(store, spec, NOW)
    return counted(store, spec, NOW + after_s).wait_s == 20.0


def _flight(after_s: float) -> bool:
    store, spec = MemoryStore(), FingerprintSpec(600.0, 5, concurrent_free=2)
    counted(store, spec, NOW, tracked=True)
    return counted(store, spec, NOW + after_s / 60.0, tracked=True).flight == JOINED


def _taken_back(after_s: float) -> bool:
    store, spec = MemoryStore(), FingerprintSpec(60.0, 5, retry_free=1)
    counted(store, spec, NOW)
    counted(store, spec, NOW + 30.0)
    return store.settle([Settle(spec, "ld:p:f", NOW)], NOW + after_s, failed=True) == 1


def _allowance(after_s: float) -> bool:
    store, spec = MemoryStore(), FingerprintSpec(60.0, 5, retry_free=1)
    counted(store, spec, NOW)
    assert store.settle([Settle(spec, "ld:p:f", NOW)], NOW, failed=True) == 1
    counted(store, spec, NOW + 59.0)
    return store.settle([Settle(spec, "ld:p:f", NOW + 59.0)], NOW + after_s, failed=True) == 0


def _window(after_s: float) -> bool:
    store = MemoryStore()
    store.commit([], NOW, [WindowWrite("win:p:s:", 0, b"x", 60.0)])
    known = store.read_window("win:p:s:", NOW + after_s).version == 1
    conflict = store.commit([], NOW + after_s, [WindowWrite("win:p:s:", 0, b"y", 60.0)]).conflict
    assert known == (conflict is not None)
    return known


def _looked_up(after_s: float) -> bool:
    store = MemoryStore()
    store.commit([], NOW, [WindowWrite("win:p:s:", 0, b"x", 60.0)])
    store.resume(NOW + after_s)
    return bool(store.look_up("win:", 9))


LASTS = [
    _idle,
    _sliding,
    _tripped,
    _one_of_two,
    _cooldown,
    _growth,
    _flight,
    _taken_back,
    _allowance,
    _window,
    _looked_up,
]


@each("lasts", LASTS)
def test_what_lasts_a_minute_is_over_when_the_minute_is(lasts: Callable[[float], bool]) -> None:
    """Not a moment later, and not before (S-1)."""
    assert lasts(59.999)
    assert not lasts(60.0)


def test_the_request_that_was_detected_is_not_taken_back() -> None:
    """Nor another one of that moment: the count that it was in is over (LD-6)."""
    store, spec = MemoryStore(), FingerprintSpec(60.0, 1, cooldown_s=10.0, cooldown_max_s=100.0, retry_free=1)
    counted(store, spec, NOW)
    assert counted(store, spec, NOW).tripped
    assert not counted(store, spec, NOW + 10.0).tripped
    assert store.settle([Settle(spec, "ld:p:f", NOW)], NOW + 10.0, failed=True) == 0
    assert store.settle([Settle(spec, "ld:p:f", NOW + 10.0)], NOW + 10.0, failed=True) == 1
