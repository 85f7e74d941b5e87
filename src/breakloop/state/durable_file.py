"""`state.db`: parts in the order they were written, the newest saying of a key is true. A save adds parts at the end;
what has been overtaken is cleared away a little with each, from the oldest on. Rows of single entries would be written
all over the file, which costs ten times as much. What is in a part, and what is still true, is `durable`'s matter.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from secrets import token_hex
from threading import Lock
from typing import Final, NamedTuple

from xxhash import xxh3_64_intdigest

from breakloop.errors import StateError
from breakloop.state.durable_pack import Pack, Part, unpack
from breakloop.state.durable_rows import Row, Rows
from breakloop.state.sqlite_file import Report, Schema, SqliteFile, UnfitError

FILE: Final = "state.db"
SCHEMA: Final = Schema(
    0x424C_5354,
    (
        "CREATE TABLE meta (name TEXT PRIMARY KEY, value) WITHOUT ROWID",
        "CREATE TABLE part (id INTEGER PRIMARY KEY, expires REAL, entries INTEGER, checksum INTEGER, data BLOB)",
    ),
    # Rows are large, and what is deleted need not be written over: both save a third of the time.
    ("page_size = 16384", "secure_delete = OFF"),
)
_PUT_META: Final = "INSERT INTO meta VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value"
_PUT_PART: Final = "INSERT INTO part VALUES (?, ?, ?, ?, ?)"
_READ: Final = "SELECT id, expires, checksum, data FROM part WHERE id BETWEEN ? AND ? ORDER BY id"
_ID_MAX: Final = 2**63 - 1
# A statement that fails like this meets tables that are not what this program made.
_ODD: Final = frozenset((sqlite3.SQLITE_ERROR, sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_MISMATCH))


class Change(NamedTuple):
    """What one save does, all of it or nothing."""

    parts: list[Part]
    latest: float
    now: float
    whole: bool = False  # these parts are everything there is
    old: Sequence[Row] = ()  # rows next to each other,
    instead: list[Part] | None = None  # and what is still true of them; None: they stay


class StateFile:
    """The file, for one process; one call at a time, in any thread."""

    __slots__ = ("_closed", "_file", "_lock", "_writer", "rows")

    def __init__(self, directory: Path, report: Report) -> None:
        self._file = SqliteFile(directory / FILE, SCHEMA, report, synchronous="NORMAL")
        self._lock = Lock()
        self._closed = False
        self._writer = token_hex(8)
        self.rows = Rows()

    @property
    def path(self) -> Path:
        """Where it is."""
        return self._file.path

    @property
    def trouble(self) -> str:
        """Why it cannot be written at present."""
        return self._file.trouble

    def load(self, take: Callable[[Pack], None]) -> float:
        """Read everything; return the latest time that was known. Raises `StateError`."""
        with self._lock:
            return self._file.run(lambda db: self._load(db, take))

    def read(self, rows: Sequence[Row]) -> list[Pack]:
        """Return what is in these rows; nothing if the file is not the one that was written. Raises `StateError`."""
        with self._lock:
            return self._file.run(lambda db: self._packs(db, rows) if self._is_ours(db) else [])

    def write(self, change: Change) -> bool:
        """Save; False: the file is not the one that was written, so everything has to be. Raises `StateError`."""
        with self._lock:
            if self._closed:  # a thread that came too late
                raise StateError("the file is closed")
            rows = self._file.run(lambda db: self._write(db, change))
            if rows is not None and change.whole:
                self.rows = Rows(rows, tidy=True)
            elif rows is not None:
                self.rows.became(rows, change.old)
            return rows is not None

    def close(self) -> None:
        """Let go of the file."""
        with self._lock:
            self._closed = True
            self._file.close()

    def _load(self, db: sqlite3.Connection, take: Callable[[Pack], None]) -> float:
        try:
            meta = dict(db.execute("SELECT name, value FROM meta"))
            if meta.get("byteorder", sys.byteorder) != sys.byteorder:
                raise UnfitError("foreign", "written on another kind of machine")
            rows = []
            for row, data in _read(db, 0, _ID_MAX):
                rows.append(row)
                for pack in unpack(data):
                    take(pack)
            latest = float(meta.get("latest", 0.0))
        except (ValueError, TypeError) as error:
            raise UnfitError("damaged", str(error)) from None
        except sqlite3.Error as error:
            if error.sqlite_errorcode not in _ODD:
                raise
            raise UnfitError("damaged", str(error)) from None
        self._sign(db)
        self.rows = Rows(rows)
        return latest

    def _sign(self, db: sqlite3.Connection) -> None:
        """Leave a mark by which this process knows the file again."""
        marks = {"program": "breakloop", "byteorder": sys.byteorder, "writer": self._writer}
        db.executemany(_PUT_META, list(marks.items()))

    def _is_ours(self, db: sqlite3.Connection) -> bool:
        found = db.execute("SELECT value FROM meta WHERE name = 'writer'").fetchone()
        return found is not None and found[0] == self._writer

    def _packs(self, db: sqlite3.Connection, rows: Sequence[Row]) -> list[Pack]:
        try:
            return [pack for row in rows for _, data in _read(db, row.id, row.id) for pack in unpack(data)]
        except ValueError as error:
            raise UnfitError("damaged", str(error)) from None

    def _write(self, db: sqlite3.Connection, change: Change) -> list[Row] | None:
        if change.whole:
            db.execute("DELETE FROM part")
            self._sign(db)
        elif not self._is_ours(db):
            return None
        rows = Rows([] if change.whole else self._tidy(db, change))
        expired = rows.expired(change.now)
        if expired:
            db.execute("DELETE FROM part WHERE id <= ?", (expired[-1].id,))
        first = max(self.rows.next_id(), rows.next_id())
        db.execute(_PUT_META, ("latest", change.latest))
        return rows.all[len(expired) :] + _insert(db, first, change.parts)

    def _tidy(self, db: sqlite3.Connection, change: Change) -> list[Row]:
        """Put what is still true in the place of what was; return the rows there are then."""
        if not change.old or change.instead is None:
            return self.rows.all
        first, last = change.old[0].id, change.old[-1].id
        db.execute("DELETE FROM part WHERE id BETWEEN ? AND ?", (first, last))
        instead = _insert(db, last + 1 - len(change.instead), change.instead)
        before = [row for row in self.rows.all if row.id < first]
        return [*before, *instead, *(row for row in self.rows.all if row.id > last)]


def _read(db: sqlite3.Connection, first: int, last: int) -> Iterator[tuple[Row, bytes]]:
    for number, expires, checksum, data in db.execute(_READ, (first, last)):
        if type(data) is not bytes or _checksum(data) != checksum:
            raise ValueError(f"the checksum of part {number} does not fit")
        yield Row(number, len(data), expires), data


def _insert(db: sqlite3.Connection, first: int, parts: Sequence[Part]) -> list[Row]:
    numbered = list(enumerate(parts, first))
    db.executemany(
        _PUT_PART, ((number, part.expires, part.entries, _checksum(part.data), part.data) for number, part in numbered)
    )
    return [Row(number, len(part.data), part.expires, part.versions) for number, part in numbered]


def _checksum(data: bytes) -> int:
    """63 bits, which SQLite can hold; a CRC takes ten times as long."""
    return xxh3_64_intdigest(data) & (2**63 - 1)
