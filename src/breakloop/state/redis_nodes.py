"""The Redis servers behind a URL, as the store sees them: send a command to where its key is, get an answer.

Standalone servers and masters behind Sentinel are here; a cluster is `redis_cluster`'s. What commands mean is the
store's business.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final, Protocol

from breakloop.errors import StateError
from breakloop.state.redis_cluster import ClusterNodes
from breakloop.state.redis_keeper import Backoff, Changed, Finder, Keeper, OneOf
from breakloop.state.redis_link import Answer, RedisError, Send, Then
from breakloop.state.redis_open import Door, door_for
from breakloop.state.redis_sentinel import Sentinels
from breakloop.state.redis_url import RedisUrl

__all__ = ["Answer", "Nodes", "OneNode", "RedisError", "Then", "command", "make_nodes"]

COMMAND_S: Final = 5.0


class Nodes(Protocol):
    """Redis, whatever its form."""

    up: bool  # every key has a server that is connected
    on_change: Changed | None  # told when `up` changes, with a reason that holds no secrets

    def send(self, key: bytes, args: tuple[bytes, ...], then: Then) -> None:
        """Send to the node of `key`'s slot. Never raises; never sends again what may have been carried out.

        `then` gets the answer or a `StateError`, once, and not before this returns.
        """
        ...

    def each(self) -> list[Send]:
        """Return a way to send to each server, for what is to be asked of all; none where no server is known."""
        ...

    async def start(self) -> None:
        """Connect. Raises `StateError` when that fails; it goes on trying by itself, then and later, until `close`."""
        ...

    async def close(self) -> None:
        """End all connections, try no more, and say nothing more."""
        ...


class OneNode:
    """A single server; the finder says where it is now."""

    def __init__(self, door: Door, finder: Finder, backoff: Backoff | None = None) -> None:
        self.up = False
        self.on_change: Changed | None = None
        self._loop = door.loop
        self._keeper = Keeper(door, finder, self._changed, backoff)

    def send(self, key: bytes, args: tuple[bytes, ...], then: Then) -> None:  # noqa: ARG002 - there is one place only
        """Send, wherever the key is."""
        link = self._keeper.link
        if link is None:
            self._loop.call_soon(then, StateError(self._keeper.why))
        else:
            link.send(args, then)

    def each(self) -> list[Send]:
        """Return the way to the only one."""
        return [partial(self.send, b"")]

    async def start(self) -> None:
        """Connect; see `Nodes`."""
        await self._keeper.start()

    async def close(self) -> None:
        """End the connection; see `Nodes`."""
        self.on_change = None
        await self._keeper.close()

    def _changed(self, up: bool, why: str) -> None:  # noqa: FBT001 - as Keeper tells it
        self.up = up
        if self.on_change is not None:
            self.on_change(up, why)


def make_nodes(url: RedisUrl, loop: asyncio.AbstractEventLoop) -> Nodes:
    """Return the servers of a URL, not yet connected. Raises `SettingsError` for certificates that cannot be used."""
    door = door_for(url, loop)
    if url.kind == "cluster":
        return ClusterNodes(door, url.addresses)
    return OneNode(door, finder_for(url, door))


def finder_for(url: RedisUrl, door: Door) -> Finder:
    """Return what says where the one server is that takes writes, or in a cluster any node."""
    if url.kind == "sentinel":
        return Sentinels(door, url.addresses, url.service)
    return OneOf(*url.addresses)


async def command(nodes: Nodes, *args: bytes | str | int, key: bytes | None = None) -> Answer:
    """Send one command and wait for its answer, for operators' work: errors are returned, also that of time.

    `key` says where to send it; left out, it is the command's first argument.
    """
    packed = tuple(arg if isinstance(arg, bytes) else str(arg).encode() for arg in args)
    future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
    place = key if key is not None else packed[1] if len(packed) > 1 else b""
    nodes.send(place, packed, lambda answer: None if future.done() else future.set_result(answer))
    try:
        async with asyncio.timeout(COMMAND_S):
            return await future
    except TimeoutError:
        return StateError(f"Redis did not answer within {COMMAND_S:g} s")
