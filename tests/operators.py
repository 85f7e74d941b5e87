"""Instances that share operator state: through a stand-in for Redis that can be cut off, lose messages and lose its
data, or through a real one. What tests of the book, of convergence and of fleets have in common."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from breakloop.clock import Clock, FakeClock
from breakloop.engine.engine import Engine
from breakloop.engine.operator import Operator
from breakloop.errors import StateError
from breakloop.model.call import Call
from breakloop.model.events import Event
from breakloop.policy.descriptors import ContextSettings, Descriptors
from breakloop.store.memory import MemoryStore
from breakloop.store.orders import CHANNEL, Order, RedisOrderStore, read
from breakloop.store.redis.connection import RedisError
from breakloop.store.redis.topology import Nodes
from breakloop.store.sqlite import SqliteTrouble
from tests.builders import SECRET, bundle, call, compiled

NOW = 1_800_000_000.0


def record(key: str = "k", at: float = NOW, until: float = math.inf, kind: str = "switch", **value: Any) -> Order:
    """A record, of whatever is not said the simplest."""
    return Order(kind, key, value, until, at)


class FakeRedis:
    """The commands that a book uses, by their meaning; the scripts themselves are tested on the real one."""

    def __init__(self) -> None:
        self.hashes: dict[bytes, dict[bytes, bytes]] = {}
        self.version = 0
        self.started = 1000
        self.listeners: list[FakeNodes] = []
        self.commands: list[bytes] = []
        self.fails: RedisError | None = None

    def wipe(self) -> None:
        """Lose everything, as a restart without persistence does; the next version is another."""
        self.hashes.clear()
        self.version = 0
        self.started += 1000

    def do(self, args: tuple[bytes, ...]) -> Any:
        """Carry out a command."""
        self.commands.append(args[0])
        if self.fails is not None:
            return self.fails
        if args[0] == b"GET":
            return str(self.version).encode() if self.version else None
        if args[0] == b"HSCAN":
            found = self.hashes.get(args[1], {})
            return [b"0", [part for pair in found.items() for part in pair]]
        if args[0] == b"PUBLISH":
            return sum(listener.deliver(args[2], args[1]) for listener in list(self.listeners))
        kept = self.hashes.setdefault(args[3], {})
        return self._put(kept, args[6:]) if args[2] == b"2" else self._forget(kept, args[4:])

    def _put(self, kept: dict[bytes, bytes], args: tuple[bytes, ...]) -> list[Any]:
        taken, newer = [], []
        for field, text in zip(args[::2], args[1::2], strict=True):
            known = kept.get(field)
            if known is None or _changed_at(known) < _changed_at(text):
                kept[field] = text
                taken.append(text)
            elif known != text:
                newer.append(known)
        if taken:
            self.version = self.version + 1 if self.version else self.started
            for listener in self.listeners:
                listener.deliver(b"\n".join([str(self.version).encode(), *taken]))
        return [self.version, *newer]

    def _forget(self, kept: dict[bytes, bytes], args: tuple[bytes, ...]) -> int:
        for field, text in zip(args[::2], args[1::2], strict=True):
            if kept.get(field) == text:
                del kept[field]
        return 0


def _changed_at(text: bytes) -> float:
    found = read(text)
    return -math.inf if found is None else found.changed_at


class FakeNodes:
    """One instance's way to the stand-in, and its feed."""

    def __init__(self, server: FakeRedis) -> None:
        self.server = server
        self.up = True
        self.deaf = False  # messages are lost
        self.on_change: Any = None
        self.feed: Any = self  # it stands for `PubSub` as well
        self.on_gap: Callable[[], None] | None = None
        self._hear: dict[bytes, Callable[[bytes], None]] = {}
        server.listeners.append(self)

    def send(self, key: bytes, args: tuple[bytes, ...], then: Callable[[Any], None]) -> None:
        """Carry out now, answer in the next turn of the loop."""
        answer = self.server.do(args) if self.up else StateError("there is no connection")
        asyncio.get_running_loop().call_soon(then, answer)

    def each(self) -> list[Callable[[tuple[bytes, ...], Callable[[Any], None]], None]]:
        return [partial(self.send, b"")]

    def subscribe(self, channel: bytes, on_message: Callable[[bytes], None]) -> None:
        self._hear[channel] = on_message

    def deliver(self, message: bytes, channel: bytes = CHANNEL) -> bool:
        heard = self.up and not self.deaf and channel in self._hear
        if heard:
            asyncio.get_running_loop().call_soon(self._hear[channel], message)
        return heard

    async def start(self) -> None:
        """It is there already."""

    async def close(self) -> None:
        self.server.listeners.remove(self)


class Instance:
    """An engine and its operator, on a book that is shared."""

    def __init__(self, nodes: Nodes, clock: Clock | None = None, folder: Path | None = None) -> None:
        self.nodes = nodes
        self.clock = clock or FakeClock(NOW)
        self.events: list[Event] = []
        self.troubles: list[SqliteTrouble] = []
        descriptors = Descriptors(ContextSettings(secret=SECRET), self.clock)
        self.engine = Engine(MemoryStore(), self.clock, descriptors, publish=self.events.append)
        self.engine.set_bundle(compiled(bundle(), descriptors))
        self.book = RedisOrderStore(folder, self.troubles.append, nodes, self.clock)
        self.operator = Operator(self.engine, self.book, self.clock, self.events.append)
        self.operator.start()

    def reason(self, agent: str = "a", **headers: str) -> str:
        """What becomes of a request of this agent."""
        return self.engine.decide(self.asked(agent, **headers)).reason

    def asked(self, agent: str, **headers: str) -> Call:
        return call(headers={"authorization": "Bearer one", "x-agent-id": agent} | headers)

    async def tick(self, times: int = 1) -> None:
        """Do what is due, and wait until it is done."""
        for _ in range(times):
            self.operator.tick()
            await self.quiet()

    async def quiet(self) -> None:
        """Wait for what is under way. A cut connection ends its round, too."""
        for _ in range(5):
            await asyncio.sleep(0)
        if self.book._round is not None:
            with suppress(asyncio.CancelledError):
                await self.book._round
        for _ in range(5):
            await asyncio.sleep(0)

    def live(self) -> set[tuple[str, str, float]]:
        """What is in force here, for comparing."""
        now = self.clock.now()
        return {(one.kind, one.key, one.expires_at) for one in self.book.ledger.all() if one.live(now)}

    async def end(self) -> None:
        await self.operator.close()
        await self.nodes.close()
