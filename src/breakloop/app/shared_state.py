"""State that instances share through Redis: connections, store, orders, and the common secret. Imported only if the
settings name a Redis, because its packages are an extra."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from breakloop.clock import SharedClock
from breakloop.engine.engine import Engine
from breakloop.engine.remote import Fault, RemoteEngine, SharedNames, StoreHealth
from breakloop.errors import StateError
from breakloop.model.events import STORE_DEGRADED, STORE_RECOVERED, Event, Publish
from breakloop.policy.descriptors import Descriptors
from breakloop.store.memory import MemoryStore
from breakloop.store.orders import RedisOrderStore
from breakloop.store.redis.scripts import plain_key
from breakloop.store.redis.store import RedisStore, ShardedStore
from breakloop.store.redis.topology import PubSub, command, make_nodes
from breakloop.store.redis.url import parse_redis_url
from breakloop.store.sqlite import Report

_SECRET: Final = b"bl:secret"
_CLOSE_S: Final = 1.0


class SharedState:
    """The connections of one process to the Redis in its settings."""

    def __init__(self, url: str, clock: SharedClock, *, shard_by_agent: bool = False) -> None:
        loop = asyncio.get_running_loop()
        self.url = parse_redis_url(url)
        self.clock = clock
        self.nodes = make_nodes(self.url, loop)
        self.feed = PubSub(self.url, loop)
        self.store = ShardedStore(self.nodes) if shard_by_agent else RedisStore(self.nodes)
        self.remote: RemoteEngine | None = None

    async def open(self) -> str:
        """Connect. Returns the problem, or "". Reconnects in the background either way."""
        try:
            await self.nodes.start()
        except StateError as error:
            return str(error)
        return ""

    async def secret(self, own: str) -> str:
        """Return the common secret: the first that an instance wrote. Without Redis, return `own`."""
        await command(self.nodes, b"SET", _SECRET, own or secrets.token_hex(32), b"NX")
        common = await command(self.nodes, b"GET", _SECRET)
        return common.decode() if isinstance(common, bytes) else own

    def join(
        self, engine: Engine, local: MemoryStore, fault: Fault, publish: Publish, descriptors: Descriptors
    ) -> RemoteEngine:
        """Let the engine decide with the shared store, and with the local one while it is unavailable (S-3)."""

        def changed(up: bool, why: str) -> None:  # noqa: FBT001 - called by StoreHealth
            name, word = (STORE_RECOVERED, "reason") if up else (STORE_DEGRADED, "error")
            publish(Event(name, self.clock.now(), {word: why}))

        budget_s = self.url.time_budget_ms / 1000
        remote = RemoteEngine(
            engine,
            self.store,
            StoreHealth(changed),
            budget_s=budget_s,
            fault=fault,
            local=local,
            on_store_time=self.clock.adjust,
        )
        self.remote = remote
        remote.names = SharedNames(descriptors.sessions, descriptors.trees, self.store)
        self.nodes.on_change = self._changed
        if not self.nodes.up:
            remote.failed("not connected")
        engine.quarantine.drop_with(remote.drop)
        return remote

    def order_store(self, folder: Path | None, report: Report) -> RedisOrderStore:
        """Return the orders of all instances; a copy in `folder` is used while Redis is unavailable."""
        orders = RedisOrderStore(folder, report, self.nodes, self.clock)
        orders.listen(self.feed)
        return orders

    async def listen(self) -> None:
        """Subscribe to the orders of other instances. Retries in the background if that fails."""
        try:
            await self.feed.start()
        except StateError:
            return  # `open` has reported it: it is the same server

    async def counters(self, prefix: str, most: int) -> list[Mapping[str, Any]]:
        """Return the keys that start with `prefix`, and when each expires. Raises `StateError`."""
        found: list[Mapping[str, Any]] = []
        for key in await self.store.keys(prefix, most):
            left_ms = await command(self.nodes, b"PTTL", key, key=key)
            ends = self.clock.now() + left_ms / 1000 if isinstance(left_ms, int) and left_ms >= 0 else None
            found.append({"key": plain_key(key), "kind": "redis", "expires_at": ends, "value": []})
        return found

    async def close(self) -> None:
        """Wait until Redis has processed what was sent, and close the connections."""
        if self.remote is not None:
            if self.remote.health.up:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_CLOSE_S):
                        await command(self.nodes, b"PING")  # replies arrive in order: this is the last one
            self.remote.close()
        await self.feed.close()
        await self.nodes.close()

    def _changed(self, up: bool, why: str) -> None:  # noqa: FBT001 - called by the nodes
        if not up and self.remote is not None:
            self.remote.failed(why)
