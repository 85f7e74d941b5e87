"""Cycles (LD-4)."""

from __future__ import annotations

from breakloop.detect.steps import repeats
from breakloop.detect.steps.window import RING, SessionWindow, load
from tests.unit.detect.steps.stepping import hits


def walk(window: SessionWindow, names: str, weight: float = 1.0) -> list[float]:
    found = []
    for name in names:
        found.append(hits(list(repeats.find_cycle(window, name.encode() * 8, weight)), "cycle"))
        window.steps += 1
    return found


def test_laps() -> None:
    """Laps are counted when they are complete (LD-4)."""
    assert walk(load(b""), "abababab") == [0, 0, 0, 0, 0, 3, 3, 4]
    assert walk(load(b""), "abcabcabc")[-1] == 3


def test_one_step_again_and_again_is_no_cycle() -> None:
    """The smallest period wins, and a period of one is a repeat (LD-4)."""
    assert set(walk(load(b""), "a" * 12)) == {0}


def test_another_step_breaks_it() -> None:
    """A step out of order ends a cycle (LD-4)."""
    assert walk(load(b""), "ababXabab")[4:] == [0, 0, 0, 0, 0]


def test_slow_cycles_count_less() -> None:
    """Steps a minute apart count a quarter (LD-4)."""
    assert max(walk(load(b""), "ab" * 5, 0.25)) == 0


def test_the_longest_period() -> None:
    """Up to sixteen steps (LD-4)."""
    names = "abcdefghijklmnop"
    assert walk(load(b""), names * 3)[-1] == 3
    assert set(walk(load(b""), (names + "q") * 3)) == {0}


def test_a_step_that_is_not_known_ends_a_cycle() -> None:
    """It equals no other, and takes one place of the ring (LD-4)."""
    window = load(b"")
    walk(window, "ab" * 9)
    repeats.add_unknown_step(window)
    assert len(window.ring) == 8 * RING
    window.steps += 1
    assert repeats.last_step(window) == bytes(8)
    assert walk(window, "abab") == [0, 0, 0, 0]


def test_identity_is_the_same_from_each_rotation() -> None:
    """One cycle has one identity (LD-4)."""
    window = load(b"")
    walk(window, "abcabcab")
    keys = {next(iter(repeats.find_cycle(window, name.encode() * 8, 1.0))).key for name in "c" if not walk(window, "")}
    window.steps += 1
    keys |= {next(iter(repeats.find_cycle(window, b"a" * 8, 1.0))).key}
    assert keys == {b"a" * 8 + b"b" * 8 + b"c" * 8}


def test_forget() -> None:
    """A person's word begins anew (LD-4)."""
    window = load(b"")
    walk(window, "abababab")
    repeats.reset_cycles(window)
    assert window.cycle_counts == bytes(2 * RING)
    assert not repeats.is_repeated(window)
    assert set(walk(window, "ab")) == {0}


def test_a_step_of_which_nothing_is_known() -> None:
    """It ends a cycle, and is like no other (LD-4)."""
    window = load(b"")
    walk(window, "ababababab")
    repeats.add_unknown_step(window)
    window.steps += 1
    assert walk(window, "ab") == [0, 0]
    for _ in range(20):
        repeats.add_unknown_step(window)
        window.steps += 1
    assert walk(window, "a") == [0]
