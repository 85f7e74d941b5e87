"""The file of the memory store's snapshots, `state.db`: an append-only sequence of segments with compaction.

A segment is one row of the file. It holds batches of a few hundred entries of one table each, so that packing or
unpacking a batch never takes long. The most recent entry for a key is the valid one. A save appends segments; rows
of single entries would be written all over the file, which costs ten times as much.

Each save also compacts a limited number of bytes, from the oldest row up to the newest one at the start of the
round, so that the file stays within a few times the size of its valid entries. `SegmentIndex` chooses the rows;
`SegmentCompactor` repacks their valid entries in the same position, so that the least recently used entries stay
first. `snapshot` decides which entries are saved, and when.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from array import array
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from itertools import takewhile
from operator import itemgetter
from pathlib import Path
from secrets import token_hex
from threading import Lock
from types import GenericAlias
from typing import Any, Final, NamedTuple

import msgspec
from xxhash import xxh3_64_intdigest

from breakloop.clock import Clock
from breakloop.errors import StateError
from breakloop.store.limit_ops import LIMIT_OPS
from breakloop.store.memory import Entry, ExpiringTable
from breakloop.store.sqlite import Report, Schema, SqliteFile, UnfitError

PART_BYTES: Final = 256 * 1024
WINDOWS: Final = "windows"

_AT_ONCE: Final = 500  # entries packed or unpacked in one step: a quarter of a millisecond
_WINDOWS_AT_ONCE: Final = 64  # windows have some kilobytes each
_SIZE_BYTES: Final = 4
_INT_MAX: Final = 2**63 - 1
_first: Final = itemgetter(0)


class Segment(NamedTuple):
    """One row. `expires` is the latest expiry of its entries; dropped keys have none.

    `versions` is set if the segment has only windows: overwritten ones can then be recognised without reading the
    row.
    """

    data: bytes
    entries: int
    expires: float
    versions: dict[str, int] | None = None


class EntryBatch(NamedTuple):
    """A few entries of one table; None marks a dropped key."""

    table: str
    keys: list[str]
    entries: list[Entry | None]


def _hook(value: object) -> bytes:
    """Encode times of hits, the only values with a type of their own. `snapshot` ensures that they are read on the same
    kind of machine.
    """
    if isinstance(value, array):
        return value.tobytes()
    raise TypeError(f"{type(value).__name__} cannot be stored")


_encode: Final = msgspec.msgpack.Encoder(enc_hook=_hook).encode
_decode: Final = msgspec.msgpack.Decoder(tuple[str, bool, msgspec.Raw, msgspec.Raw]).decode
_decode_keys: Final = msgspec.msgpack.Decoder(list[str]).decode
_decode_odd_keys: Final = msgspec.msgpack.Decoder(list[bytes]).decode
# The types of the entries in `memory`. Entries of another form were not written by this version.
# Flights are not saved, because their leaders do not survive a restart.
_FORMS: Final[dict[str, Any]] = {
    "counts": tuple[float, int | bytes],
    "cooldowns": tuple[float, float, int, float, float],
    "traffic": tuple[float, str],
    "landed": tuple[float, int],
    **{table.name: table.entry for op in LIMIT_OPS for table in op.tables},
    WINDOWS: tuple[float, int, bytes],
}
_decoders: Final = {
    name: msgspec.msgpack.Decoder(GenericAlias(list, (form | None,))).decode for name, form in _FORMS.items()
}


def at_once(table: str) -> int:
    """Return how many entries make a batch."""
    return _WINDOWS_AT_ONCE if table == WINDOWS else _AT_ONCE


class EntryPacker:
    """Collects entries into segments."""

    def __init__(self, size_max: int = PART_BYTES) -> None:
        self.parts: list[Segment] = []
        self._size_max = size_max
        self._begin()

    def _begin(self) -> None:
        self._pieces: list[bytes] = []
        self._size = 0
        self._entries = 0
        self._expires = 0.0
        self._versions: dict[str, int] | None = {}

    def add(self, table: str, keys: Sequence[str], entries: Sequence[Entry | None]) -> None:
        """Add some entries, about as many as `at_once` returns."""
        if not keys:
            return
        packed = _pack(table, keys, entries)
        self._pieces += (len(packed).to_bytes(_SIZE_BYTES), packed)
        self._size += len(packed) + _SIZE_BYTES
        self._entries += len(keys)
        self._expires = max(self._expires, max(map(_first, filter(None, entries)), default=0.0))
        if table != WINDOWS:
            self._versions = None
        elif self._versions is not None:
            self._versions.update((key, entry[1] if entry else 0) for key, entry in zip(keys, entries, strict=True))
        if self._size >= self._size_max:
            self.close()

    def close(self) -> list[Segment]:
        """Complete the current segment; return all segments."""
        if self._pieces:
            self.parts.append(Segment(b"".join(self._pieces), self._entries, self._expires, self._versions))
            self._begin()
        return self.parts


def _pack(table: str, keys: Sequence[str], entries: Sequence[Entry | None]) -> bytes:
    try:
        return _encode((table, False, keys, entries))
    except (OverflowError, UnicodeEncodeError):  # a lone surrogate from a client's JSON
        odd_keys = [key.encode("utf-8", "surrogatepass") for key in keys]
        return _encode((table, True, odd_keys, [entry and tuple(map(_fit, entry)) for entry in entries]))


def _fit(value: object) -> object:
    """Limit a number to what can be encoded; amounts this large need not be exact."""
    return max(-_INT_MAX, min(value, _INT_MAX)) if type(value) is int else value


def unpack(data: bytes) -> Iterator[EntryBatch]:
    """Yield the batches of a segment. Raises `ValueError` if it is malformed."""
    at = 0
    while at < len(data):
        stop = at + _SIZE_BYTES + int.from_bytes(data[at : at + _SIZE_BYTES])
        if stop > len(data):
            raise ValueError("a pack is cut off")
        yield _unpack(data[at + _SIZE_BYTES : stop])
        at = stop


def _unpack(packed: bytes) -> EntryBatch:
    try:
        table, odd, raw_keys, raw_entries = _decode(packed)
        keys = _odd_keys(raw_keys) if odd else _decode_keys(raw_keys)
        entries = _decoders[table](raw_entries)
    except (msgspec.MsgspecError, KeyError) as error:
        raise ValueError(f"a pack cannot be read ({error})") from None
    if len(keys) != len(entries):
        raise ValueError("a pack has keys without entries")
    if table == "counts":
        entries = [_timed(entry) if entry and type(entry[1]) is bytes else entry for entry in entries]
    return EntryBatch(table, keys, entries)


def _odd_keys(raw: msgspec.Raw) -> list[str]:
    return [key.decode("utf-8", "surrogatepass") for key in _decode_odd_keys(raw)]


def _timed(entry: tuple[float, bytes]) -> Entry:
    times = array("d")
    times.frombytes(entry[1])
    return entry[0], times


_ROOM_BYTES: Final = 8 * 1024 * 1024  # less overwritten data than this is never compacted
_ROOM_SAVES: Final = 4  # nor less than this many times one save: frequently used entries are overwritten anyway
_ROOM_ROWS: Final = 512
_STEP_BYTES: Final = 1024 * 1024  # bytes compacted per save, plus twice what it writes
_STEP_ROWS: Final = 128  # rows compacted per save, likewise
_EXPIRED_MAX: Final = 256  # rows deleted per save


class SegmentRow(NamedTuple):
    """A segment in the file. Its versions are known if this process has written it."""

    id: int
    size: int
    expires: float
    versions: dict[str, int] | None = None


class SegmentIndex:
    """All rows, oldest first."""

    def __init__(self, rows: list[SegmentRow] | None = None, *, tidy: bool = False) -> None:
        self.all = rows or []
        self._base_bytes = self._base_rows = 0  # size after the last round
        self._after = self._until = (
            rows[-1].id if rows and tidy else 0
        )  # ids of the last row examined, and of the last row of the round
        self._set_base()

    def next_id(self) -> int:
        return self.all[-1].id + 1 if self.all else self._until + 1

    def overtaken(self, saved_bytes: int, saved_rows: int = 1) -> tuple[SegmentRow, ...]:
        """Return the adjacent rows to compact with this save; none if there is no need."""
        if self._after >= self._until:
            if not self._due(saved_bytes):
                return ()
            self._after, self._until = 0, self.all[-1].id
        return tuple(self._step(_STEP_BYTES + 2 * saved_bytes, _STEP_ROWS + 2 * saved_rows))

    def _due(self, saved_bytes: int) -> bool:
        room = self._base_bytes + _ROOM_BYTES + _ROOM_SAVES * saved_bytes
        return (
            sum(row.size for row in self.all) > self._base_bytes + room or len(self.all) > self._base_rows + _ROOM_ROWS
        )

    def _step(self, most_bytes: int, most_rows: int) -> Iterator[SegmentRow]:
        size = count = 0
        for row in self.all:
            if self._after < row.id <= self._until:
                yield row
                size, count = size + row.size, count + 1
                if size >= most_bytes or count >= most_rows:
                    return

    def expired(self, now: float) -> list[SegmentRow]:
        """Return the oldest rows without live entries. Only the oldest: a later row may override an earlier one."""
        return list(takewhile(lambda row: row.expires <= now, self.all[:_EXPIRED_MAX]))

    def became(self, rows: list[SegmentRow], tidied: Sequence[SegmentRow]) -> None:
        """Record the rows after a save, and those that it examined."""
        self.all = rows
        if self._after < self._until:
            self._after = tidied[-1].id if tidied else self._until  # nothing more was found before the end of the round
            if self._after >= self._until:
                self._set_base()

    def _set_base(self) -> None:
        """Set the size after a round. Rows newer than the round were not examined and may already be overwritten."""
        sizes = [row.size for row in self.all if row.id <= self._until]
        self._base_bytes, self._base_rows = sum(sizes), len(sizes)


FILE: Final = "state.db"
SCHEMA: Final = Schema(
    0x424C_5354,
    (
        "CREATE TABLE meta (name TEXT PRIMARY KEY, value) WITHOUT ROWID",
        "CREATE TABLE part (id INTEGER PRIMARY KEY, expires REAL, entries INTEGER, checksum INTEGER, data BLOB)",
    ),
    # Rows are large, and deleted data need not be overwritten: each setting saves a third of the time.
    ("page_size = 16384", "secure_delete = OFF"),
)
_PUT_META: Final = "INSERT INTO meta VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value"
_PUT_PART: Final = "INSERT INTO part VALUES (?, ?, ?, ?, ?)"
_READ: Final = "SELECT id, expires, checksum, data FROM part WHERE id BETWEEN ? AND ? ORDER BY id"
_ID_MAX: Final = 2**63 - 1
_TIME_MAX: Final = 1e11  # in the year 5138
# SQLite errors which mean that the tables were not created by this program.
_ODD: Final = frozenset((sqlite3.SQLITE_ERROR, sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_MISMATCH))


class SegmentChange(NamedTuple):
    """The changes of one save, applied atomically."""

    parts: list[Segment]
    latest: float
    now: float
    whole: bool = False  # these segments are the complete state
    old: Sequence[SegmentRow] = ()  # adjacent rows to replace,
    instead: list[Segment] | None = None  # and their valid entries; None: they stay
    ahead_s: float = 0.0  # how far the time of day is ahead of these times


class StateFile(SqliteFile):
    """The file, for one process. One call at a time, in any thread."""

    def __init__(self, directory: Path, report: Report, clock: Clock | None = None) -> None:
        super().__init__(directory / FILE, SCHEMA, report, clock=clock, synchronous="NORMAL")
        self._lock = Lock()
        self._closed = False
        self._writer = token_hex(8)
        self.rows = SegmentIndex()

    def load(self, take: Callable[[EntryBatch], None], resume: Callable[[float, float], None]) -> None:
        """Read everything. Before the entries, `resume` gets the latest time stored, and how far the time of day was
        ahead. Raises `StateError`.
        """
        with self._lock:
            self.run(lambda db: self._load(db, take, resume))

    def read(self, rows: Sequence[SegmentRow]) -> list[EntryBatch]:
        """Return the contents of these rows, or nothing if the file is not the one that was written. Raises
        `StateError`.
        """
        with self._lock:
            return self.run(lambda db: self._packs(db, rows) if self._is_ours(db) else [])

    def write(self, change: SegmentChange) -> bool:
        """Save. Returns False if the file is not the one that was written, so that everything has to be saved. Raises
        `StateError`.
        """
        with self._lock:
            if self._closed:  # a thread that is too late
                raise StateError("the file is closed")
            rows = self.run(lambda db: self._apply(db, change))
            if rows is not None and change.whole:
                self.rows = SegmentIndex(rows, tidy=True)
            elif rows is not None:
                self.rows.became(rows, change.old)
            return rows is not None

    def finish(self) -> None:
        """Close the file; nothing is written to it any more."""
        with self._lock:
            self._closed = True
            self.close()

    def _load(
        self, db: sqlite3.Connection, take: Callable[[EntryBatch], None], resume: Callable[[float, float], None]
    ) -> None:
        try:
            meta = dict(db.execute("SELECT name, value FROM meta"))
            if meta.get("byteorder", sys.byteorder) != sys.byteorder:
                raise UnfitError("foreign", "written on another kind of machine")
            latest, ahead_s = float(meta.get("latest", 0.0)), float(meta.get("ahead_s", 0.0))
            if not (0.0 <= latest < _TIME_MAX and abs(ahead_s) < _TIME_MAX):
                raise UnfitError("damaged", "its time is not possible")
            resume(latest, ahead_s)
            rows = []
            for row, data in _read(db, 0, _ID_MAX):
                rows.append(row)
                for pack in unpack(data):
                    take(pack)
        except (ValueError, TypeError) as error:
            raise UnfitError("damaged", str(error)) from None
        except sqlite3.Error as error:
            if error.sqlite_errorcode not in _ODD:
                raise
            raise UnfitError("damaged", str(error)) from None
        self._sign(db)
        self.rows = SegmentIndex(rows)

    def _sign(self, db: sqlite3.Connection) -> None:
        """Write a mark by which this process recognises the file."""
        marks = {"program": "breakloop", "byteorder": sys.byteorder, "writer": self._writer}
        db.executemany(_PUT_META, list(marks.items()))

    def _is_ours(self, db: sqlite3.Connection) -> bool:
        found = db.execute("SELECT value FROM meta WHERE name = 'writer'").fetchone()
        return found is not None and found[0] == self._writer

    def _packs(self, db: sqlite3.Connection, rows: Sequence[SegmentRow]) -> list[EntryBatch]:
        try:
            return [pack for row in rows for _, data in _read(db, row.id, row.id) for pack in unpack(data)]
        except ValueError as error:
            raise UnfitError("damaged", str(error)) from None

    def _apply(self, db: sqlite3.Connection, change: SegmentChange) -> list[SegmentRow] | None:
        if change.whole:
            db.execute("DELETE FROM part")
            self._sign(db)
        elif not self._is_ours(db):
            return None
        rows = SegmentIndex([] if change.whole else self._tidy(db, change))
        expired = rows.expired(change.now)
        if expired:
            db.execute("DELETE FROM part WHERE id <= ?", (expired[-1].id,))
        first = max(self.rows.next_id(), rows.next_id())
        db.executemany(_PUT_META, [("latest", change.latest), ("ahead_s", change.ahead_s)])
        return rows.all[len(expired) :] + _insert(db, first, change.parts)

    def _tidy(self, db: sqlite3.Connection, change: SegmentChange) -> list[SegmentRow]:
        """Replace rows by their valid entries; return the resulting rows."""
        if not change.old or change.instead is None:
            return self.rows.all
        first, last = change.old[0].id, change.old[-1].id
        db.execute("DELETE FROM part WHERE id BETWEEN ? AND ?", (first, last))
        instead = _insert(db, last + 1 - len(change.instead), change.instead)
        before = [row for row in self.rows.all if row.id < first]
        return [*before, *instead, *(row for row in self.rows.all if row.id > last)]


def _read(db: sqlite3.Connection, first: int, last: int) -> Iterator[tuple[SegmentRow, bytes]]:
    for number, expires, checksum, data in db.execute(_READ, (first, last)):
        if type(data) is not bytes or _checksum(data) != checksum:
            raise ValueError(f"the checksum of part {number} does not match")
        yield SegmentRow(number, len(data), expires), data


def _insert(db: sqlite3.Connection, first: int, parts: Sequence[Segment]) -> list[SegmentRow]:
    numbered = list(enumerate(parts, first))
    db.executemany(
        _PUT_PART, ((number, part.expires, part.entries, _checksum(part.data), part.data) for number, part in numbered)
    )
    return [SegmentRow(number, len(part.data), part.expires, part.versions) for number, part in numbered]


def _checksum(data: bytes) -> int:
    """Return 63 bits, which fit into a SQLite integer; a CRC takes ten times as long."""
    return xxh3_64_intdigest(data) & (2**63 - 1)


RunInThread = Callable[[Callable[[], Any]], Awaitable[Any]]  # returns the function's result, or raises its exception


async def tidied(
    change: SegmentChange, file: StateFile, tables: dict[str, ExpiringTable], aside: RunInThread
) -> SegmentChange:
    """Add the valid entries of the oldest rows to a save, if too much is overwritten. Raises `StateError`."""
    saved_bytes = sum(len(part.data) for part in change.parts)
    old = () if change.whole else file.rows.overtaken(saved_bytes, len(change.parts))
    if not old:
        return change
    sieve = SegmentCompactor(old, tables, change.now)
    doubtful = []
    for row in old:
        if not sieve.overtaken(row):
            doubtful.append(row)
        await asyncio.sleep(0)
    packs = await aside(partial(file.read, doubtful)) if doubtful else []
    packs.reverse()
    while packs:  # freed one at a time: all at once would take 20 ms
        sieve.sift(packs.pop())
        await asyncio.sleep(0)
    return change._replace(old=old, instead=sieve.left())


class SegmentCompactor:
    """Takes batches one by one. Its output never has more rows than its input."""

    def __init__(self, old: Sequence[SegmentRow], tables: dict[str, ExpiringTable], now: float) -> None:
        self._old = old
        self._tables = tables
        self._now = now
        self._packer = EntryPacker(max(PART_BYTES, 2 * sum(row.size for row in old) // len(old)))
        self._some: dict[str, tuple[list[str], list[Entry | None]]] = {name: ([], []) for name in tables}
        self._seen = 0

    def overtaken(self, row: SegmentRow) -> bool:
        """Whether all entries of a row are overwritten, as far as its versions show."""
        if row.versions is None:
            return False
        table = self._tables[WINDOWS]
        unsaved = table.dirty or {}
        for key, version in row.versions.items():
            entry = table.get(key)
            if key in unsaved or (entry is not None and entry[1] == version and entry[0] > self._now):
                return False
        self._seen += len(row.versions)
        return True

    def sift(self, pack: EntryBatch) -> None:
        """Keep the entries that are equal to those in memory, because they may be the newest saved form. Also keep
        those changed since the last save: the newest saved form is this one or a later one.
        """
        self._seen += len(pack.keys)
        table = self._tables[pack.table]
        unsaved = table.dirty or {}
        keys, entries = self._some[pack.table]
        for key, entry, current in zip(pack.keys, pack.entries, map(table.get, pack.keys), strict=True):
            if (entry == current and entry is not None and entry[0] > self._now) or key in unsaved:
                keys.append(key)
                entries.append(entry)
        if len(keys) >= at_once(pack.table):
            self._flush(pack.table)

    def _flush(self, name: str) -> None:
        self._packer.add(name, *self._some[name])
        self._some[name] = [], []

    def left(self) -> list[Segment] | None:
        """Return the replacement of the rows, or None if they should stay as they are."""
        for name in self._some:
            self._flush(name)
        parts = self._packer.close()
        all_true = sum(part.entries for part in parts) == self._seen
        return None if all_true and len(parts) >= len(self._old) else parts
