"""Operator state shared through Redis: one hash per kind, a version, and a message for each change.

Messages can be lost, so the version is polled as well. While Redis is unavailable, changes apply to this instance
and its file. Afterwards both sides are merged, and the newest form of each record wins.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

from breakloop.clock import Clock
from breakloop.errors import StateError
from breakloop.store.orders import KINDS, FileOrderStore, Name, Order, OrderSet, read
from breakloop.store.redis.connection import Answer, RedisError
from breakloop.store.redis.topology import Nodes, command
from breakloop.store.sqlite import Report, SqliteTrouble

CHANNEL: Final = b"bl:operator"
# The braces put all keys into one slot of a cluster.
VERSION: Final = b"bl:{operator}:version"
_SCAN: Final = b"500"
_AT_ONCE: Final = 200  # records per command
_PER_TICK: Final = 1000  # records per step: an empty Redis is filled without delaying requests
_PURGE_EVERY_S: Final = 600.0
_LUA: Final = Path(__file__).parent / "redis" / "lua"


class OrderFeed(Protocol):
    """The part of `topology.PubSub` that is needed here."""

    up: bool
    on_gap: Callable[[], None] | None

    def subscribe(self, channel: bytes, on_message: Callable[[bytes], None]) -> None:
        """Receive the messages published on a channel."""
        ...


class RedisOrderStore:
    """A `FileOrderStore` shared with other instances. Belongs to one event loop."""

    def __init__(self, local: FileOrderStore, nodes: Nodes, clock: Clock, report: Report) -> None:
        self._local = local
        self._nodes = nodes
        self._clock = clock
        self._report = report
        self._trouble = ""
        self._feed: OrderFeed | None = None
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
        self._round: asyncio.Task[None] | None = None
        self._purge_at = 0.0

    @property
    def ledger(self) -> OrderSet:
        return self._local.ledger

    @property
    def on_change(self) -> Callable[[Sequence[Order]], None] | None:
        """The callback for changes by other instances."""
        return self._local.on_change

    @on_change.setter
    def on_change(self, told: Callable[[Sequence[Order]], None] | None) -> None:
        self._local.on_change = told

    @property
    def synced(self) -> bool:
        """Whether the state of Redis is known here."""
        return self._synced

    def listen(self, feed: OrderFeed) -> None:
        """Subscribe to changes. An existing `on_gap` callback is still called."""
        self._feed, others = feed, feed.on_gap

        def missed() -> None:
            self.missed()
            if others is not None:
                others()

        feed.subscribe(CHANNEL, self.heard)
        feed.on_gap = missed

    def load(self) -> None:
        """Start with the copy in the file, because Redis may be unavailable."""
        self._local.load()

    def put(self, records: Sequence[Order], *, at_once: bool = True) -> list[Order]:
        """Write to the file and send to Redis without waiting; use `settled` to wait."""
        won = self._local.put(records, at_once=at_once)
        self._pending.update((record.name, record) for record in won)
        if self._nodes.up:
            self._push(won[:_PER_TICK])
        return won

    def tick(self, now: float) -> None:
        if now >= self._purge_at:
            self._purge_at = now + _PURGE_EVERY_S
            self._forget(self.ledger.stale(now))
        known = len(self.ledger)
        self._local.tick(now)
        if not self._nodes.up or len(self.ledger) > known:  # a file that could not be read before may have more records
            self._synced = False
        if not self._nodes.up:
            return
        if self._round is None or self._round.done():
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
        return not self._pending and await self._local.settled(timeout_s)

    async def close(self) -> None:
        """Give pending commands a moment to complete, then close the file."""
        await self.settled(1.0)
        if self._round is not None:
            self._round.cancel()
            await asyncio.wait((self._round,))
        await self._local.close()

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
        self._forget([record for record in found if record.stale(now)])
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
        won = self._local.put(list(records), at_once=False)
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
            args = [part for record in chunk for part in (_field(record), record.text().encode())]
            key = _hash(kind)
            eval_ = (b"EVAL", self._put_script, b"2", key, VERSION, CHANNEL, *args)
            self._sent.update(record.name for record in chunk)
            self._nodes.send(key, eval_, partial(self._pushed, chunk))

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
            done = "orders are in force and kept here, and shared as soon as that is possible"
            self._report(SqliteTrouble("Redis", self._trouble, done))

    def _forget(self, records: Sequence[Order]) -> None:
        self._local.forget(records)
        for kind, chunk in _chunks(records) if self._nodes.up else ():
            args = [part for record in chunk for part in (_field(record), record.text().encode())]
            self._nodes.send(_hash(kind), (b"EVAL", self._forget_script, b"1", _hash(kind), *args), _ignored)

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


def _field(record: Order) -> bytes:
    return record.key.encode("utf-8", "surrogatepass")


def _records(texts: Iterable[str | bytes]) -> Iterator[Order]:
    """Parse records; values of other programs are ignored."""
    return (record for text in texts if (record := read(text)) is not None)


def _chunks(records: Sequence[Order]) -> Iterator[tuple[str, Sequence[Order]]]:
    for kind in {record.kind: None for record in records}:
        own = [record for record in records if record.kind == kind]
        for start in range(0, len(own), _AT_ONCE):
            yield kind, own[start : start + _AT_ONCE]


def _ignored(_answer: Any) -> None:
    """Ignore a failed deletion; it is repeated later."""
