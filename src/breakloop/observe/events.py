"""The way of an event from where it happens to whoever wants to know (SPEC G-2): `Bus` takes it without waiting, `Fan`
hands it on, off the path of requests. Room is bounded everywhere; what finds none is counted and gone. Dashboards
listen through `live`.

What happens now, for those who look at it (SPEC X-2): each gets all of it from when he came. Whoever reads too
slowly loses the oldest, and is told how much.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final
from weakref import WeakSet

from breakloop.model.events import Event

MOST: Final = 10_000
EVERY_S: Final = 0.1
BATCH: Final = 1_000
_TRIES: Final = 3  # of one batch, before it is given up
_REST_S: Final = 1.0  # after a failure

Take = Callable[[Sequence[Event]], Awaitable[None] | None]
Sleep = Callable[[float], Awaitable[None]]
Job = tuple[str, Callable[[], Awaitable[None]]]


class EventBus:
    """A `Publish`. Events may come from any thread; one consumer takes them."""

    __slots__ = ("_append", "_most", "_waiting", "dropped", "passed")

    def __init__(self, most: int = MOST) -> None:
        self._waiting: deque[Event] = deque()
        self._append = self._waiting.append
        self._most = most
        self.dropped = 0
        self.passed = 0  # taken since the start

    def __call__(self, event: Event) -> None:
        """Take note of an event, or count that there was no room for it."""
        if len(self._waiting) < self._most:
            self._append(event)
        else:
            self.dropped += 1

    def __len__(self) -> int:
        return len(self._waiting)

    def take(self, most: int = BATCH) -> list[Event]:
        """Return the oldest ones, and forget them."""
        waiting = self._waiting
        taken = [waiting.popleft() for _ in range(min(most, len(waiting)))]
        self.passed += len(taken)
        return taken

    def flush(self, now: float, *, everything: bool = False) -> None:
        """Nothing is held back here; so that it can stand where others flush."""


class EventListener:
    """Somebody who is told. Too slow or failing, he loses events of his own, and nobody else does."""

    __slots__ = (
        "_always",
        "_backlog",
        "_every_s",
        "_giving",
        "_room",
        "_sleep",
        "_take",
        "_tries",
        "dropped",
        "failed",
        "name",
    )

    def __init__(
        self, name: str, take: Take, *, every_s: float, always: bool, room: int, sleep: Sleep = asyncio.sleep
    ) -> None:
        self.name = name
        self._take = take
        self._every_s = every_s
        self._always = always
        self._room = room
        self._sleep = sleep
        self._backlog: deque[Event] = deque()
        self._tries = 0
        self._giving: asyncio.Task[bool] | None = None  # a batch that is under way
        self.dropped = 0
        self.failed = 0  # batches that were not taken at the first try

    def put(self, events: Sequence[Event]) -> None:
        """Keep events until his turn comes."""
        fitting = max(0, self._room - len(self._backlog))
        self._backlog.extend(events[:fitting])
        self.dropped += len(events) - min(len(events), fitting)

    async def turn(self) -> None:
        """Wait for his time, and hand over what is there; to be run again and again."""
        await self._sleep(self._every_s)
        await self.drain(_REST_S)

    async def drain(self, rest_s: float = 0.0) -> None:
        """Hand over what is there, as far as it is taken; after a failure wait for `rest_s`."""
        if self._giving is not None:  # whoever ran `turn` was cancelled meanwhile
            await self._giving
        due = self._always or bool(self._backlog)
        while due:
            # What is being written goes on when a process ends, and is waited for by `EventDispatcher.finish`.
            self._giving = asyncio.create_task(self._give(rest_s))
            due = await asyncio.shield(self._giving) and bool(self._backlog)
            self._giving = None

    async def _give(self, rest_s: float) -> bool:
        """Hand over one batch, and tell whether it was taken."""
        backlog = self._backlog
        batch = [backlog.popleft() for _ in range(min(BATCH, len(backlog)))]
        try:
            waits = self._take(batch)
            if waits is not None:
                await waits
        except Exception:  # the edge of a listener: whatever it is, others go on
            logging.getLogger("breakloop").exception("%s did not take %d events", self.name, len(batch))
            self._failed(batch)
            await self._sleep(rest_s)
            return False
        self._tries = 0
        return True

    def _failed(self, batch: list[Event]) -> None:
        self.failed += 1
        self._tries += 1
        if self._tries >= _TRIES:
            self._tries = 0
            self.dropped += len(batch)
        else:
            self._backlog.extendleft(reversed(batch))


class EventDispatcher:
    """Hands what the bus has to every listener."""

    __slots__ = ("_bus", "_sleep", "listeners")

    def __init__(self, bus: EventBus, sleep: Sleep = asyncio.sleep) -> None:
        self._bus = bus
        self._sleep = sleep
        self.listeners: list[EventListener] = []

    def add(
        self, name: str, take: Take, *, every_s: float = EVERY_S, always: bool = False, room: int = MOST
    ) -> EventListener:
        """Add a listener: told every `every_s`, of nothing too if `always`. What he returns is awaited."""
        made = EventListener(name, take, every_s=every_s, always=always, room=room, sleep=self._sleep)
        self.listeners.append(made)
        return made

    def jobs(self) -> list[Job]:
        """Return what is to be run again and again, each by itself."""
        return [("events", self.turn), *((f"events to {one.name}", one.turn) for one in self.listeners)]

    async def turn(self) -> None:
        """Wait a little, and hand out what has happened meanwhile."""
        await self._sleep(EVERY_S)
        self.hand_out()

    def hand_out(self) -> None:
        """Hand out what has happened."""
        while events := self._bus.take(BATCH):
            for listener in self.listeners:
                listener.put(events)

    async def finish(self) -> None:
        """At the end, give everybody what is left, once."""
        self.hand_out()
        for listener in self.listeners:
            await listener.drain()

    def dropped(self) -> dict[str, int]:
        """Return how many events were lost, and where."""
        return {"bus": self._bus.dropped} | {one.name: one.dropped for one in self.listeners}


ROOM: Final = 500  # items that wait for one reader
READERS_MAX: Final = 100

Item = Mapping[str, Any]


class Subscription:
    """An endless `AsyncIterator`; whoever lets go of it does not read any more."""

    __slots__ = ("__weakref__", "_closed", "_lost", "_news", "_room", "_waiting")

    def __init__(self, room: int, *, closed: bool = False) -> None:
        self._waiting: deque[Item] = deque()
        self._room = room
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
        """Keep an item until it is read; the oldest goes where there is no room."""
        if len(self._waiting) >= self._room:
            self._waiting.popleft()
            self._lost += 1
        self._waiting.append(item)
        self._news.set()

    def close(self) -> None:
        """There is no more."""
        self._closed = True
        self._news.set()


class LiveEvents:
    """Everybody who reads."""

    __slots__ = ("_most", "_readers", "_room", "refused")

    def __init__(self, most: int = READERS_MAX, room: int = ROOM) -> None:
        self._readers: WeakSet[Subscription] = WeakSet()
        self._most = most
        self._room = room
        self.refused = 0

    def __len__(self) -> int:
        return len(self._readers)

    def subscribe(self) -> Subscription:
        """Return what happens from now on: `{"event": {...}}`, `{"sums": {...}}`, `{"lost": how many}`.

        Where too many read already it ends at once.
        """
        if len(self._readers) >= self._most:
            self.refused += 1
            return Subscription(self._room, closed=True)
        made = Subscription(self._room)
        self._readers.add(made)
        return made

    def take(self, events: Sequence[Event]) -> None:
        """Tell events; a listener of `bus.Fan`."""
        if self._readers:
            for event in events:
                self.tell({"event": shown(event)})

    def tell(self, item: Item) -> None:
        """Tell something."""
        for reader in list(self._readers):
            reader.put(item)

    def close(self) -> None:
        """End everybody's reading."""
        for reader in list(self._readers):
            reader.close()


def shown(event: Event) -> dict[str, Any]:
    """Return an event as JSON has it."""
    return {
        "name": event.name,
        "at": event.at,
        "project": event.project,
        "request_id": event.request_id,
        "data": dict(event.data),
    }
