"""What is to be sent, on disk before the first try, and kept until it was delivered or given up (SPEC G-4). Of one
order key only the oldest is handed out, so that what belongs together arrives in order. When to try is `delivery`'s
business. All of it may wait for the disk, and raises `StateError`.

Sends what is due: some at a time, in order where that matters, again and again with growing waits, and less often to
a target that fails (its breaker). One task for everything; slow work is done by the targets and in threads.

When something is tried again: one delivery after waits that grow, and a target that failed again and again only
after a rest (a breaker of its own). Pure: time and chance are handed in.
"""

from __future__ import annotations

import asyncio
import secrets
import sqlite3
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from breakloop.alerts.base import AlertDatabase, Delivery, DeliveryContext, DeliveryResult, Target
from breakloop.errors import StateError

WAITING, DELIVERED, FAILED = "waiting", "delivered", "failed"
WAITING_MAX: Final = 10_000  # of one target
_DELIVERED_MAX, _DELIVERED_S = 1_000, 7 * 86_400.0  # they are kept for people to look at
_FAILED_MAX, _FAILED_S = 10_000, 30 * 86_400.0

# Whatever is ahead of a delivery: waiting for the same target, under the same key, and older.
_AHEAD: Final = (
    "SELECT 1 FROM delivery AS e WHERE e.state = 'waiting' AND e.target = d.target AND e.order_key = d.order_key "
    "AND e.seq < d.seq"
)
_HEADS: Final = (
    "SELECT seq, id, target, event, body, made_at, tries, next_at FROM delivery AS d WHERE state = 'waiting' "  # noqa: S608 - nothing of it comes from outside
    f"AND target = ? AND NOT EXISTS ({_AHEAD}) ORDER BY next_at LIMIT ?"
)
_LISTED: Final = (
    "SELECT id, target, event, state, tries, status, error, made_at, next_at FROM delivery ORDER BY seq DESC LIMIT ?"
)
_NAMES: Final = ("id", "webhook", "event", "state", "attempts", "status", "error", "at", "next_at")


@dataclass(frozen=True, slots=True)
class OutboxEntry:
    """Something to send to a target. What has the same order key arrives in order; without one it goes by itself."""

    target: str
    event: str
    body: str = field(repr=False)
    order_key: str = ""
    critical: bool = True  # is dropped last


@dataclass(frozen=True, slots=True)
class DeliveryRecord:
    """Something that waits for its next try."""

    seq: int
    id: str
    target: str
    event: str
    body: str = field(repr=False)
    made_at: float
    tries: int
    next_at: float


class Outbox:
    """Deliveries of all targets."""

    def __init__(self, database: AlertDatabase, waiting_max: int = WAITING_MAX) -> None:
        self._database = database
        self._waiting_max = waiting_max
        self.dropped = 0  # because there was no room

    def put(
        self, entries: Sequence[OutboxEntry], now: float, also: Callable[[sqlite3.Connection], None] | None = None
    ) -> None:
        """Keep entries, and whatever else has to be on disk with them, together or not at all."""

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
        self, target: str, now: float, busy: Collection[int], most: int
    ) -> tuple[list[DeliveryRecord], float | None]:
        """Return what can be tried now, beside what is `busy`, and when the next one is due."""
        number = most + len(busy) + 1
        rows = self._database.run(lambda file: file.execute(_HEADS, (target, number)).fetchall())
        heads = [DeliveryRecord(*row) for row in rows if row[0] not in busy]
        ready = [one for one in heads if one.next_at <= now]
        later = [one.next_at for one in heads if one.next_at > now]
        return ready[:most], min(later, default=None) if len(ready) <= most else now

    def delivered(self, seq: int, status: int, now: float) -> None:
        """It is there. Its body is not needed any more."""
        self._set(
            "state = 'delivered', body = '', tries = tries + 1, status = ?, error = '', ended_at = ?", status, now, seq
        )

    def later(self, seq: int, status: int, error: str, next_at: float) -> None:
        """It is not there; try again then."""
        self._set("tries = tries + 1, status = ?, error = ?, next_at = ?", status, error, next_at, seq)

    def failed(self, seq: int, status: int, error: str, now: float) -> None:
        """It is given up."""
        self._set("state = 'failed', tries = tries + 1, status = ?, error = ?, ended_at = ?", status, error, now, seq)

    def hurry(self, target: str, now: float) -> None:
        """Try everything of a target now: it is there again."""
        sql = "UPDATE delivery SET next_at = ? WHERE state = 'waiting' AND target = ? AND next_at > ?"
        self._database.run(lambda file: file.execute(sql, (now, target, now)))

    def give_up(self, target: str, why: str, now: float) -> int:
        """Give up all that waits for a target; return how many."""
        sql = "UPDATE delivery SET state = 'failed', error = ?, ended_at = ? WHERE state = 'waiting' AND target = ?"
        return self._database.run(lambda file: file.execute(sql, (why, now, target)).rowcount)

    def waiting_for(self) -> list[str]:
        """Return the targets that something waits for."""
        sql = "SELECT DISTINCT target FROM delivery WHERE state = 'waiting'"
        return [row[0] for row in self._database.run(lambda file: file.execute(sql).fetchall())]

    def again(self, delivery: str, now: float) -> bool:
        """Send one again that was given up, under the same id; tell whether there is such a one."""
        sql = (
            "UPDATE delivery SET state = 'waiting', tries = 0, made_at = ?, next_at = ?, ended_at = NULL "
            "WHERE id = ? AND state = 'failed'"
        )
        return self._database.run(lambda file: file.execute(sql, (now, now, delivery)).rowcount) > 0

    def listed(self, most: int) -> list[dict[str, Any]]:
        """Return deliveries for people, the newest first, without what is in them."""
        rows = self._database.run(lambda file: file.execute(_LISTED, (most,)).fetchall())
        found = [dict(zip(_NAMES, row, strict=True)) for row in rows]
        for one in found:
            one["next_at"] = one["next_at"] if one["state"] == WAITING else None
        return found

    def counts(self) -> dict[str, int]:
        """Return how many are in each state."""
        sql = "SELECT state, count(*) FROM delivery GROUP BY state"
        return dict(self._database.run(lambda file: file.execute(sql).fetchall()))

    def purge(self, now: float) -> None:
        """Forget what ended long ago, and what is more than anybody looks at."""
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
        sql = f"UPDATE delivery SET {change} WHERE seq = ? AND state = 'waiting'"  # noqa: S608 - fixed texts of this file
        self._database.run(lambda file: file.execute(sql, values))

    def _make_room(self, file: sqlite3.Connection, target: str) -> int:
        """Drop what is too much of a target: what is least critical first, and of that the oldest."""
        counted = "SELECT count(*) FROM delivery WHERE state = 'waiting' AND target = ?"
        over = file.execute(counted, (target,)).fetchone()[0] - self._waiting_max
        if over <= 0:
            return 0
        sql = (
            "DELETE FROM delivery WHERE seq IN (SELECT seq FROM delivery WHERE state = 'waiting' AND target = ? "
            "ORDER BY critical, seq LIMIT ?)"
        )
        return file.execute(sql, (target, over)).rowcount


