"""Operator state: orders by operators and detectors that hold until they expire or are lifted.

An `Order` is one record, an `OrderSet` stores the newest form of each. `FileOrderStore` saves them in `operator.db`
in the data directory: a record is written before the call returns, and normally synced to disk. Failures of the file
are handled by `sqlite`; failed writes are retried twice a second. `breakloop.engine.operator` applies the orders.

`RedisOrderStore` shares them with other instances: one hash per kind, a version, and a message for each change.
Messages can be lost, so the version is polled as well. While Redis is unavailable, changes apply to this instance and
its file. Afterwards both sides are merged, and the newest form of each record wins.
"""

from __future__ import annotations

import asyncio
import json
import math
import secrets
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from breakloop.clock import Clock
from breakloop.errors import StateError
from breakloop.store.redis.connection import Answer, RedisError, ignore
from breakloop.store.redis.topology import Nodes, PubSub, command
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

    def __init__(self) -> None:
        self._kinds: dict[str, dict[str, Order]] = {}

    def get(self, kind: str, key: str) -> Order | None:
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
_TEXTS: Final = "SELECT text FROM record ORDER BY changed_at"
_PURGE_EVERY_S: Final = 600.0
_SKIPPED_MAX: Final = 16  # ticks between attempts while the file fails: a locked file blocks its writer


class FileOrderStore:
    """Orders in a file, or without a directory in memory only. No method raises: failures are reported, and `tick`
    retries.
    """

    def __init__(self, folder: Path | None, report: Report) -> None:
        self.ledger = OrderSet()
        self.on_change: Callable[[Sequence[Order]], None] | None = None  # called with changes by other instances
        self.on_question: Callable[[str], str] | None = None  # answers a question of an operator, see `ask`
        self._report = report
        self._file = None if folder is None else SqliteFile(folder / FILE, SCHEMA, report)
        self._loaded = folder is None
        self._made = 0
        self._due: dict[Name, Order] = {}
        self._skip = self._skipped = 0
        self._purge_at = 0.0

    def load(self) -> list[Order]:
        """Load the orders and return them. A file that cannot be read is reported and read later."""
        texts: list[str] = []
        self._loaded = self._try(lambda db: texts.extend(text for (text,) in db.execute(_TEXTS)))
        if self._loaded and self._file is not None:
            self._made = self._file.made
        found = [read(text) for text in texts]
        odd = sum(record is None for record in found)
        if odd and self._file is not None:
            self._report(SqliteTrouble(str(self._file.path), f"{odd} entries cannot be read", "they are ignored"))
        return self.ledger.take(record for record in found if record is not None)

    def put(self, records: Sequence[Order], *, at_once: bool = True) -> list[Order]:
        """Add records; return those that are newer than the known ones. They are on disk when this returns, unless the
        file fails. Without `at_once` they are only handed to the operating system, so that they survive this process,
        and are synced with the next `tick`.
        """
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
        """Retry failed reads and writes, and delete stale records. Called a few times a second."""
        if self._skip:
            self._skip -= 1
        elif not self._loaded:
            found = self.load()
            if found and self.on_change is not None:
                self.on_change(found)
        elif self._due:
            self._write()
        if now >= self._purge_at:
            self._purge_at = now + _PURGE_EVERY_S
            self.forget(self.ledger.stale(now))

    def clock_stepped(self, now: float) -> None:
        """Delete nothing for a while: if the clock is wrong, orders that seem to be over are still in force."""
        self._purge_at = now + _PURGE_EVERY_S

    def forget(self, records: Sequence[Order]) -> None:
        self.ledger.forget(records)
        if records and self._file is not None:
            rows = [(record.kind, _key(record), record.changed_at) for record in records]
            self._try(
                lambda db: db.executemany("DELETE FROM record WHERE kind = ? AND key = ? AND changed_at = ?", rows)
            )

    async def ready(self, timeout_s: float) -> bool:  # noqa: ARG002 - there are no others to wait for
        """Wait until earlier orders are loaded; return whether they are."""
        return self._loaded

    async def settled(self, timeout_s: float) -> bool:  # noqa: ARG002 - there is nothing to wait for
        """Wait until all records put so far are stored; return whether they are."""
        if self._due and not self._skip:
            self._write()
        return not self._due

    async def ask(self, question: str, timeout_s: float) -> list[str]:  # noqa: ARG002 - there are no others to wait for
        """Return what `on_question` of every instance answers."""
        return [] if self.on_question is None else [self.on_question(question)]

    async def close(self) -> None:
        """Write what is pending and close the file."""
        if self._due:
            self._write()
        if self._file is not None:
            self._file.close()

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


def _rows(records: Iterable[Order]) -> list[tuple[str, bytes, float, str]]:
    return [(record.kind, _key(record), record.changed_at, record.text()) for record in records]


def _key(record: Order) -> bytes:
    """Return a key as SQLite and Redis can store it: it may contain a lone surrogate from a client's JSON."""
    return record.key.encode("utf-8", "surrogatepass")


