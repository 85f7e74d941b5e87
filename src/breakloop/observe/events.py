"""The way of events to their subscribers, outside the request path.

`EventBus` queues events without waiting, `EventDispatcher` passes them to its listeners in batches, and `LiveEvents`
streams them to dashboards. Every queue is bounded: events that do not fit are dropped and counted.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final
from weakref import WeakSet

from breakloop.errors import BreakloopError
from breakloop.model.events import Event

QUEUE_MAX: Final = 10_000
EVERY_S: Final = 0.1
BATCH: Final = 1_000
_TRIES: Final = 3  # of one batch, before it is dropped
_RETRY_S: Final = 1.0  # after a failure

Take = Callable[[Sequence[Event]], Awaitable[None] | None]
Sleep = Callable[[float], Awaitable[None]]


class EventBus:
    """A queue of events. Any thread may publish; one consumer takes them."""

    __slots__ = ("_append", "_most", "_waiting", "dropped")

    def __init__(self, most: int = QUEUE_MAX) -> None:
        self._waiting: deque[Event] = deque()
        self._append = self._waiting.append
        self._most = most
        self.dropped = 0

    def __call__(self, event: Event) -> None:
        """Queue an event, or count it as dropped."""
        if len(self._waiting) < self._most:
            self._append(event)
        else:
            self.dropped += 1

    def __len__(self) -> int:
        return len(self._waiting)

    def take(self, most: int = BATCH) -> list[Event]:
        """Remove and return the oldest events."""
        waiting = self._waiting
        return [waiting.popleft() for _ in range(min(most, len(waiting)))]


class EventListener:
    """A subscriber. If it is slow or raises, only its own events are dropped."""

    def __init__(
        self,
        name: str,
        take: Take,
        fetch: Callable[[], None],
        *,
        every_s: float,
        always: bool,
        queue_max: int,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self.name = name
        self._take = take
        self._fetch = fetch
        self._every_s = every_s
        self._always = always
        self._queue_max = queue_max
        self._sleep = sleep
        self._backlog: deque[Event] = deque()
        self._tries = 0
        self._delivering: asyncio.Task[bool] | None = None  # the batch that is being delivered
        self._drains = asyncio.Lock()
        self.dropped = 0

    @property
    def waiting(self) -> int:
        """The number of queued events. Within `take`, those that did not fit into the batch."""
        return len(self._backlog)

    def put(self, events: Sequence[Event]) -> None:
        """Queue events until the next turn."""
        fitting = max(0, self._queue_max - len(self._backlog))
        self._backlog.extend(events[:fitting])
        self.dropped += len(events) - min(len(events), fitting)

    async def turn(self) -> None:
        """Wait for the interval, and deliver the queued events. Run it in a loop."""
        await self._sleep(self._every_s)
        await self.drain(_RETRY_S)

    async def deliver_now(self) -> bool:
        """Deliver the queued events before the interval ends, unless a batch waits to be retried; returns whether all
        of them are delivered."""
        if not self._tries:
            await self.drain()
        return not self._tries and not self._backlog

    async def drain(self, retry_s: float = 0.0) -> None:
        """Deliver the queued events until one batch fails; then wait for `retry_s`."""
        async with self._drains:
            if self._delivering is not None:  # the task that waited for it was cancelled
                await asyncio.shield(self._delivering)
            due = self._always or bool(self._backlog)
            while due:
                # A delivery continues when the job is cancelled at shutdown; `EventDispatcher.finish` waits for it.
                self._delivering = asyncio.create_task(self._deliver(retry_s))
                due = await asyncio.shield(self._delivering) and bool(self._backlog)
                self._delivering = None

    async def _deliver(self, retry_s: float) -> bool:
        """Deliver one batch; returns whether it was accepted."""
        self._fetch()  # what `take` reads beside the events may be about one that is still on the bus
        backlog = self._backlog
        batch = [backlog.popleft() for _ in range(min(BATCH, len(backlog)))]
        failed = False
        try:
            waits = self._take(batch)
            if waits is not None:
                await waits
        except BreakloopError:  # has been reported by the listener
            failed = True
        except Exception:  # other listeners must not be affected
            failed = True
            logging.getLogger("breakloop").exception("%s failed to process %d events", self.name, len(batch))
        if failed:
            self._failed(batch)
            await self._sleep(retry_s)
            return False
        self._tries = 0
        return True

    def _failed(self, batch: list[Event]) -> None:
        self._tries += 1
        if self._tries >= _TRIES:
            self._tries = 0
            self.dropped += len(batch)
        else:
            self._backlog.extendleft(reversed(batch))


class EventDispatcher:
    """Passes the events of the bus to every listener."""

    def __init__(self, bus: EventBus, sleep: Sleep = asyncio.sleep) -> None:
        self._bus = bus
        self._sleep = sleep
        self.listeners: list[EventListener] = []

    def add(
        self, name: str, take: Take, *, every_s: float = EVERY_S, always: bool = False, queue_max: int = QUEUE_MAX
    ) -> EventListener:
        """Add a listener, called every `every_s` seconds; with `always`, also without events. An awaitable that it
        returns is awaited."""
        listener = EventListener(
            name, take, self.distribute, every_s=every_s, always=always, queue_max=queue_max, sleep=self._sleep
        )
        self.listeners.append(listener)
        return listener

    def jobs(self) -> list[tuple[str, Callable[[], Awaitable[None]]]]:
        """Return the name and one round of each job."""
        return [("events", self.turn), *((f"events to {one.name}", one.turn) for one in self.listeners)]

    async def turn(self) -> None:
        """Wait for the interval, and queue new events at the listeners. Run it in a loop."""
        await self._sleep(EVERY_S)
        self.distribute()

    def distribute(self) -> None:
        while events := self._bus.take(BATCH):
            for listener in self.listeners:
                listener.put(events)

    async def finish(self) -> None:
        """Deliver the remaining events once, at shutdown."""
        self.distribute()
        for listener in self.listeners:
            await listener.drain()

    def dropped(self) -> dict[str, int]:
        """Return how many events were dropped, by where."""
        return {"bus": self._bus.dropped} | {one.name: one.dropped for one in self.listeners}


SUBSCRIPTION_MAX: Final = 500  # items that wait for one reader
READERS_MAX: Final = 100

Item = Mapping[str, Any]


class Subscription:
    """An `AsyncIterator` of live items, until it is closed. A reader unsubscribes by dropping it."""

    def __init__(self, queue_max: int, *, closed: bool = False) -> None:
        self._waiting: deque[Item] = deque()
        self._queue_max = queue_max
        self._lost = 0
        self._closed = closed
        self._news = asyncio.Event()

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> Item:
        while not self._waiting:
            if self._closed:
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        if self._lost:
            lost, self._lost = self._lost, 0
            return {"lost": lost}
        return self._waiting.popleft()

    def put(self, item: Item) -> None:
        """Queue an item for the reader; drops the oldest if the queue is full."""
        if len(self._waiting) >= self._queue_max:
            self._waiting.popleft()
            self._lost += 1
        self._waiting.append(item)
        self._news.set()

    def close(self) -> None:
        """End the iteration after the queued items."""
        self._closed = True
        self._news.set()


class LiveEvents:
    """The open subscriptions."""

    def __init__(self, most: int = READERS_MAX, queue_max: int = SUBSCRIPTION_MAX) -> None:
        self._readers: WeakSet[Subscription] = WeakSet()
        self._most = most
        self._queue_max = queue_max

    def __len__(self) -> int:
        return len(self._readers)

    def subscribe(self) -> Subscription:
        """Subscribe to items from now on: `{"event": {...}}`, `{"sums": {...}}`, `{"lost": count}`.

        With too many readers, the subscription is closed at once.
        """
        if len(self._readers) >= self._most:
            return Subscription(self._queue_max, closed=True)
        subscription = Subscription(self._queue_max)
        self._readers.add(subscription)
        return subscription

    def take(self, events: Sequence[Event]) -> None:
        """Send events to all readers. A listener of `EventDispatcher`."""
        if self._readers:
            for event in events:
                self.send({"event": asdict(event)})

    def send(self, item: Item) -> None:
        for reader in list(self._readers):
            reader.put(item)

    def close(self) -> None:
        for reader in list(self._readers):
            reader.close()
