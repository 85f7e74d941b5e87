"""Messages that processes send each other through Redis (PUBLISH, SUBSCRIBE), on a connection of its own.

Redis keeps no message for whoever is away: `on_gap` says each time that the subscriptions have just come into force,
the first time included. Whoever loads what he needs then, misses nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from breakloop.errors import StateError
from breakloop.state.redis_keeper import Backoff, Changed, Keeper
from breakloop.state.redis_link import Answer, Link
from breakloop.state.redis_nodes import finder_for
from breakloop.state.redis_open import door_for
from breakloop.state.redis_url import RedisUrl

OnMessage = Callable[[bytes], None]


class Feed:
    """Subscriptions that come back after a lost connection. In a cluster, any node will do: they tell each other."""

    def __init__(self, url: RedisUrl, loop: asyncio.AbstractEventLoop, backoff: Backoff | None = None) -> None:
        door = door_for(url, loop)
        self.up = False
        self.on_change: Changed | None = None
        self.on_gap: Callable[[], None] | None = None
        self._channels: dict[bytes, OnMessage] = {}
        self._keeper = Keeper(door, finder_for(url, door), self._changed, backoff)
        self._keeper.published = self._published
        self._missing = 0  # subscriptions that are not confirmed yet

    def subscribe(self, channel: bytes, on_message: OnMessage) -> None:
        """Hear what is published on `channel`, as soon as there is a connection; one receiver a channel."""
        known = channel in self._channels
        self._channels[channel] = on_message
        if self._keeper.link is not None and not known:
            self._missing += 1
            self._ask(self._keeper.link, channel)

    async def start(self) -> None:
        """Connect. Raises `StateError` when that fails; it goes on trying by itself, then and later, until `close`."""
        await self._keeper.start()

    async def close(self) -> None:
        """Hear no more."""
        self.on_change = self.on_gap = None
        await self._keeper.close()

    def _changed(self, up: bool, why: str) -> None:  # noqa: FBT001 - as Keeper tells it
        self.up = up
        link = self._keeper.link
        if up and link is not None:
            self._missing = len(self._channels)
            for channel in self._channels:
                self._ask(link, channel)
        if self.on_change is not None:
            self.on_change(up, why)

    def _ask(self, link: Link, channel: bytes) -> None:
        def confirmed(answer: Answer) -> None:
            if isinstance(answer, StateError):
                link.end(f"a subscription was refused: {answer}")
            elif link is self._keeper.link:
                self._missing -= 1
                if not self._missing and self.on_gap is not None:
                    self.on_gap()

        link.send((b"SUBSCRIBE", channel), confirmed)

    def _published(self, message: list[Any]) -> None:
        _, channel, data = message
        on_message = self._channels.get(channel)
        if on_message is not None:
            on_message(data)
