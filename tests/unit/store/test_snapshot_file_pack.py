"""Entries as bytes, and back."""

from __future__ import annotations

from array import array
from typing import Any

import msgspec
import pytest

from breakloop.store.memory import MemoryStore
from breakloop.store.snapshot_file import PART_BYTES, EntryBatch, EntryPacker, at_once, unpack
from tests.each import each

ENTRIES: dict[str, tuple[Any, ...]] = {
    "counts": (10.0, 3),
    "cooldowns": (10.0, 5.0, 4, 30.0, 1.0),
    "buckets": (10.0, -2.5, 1.0),
    "accounts": (10.0, 2**62),
    "spent": (10.0, 5),
    "rates": (120.0, 30_000_000.0, 1.5, 2.5, 0.0),
    "open": (float("inf"), 30_000_000.0, 1.5, 2.5, 9.0),
    "windows": (10.0, 7, b"\x00\xff"),
}


def packed(packer: EntryPacker) -> list[EntryBatch]:
    return [pack for part in packer.close() for pack in unpack(part.data)]


@pytest.mark.parametrize("table", ENTRIES)
def test_every_table_reads_back(table: str) -> None:
    """The same values, and what was dropped (S-1)."""
    packer = EntryPacker()
    packer.add(table, ["a", "b:é"], [ENTRIES[table], None])
    assert packed(packer) == [(table, ["a", "b:é"], [ENTRIES[table], None])]


def test_a_part_ends_at_its_size() -> None:
    """Not a byte later, so that no part is larger than it has to be (S-1)."""
    packer = EntryPacker()
    packer.add("counts", ["a"], [ENTRIES["counts"]])
    size = len(packer.close()[0].data)
    for size_max, parts in ((size, 1), (size + 1, 0)):
        packer = EntryPacker(size_max)
        packer.add("counts", ["a"], [ENTRIES["counts"]])
        assert len(packer.parts) == parts
    whole = EntryPacker(2**30)
    whole.add("windows", ["a"], [(5.0, 1, bytes(256 * 1024))])
    more = len(whole.close()[0].data) - 256 * 1024
    for size, parts in ((256 * 1024 - more, 1), (256 * 1024 - more - 1, 0)):
        packer = EntryPacker()
        packer.add("windows", ["a"], [(5.0, 1, bytes(size))])
        assert len(packer.parts) == parts


def test_times_of_hits_are_a_copy() -> None:
    """A hit that comes between packing and writing is not half in it (S-1)."""
    times, packer = array("d", [1.0, 2.5]), EntryPacker()
    packer.add("counts", ["a"], [(9.0, times)])
    times.append(3.0)
    assert packed(packer) == [("counts", ["a"], [(9.0, array("d", [1.0, 2.5]))])]


def test_odd_keys_and_sums() -> None:
    """Half a surrogate pair is kept as it is; what exceeds 64 bits is as much as fits (S-1)."""
    packer = EntryPacker()
    packer.add("accounts", ["\ud800", "b", "c"], [(9.0, 2**80), None, (9.0, 5)])
    assert packed(packer) == [("accounts", ["\ud800", "b", "c"], [(9.0, 2**63 - 1), None, (9.0, 5)])]
    packer = EntryPacker()
    packer.add("accounts", ["a"], [(9.0, 2**80)])
    assert packed(packer) == [("accounts", ["a"], [(9.0, 2**63 - 1)])]


def test_parts_are_of_bounded_size_and_know_when_they_expire() -> None:
    """A part is written in one go, and cleared away when the last of it has expired (S-1)."""
    packer = EntryPacker()
    for number in range(20):
        packer.add("windows", [f"{number}:{one}" for one in range(50)], [(5.0 + number, 1, bytes(1000))] * 50)
    packer.add("windows", ["x"], [None])
    packer.add("counts", [], [])
    parts = packer.close()
    assert [part.entries for part in parts] == [300, 300, 300, 101]
    assert [part.expires for part in parts] == [10.0, 16.0, 22.0, 24.0]
    assert all(PART_BYTES <= len(part.data) < PART_BYTES + 60_000 for part in parts[:-1])
    assert EntryPacker().close() == []


def test_a_part_of_windows_knows_their_versions() -> None:
    """One of anything else does not (S-1)."""
    packer = EntryPacker()
    packer.add("windows", ["a", "b"], [(5.0, 7, b""), None])
    packer.close()
    packer.add("windows", ["a"], [(5.0, 8, b"")])
    packer.add("counts", ["a"], [(5.0, 8)])
    assert [part.versions for part in packer.close()] == [{"a": 7, "b": 0}, None]


def test_large_entries_are_packed_in_smaller_lots() -> None:
    """So that making or reading a pack never takes long (S-1)."""
    assert at_once("windows") < at_once("counts")


@each(
    "data",
    [
        b"\x00",
        b"\x00\x00\x00\x05abc",
        b"\x00\x00\x00\x03abc",
        *(
            len(raw).to_bytes(4) + raw
            for raw in map(
                msgspec.msgpack.encode,
                [
                    ("unknown", False, [], []),
                    ("counts", False, ["a"], []),
                    ("counts", False, [1], [None]),
                    ("counts", True, [b"\xff"], [None]),
                    ("counts", False, ["a"], [(1.0, b"123")]),
                    ("counts", False, ["a"], [(1.0, "x")]),
                    ("buckets", False, ["a"], [(1.0, 2.0)]),
                    ("windows", False, ["a"], [("soon", 1, b"")]),
                ],
            )
        ),
    ],
)
def test_what_is_not_of_this_form_is_refused(data: bytes) -> None:
    """Nothing odd gets into the store (S-1)."""
    with pytest.raises(ValueError, match=r".+"):
        list(unpack(data))


def test_what_cannot_be_kept_is_an_error_of_ours() -> None:
    """A new kind of entry needs a form (S-1)."""
    with pytest.raises(TypeError, match="object cannot be stored"):
        EntryPacker().add("counts", ["a"], [(1.0, object())])


def test_persisted_bytes() -> None:
    """Table names and the order of fields are in the file; another version must read the same meaning (S-1)."""
    packer = EntryPacker()
    packer.add("counts", ["k"], [(9.0, 2)])
    packer.add("windows", ["k"], [(9.0, 3, b"w")])
    (part,) = packer.close()
    counts = "0000001894a6636f756e7473c291a16b9192cb402200000000000002"
    windows = "0000001c94a777696e646f7773c291a16b9193cb402200000000000003c40177"
    assert part.data.hex() == counts + windows
    assert list(MemoryStore().kept()) == [
        "counts",
        "cooldowns",
        "traffic",
        "landed",
        "buckets",
        "accounts",
        "spent",
        "rates",
        "open",
        "windows",
    ]
