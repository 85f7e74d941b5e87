"""SPEC LD-4: the packed window."""

from __future__ import annotations

import pytest

from breakloop.detect.steps.window import (
    COUNT_MAX,
    RING,
    SKETCH,
    SKETCHES,
    TABLE,
    TEXTS,
    TOOLS,
    VERSION,
    Entry,
    Sketch,
    Window,
    entry,
    load,
    sketch,
)  # fmt: skip


def filled() -> Window:
    """A window in which everything is as full and as large as it may be, and no two values are the same."""
    window = Window()
    skip = {"counts", "evidence", "lines", "marks", "ring", "sketches", "table", "tails", "texts", "tools", "words"}
    for at, name in enumerate(sorted(set(Window.__slots__) - skip), start=1):
        value = getattr(window, name)
        small = name in {"level", "told_level", "falls", "kind"}
        new = (
            bytes([at]) * 8
            if isinstance(value, bytes)
            else at / 4
            if isinstance(value, float)
            else at % 16
            if small
            else at * 3
        )
        setattr(window, name, new)
    window.counts = [COUNT_MAX - at for at in range(RING)]
    window.ring, window.tails = bytearray(range(RING * 8)), bytearray(range(1, 1 + RING * 8))
    window.table = {
        bytes([at]) * 8: Entry(bytes([at + 1]) * 8, b"abcd", (at, at + 0.25, -1.0), at, 9).pack() for at in range(TABLE)
    }
    window.texts = {bytes([at]) * 8: (at + 0.5, at) for at in range(TEXTS)}
    window.tools = {bytes([at]) * 4: (bytes([at + 3]) * 8, at + 0.75, at) for at in range(TOOLS)}
    window.sketches = [Sketch(bytes([at]) * 4, tuple(range(at, at + SKETCH))).pack() for at in range(SKETCHES)]
    window.evidence = "`ä` returned the same 9 bytes"
    for one in (window.lines, window.marks, window.words):
        one.sift([(number * 0x9E3779B97F4A7C15 & (1 << 64) - 1, 1) for number in range(100)])
    return window


def test_packed_and_unpacked() -> None:
    """LD-4: nothing is lost, and a full window is within 6 KB."""
    window = filled()
    packed = window.dump()
    again = load(packed)
    for name in Window.__slots__:
        if name not in {"lines", "marks", "words"}:
            assert getattr(again, name) == getattr(window, name), name
    assert again.dump() == packed
    assert len(packed) <= 6 * 1024
    assert again.lines.count == window.lines.count
    assert list(again.table) == list(window.table)


def test_size_is_constant() -> None:
    """LD-4: an empty window takes as much as a full one, but for the evidence."""
    empty, full = Window().dump(), filled()
    assert len(full.dump()) - len(full.evidence.encode()) == len(empty)


@pytest.mark.parametrize("data", [b"", b"\x01", b"\x01" * 5000, bytes([VERSION + 1]) + Window().dump()[1:],
                                  Window().dump()[:-1], Window().dump() + b"\xff", b"x" * 6000])  # fmt: skip
def test_foreign_windows_are_new(data: bytes) -> None:
    """LD-4: an unreadable window, or another version's, counts as new."""
    assert load(data).dump() == Window().dump()


def test_counts_out_of_range_do_not_break_it() -> None:
    """LD-4: how many entries a list has is bounded, whatever a packed window says."""
    packed = bytearray(Window().dump())
    head = packed.index(bytes(4), 200)
    packed[head : head + 4] = b"\xff" * 4
    load(bytes(packed)).dump()


def test_entries_and_sketches() -> None:
    """LD-4: what stays packed in the window unpacks to what it was."""
    known = entry(Entry(b"r" * 8, b"eeee", (1.25, 2.5, -1.0), 7, 9).pack())
    assert (known.r, known.e, known.same, known.row, known.failed, known.epoch, known.last) == (
        b"r" * 8,
        b"eeee",
        1.25,
        2.5,
        -1.0,
        7,
        9,
    )
    assert sketch(Sketch(b"abcd", (1, 2, 3)).pack()) == (b"abcd", (1, 2, 3))