# After try 1, 2, ...: together 16 hours, so that a receiver that is down for a night misses nothing.
WAITS_S: Final = (1.0, 4.0, 16.0, 60.0, 300.0, 900.0, 1800.0, 3600.0, 7200.0, 14_400.0, 28_800.0)
TRIES_MAX: Final = len(WAITS_S) + 1
AGE_MAX_S: Final = 86_400.0

FAILURES: Final = 5
REST_S: Final = 60.0
REST_MAX_S: Final = 600.0


def wait_s(tries: int, chance: float) -> float:
    """Return how long to wait after so many tries: up to a tenth more than the table says, so that not all come back
    at the same moment."""
    return WAITS_S[min(tries, len(WAITS_S)) - 1] * (1.0 + 0.1 * chance)


def given_up(tries: int, made_at: float, next_at: float) -> bool:
    """Tell whether there is no next try."""
    return tries >= TRIES_MAX or next_at - made_at > AGE_MAX_S


@dataclass(slots=True)
class ChannelBreaker:
    """Of one target. Closed, open until `rests_until`, or half open: then one try decides."""

    failures: int = 0
    rest_s: float = 0.0  # of the last opening; 0: closed
    rests_until: float = 0.0

    @property
    def state(self) -> str:
        """`ok`, or `failing`: the last tries failed."""
        return "failing" if self.failures else "ok"

    def room(self, now: float, most: int) -> int:
        """Return how many tries may be under way."""
        if now < self.rests_until:
            return 0
        return 1 if self.rest_s else most

    def succeeded(self) -> bool:
        """Close; tell whether it was open."""
        was_open = self.rest_s > 0
        self.failures, self.rest_s, self.rests_until = 0, 0.0, 0.0
        return was_open

    def failed(self, now: float, retry_after_s: float = 0.0) -> None:
        """Count a failure; the fifth opens it for a minute, and each failed probe for twice as long as before."""
        self.failures += 1
        if self.rest_s and now >= self.rests_until:
            self.rest_s = min(self.rest_s * 2, REST_MAX_S)
            self.rests_until = now + self.rest_s
        elif not self.rest_s and self.failures >= FAILURES:
            self.rest_s = REST_S
            self.rests_until = now + self.rest_s
        if retry_after_s:
            self.rests_until = max(self.rests_until, now + retry_after_s)


AT_ONCE: Final = 16
AT_ONCE_EACH: Final = 4
_LOOKS_S: Final = 30.0  # it looks so often, whatever anybody says
_DISK_S: Final = 1.0  # until the next try, when the file cannot be written
_LEAST_S: Final = 0.01
_ENDS_S: Final = 1.0


