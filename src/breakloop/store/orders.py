"""Operator state: orders by operators and detectors that hold until they expire or are lifted.

An `Order` is one record, an `OrderSet` stores the newest form of each. `FileOrderStore` saves them in `operator.db`
in the data directory: a record is written before the call returns, and normally synced to disk. Failures of the file
are handled by `sqlite`; failed writes are retried twice a second. `orders_redis` shares the orders with other
instances, and `breakloop.engine.operator` applies them.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from breakloop.errors import StateError
from breakloop.store.sqlite import Report, Schema, SqliteFile, SqliteTrouble

HOLD, SWITCH, OVERRIDE, SNOOZE, AGENT = "hold", "switch", "override", "snooze", "agent"
KINDS: Final = (HOLD, SWITCH, OVERRIDE, SNOOZE, AGENT)
LIFTED: Final = 0.0  # value of `expires_at`: withdrawn, not expired
# Ended records are stored for a while, so that an instance that was offline does not restore an older form.
LIFTED_KEPT_S: Final = 30 * 86_400.0  # for records withdrawn by an operator
OVER_KEPT_S: Final = 3_600.0

Name = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Order:
    """One order. `value` is JSON; `changed_at` decides between two forms of the same record."""

    kind: str
    key: str
    value: dict[str, Any]
    expires_at: float  # infinite if only an operator ends it
    changed_at: float

    @property
    def name(self) -> Name:
        return self.kind, self.key

    def live(self, now: float) -> bool:
        """Return whether it is in force."""
        return self.expires_at > now

    def stale(self, now: float) -> bool:
        """Return whether the record can be deleted."""
        if self.expires_at > now:
            return False
        kept_s = LIFTED_KEPT_S if self.value.get("by") and self.expires_at == LIFTED else OVER_KEPT_S
        return max(self.expires_at, self.changed_at) + kept_s <= now

    def text(self) -> str:
        """Serialise the record as one line of ASCII. The time of change is first, because the Redis script reads it."""
        expires_at = None if self.expires_at == math.inf else self.expires_at
        parts = [self.changed_at, self.kind, self.key, expires_at, self.value]
        return json.dumps(parts, separators=(",", ":"), allow_nan=False)


def read(text: str | bytes) -> Order | None:
    """Parse the output of `Order.text`; None if it is something else."""
    try:
        changed_at, kind, key, expires_at, value = json.loads(text)
        ends = math.inf if expires_at is None else float(expires_at)
        if isinstance(kind, str) and isinstance(key, str) and isinstance(value, dict):
            return Order(kind, key, value, ends, float(changed_at))
    except (ValueError, TypeError, RecursionError):
        pass
    return None


class OrderSet:
    """The newest form of every record, including ended ones until they are stale."""

    __slots__ = ("_kinds",)

    def __init__(self) -> None:
        self._kinds: dict[str, dict[str, Order]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._kinds.values()))

    def get(self, kind: str, key: str) -> Order | None:
        """Return the newest form of a record."""
        return self._kinds.get(kind, {}).get(key)

    def live(self, kind: str, now: float) -> list[Order]:
        """Return the orders of one kind that are in force, in the order in which they were first added."""
        return [record for record in self._kinds.get(kind, {}).values() if record.expires_at > now]

    def all(self) -> list[Order]:
        return [record for records in self._kinds.values() for record in records.values()]

    def stale(self, now: float) -> list[Order]:
        """Return the records that can be deleted."""
        return [record for record in self.all() if record.stale(now)]

    def take(self, records: Iterable[Order]) -> list[Order]:
        """Add the records that are newer than the stored ones, or equally new and different; return those."""
        won = []
        for record in records:
            known = self.get(record.kind, record.key)
            if known is None or (record.changed_at >= known.changed_at and record != known):
                self._kinds.setdefault(record.kind, {})[record.key] = record
                won.append(record)
        return won

    def forget(self, records: Iterable[Order]) -> None:
        """Drop these records unless they have changed."""
        for record in records:
            if self.get(record.kind, record.key) == record:
                del self._kinds[record.kind][record.key]

    def next_change(self, kind: str, key: str, now: float) -> float:
        """Return the timestamp for a change made now: later than the last one, even if that came from another clock."""
        known = self.get(kind, key)
        return now if known is None or known.changed_at < now else math.nextafter(known.changed_at, math.inf)


class OrderStore(Protocol):
    """Stores the orders. No method raises: failures are reported, and `tick` retries."""

    @property
    def ledger(self) -> OrderSet: ...

    on_change: Callable[[Sequence[Order]], None] | None  # called with changes by other instances

    def load(self) -> None: ...

    def put(self, records: Sequence[Order], *, at_once: bool = True) -> list[Order]:
        """Add records; they are on disk when this returns. Without `at_once` they are only handed to the operating
        system, so that they survive this process, and are synced with the next `tick`.

        Returns those that are newer than the known ones.
        """
        ...

    def tick(self, now: float) -> None:
        """Do pending work. Called a few times a second."""
        ...

    async def ready(self, timeout_s: float) -> bool:
        """Wait until earlier orders of other instances are loaded; return whether they are."""
        ...

    async def settled(self, timeout_s: float) -> bool:
        """Wait until all records put so far are stored; return whether they are."""
        ...

    async def close(self) -> None:
        """Write what is pending and close."""
        ...


FILE: Final = "operator.db"
SCHEMA: Final = Schema(
    0x424C_4F50,
    ("CREATE TABLE record (kind TEXT, key BLOB, changed_at REAL, text TEXT, PRIMARY KEY (kind, key)) WITHOUT ROWID",),
)
# Several processes may write to one file; the newest form wins.
_PUT: Final = (
    "INSERT INTO record VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET changed_at = excluded.changed_at, "
    "text = excluded.text WHERE excluded.changed_at >= changed_at"
)
_PURGE_EVERY_S: Final = 600.0
_SKIPPED_MAX: Final = 16  # ticks between attempts while the file fails: a locked file blocks its writer


class FileOrderStore:
    """Orders in a file, or without a directory in memory only."""

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
        self.ledger = OrderSet()
        self.on_change: Callable[[Sequence[Order]], None] | None = None
        self._report = report
        self._file = None if folder is None else SqliteFile(folder / FILE, SCHEMA, report)
        self._loaded = folder is None
        self._made = 0
        self._due: dict[Name, Order] = {}
        self._skip = self._skipped = 0
        self._purge_at = 0.0

    def load(self) -> None:
        """Load the orders. A file that cannot be read is reported and read later."""
        self._read()

    def put(self, records: Sequence[Order], *, at_once: bool = True) -> list[Order]:
        """Add records and write them. While the file fails, requests do not wait for it."""
        won = self.ledger.take(records)
        for record in won:
            self._due[record.name] = record
        if at_once and self._due and not self._skip:
            self._write()
        elif won and not self._skip:
            rows = _rows(won)  # still pending: the next tick waits for the disk
            self._try(lambda db: db.executemany(_PUT, rows), synced=False)
        return won

    def tick(self, now: float) -> None:
        """Retry failed reads and writes, and delete stale records."""
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

    def forget(self, records: Sequence[Order]) -> None:
        self.ledger.forget(records)
        if records and self._file is not None:
            rows = [(record.kind, _key(record), record.changed_at) for record in records]
            self._try(
                lambda db: db.executemany("DELETE FROM record WHERE kind = ? AND key = ? AND changed_at = ?", rows)
            )

    async def ready(self, timeout_s: float) -> bool:  # noqa: ARG002 - a protocol's; there are no others
        """Return whether the file was read."""
        return self._loaded

    async def settled(self, timeout_s: float) -> bool:  # noqa: ARG002 - a protocol's; nothing to wait for
        """Write what can be written now; return whether that is everything."""
        if self._due and not self._skip:
            self._write()
        return not self._due

    async def close(self) -> None:
        """Write what is pending and close the file."""
        if self._due:
            self._write()
        if self._file is not None:
            self._file.close()

    def _read(self) -> list[Order]:
        """Return the records of the file."""
        texts: list[str] = []
        self._loaded = self._try(lambda db: texts.extend(_texts(db)))
        if self._loaded and self._file is not None:
            self._made = self._file.made
        found = [read(text) for text in texts]
        odd = sum(record is None for record in found)
        if odd and self._file is not None:
            self._report(SqliteTrouble(str(self._file.path), f"{odd} entries cannot be read", "they are left out"))
        return self.ledger.take(record for record in found if record is not None)

    def _write(self) -> None:
        due = _rows(self._due.values())
        if not self._try(lambda db: db.executemany(_PUT, due)):
            return
        if self._file is not None and self._file.made != self._made:  # a new file, after the old one was set aside
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


def _rows(records: Iterable[Order]) -> list[tuple[str, bytes, float, str]]:
    return [(record.kind, _key(record), record.changed_at, record.text()) for record in records]


def _key(record: Order) -> bytes:
    """Return a key as SQLite can store it: it may contain a lone surrogate from a client's JSON."""
    return record.key.encode("utf-8", "surrogatepass")
