"""What is still true of old rows."""

from __future__ import annotations

import asyncio
from array import array
from pathlib import Path

from breakloop.store.memory import Entry, ExpiringTable
from breakloop.store.snapshot_file import (
    EntryBatch,
    EntryPacker,
    Segment,
    SegmentChange,
    SegmentCompactor,
    SegmentIndex,
    SegmentRow,
    StateFile,
    tidied,
    unpack,
)
from tests.durable_state import at_once

NOW = 100.0


def sifted(
    table: ExpiringTable, keys: list[str], entries: list[Entry | None], rows: int = 2
) -> list[tuple[str, Entry | None]] | None:
    """What is left of these entries, where `table` is what is in memory."""
    sieve = SegmentCompactor([SegmentRow(number, 1000, 0.0) for number in range(rows)], {"counts": table}, NOW)
    sieve.sift(EntryBatch("counts", keys, entries))
    left = sieve.left()
    if left is None:
        return None
    packs = [pack for part in left for pack in unpack(part.data)]
    return [pair for pack in packs for pair in zip(pack.keys, pack.entries, strict=True)]


def memory(**entries: Entry) -> ExpiringTable:
    table = ExpiringTable(100)
    table.dirty = {}
    for key, entry in entries.items():
        table[key] = entry
    return table


def test_only_what_is_as_it_is_in_memory_stays() -> None:
    """What was changed, dropped or has expired since is elsewhere, or nowhere (S-1)."""
    table = memory(same=(200.0, 1), other=(200.0, 2), old=(100.0, 1), times=(200.0, array("d", [1.0])))
    entries: list[Entry | None] = [(200.0, 1), (200.0, 1), (100.0, 1), (200.0, array("d", [1.0])), (200.0, 1), None]
    left = sifted(table, ["same", "other", "old", "times", "gone", "dropped"], entries)
    assert left == [("same", (200.0, 1)), ("times", (200.0, array("d", [1.0])))]


def test_what_is_not_saved_yet_stays() -> None:
    """A crash before the next save must find the last saying, also that a key was dropped (S-1)."""
    table = memory(a=(200.0, 9))
    table.dirty = {"a": None, "b": None, "c": None}
    assert sifted(table, ["a", "b", "c"], [(200.0, 1), (90.0, 2), None]) == [
        ("a", (200.0, 1)),
        ("b", (90.0, 2)),
        ("c", None),
    ]


def test_rows_that_are_all_true_are_left_alone() -> None:
    """Unless they become fewer (S-1)."""
    table = memory(a=(200.0, 1))
    assert sifted(table, ["a"], [(200.0, 1)], rows=1) is None
    assert sifted(table, ["a"], [(200.0, 1)], rows=2) == [("a", (200.0, 1))]
    assert sifted(table, ["b"], [(200.0, 1)], rows=1) == []


def test_rows_of_windows_are_seen_through_unread() -> None:
    """The largest entries, and the most often changed ones: what is overtaken is known by its version (S-1)."""
    table = memory(a=(200.0, 5, b"new"), b=(200.0, 2, b"same"), c=(90.0, 1, b"expired"))
    sieve = SegmentCompactor([SegmentRow(1, 1000, 0.0)], {"windows": table}, NOW)
    assert not sieve.overtaken(SegmentRow(1, 1000, 200.0))
    assert sieve.overtaken(SegmentRow(1, 1000, 200.0, {"a": 4, "c": 1, "gone": 3, "dropped": 0}))
    assert not sieve.overtaken(SegmentRow(1, 1000, 200.0, {"a": 4, "b": 2}))
    table.dirty = {"gone": None}
    assert not sieve.overtaken(SegmentRow(1, 1000, 200.0, {"a": 4, "gone": 3}))
    assert sieve.left() == []


def test_others_run_between_two_rows(tmp_path: Path) -> None:
    """Reading hundreds of rows in one go would keep requests waiting (S-1)."""
    windows = memory(**{f"w{number}": (200.0, 2, b"x") for number in range(600)})
    rows = [SegmentRow(number + 1, 50, 200.0, {f"w{number}": 1}) for number in range(600)]
    file = StateFile(tmp_path, print)
    file.rows = SegmentIndex(rows)

    async def main() -> tuple[SegmentChange, int]:
        ran = 0

        async def others() -> None:
            nonlocal ran
            while True:
                ran += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(others())
        saved = SegmentChange([Segment(bytes(50), 1, 200.0)], NOW, NOW)
        done = await tidied(saved, file, {"windows": windows}, at_once)
        task.cancel()
        return done, ran

    done, ran = asyncio.run(main())
    assert (len(done.old), done.instead) == (130, [])
    assert ran >= 130


def test_what_is_left_is_packed_in_batches_of_some_hundreds() -> None:
    """Neither one by one, nor all at once: a batch is unpacked in one step (S-1)."""
    table = memory(**{f"k{number}": (200.0, number) for number in range(1100)})
    sieve = SegmentCompactor([SegmentRow(number, 1000, 0.0) for number in range(11)], {"counts": table}, NOW)
    for start in range(0, 1100, 100):
        numbers = range(start, start + 100)
        sieve.sift(EntryBatch("counts", [f"k{number}" for number in numbers], [(200.0, number) for number in numbers]))
    left = sieve.left()
    assert left is not None
    assert [len(pack.keys) for part in left for pack in unpack(part.data)] == [500, 500, 100]


def test_never_more_rows_than_there_were() -> None:
    """They take the places of the old ones (S-1)."""
    table = ExpiringTable(2000)
    for number in range(1500):
        table[str(number)] = (200.0, number)
    table["0"] = (200.0, -1)
    packer = EntryPacker()
    packer.add("counts", list(table), [(200.0, number) for number in range(1500)])
    (part,) = packer.close()
    sieve = SegmentCompactor([SegmentRow(1, len(part.data), 200.0)], {"counts": table}, NOW)
    for pack in unpack(part.data):
        sieve.sift(pack)
    left = sieve.left()
    assert left is not None
    assert [one.entries for one in left] == [1499]
