"""Keeps one connection to Redis alive: finds the server, opens, and when it breaks, tries again by itself, soon at
first and then once a second. What is sent meanwhile fails at once; nothing is kept for later, but for `send_soon`.
Where the server is, a `Finder` says; the one that asks Sentinels is `redis_sentinel`'s.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import Final, Protocol

from breakloop.errors import StateError
from breakloop.state.redis_link import Link, RedisError, Then
from breakloop.state.redis_open import Door, open_link
from breakloop.state.redis_url import Address

FIRST_DELAY_S: Final = 0.05
DELAY_MAX_S: Final = 1.0
_STEADY_S: Final = 1.0  # a connection that lived so long was a good one
_QUEUE_MAX: Final = 1024

Changed = Callable[[bool, str], None]


class Finder(Protocol):
    """Says where the server is."""

    recheck_s: float | None  # how often it is asked again while a connection is well; None: never

    async def find(self) -> Address:
        """Return the address of now. Raises `StateError`."""
        ...

    def close(self) -> None:
        """Let go of whatever it takes to know."""
        ...


class OneOf:
    """The only address there is, or one after the other and then anew: one that is gone is passed by."""

    recheck_s: float | None = None

    def __init__(self, *addresses: Address) -> None:
        self._addresses = addresses
        self._turn = -1

    async def find(self) -> Address:
        """Return the next."""
        self._turn = (self._turn + 1) % len(self._addresses)
        return self._addresses[self._turn]

    def close(self) -> None:
        """Nothing is held."""


class Backoff:
    """How long to wait before trying again. `jitter` gives numbers from 0 to 1; half of each delay hangs on it."""

    __slots__ = ("_jitter", "_tries")

    def __init__(self, jitter: Callable[[], float] | None = None) -> None:
        self._jitter = jitter or secrets.SystemRandom().random
        self._tries = 0

    def next_s(self) -> float:
        """Return the next delay: each is up to twice the one before, and at the most a second."""
        full: float = min(DELAY_MAX_S, FIRST_DELAY_S * 2 ** min(self._tries, 10))
        self._tries += 1
        return full * (0.5 + 0.5 * self._jitter())

    def reset(self) -> None:
        """Begin anew."""
        self._tries = 0


class Keeper:
    """One connection that comes back. `link` is it, or None; `changed` is told when it comes and goes."""

    def __init__(self, door: Door, finder: Finder, changed: Changed, backoff: Backoff | None = None) -> None:
        self.link: Link | None = None
        self.why = "not connected yet"
        self.published: Callable[[list[object]], None] | None = None
        self._door = door
        self._finder = finder
        self._address: Address | None = None
        self._changed = changed
        self._backoff = backoff or Backoff()
        self._since = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self._queue: list[tuple[tuple[bytes, ...], Then]] | None = []  # None once the first try is over

    async def start(self) -> None:
        """Connect. Raises `StateError` when the first try fails; it goes on trying then, too."""
        await self._try()
        if self.link is None:
            raise StateError(self.why)

    def start_soon(self) -> None:
        """Begin without waiting."""
        self._attempt()

    async def settled(self) -> None:
        """Wait until the try that is under way is over."""
        if self._task is not None:
            await asyncio.wait([self._task])

    def end(self, why: str) -> None:
        """End the connection, and try no more."""
        self._closed, self.why = True, why
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
        self._finder.close()
        self._first_is_over()
        if self.link is not None:
            self.link.end(why)
            self._drop(why)

    async def close(self) -> None:
        """The same, and wait until nothing of it runs any more."""
        self.end("closed")
        await self.settled()

    def send_soon(self, args: tuple[bytes, ...], then: Then) -> None:
        """Send as soon as the first connection is there; at once, or not at all, when that is over."""
        if self.link is not None:
            self.link.send(args, then)
        elif self._queue is not None and len(self._queue) < _QUEUE_MAX and not self._closed:
            self._queue.append((args, then))
        else:
            self._door.loop.call_soon(then, StateError(self.why))

    def _attempt(self) -> None:
        self._timer = None
        self._task = self._door.loop.create_task(self._try())

    async def _try(self) -> None:
        try:
            address = await self._finder.find()
            link = await open_link(self._door, address)
        except StateError as error:
            self.why = str(error)
        else:
            self._adopt(link, address)
        self._first_is_over()
        if self.link is None:
            self._again()

    def _adopt(self, link: Link, address: Address) -> None:
        if self._closed or not link.alive:
            self.why = "the connection was lost"
            link.end("closed")
            return
        link.ended = self._drop
        link.erred = self._erred
        link.published = self.published
        self.link, self._address = link, address
        self._since = self._door.loop.time()
        self._changed(True, "connected")
        self._recheck_later()

    def _drop(self, why: str) -> None:
        if self.link is None:
            return
        self.link.ended = None
        self.link, self.why = None, why
        if self._door.loop.time() - self._since >= _STEADY_S:
            self._backoff.reset()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._task is not None:
            self._task.cancel()  # a recheck, if it still runs
        self._changed(False, why)
        self._again()

    def _erred(self, error: RedisError) -> None:
        """A master that has become a replica takes no writes any more: who is the master now?"""
        if error.code == "READONLY" and self.link is not None:
            self.link.end("the server has become a read-only replica")

    def _recheck_later(self) -> None:
        if self._finder.recheck_s is not None and self.link is not None and not self._closed:
            self._timer = self._door.loop.call_later(self._finder.recheck_s, self._recheck_soon)

    def _recheck_soon(self) -> None:
        self._timer = None
        self._task = self._door.loop.create_task(self._recheck(self.link))

    async def _recheck(self, link: Link | None) -> None:
        """The server may be well, and another one be the right one since. Who cannot say changes nothing."""
        try:
            moved = await self._finder.find() != self._address
        except StateError:
            moved = False
        if link is None or link is not self.link:
            return
        if moved:
            link.end("another server has taken over")
        else:
            self._recheck_later()

    def _again(self) -> None:
        if not self._closed and self._timer is None:
            self._timer = self._door.loop.call_later(self._backoff.next_s(), self._attempt)

    def _first_is_over(self) -> None:
        queue, self._queue = self._queue, None
        for args, then in queue or ():
            self.send_soon(args, then)
