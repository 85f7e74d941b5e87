"""State that several processes share through Redis: connections, store, orders, and the secret that all have to agree
on. Only imported where the settings name a Redis, for the packages that it needs are an extra."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from breakloop.clock import SharedClock
from breakloop.engine import breakers
from breakloop.engine.breakers import BreakerState
from breakloop.engine.engine import Engine
from breakloop.engine.remote import Fault, RemoteEngine, SharedResponseChains, StoreHealth
from breakloop.errors import StateError
from breakloop.model.events import STORE_DEGRADED, STORE_RECOVERED, Event, Publish
from breakloop.policy.compiled import CompiledBundle
from breakloop.policy.identity import SessionNames
from breakloop.store.memory import MemoryStore
from breakloop.store.ops import StoredBreaker
from breakloop.store.orders import FileOrderStore
from breakloop.store.orders_redis import RedisOrderStore
from breakloop.store.redis.scan import FoundKeys
from breakloop.store.redis.scripts import plain_key
from breakloop.store.redis.sharded import ShardedStore
from breakloop.store.redis.store import RedisStore
from breakloop.store.redis.topology import PubSub, command, make_nodes
from breakloop.store.redis.url import parse_redis_url
from breakloop.store.sqlite import Report

_SECRET: Final = b"bl:secret"
_LAST_S: Final = 1.0


class SharedState:
    """One process's way to the Redis of its settings."""

    def __init__(self, url: str, clock: SharedClock, *, shard_by_agent: bool = False) -> None:
        loop = asyncio.get_running_loop()
        self.url = parse_redis_url(url)
        self.clock = clock
        self.nodes = make_nodes(self.url, loop)
        self.feed = PubSub(self.url, loop)
        self.store = ShardedStore(self.nodes) if shard_by_agent else RedisStore(self.nodes)
        self.remote: RemoteEngine | None = None

    async def open(self) -> str:
        """Connect; return why that failed, or "". Either way it goes on trying by itself."""
        try:
            await self.nodes.start()
        except StateError as error:
            return str(error)
        return ""

    async def secret(self, own: str) -> str:
        """Agree on the secret: the first that was put there holds for all. Without Redis it is one's own."""
        offered = own or secrets.token_hex(32)
        await command(self.nodes, b"SET", _SECRET, offered, b"NX")
        agreed = await command(self.nodes, b"GET", _SECRET)
        return agreed.decode() if isinstance(agreed, bytes) else own

    def join(
        self, engine: Engine, local: MemoryStore, fault: Fault, publish: Publish, sessions: SessionNames
    ) -> RemoteEngine:
        """Decide with the shared store from now on, and with what is here where that fails (SPEC S-3)."""

        def told(up: bool, why: str) -> None:  # noqa: FBT001 - as Health tells it
            name, word = (STORE_RECOVERED, "reason") if up else (STORE_DEGRADED, "error")
            publish(Event(name, self.clock.now(), {word: why}))

        budget_s = self.url.time_budget_ms / 1000
        remote = RemoteEngine(
            engine,
            self.store,
            StoreHealth(told),
            budget_s=budget_s,
            fault=fault,
            remember=local.remember,
            heard_time=self.clock.heard,
        )
        self.remote = remote
        remote.chains = SharedResponseChains(sessions, self.store)
        self.nodes.on_change = self._changed
        if not self.nodes.up:
            remote.failed("not connected")
        engine.quarantine.drop = remote.drop
        return remote

    def book(self, local: FileOrderStore, report: Report) -> RedisOrderStore:
        """Return the orders of all instances; `local` is what stands in for it."""
        book = RedisOrderStore(local, self.nodes, self.clock, report)
        book.listen(self.feed)
        return book

    async def listen(self) -> None:
        """Hear of what others order; where that fails, it goes on trying by itself."""
        try:
            await self.feed.start()
        except StateError:
            return  # told by `open` already: it is the same server

    async def breakers(self, bundle: CompiledBundle | None) -> list[BreakerState]:
        """Return the breakers that instances share, open ones first. Raises `StateError`."""
        kept = [one for prefix in breakers.prefixes(bundle) for one in await self._kept(prefix, breakers.LISTED_MAX)]
        return breakers.states(bundle, kept, self.clock.now())[: breakers.LISTED_MAX]

    async def reset_breaker(
        self, bundle: CompiledBundle | None, policy: str, key: str, publish: Publish
    ) -> BreakerState | None:
        """Close one at once, for all instances; return what it was, None if it was not open. Raises `StateError`."""
        now = self.clock.now()
        found = breakers.find(bundle, await self._kept(key, 1), policy, key, now)
        if found is not None:
            self.store.drop((key,), _unheard)
            publish(breakers.closed(found, now))
        return found

    async def counters(self, prefix: str, most: int) -> list[Mapping[str, Any]]:
        """Return the keys that begin so, and for how long each is kept. Raises `StateError`."""
        future: asyncio.Future[list[bytes] | StateError] = asyncio.get_running_loop().create_future()
        FoundKeys(self.nodes, prefix, most, future.set_result).scan()
        answer = await future
        if isinstance(answer, StateError):
            raise answer
        found: list[Mapping[str, Any]] = []
        for key in answer:
            left_ms = await command(self.nodes, b"PTTL", key, key=key)
            ends = self.clock.now() + left_ms / 1000 if isinstance(left_ms, int) and left_ms >= 0 else None
            found.append({"key": plain_key(key), "kind": "redis", "expires_at": ends, "value": []})
        return found

    async def _kept(self, prefix: str, most: int) -> list[StoredBreaker]:
        future: asyncio.Future[list[StoredBreaker] | StateError] = asyncio.get_running_loop().create_future()
        self.store.breakers(prefix, most, future.set_result)
        answer = await future
        if isinstance(answer, StateError):
            raise answer
        return answer

    async def close(self) -> None:
        """Let what was sent arrive (SPEC S-6), and let go."""
        if self.remote is not None:
            if self.remote.health.up:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_LAST_S):
                        await command(self.nodes, b"PING")  # answers come in order: this is the last
            self.remote.close()
        await self.feed.close()
        await self.nodes.close()

    def _changed(self, up: bool, why: str) -> None:  # noqa: FBT001 - as Nodes tell it
        if not up and self.remote is not None:
            self.remote.failed(why)


def _unheard(_error: StateError | None) -> None:
    """Whoever asked has his answer already."""