CHANNEL: Final = b"bl:operator"
QUESTIONS: Final = b"bl:operator:questions"  # an id, "?" or "!", and the question or an answer
# The braces put all keys into one slot of a cluster.
VERSION: Final = b"bl:{operator}:version"
_SCAN: Final = b"500"
_AT_ONCE: Final = 200  # records per command
_PER_TICK: Final = 1000  # records per step: an empty Redis is filled without delaying requests
_LUA: Final = Path(__file__).parent / "redis" / "lua"


class RedisOrderStore(FileOrderStore):
    """Orders shared with other instances, with a copy in a file. Belongs to one event loop."""

    def __init__(self, folder: Path | None, report: Report, nodes: Nodes, clock: Clock) -> None:
        super().__init__(folder, report)
        self._nodes = nodes
        self._clock = clock
        self._trouble = ""
        self._feed: PubSub | None = None
        self._gaps = 0  # how often messages may have been lost
        self._put_script = (_LUA / "operator_put.lua").read_bytes()
        self._forget_script = (_LUA / "operator_forget.lua").read_bytes()
        self._synced = False
        self._known = 0  # everything up to this version is known
        self._polled = 0  # the version at the last poll
        self._later: set[int] = set()  # versions announced out of order
        self._pending: dict[Name, Order] = {}
        self._sent: set[Name] = set()
        self._waiting: list[asyncio.Future[None]] = []
        self._asked: dict[bytes, asyncio.Queue[str]] = {}
        self._round: asyncio.Task[None] | None = None

    @property
    def synced(self) -> bool:
        """Whether the state of Redis is known here."""
        return self._synced

    def listen(self, feed: PubSub) -> None:
        """Subscribe to changes. An existing `on_gap` callback is still called."""
        self._feed, others = feed, feed.on_gap

        def missed() -> None:
            self.missed()
            if others is not None:
                others()

        feed.subscribe(CHANNEL, self.heard)
        feed.subscribe(QUESTIONS, self._heard_question)
        feed.on_gap = missed

    def put(self, records: Sequence[Order], *, at_once: bool = True) -> list[Order]:
        """Write to the file and send to Redis without waiting; use `settled` to wait."""
        won = super().put(records, at_once=at_once)
        self._pending.update((record.name, record) for record in won)
        if self._nodes.up:
            self._push(won[:_PER_TICK])
        return won

    def tick(self, now: float) -> None:
        super().tick(now)
        if not self._nodes.up:
            self._synced = False
        elif self._round is None or self._round.done():
            self._round = asyncio.get_running_loop().create_task(self._look(), name="operator state")

    def heard(self, message: bytes) -> None:
        """Handle a change announced by this or another instance."""
        first, *texts = message.split(b"\n")
        self._adopt(_records(texts))
        if first.isdigit():
            self._later.add(int(first))
            self._count_on()

    def missed(self) -> None:
        """Record that messages may have been lost."""
        self._gaps += 1
        self._synced = False
        self.tick(self._clock.now())

    async def ready(self, timeout_s: float) -> bool:
        """Wait until the state of Redis is loaded, if Redis is available."""
        if self._nodes.up and not self._synced:
            self.tick(self._clock.now())
            if self._round is not None:
                await asyncio.wait((self._round,), timeout=timeout_s)
        return self._synced

    async def settled(self, timeout_s: float) -> bool:
        """Wait until Redis has stored all records put so far. False: they are sent again when Redis is available."""
        if self._pending and self._nodes.up:
            waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiting)
            await asyncio.wait((waiting,), timeout=timeout_s)
        return not self._pending and await super().settled(timeout_s)

    async def ask(self, question: str, timeout_s: float) -> list[str]:
        """Return what the instances answer in time. Redis tells how many of them the question has reached."""
        if not self._nodes.up or self._feed is None or not self._feed.up:
            return await super().ask(question, timeout_s)
        number, found = secrets.token_hex(8).encode(), asyncio.Queue[str]()
        self._asked[number] = found
        answers: list[str] = []
        try:
            async with asyncio.timeout(timeout_s):
                reached = await self._ask(VERSION, b"PUBLISH", QUESTIONS, number + b"?" + question.encode())
                while len(answers) < int(reached):
                    answers.append(await found.get())
        except (TimeoutError, StateError):
            pass  # those that have answered
        finally:
            del self._asked[number]
        return answers

    def _heard_question(self, message: bytes) -> None:
        number, sign, text = message[:16], message[16:17], message[17:].decode("utf-8", "replace")
        if sign == b"!" and number in self._asked:
            self._asked[number].put_nowait(text)
        elif sign == b"?" and self.on_question is not None:
            answer = number + b"!" + self.on_question(text).encode()
            self._nodes.send(VERSION, (b"PUBLISH", QUESTIONS, answer), ignore)

    async def close(self) -> None:
        """Give pending commands a moment to complete, then close the file."""
        await self.settled(1.0)
        if self._round is not None:
            self._round.cancel()
            await asyncio.wait((self._round,))
        await super().close()

    def load(self) -> list[Order]:
        self._synced = False  # a file that could not be read before may have more records than Redis
        return super().load()

    # -- reading from Redis -----------------------------------------------------------------------------------------

    async def _look(self) -> None:
        """Read the version; reload everything if a message is overdue or data was lost."""
        try:
            version = await self._version()
            hears = self._feed is not None and self._feed.up  # a message may still be on its way
            overdue = version != self._known and (not hears or self._known < self._polled)
            lost = version < max(self._known, self._polled, *self._later)
            if not self._synced or overdue or lost:
                await self._reconcile()
            self._polled = version
            self._push([record for record in self._pending.values() if record.name not in self._sent][:_PER_TICK])
        except StateError as error:
            self._synced = False
            self._refused(error)

    async def _version(self) -> int:
        answer = await self._ask(VERSION, b"GET", VERSION)
        return int(answer) if answer and answer.isdigit() else 0

    async def _reconcile(self) -> None:
        """Take the records that are newer in Redis, send those that are newer here."""
        gaps = self._gaps
        self._later.clear()
        version = await self._version()
        found = [record for kind in KINDS for record in await self._scan(kind)]
        now = self._clock.now()
        theirs = {record.name: record for record in found if not record.stale(now)}
        self._adopt(theirs.values())
        self.forget([record for record in found if record.stale(now)])
        self._known, self._synced = version, gaps == self._gaps
        self._count_on()
        ours = [record for record in self.ledger.all() if not record.stale(now)]
        ours = [one for one in ours if one.name not in theirs or theirs[one.name].changed_at < one.changed_at]
        self._pending = {record.name: record for record in ours}
        self._wake()

    async def _scan(self, kind: str) -> list[Order]:
        """Read a hash in steps, so that a large number of holds does not block Redis."""
        key, cursor, texts = _hash(kind), b"0", []
        while True:
            cursor, pairs = await self._ask(key, b"HSCAN", key, cursor, b"COUNT", _SCAN)
            texts += pairs[1::2]
            if cursor == b"0":
                return list(_records(texts))

    def _adopt(self, records: Iterable[Order]) -> None:
        won = super().put(list(records), at_once=False)
        for record in won:
            self._pending.pop(record.name, None)  # the pending form is outdated
        self._wake()
        if won and self.on_change is not None:
            self.on_change(won)

    def _count_on(self) -> None:
        while self._known + 1 in self._later:
            self._known += 1
        self._later = {version for version in self._later if version > self._known}

    # -- writing to Redis -------------------------------------------------------------------------------------------

    def _push(self, records: Sequence[Order]) -> None:
        for kind, chunk in _chunks(records):
            self._sent.update(record.name for record in chunk)
            eval_ = (b"EVAL", self._put_script, b"2", _hash(kind), VERSION, CHANNEL, *_fields(chunk))
            self._nodes.send(_hash(kind), eval_, partial(self._pushed, chunk))

    def _pushed(self, records: Sequence[Order], answer: Answer) -> None:
        self._sent.difference_update(record.name for record in records)
        if not isinstance(answer, list):
            self._refused(answer)
            return  # they are still pending
        self._trouble = ""
        for record in records:
            if self._pending.get(record.name) == record:
                del self._pending[record.name]
        self._adopt(_records(answer[1:]))

    def _refused(self, answer: Answer) -> None:
        """Report a command that Redis rejects: out of memory, no permission, or a key of another type."""
        if isinstance(answer, RedisError) and str(answer) != self._trouble:
            self._trouble = str(answer)
            done = "orders are active and stored here; they are shared when the store is available"
            self._report(SqliteTrouble("Redis", self._trouble, done))

    def forget(self, records: Sequence[Order]) -> None:
        super().forget(records)
        for kind, chunk in _chunks(records) if self._nodes.up else ():
            eval_ = (b"EVAL", self._forget_script, b"1", _hash(kind), *_fields(chunk))
            self._nodes.send(_hash(kind), eval_, ignore)  # if it fails, it is repeated later

    def _wake(self) -> None:
        if not self._pending:
            for waiting in self._waiting:
                if not waiting.done():
                    waiting.set_result(None)
            self._waiting.clear()

    async def _ask(self, key: bytes, *args: bytes) -> Any:
        """Send a command and wait for the response. Raises `StateError`."""
        answer = await command(self._nodes, *args, key=key)
        if isinstance(answer, StateError):
            raise answer
        return answer


def _hash(kind: str) -> bytes:
    return b"bl:{operator}:" + kind.encode()


def _fields(records: Sequence[Order]) -> list[bytes]:
    return [part for record in records for part in (_key(record), record.text().encode())]


def _records(texts: Iterable[str | bytes]) -> Iterator[Order]:
    """Parse records; values of other programs are ignored."""
    return (record for text in texts if (record := read(text)) is not None)


def _chunks(records: Sequence[Order]) -> Iterator[tuple[str, Sequence[Order]]]:
    for kind in {record.kind: None for record in records}:
        own = [record for record in records if record.kind == kind]
        for start in range(0, len(own), _AT_ONCE):
            yield kind, own[start : start + _AT_ONCE]
