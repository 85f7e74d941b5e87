"""The bounded table with a time to live."""

from __future__ import annotations

from breakloop.store.limit_ops import BreakerSpec, BudgetSpec, ChargeBudget, CheckBreaker
from breakloop.store.memory import ExpiringTable, MemoryStore
from breakloop.store.ops import CountFingerprint, FingerprintSpec, WindowWrite
from tests.stores import NO_LIMITER, NO_OWNER, NO_RULE


def test_live_ends_at_its_time() -> None:
    """An entry lives until the time it carries, and not at it (S-2)."""
    table = ExpiringTable(9)
    table.put("a", (10.0, "x"), 0.0)
    assert table.live("a", 9.9) == (10.0, "x")
    assert table.live("a", 10.0) is None
    assert table.live("b", 0.0) is None


def test_it_never_holds_more_than_its_bound() -> None:
    """The least recently stored goes, and is counted (Y-2)."""
    table = ExpiringTable(3)
    for key in "abcd":
        table.put(key, (10.0,), 0.0)
    assert list(table) == ["b", "c", "d"]
    table.put("b", (11.0,), 0.0)
    table.put("e", (10.0,), 0.0)
    assert list(table) == ["d", "b", "e"]
    assert table.evicted == 2


def test_storing_again_needs_no_room() -> None:
    """A full table of keys in use drops nothing (S-1)."""
    table = ExpiringTable(2)
    for key in "abababab":
        table.put(key, (10.0,), 0.0)
    assert (list(table), table.evicted) == (["a", "b"], 0)


def test_expired_entries_are_cleared_two_for_one() -> None:
    """Faster than anything comes, without a sweep, and they are not counted as dropped (S-1)."""
    table = ExpiringTable(10)
    for number in range(10):
        table.put(str(number), (5.0,), 0.0)
    table.put("x", (50.0,), 6.0)
    assert len(table) == 9
    for number in range(4):
        table.put(f"y{number}", (50.0,), 6.0)
    assert len(table) == 5
    assert table.evicted == 0


def test_whoever_saves_it_finds_what_changed() -> None:
    """Stored, changed in place, dropped, or pushed out alive; not what has expired (S-1)."""
    table = ExpiringTable(3)
    for key in "abc":
        table.put(key, (10.0,), 0.0)
    assert table.dirty is None
    table.dirty = {}
    table.put("a", (11.0,), 0.0)
    assert list(table.dirty) == ["a"]
    table.change("c", (12.0,))
    assert (list(table.dirty), list(table)) == (["a", "c"], ["b", "c", "a"])
    table.put("d", (20.0,), 0.0)
    assert (list(table.dirty), table.evicted) == (["a", "c", "b", "d"], 1)
    table.dirty = {}
    table.discard("a")
    table.discard("nobody")
    assert list(table.dirty) == ["a"]
    table.discard("d")
    assert list(table.dirty) == ["a", "d"]
    table.dirty = {}
    table.put("e", (20.0,), 15.0)
    assert (list(table), list(table.dirty)) == (["e"], ["e"])


def test_nobody_looks_for_expired_entries_before_the_oldest_is_one() -> None:
    """And from then on they go as fast as ever (S-1)."""
    table = ExpiringTable(100)
    for number in range(10):
        table.put(str(number), (5.0 + number, "x"), 0.0)
    table.put("a", (50.0,), 4.9)
    assert len(table) == 11
    table.put("b", (50.0,), 6.5)
    assert list(table)[:2] == ["2", "3"]
    table.put("c", (50.0,), 6.9)
    assert list(table)[:2] == ["2", "3"]
    table.put("d", (50.0,), 100.0)
    assert list(table)[:2] == ["4", "5"]


def test_a_store_of_one_entry_keeps_one_of_each_kind() -> None:
    """Tables have shares of the size, and each has room for an entry at least (S-1)."""
    store = MemoryStore(1)
    for number in range(3):
        store.commit([ChargeBudget(BudgetSpec(9), f"cb:{number}", 1, 99.0, NO_LIMITER, NO_RULE)], 1.0)
        store.commit([CheckBreaker(BreakerSpec(9.0, 9.0), f"brk:{number}", 1.0, NO_LIMITER, NO_RULE)], 1.0)
        store.commit([], 1.0, [WindowWrite(f"win:{number}", 0, b"x", 60.0)])
        store.commit([CountFingerprint(FingerprintSpec(9.0, 9), f"ld:{number}", NO_OWNER).within(f"mix:{number}")], 1.0)
    sizes = {name: len(table) for name, table in store.kept().items()}
    assert {name: size for name, size in sizes.items() if size not in {0, 1}} == {}
    assert sizes["windows"] == sizes["traffic"] == sizes["counts"] == 1
