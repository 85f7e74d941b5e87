"""What happens now, for those who look at it (SPEC X-2): each gets all of it from when he came. Whoever reads too
slowly loses the oldest, and is told how much."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final
from weakref import WeakSet

from breakloop.model.events import Event

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


class Live:
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
