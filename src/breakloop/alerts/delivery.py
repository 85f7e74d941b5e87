"""Stores deliveries in an outbox and sends them with retries.

Deliveries are on disk before the first attempt and stay there until they are delivered or given up. Of the deliveries
with one order key only the oldest is attempted, so they arrive in order. The waits between attempts grow, and a target
that keeps failing is tried less often (its circuit breaker).
"""

from __future__ import annotations

import asyncio
import secrets
import sqlite3
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import RLock
from typing import Any, Final, TypeVar

from breakloop.alerts.channels.base import Delivery, DeliveryResult, Target
from breakloop.alerts.transport import DeliveryContext
from breakloop.errors import StateError
from breakloop.store.sqlite import Report, Schema, SqliteFile

T = TypeVar("T")

FILE: Final = "alerts.db"
SCHEMA: Final = Schema(
    0x424C_414C,
    (
        (
            "CREATE TABLE webhook (id TEXT PRIMARY KEY, url TEXT, events TEXT, secret TEXT, old_secret TEXT, "
            "old_until REAL, allow_private INTEGER, created_at REAL, disabled TEXT) WITHOUT ROWID"
        ),
        (
            "CREATE TABLE delivery (seq INTEGER PRIMARY KEY, id TEXT UNIQUE, target TEXT, event TEXT, body TEXT, "
            "order_key TEXT, critical INTEGER, made_at REAL, tries INTEGER, next_at REAL, state TEXT, status INTEGER, "
            "error TEXT, ended_at REAL)"
        ),
        "CREATE INDEX delivery_due ON delivery (target, next_at) WHERE state = 'waiting'",
        "CREATE INDEX delivery_order ON delivery (target, order_key, seq) WHERE state = 'waiting'",
        "CREATE INDEX delivery_ended ON delivery (state, ended_at) WHERE state != 'waiting'",
        "CREATE TABLE standing (rule TEXT, key TEXT, text TEXT, PRIMARY KEY (rule, key)) WITHOUT ROWID",
    ),
)


