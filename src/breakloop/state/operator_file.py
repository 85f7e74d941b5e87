"""Operator state on disk: `operator.db` in the data directory (SPEC S-1). What is put is written when the call returns,
and as a rule forced to the disk; a file that fails is `sqlite_file`'s matter, and what could not be written is tried
again twice a second."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

from breakloop.errors import StateError
from breakloop.state.operator import Ledger, Name, Record, read
from breakloop.state.sqlite_file import Report, Schema, SqliteFile, Trouble

FILE: Final = "operator.db"
SCHEMA: Final = Schema(
    0x424C_4F50,
    ("CREATE TABLE record (kind TEXT, key BLOB, changed_at REAL, text TEXT, PRIMARY KEY (kind, key)) WITHOUT ROWID",),
)
# Several processes may write one file; what is newest stays.
_PUT: Final = (
    "INSERT INTO record VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET changed_at = excluded.changed_at, "
    "text = excluded.text WHERE excluded.changed_at >= changed_at"
)
_PURGE_EVERY_S: Final = 600.0
_SKIPPED_MAX: Final = 16  # ticks without another try, while the file fails: a locked one keeps its writer waiting


class FileBook:
    """The ledger in a file; without a directory in memory only."""

    __slots__ = (
        "_due",
        "_file",
        "_loaded",
        "_made",
        "_purge_at",
        "_report",
        "_skip",
        "_skipped",
        "ledger",
        "on_change",
    )

    def __init__(self, folder: Path | None, report: Report) -> None:
        self.ledger = Ledger()
        self.on_change: Callable[[Sequence[Record]], None] | None = None
        self._report = report
        self._file = None if folder is None else SqliteFile(folder / FILE, SCHEMA, report)
        self._loaded = folder is None
        self._made = 0
        self._due: dict[Name, Record] = {}
        self._skip = self._skipped = 0
        self._purge_at = 0.0

    def load(self) -> None:
        """Fill the ledger; a file that cannot be read now is reported, and read later."""
        self._read()

    def put(self, records: Sequence[Record], *, at_once: bool = True) -> list[Record]:
        """Take records into the ledger and write them. While the file fails no request waits for it."""
        won = self.ledger.take(records)
        for record in won:
            self._due[record.name] = record
        if at_once and self._due and not self._skip:
            self._write()
        elif won and not self._skip:
            rows = _rows(won)  # they stay due: the next tick waits for the disk
            self._try(lambda db: db.executemany(_PUT, rows), synced=False)
        return won

    def tick(self, now: float) -> None:
        """Catch up with what could not be read or written, and forget what is stale."""
        if self._skip:
            self._skip -= 1
        elif not self._loaded:
            found = self._read()
            if found and self.on_change is not None:
                self.on_change(found)
        elif self._due:
            self._write()
        if now >= self._purge_at:
            self._purge_at = now + _PURGE_EVERY_S
            self.forget(self.ledger.stale(now))

    def forget(self, records: Sequence[Record]) -> None:
        """Drop these for good."""
        self.ledger.forget(records)
        if records and self._file is not None:
            rows = [(record.kind, _key(record), record.changed_at) for record in records]
            self._try(
                lambda db: db.executemany("DELETE FROM record WHERE kind = ? AND key = ? AND changed_at = ?", rows)
            )

    async def ready(self, timeout_s: float) -> bool:  # noqa: ARG002 - a protocol's; there are no others
        """Tell whether the file was read."""
        return self._loaded

    async def settled(self, timeout_s: float) -> bool:  # noqa: ARG002 - a protocol's; nothing to wait for
        """Write what can be written now; tell whether that is everything."""
        if self._due and not self._skip:
            self._write()
        return not self._due

    async def close(self) -> None:
        """Write what is left and let go of the file."""
        if self._due:
            self._write()
        if self._file is not None:
            self._file.close()

    def _read(self) -> list[Record]:
        """Return what the file had to tell."""
        texts: list[str] = []
        self._loaded = self._try(lambda db: texts.extend(_texts(db)))
        if self._loaded and self._file is not None:
            self._made = self._file.made
        found = [read(text) for text in texts]
        odd = sum(record is None for record in found)
        if odd and self._file is not None:
            self._report(Trouble(str(self._file.path), f"{odd} entries cannot be read", "they are left out"))
        return self.ledger.take(record for record in found if record is not None)

    def _write(self) -> None:
        due = _rows(self._due.values())
        if not self._try(lambda db: db.executemany(_PUT, due)):
            return
        if self._file is not None and self._file.made != self._made:  # a new one, in place of one that was set aside
            everything = _rows(self.ledger.all())
            if not self._try(lambda db: db.executemany(_PUT, everything)):
                return
            self._made = self._file.made
        self._due.clear()

    def _try(self, work: Callable[[sqlite3.Connection], object], *, synced: bool = True) -> bool:
        try:
            if self._file is not None:
                self._file.run(work, synced=synced)
        except StateError:
            self._skip = self._skipped = min(2 * self._skipped or 1, _SKIPPED_MAX)
            return False
        self._skip = self._skipped = 0
        return True


def _texts(db: sqlite3.Connection) -> list[str]:
    return [text for (text,) in db.execute("SELECT text FROM record ORDER BY changed_at")]


def _rows(records: Iterable[Record]) -> list[tuple[str, bytes, float, str]]:
    return [(record.kind, _key(record), record.changed_at, record.text()) for record in records]


def _key(record: Record) -> bytes:
    """A key may hold what is no text for SQLite: half a surrogate pair out of a client's JSON."""
    return record.key.encode("utf-8", "surrogatepass")
