"""Operator state as data (SPEC S-1): what persons and detectors have ordered to hold until its time is over or somebody
lifts it. Here a record, and the ledger that keeps of each the newest; `operator_file` has it on disk, `operator_redis`
shares it with other instances, and what a record means is the business of `breakloop.engine.operator`.

Operator state on disk: `operator.db` in the data directory (SPEC S-1). What is put is written when the call returns,
and as a rule forced to the disk; a file that fails is `sqlite_file`'s matter, and what could not be written is tried
again twice a second.
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
LIFTED: Final = 0.0  # as `expires_at`: not over, but taken back
# A record that is over stays for a while, so that an instance that was away does not bring an older form of it back.
LIFTED_KEPT_S: Final = 30 * 86_400.0  # where a person took it back
OVER_KEPT_S: Final = 3_600.0

Name = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Order:
    """One order. `value` is JSON; `changed_at` decides between two forms of the same record."""

    kind: str
    key: str
    value: dict[str, Any]
    expires_at: float  # infinite where only a person ends it
    changed_at: float

    @property
    def name(self) -> Name:
        """What tells it from others."""
        return self.kind, self.key

    def live(self, now: float) -> bool:
        """Tell whether it is in force."""
        return self.expires_at > now

    def stale(self, now: float) -> bool:
        """Tell whether nobody needs to know of it any more."""
        if self.expires_at > now:
            return False
        kept_s = LIFTED_KEPT_S if self.value.get("by") and self.expires_at == LIFTED else OVER_KEPT_S
        return max(self.expires_at, self.changed_at) + kept_s <= now

    def text(self) -> str:
        """Write it as one line of ASCII. The time of change comes first: the script in Redis reads it."""
        expires_at = None if self.expires_at == math.inf else self.expires_at
        parts = [self.changed_at, self.kind, self.key, expires_at, self.value]
        return json.dumps(parts, separators=(",", ":"), allow_nan=False)


def read(text: str | bytes) -> Order | None:
    """Read what `Order.text` wrote; None where it is something else."""
    try:
        changed_at, kind, key, expires_at, value = json.loads(text)
        ends = math.inf if expires_at is None else float(expires_at)
        if isinstance(kind, str) and isinstance(key, str) and isinstance(value, dict):
            return Order(kind, key, value, ends, float(changed_at))
    except (ValueError, TypeError, RecursionError):
        pass
    return None


class OrderSet:
    """Of every record the newest form, also of what is over, until it is stale."""

    __slots__ = ("_kinds",)

    def __init__(self) -> None:
        self._kinds: dict[str, dict[str, Order]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._kinds.values()))

    def get(self, kind: str, key: str) -> Order | None:
        """Return the newest form of a record."""
        return self._kinds.get(kind, {}).get(key)

    def live(self, kind: str, now: float) -> list[Order]:
        """Return what is in force of one kind, in the order in which it was first heard of."""
        return [record for record in self._kinds.get(kind, {}).values() if record.expires_at > now]

    def all(self) -> list[Order]:
        """Return everything."""
        return [record for records in self._kinds.values() for record in records.values()]

    def stale(self, now: float) -> list[Order]:
        """Return what can be forgotten."""
        return [record for record in self.all() if record.stale(now)]

    def take(self, records: Iterable[Order]) -> list[Order]:
        """Take what is newer than what is known, or as new and different; return that."""
        won = []
        for record in records:
            known = self.get(record.kind, record.key)
            if known is None or (record.changed_at >= known.changed_at and record != known):
                self._kinds.setdefault(record.kind, {})[record.key] = record
                won.append(record)
        return won

    def forget(self, records: Iterable[Order]) -> None:
        """Drop these, unless they have changed."""
        for record in records:
            if self.get(record.kind, record.key) == record:
                del self._kinds[record.kind][record.key]

    def next_change(self, kind: str, key: str, now: float) -> float:
        """Return the time of a change that is made now: later than the last one, whosever clock that went by."""
        known = self.get(kind, key)
        return now if known is None or known.changed_at < now else math.nextafter(known.changed_at, math.inf)


class OrderStore(Protocol):
    """Who keeps the ledger. Nothing here raises: what cannot be kept is reported, and tried again by `tick`."""

    @property
    def ledger(self) -> OrderSet:
        """What is known."""
        ...

    on_change: Callable[[Sequence[Order]], None] | None  # hears of what others have changed

    def load(self) -> None:
        """Fill the ledger with what was kept."""
        ...

    def put(self, records: Sequence[Order], *, at_once: bool = True) -> list[Order]:
        """Take records into the ledger; on disk when this returns. If not `at_once` they are in the system's hands
        then, so that they survive this process, and on disk with the next `tick`.

        Returns those that are newer than what was known.
        """
        ...

    def tick(self, now: float) -> None:
        """Do what is due: a few times a second."""
        ...

    async def ready(self, timeout_s: float) -> bool:
        """Wait until the ledger has what others have ordered before; tell whether it has."""
        ...

    async def settled(self, timeout_s: float) -> bool:
        """Wait until everything put so far is where it must be; tell whether it is."""
        ...

    async def close(self) -> None:
        """Write what is left and let go."""
        ...


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


class FileOrderStore:
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
        """Fill the ledger; a file that cannot be read now is reported, and read later."""
        self._read()

    def put(self, records: Sequence[Order], *, at_once: bool = True) -> list[Order]:
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

    def forget(self, records: Sequence[Order]) -> None:
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

    def _read(self) -> list[Order]:
        """Return what the file had to tell."""
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


def _rows(records: Iterable[Order]) -> list[tuple[str, bytes, float, str]]:
    return [(record.kind, _key(record), record.changed_at, record.text()) for record in records]


def _key(record: Order) -> bytes:
    """A key may hold what is no text for SQLite: half a surrogate pair out of a client's JSON."""
    return record.key.encode("utf-8", "surrogatepass")