class AlertDatabase:
    """`alerts.db` in the data directory, used from any thread. `on_new` fills a file that had to be recreated."""

    def __init__(self, folder: Path, report: Report) -> None:
        self._file = SqliteFile(folder / FILE, SCHEMA, report)
        self._lock = RLock()
        self.on_new: list[Callable[[sqlite3.Connection], None]] = []

    def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` in one transaction, on disk when this returns. Raises `StateError`."""
        with self._lock:
            made = self._file.made
            result = self._file.run(work)
            if self._file.made != made:
                self._file.run(self._fill)
            return result

    def close(self) -> None:
        with self._lock:
            self._file.close()

    def _fill(self, connection: sqlite3.Connection) -> None:
        for write in self.on_new:
            write(connection)


WAITING, DELIVERED, FAILED = "waiting", "delivered", "failed"
WAITING_MAX: Final = 10_000  # per target
_DELIVERED_MAX, _DELIVERED_S = 1_000, 7 * 86_400.0  # kept for the list of deliveries
_FAILED_MAX, _FAILED_S = 10_000, 30 * 86_400.0

# Deliveries that must arrive before one: waiting for the same target, with the same key, and older.
_AHEAD: Final = (
    "SELECT 1 FROM delivery AS e WHERE e.state = 'waiting' AND e.target = d.target AND e.order_key = d.order_key "
    "AND e.seq < d.seq"
)
_HEADS: Final = (
    "SELECT seq, id, target, event, body, made_at, tries, next_at FROM delivery AS d WHERE state = 'waiting' "  # noqa: S608 - constants only
    f"AND target = ? AND NOT EXISTS ({_AHEAD}) ORDER BY next_at LIMIT ?"
)
_RECENT: Final = (
    "SELECT id, target, event, state, tries, status, error, made_at, next_at FROM delivery ORDER BY seq DESC LIMIT ?"
)
_NAMES: Final = ("id", "webhook", "event", "state", "attempts", "status", "error", "at", "next_at")


@dataclass(frozen=True, slots=True)
class OutboxEntry:
    """A message for a target. Entries with the same order key are delivered in order."""

    target: str
    event: str
    body: str = field(repr=False)
    order_key: str = ""
    critical: bool = True  # dropped last


@dataclass(frozen=True, slots=True)
class DeliveryRecord:
    """A delivery that waits for its next attempt."""

    seq: int
    id: str
    target: str
    event: str
    body: str = field(repr=False)
    made_at: float
    tries: int
    next_at: float


class Outbox:
    """Deliveries of all targets, written before the first attempt. Every method may block, and raises `StateError`."""

    def __init__(self, database: AlertDatabase, waiting_max: int = WAITING_MAX) -> None:
        self._database = database
        self._waiting_max = waiting_max
        self.dropped = 0  # the outbox was full

    def put(
        self, entries: Sequence[OutboxEntry], now: float, also: Callable[[sqlite3.Connection], None] | None = None
    ) -> None:
        """Write entries, and what `also` writes, in one transaction."""

        def work(file: sqlite3.Connection) -> int:
            for entry in entries:
                name = "msg_" + secrets.token_hex(12)
                row = (name, entry.target, entry.event, entry.body, entry.order_key or name, int(entry.critical))
                file.execute(
                    "INSERT INTO delivery (id, target, event, body, order_key, critical, made_at, tries, next_at, "
                    "state, status, error) VALUES (?, ?, ?, ?, ?, ?, ?, 0, ?, 'waiting', 0, '')",
                    (*row, now, now),
                )
            if also is not None:
                also(file)
            return sum(self._make_room(file, target) for target in {entry.target for entry in entries})

        self.dropped += self._database.run(work)

    def due(
        self, target: str, now: float, running: Collection[int], limit: int
    ) -> tuple[list[DeliveryRecord], float | None]:
        """Return deliveries to try now that are not `running`, and when the next one is due."""
        number = limit + len(running) + 1
        rows = self._database.run(lambda file: file.execute(_HEADS, (target, number)).fetchall())
        heads = [DeliveryRecord(*row) for row in rows if row[0] not in running]
        ready = [one for one in heads if one.next_at <= now]
        later = [one.next_at for one in heads if one.next_at > now]
        return ready[:limit], min(later, default=None) if len(ready) <= limit else now

    def delivered(self, seq: int, status: int, now: float) -> None:
        """Mark one as delivered, and delete its body."""
        self._set(
            "state = 'delivered', body = '', tries = tries + 1, status = ?, error = '', ended_at = ?", status, now, seq
        )

    def reschedule(self, seq: int, status: int, error: str, next_at: float) -> None:
        self._set("tries = tries + 1, status = ?, error = ?, next_at = ?", status, error, next_at, seq)

    def failed(self, seq: int, status: int, error: str, now: float) -> None:
        self._set("state = 'failed', tries = tries + 1, status = ?, error = ?, ended_at = ?", status, error, now, seq)

    def retry_now(self, target: str, now: float) -> None:
        """Make all deliveries of a target due: it works again."""
        sql = "UPDATE delivery SET next_at = ? WHERE state = 'waiting' AND target = ? AND next_at > ?"
        self._database.run(lambda file: file.execute(sql, (now, target, now)))

    def shift(self, seconds: float) -> None:
        """Move the times of all waiting deliveries by a step of the clock, so that waits and ages stay as they were."""
        sql = "UPDATE delivery SET next_at = next_at + ?, made_at = made_at + ? WHERE state = 'waiting'"
        self._database.run(lambda file: file.execute(sql, (seconds, seconds)))

    def give_up(self, target: str, why: str, now: float) -> int:
        """Give up all waiting deliveries of a target; return how many."""
        sql = "UPDATE delivery SET state = 'failed', error = ?, ended_at = ? WHERE state = 'waiting' AND target = ?"
        return self._database.run(lambda file: file.execute(sql, (why, now, target)).rowcount)

    def waiting_targets(self) -> list[str]:
        sql = "SELECT DISTINCT target FROM delivery WHERE state = 'waiting'"
        return [row[0] for row in self._database.run(lambda file: file.execute(sql).fetchall())]

    def retry(self, delivery: str, now: float) -> bool:
        """Send a failed delivery again, with the same id; return whether it exists."""
        sql = (
            "UPDATE delivery SET state = 'waiting', tries = 0, made_at = ?, next_at = ?, ended_at = NULL "
            "WHERE id = ? AND state = 'failed'"
        )
        return self._database.run(lambda file: file.execute(sql, (now, now, delivery)).rowcount) > 0

    def recent(self, limit: int) -> list[dict[str, Any]]:
        """Return deliveries without their bodies, the newest first."""
        rows = self._database.run(lambda file: file.execute(_RECENT, (limit,)).fetchall())
        found = [dict(zip(_NAMES, row, strict=True)) for row in rows]
        for one in found:
            one["next_at"] = one["next_at"] if one["state"] == WAITING else None
        return found

    def purge(self, now: float) -> None:
        """Delete old deliveries that ended, and those beyond the number that is kept."""
        old = "DELETE FROM delivery WHERE state = ? AND ended_at < ?"
        many = (
            "DELETE FROM delivery WHERE state = ? AND seq IN (SELECT seq FROM delivery WHERE state = ? "
            "ORDER BY ended_at DESC LIMIT -1 OFFSET ?)"
        )

        def work(file: sqlite3.Connection) -> None:
            bounds = ((DELIVERED, _DELIVERED_S, _DELIVERED_MAX), (FAILED, _FAILED_S, _FAILED_MAX))
            for state, kept_s, kept in bounds:
                file.execute(old, (state, now - kept_s))
                file.execute(many, (state, state, kept))

        self._database.run(work)

    def _set(self, change: str, *values: float | str) -> None:
        sql = f"UPDATE delivery SET {change} WHERE seq = ? AND state = 'waiting'"  # noqa: S608 - constants of this module
        self._database.run(lambda file: file.execute(sql, values))

    def _make_room(self, file: sqlite3.Connection, target: str) -> int:
        """Drop deliveries beyond the limit of a target: the least critical first, then the oldest."""
        counted = "SELECT count(*) FROM delivery WHERE state = 'waiting' AND target = ?"
        over = file.execute(counted, (target,)).fetchone()[0] - self._waiting_max
        if over <= 0:
            return 0
        sql = (
            "DELETE FROM delivery WHERE seq IN (SELECT seq FROM delivery WHERE state = 'waiting' AND target = ? "
            "ORDER BY critical, seq LIMIT ?)"
        )
        return file.execute(sql, (target, over)).rowcount


# After attempt 1, 2, ...: 16 hours in total, so a receiver that is down for a night misses nothing.
WAITS_S: Final = (1.0, 4.0, 16.0, 60.0, 300.0, 900.0, 1800.0, 3600.0, 7200.0, 14_400.0, 28_800.0)
TRIES_MAX: Final = len(WAITS_S) + 1
AGE_MAX_S: Final = 86_400.0

FAILURES_MAX: Final = 5
OPEN_S: Final = 60.0
OPEN_MAX_S: Final = 600.0


def wait_s(tries: int, jitter: float) -> float:
    """Return the wait after an attempt, with up to 10 % jitter."""
    return WAITS_S[min(tries, len(WAITS_S)) - 1] * (1.0 + 0.1 * jitter)


def given_up(tries: int, made_at: float, next_at: float) -> bool:
    """Return whether there is no further attempt."""
    return tries >= TRIES_MAX or next_at - made_at > AGE_MAX_S


@dataclass(slots=True)
class ChannelBreaker:
    """The circuit breaker of one target: closed, open until `open_until`, or half open, where one attempt decides."""

    failures: int = 0
    open_s: float = 0.0  # duration of the last opening; 0: closed
    open_until: float = 0.0

    @property
    def state(self) -> str:
        """`ok`, or `failing` if the last attempt failed."""
        return "failing" if self.failures else "ok"

    def allowed(self, now: float, limit: int) -> int:
        """Return how many attempts may run at once."""
        if now < self.open_until:
            return 0
        return 1 if self.open_s else limit

    def succeeded(self) -> bool:
        """Close it; return whether it was open."""
        was_open = self.open_s > 0
        self.failures, self.open_s, self.open_until = 0, 0.0, 0.0
        return was_open

    def failed(self, now: float, retry_after_s: float = 0.0) -> None:
        """Count a failure. The fifth opens it for a minute, and each failed probe for twice as long as before."""
        self.failures += 1
        if self.open_s and now >= self.open_until:
            self.open_s = min(self.open_s * 2, OPEN_MAX_S)
            self.open_until = now + self.open_s
        elif not self.open_s and self.failures >= FAILURES_MAX:
            self.open_s = OPEN_S
            self.open_until = now + self.open_s
        if retry_after_s:
            self.open_until = max(self.open_until, now + retry_after_s)


PARALLEL: Final = 16
PARALLEL_PER_TARGET: Final = 4
_POLL_S: Final = 30.0  # at least this often
_DISK_RETRY_S: Final = 1.0  # while the file cannot be written
_WAIT_MIN_S: Final = 0.01
_STOP_S: Final = 1.0
_STEP_S: Final = 1.0  # smaller steps of the clock do not matter here


class DeliveryLoop:
    """Sends the deliveries of an outbox in one task: several at once, in order where needed, with retries.

    `find` returns a target by its name. `gone` is called for a target that must not be tried again.
    """

    def __init__(
        self,
        context: DeliveryContext,
        outbox: Outbox,
        targets: Callable[[], Collection[str]],
        find: Callable[[str], Target | None],
        gone: Callable[[str], None],
    ) -> None:
        self._context = context
        self._outbox = outbox
        self._targets = targets
        self._find = find
        self._gone = gone
        self._breakers: dict[str, ChannelBreaker] = {}
        self._running: dict[str, dict[int, asyncio.Task[None]]] = {}
        self._wake = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ahead_s = context.clock.ahead_s

    def wake(self) -> None:
        """Look for deliveries now. May be called from any thread."""
        loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._wake.set)

    def breaker(self, target: str) -> ChannelBreaker:
        return self._breakers.setdefault(target, ChannelBreaker())

    def forget(self, target: str) -> None:
        self._breakers.pop(target, None)

    async def run(self) -> None:
        """Send until the task is cancelled."""
        self._loop = asyncio.get_running_loop()
        try:
            while True:
                self._wake.clear()
                wait_s = await self._start()
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await self._wake.wait()
        finally:
            await self._stop()

    async def flush(self) -> None:
        """Send all deliveries that are due, then return. Not to be used while `run` is active."""
        try:
            while True:
                await self._start()
                running = self._tasks()
                if not running:
                    return
                await asyncio.wait(running)
        finally:
            await self._stop()

    def _tasks(self) -> list[asyncio.Task[None]]:
        return [task for tasks in self._running.values() for task in tasks.values()]

    async def _stop(self) -> None:
        """Let running attempts finish: a delivery that is interrupted would be sent twice."""
        running = self._tasks()
        if running:
            await asyncio.wait(running, timeout=_STOP_S)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def _start(self) -> float:
        """Start all attempts that are due and allowed; return how long to wait for the next one."""
        clock = self._context.clock
        now, steady, wait_s = clock.now(), clock.steady(), _POLL_S
        step_s = clock.ahead_s - self._ahead_s
        if abs(step_s) >= _STEP_S:
            try:
                await self._context.in_thread(lambda: self._outbox.shift(step_s))
            except StateError:  # the file has reported it
                return _DISK_RETRY_S
            self._ahead_s += step_s
        for target in list(self._targets()):
            breaker, running = self.breaker(target), self._running.setdefault(target, {})
            room = min(breaker.allowed(steady, PARALLEL_PER_TARGET) - len(running), PARALLEL - len(self._tasks()))
            if room <= 0:
                wait_s = min(wait_s, breaker.open_until - steady if breaker.open_until > steady else wait_s)
                continue
            try:
                ready, next_at = await self._context.in_thread(
                    lambda target=target, running=tuple(running), room=room: self._outbox.due(
                        target, now, running, room
                    )  # type: ignore[misc]
                )
            except StateError:  # the file has reported it
                return _DISK_RETRY_S
            for delivery in ready:
                task = asyncio.create_task(self._one(delivery))
                running[delivery.seq] = task
            if next_at is not None and next_at > now:
                wait_s = min(wait_s, next_at - now)
        return max(wait_s, _WAIT_MIN_S)

    async def _one(self, delivery: DeliveryRecord) -> None:
        try:
            outcome = await self._try(delivery)
            store = self._evaluate(delivery, outcome)
            await self._store(store)
        finally:
            self._running.get(delivery.target, {}).pop(delivery.seq, None)
            self._wake.set()

    async def _try(self, delivery: DeliveryRecord) -> DeliveryResult:
        target = self._find(delivery.target)
        if target is None:
            return DeliveryResult(delivered=False, error="the target no longer exists", gone=True)
        try:
            return await target.send(Delivery(delivery.id, delivery.event, delivery.body))
        except Exception as error:  # noqa: BLE001 - one faulty target must not stop the others
            return DeliveryResult(delivered=False, error=f"internal error: {type(error).__name__}")

    def _evaluate(self, delivery: DeliveryRecord, outcome: DeliveryResult) -> Callable[[], None]:
        """Update the breaker, and return the function that stores the outcome."""
        now, breaker, outbox = self._context.clock.now(), self.breaker(delivery.target), self._outbox
        if outcome.delivered:
            was_open = breaker.succeeded()
            return lambda: self._delivered(delivery, outcome, now, retry_waiting=was_open)
        if outcome.gone:
            return lambda: self._ended(delivery, outcome, now)
        breaker.failed(self._context.clock.steady(), outcome.retry_after_s)
        tries = delivery.tries + 1
        next_at = now + max(wait_s(tries, self._context.jitter()), outcome.retry_after_s)
        if not given_up(tries, delivery.made_at, next_at):
            return lambda: outbox.reschedule(delivery.seq, outcome.status, outcome.error, next_at)
        self._context.warn(
            "alerts.given_up", target=delivery.target, event=delivery.event, id=delivery.id, error=outcome.error
        )
        return lambda: outbox.failed(delivery.seq, outcome.status, outcome.error, now)

    def _delivered(self, delivery: DeliveryRecord, outcome: DeliveryResult, now: float, *, retry_waiting: bool) -> None:
        self._outbox.delivered(delivery.seq, outcome.status, now)
        if retry_waiting:
            self._outbox.retry_now(delivery.target, now)

    def _ended(self, delivery: DeliveryRecord, outcome: DeliveryResult, now: float) -> None:
        self._outbox.failed(delivery.seq, outcome.status, outcome.error, now)
        self._outbox.give_up(delivery.target, outcome.error, now)
        self._gone(delivery.target)

    async def _store(self, write: Callable[[], None]) -> None:
        """Store an outcome, however long that takes: until then the delivery is not tried again."""
        while True:
            try:
                await self._context.in_thread(write)
            except StateError:
                await asyncio.sleep(_DISK_RETRY_S)
            else:
                return
