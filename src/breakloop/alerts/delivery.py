"""Sends what is due: some at a time, in order where that matters, again and again with growing waits, and less often to
a target that fails (its breaker). One task for everything; slow work is done by the targets and in threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Final

from breakloop.alerts import backoff
from breakloop.alerts.backoff import Breaker
from breakloop.alerts.means import Means
from breakloop.alerts.outbox import Delivery, Outbox
from breakloop.alerts.target import Outcome, Parcel, Target
from breakloop.errors import StateError

AT_ONCE: Final = 16
AT_ONCE_EACH: Final = 4
_LOOKS_S: Final = 30.0  # it looks so often, whatever anybody says
_DISK_S: Final = 1.0  # until the next try, when the file cannot be written
_LEAST_S: Final = 0.01
_ENDS_S: Final = 1.0


class Sender:
    """Sends the outbox's deliveries. `find` knows targets by name; `gone` is told of one that wants nothing more."""

    def __init__(
        self,
        means: Means,
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
        self._breakers: dict[str, Breaker] = {}
        self._busy: dict[str, dict[int, asyncio.Task[None]]] = {}
        self._wake = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def wake(self) -> None:
        """There may be something to send. From any thread."""
        loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):  # closed already
                loop.call_soon_threadsafe(self._wake.set)

    def breaker(self, target: str) -> Breaker:
        """Return how a target is doing."""
        return self._breakers.setdefault(target, Breaker())

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

    async def _one(self, delivery: Delivery) -> None:
        try:
            outcome = await self._try(delivery)
            again = self._judge(delivery, outcome)
            await self._keep(again)
        finally:
            self._busy.get(delivery.target, {}).pop(delivery.seq, None)
            self._wake.set()

    async def _try(self, delivery: Delivery) -> Outcome:
        target = self._find(delivery.target)
        if target is None:
            return Outcome(delivered=False, error="the target is no more", gone=True)
        try:
            return await target.send(Parcel(delivery.id, delivery.event, delivery.body))
        except Exception as error:  # noqa: BLE001 - the edge of a target: whatever it does, the others go on
            return Outcome(delivered=False, error=f"a fault of ours: {type(error).__name__}")

    def _judge(self, delivery: Delivery, outcome: Outcome) -> Callable[[], None]:
        """Take note of an outcome, and return how it is written down."""
        now, breaker, outbox = self._means.clock.now(), self.breaker(delivery.target), self._outbox
        if outcome.delivered:
            was_open = breaker.succeeded()
            return lambda: self._delivered(delivery, outcome, now, hurry=was_open)
        if outcome.gone:
            return lambda: self._ended(delivery, outcome, now)
        breaker.failed(now, outcome.retry_after_s)
        tries = delivery.tries + 1
        next_at = now + max(backoff.wait_s(tries, self._means.chance()), outcome.retry_after_s)
        if not backoff.given_up(tries, delivery.made_at, next_at):
            return lambda: outbox.later(delivery.seq, outcome.status, outcome.error, next_at)
        self._means.warn(
            "alerts.given_up", target=delivery.target, event=delivery.event, id=delivery.id, error=outcome.error
        )
        return lambda: outbox.failed(delivery.seq, outcome.status, outcome.error, now)

    def _delivered(self, delivery: Delivery, outcome: Outcome, now: float, *, hurry: bool) -> None:
        self._outbox.delivered(delivery.seq, outcome.status, now)
        if hurry:
            self._outbox.hurry(delivery.target, now)

    def _ended(self, delivery: Delivery, outcome: Outcome, now: float) -> None:
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