class DeliveryLoop:
    """Sends the outbox's deliveries. `find` knows targets by name; `gone` is told of one that wants nothing more."""

    def __init__(
        self,
        means: DeliveryContext,
        outbox: Outbox,
        targets: Callable[[], Collection[str]],
        find: Callable[[str], Target | None],
        gone: Callable[[str], None],
    ) -> None:
        self._means = means
        self._outbox = outbox
        self._targets = targets
        self._find = find
        self._gone = gone
        self._breakers: dict[str, ChannelBreaker] = {}
        self._busy: dict[str, dict[int, asyncio.Task[None]]] = {}
        self._wake = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def wake(self) -> None:
        """There may be something to send. From any thread."""
        loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):  # closed already
                loop.call_soon_threadsafe(self._wake.set)

    def breaker(self, target: str) -> ChannelBreaker:
        """Return how a target is doing."""
        return self._breakers.setdefault(target, ChannelBreaker())

    def forget(self, target: str) -> None:
        """A target is no more."""
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
        """Send what is due now, and what becomes due by that. Instead of `run`, not beside it."""
        try:
            while True:
                await self._start()
                running = self._running()
                if not running:
                    return
                await asyncio.wait(running)
        finally:
            await self._stop()

    def _running(self) -> list[asyncio.Task[None]]:
        return [task for tasks in self._busy.values() for task in tasks.values()]

    async def _stop(self) -> None:
        """What is under way may end: whoever has it already would get it again otherwise."""
        running = self._running()
        if running:
            await asyncio.wait(running, timeout=_ENDS_S)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def _start(self) -> float:
        """Begin with everything that is due and has room; return how long there is nothing more to begin."""
        now, wait_s = self._means.clock.now(), _LOOKS_S
        for target in list(self._targets()):
            breaker, busy = self.breaker(target), self._busy.setdefault(target, {})
            room = min(breaker.room(now, AT_ONCE_EACH) - len(busy), AT_ONCE - len(self._running()))
            if room <= 0:
                wait_s = min(wait_s, breaker.rests_until - now if breaker.rests_until > now else wait_s)
                continue
            try:
                ready, next_at = await self._means.aside(
                    lambda target=target, busy=tuple(busy), room=room: self._outbox.due(target, now, busy, room)  # type: ignore[misc]
                )
            except StateError:  # it was reported by the file
                return _DISK_S
            for delivery in ready:
                task = asyncio.create_task(self._one(delivery))
                busy[delivery.seq] = task
            if next_at is not None and next_at > now:
                wait_s = min(wait_s, next_at - now)
        return max(wait_s, _LEAST_S)

    async def _one(self, delivery: DeliveryRecord) -> None:
        try:
            outcome = await self._try(delivery)
            again = self._judge(delivery, outcome)
            await self._keep(again)
        finally:
            self._busy.get(delivery.target, {}).pop(delivery.seq, None)
            self._wake.set()

    async def _try(self, delivery: DeliveryRecord) -> DeliveryResult:
        target = self._find(delivery.target)
        if target is None:
            return DeliveryResult(delivered=False, error="the target is no more", gone=True)
        try:
            return await target.send(Delivery(delivery.id, delivery.event, delivery.body))
        except Exception as error:  # noqa: BLE001 - the edge of a target: whatever it does, the others go on
            return DeliveryResult(delivered=False, error=f"a fault of ours: {type(error).__name__}")

    def _judge(self, delivery: DeliveryRecord, outcome: DeliveryResult) -> Callable[[], None]:
        """Take note of an outcome, and return how it is written down."""
        now, breaker, outbox = self._means.clock.now(), self.breaker(delivery.target), self._outbox
        if outcome.delivered:
            was_open = breaker.succeeded()
            return lambda: self._delivered(delivery, outcome, now, hurry=was_open)
        if outcome.gone:
            return lambda: self._ended(delivery, outcome, now)
        breaker.failed(now, outcome.retry_after_s)
        tries = delivery.tries + 1
        next_at = now + max(wait_s(tries, self._means.chance()), outcome.retry_after_s)
        if not given_up(tries, delivery.made_at, next_at):
            return lambda: outbox.later(delivery.seq, outcome.status, outcome.error, next_at)
        self._means.warn(
            "alerts.given_up", target=delivery.target, event=delivery.event, id=delivery.id, error=outcome.error
        )
        return lambda: outbox.failed(delivery.seq, outcome.status, outcome.error, now)

    def _delivered(self, delivery: DeliveryRecord, outcome: DeliveryResult, now: float, *, hurry: bool) -> None:
        self._outbox.delivered(delivery.seq, outcome.status, now)
        if hurry:
            self._outbox.hurry(delivery.target, now)

    def _ended(self, delivery: DeliveryRecord, outcome: DeliveryResult, now: float) -> None:
        self._outbox.failed(delivery.seq, outcome.status, outcome.error, now)
        self._outbox.give_up(delivery.target, outcome.error, now)
        self._gone(delivery.target)

    async def _keep(self, write: Callable[[], None]) -> None:
        """Write down what became of a try; until that is done, it is not tried again."""
        while True:
            try:
                await self._means.aside(write)
            except StateError:
                await asyncio.sleep(_DISK_S)
            else:
                return
