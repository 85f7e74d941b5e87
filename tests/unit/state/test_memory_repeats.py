"""Repeats in memory beyond the contract: bounded, and gone when their time is over."""

from __future__ import annotations

from breakloop.state.memory import MemoryStore
from breakloop.state.memory_repeats import Repeats
from breakloop.state.ops import Repeat, Repeated, RepeatSpec, Settle

NOW = 1_800_000_000.0
FREE = RepeatSpec(60.0, 5, sliding=True, concurrent_free=2, retry_free=2)


def test_flights_and_what_was_taken_back_are_bounded() -> None:
    """Y-2, LD-6: a tenth of the bound each: they are short, or rare."""
    store = MemoryStore(100)
    for number in range(500):
        store.commit([Repeat(FREE, f"ld:{number}", None, tracked=True)], NOW)
        store.settle([Settle(FREE, f"ld:{number}", NOW, 1)], NOW, failed=True)
    assert (len(store._repeats.flights), len(store._repeats.taken_back)) == (10, 10)
    assert store.evicted == 400 + 490 + 490


def test_flights_and_what_was_taken_back_expire() -> None:
    """S-2, LD-6: a flight after a second, the other after a window."""
    store = MemoryStore()
    store.commit([Repeat(FREE, "ld:k", None, tracked=True)], NOW)
    store.settle([Settle(FREE, "ld:k", NOW, 1)], NOW + 5, failed=True)
    assert store._repeats.flights["ld:k"] == (NOW + 1, NOW, 1, 0, 0)
    assert store._repeats.taken_back["ld:k"] == (NOW + 65, (NOW + 5,))
    store.commit([Repeat(FREE, "ld:other", None, tracked=True)], NOW + 6)
    assert list(store._repeats.flights) == ["ld:other"]


def test_untracked_requests_leave_no_flight_behind() -> None:
    """Q-1: whoever does not track pays nothing for those who do."""
    store = MemoryStore()
    store.commit([Repeat(FREE, "ld:k", None)], NOW)
    assert len(store) == 1


def test_small_counts_are_not_made_anew() -> None:
    """Q-1: almost every result is one of these; larger ones are made."""
    repeats, spec = Repeats(10), RepeatSpec(60.0, 1000)
    first, second = (repeats.count(Repeat(spec, key, None), NOW) for key in ("a", "b"))
    assert first is second
    assert [repeats.count(Repeat(spec, "a", None), NOW) for _ in range(99)][-1] == Repeated(100)


def test_forgetting_counts_fingerprints() -> None:
    """G-1: what belongs to a count goes with it, and is not one more."""
    repeats, cooling = Repeats(10), RepeatSpec(60.0, 0, cooldown_s=5.0, cooldown_max_s=9.0)
    leads: list[tuple[Repeat, tuple[float, ...]]] = []
    repeats.track(Repeat(FREE, "a:ld", None, tracked=True), NOW, leads)
    repeats.lead(leads, {}, NOW)
    repeats.take_back(Settle(FREE, "a:ld", NOW, 1), NOW)
    repeats.count(Repeat(cooling, "a:cool", None), NOW)
    assert [len(table) for table in repeats.tables()] == [1, 1, 1, 1]
    assert repeats.forget("a:") == 2
    assert not any(repeats.tables())
