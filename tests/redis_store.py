"""Stores as the contract suite wants them: synchronous, empty, with the time that the test tells; also those in Redis.

Every Redis store has a project of its own, which all its keys are moved into: so they share a server, and each is in one
slot of a cluster; or in two, where some are an agent's and some the project's (`shard_by: agent`).
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from typing import Any

import pytest

from breakloop.errors import StateError
from breakloop.store.limit_ops import BudgetSpec
from breakloop.store.memory import MemoryStore
from breakloop.store.ops import (
    AdjustCharge,
    BucketRows,
    CommitResult,
    FingerprintSpec,
    Op,
    Settle,
    Store,
    StoredAccount,
    StoredBreaker,
    StoredWindow,
    WindowWrite,
)
from breakloop.store.redis.connection import door_for
from breakloop.store.redis.store import RedisStore, ShardedStore
from breakloop.store.redis.topology import ClusterNodes, Nodes, OneNode, finder_for
from breakloop.store.redis.url import RedisUrl, parse_redis_url
from tests.deadlines import DEADLINE_S

# The fixture whose server a store is in.
SERVERS = {
    "redis": "_redis_session",
    "valkey": "_valkey_session",
    "cluster": "_cluster_session",
    "redis by agent": "_redis_session",
    "cluster by agent": "_cluster_session",
}
NewStore = Callable[[], Store]
Then = Callable[[Any], None]

_numbers = itertools.count()


class Connection:
    """Nodes on a loop of their own, in a thread: a connection is looked after also while a test does other things."""

    def __init__(self, url: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self.nodes = _patient_nodes(parse_redis_url(url), self.loop)
        self.wait(self.nodes.start())

    def wait(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(DEADLINE_S)

    def ask(self, *asks: Callable[[Then], None]) -> list[Any]:
        """Ask all in one turn of the loop; return the answers in the order of the questions."""
        answers: list[Future[Any]] = [Future() for _ in asks]

        def send() -> None:
            for ask, answer in zip(asks, answers, strict=True):
                ask(answer.set_result)

        self.loop.call_soon_threadsafe(send)
        return [answer.result(DEADLINE_S) for answer in answers]

    def close(self) -> None:
        self.wait(self.nodes.close())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(DEADLINE_S)
        self.loop.close()


def _patient_nodes(url: RedisUrl, loop: asyncio.AbstractEventLoop) -> Nodes:
    """As `make_nodes`, for a server that gets little of a busy machine's time."""
    options = replace(door_for(url, loop), open_s=DEADLINE_S, silence_s=DEADLINE_S)
    if url.kind == "cluster":
        return ClusterNodes(options, url.addresses)
    return OneNode(options, finder_for(url, options))


@contextmanager
def connected(url: str) -> Iterator[Connection]:
    """Connect to a server or cluster."""
    connection = Connection(url)
    try:
        yield connection
    finally:
        connection.close()


class SyncRedisStore:
    """A `Store` over a `RemoteStore`."""

    def __init__(self, connection: Connection) -> None:
        self.remote = self.made(connection)
        self.project = f"p{next(_numbers)}"
        self.now = 0.0
        self._connection = connection
        self._expiries: dict[str, float] = {}  # of windows

    def made(self, connection: Connection) -> RedisStore:
        return RedisStore(connection.nodes, lambda: self.now)

    def commit(
        self,
        ops: Sequence[Op],
        now: float,
        windows: Sequence[WindowWrite] = (),
        rows: BucketRows | None = None,
    ) -> CommitResult:
        moved, writes = [self._moved(op) for op in ops], [one._replace(key=self.key(one.key)) for one in windows]
        self._expire(now)
        done: CommitResult = self._ask(now, lambda then: self.remote.commit(moved, writes, then))
        if done.conflict is not None:
            done.conflict = {key.split(":", 2)[2]: window for key, window in done.conflict.items()}
        else:
            self._expiries |= {one.key: self.now + one.ttl_s for one in windows if one.data is not None}
        return done

    def settle(self, ops: Sequence[Settle], now: float, *, failed: bool) -> int:
        moved = [self._moved(op) for op in ops]
        taken_back: int = self._ask(now, lambda then: self.remote.settle(moved, then, failed=failed))
        return taken_back

    def correct(self, ops: Sequence[AdjustCharge], now: float) -> None:
        moved = [self._moved(op) for op in ops]
        self._ask(now, lambda then: self.remote.correct(moved, then))

    def read_window(self, key: str, now: float) -> StoredWindow:
        if self._expiries.get(key, 0.0) <= now:
            return StoredWindow(0, b"")
        windows: list[StoredWindow] = self._ask(0.0, lambda then: self.remote.read_windows([self.key(key)], then))
        return windows[0]

    def breakers(self, prefix: str, now: float, most: int) -> list[StoredBreaker]:
        return self._breakers(self.key(prefix), now, most)

    def _breakers(self, prefix: str, now: float, most: int) -> list[StoredBreaker]:
        self.now = max(self.now, now)
        found: list[StoredBreaker] = self._connection.wait(self.remote.breakers(prefix, most))
        return [one._replace(key=one.key.split(":", 2)[2]) for one in found]

    def accounts(self, prefix: str, now: float, most: int) -> list[StoredAccount]:
        return self._accounts(self.key(prefix), now, most)

    def _accounts(self, prefix: str, now: float, most: int) -> list[StoredAccount]:
        self.now = max(self.now, now)
        found: list[StoredAccount] = self._connection.wait(self.remote.accounts(prefix, most))
        return [one._replace(key=one.key.split(":", 2)[2]) for one in found]

    def drop(self, keys: Sequence[str]) -> None:
        self._ask(0.0, lambda then: self.remote.drop([self.key(key) for key in keys], then))

    def key(self, name: str) -> str:
        """A name of the suite's as a key of this store's project."""
        return f"t:{self.project}:{name}"

    def _expire(self, now: float) -> None:
        """Drop windows whose time has come. Redis does so by its own clock, which the test does not move."""
        gone = [key for key, expires in self._expiries.items() if expires <= max(now, self.now)]
        if gone:
            self.drop(gone)
        for key in gone:
            del self._expiries[key]

    def _moved(self, op: Any) -> Any:
        if not hasattr(op, "key"):
            return op
        moved = copy(op)
        moved.key = self.key(op.key)
        traffic, landed = getattr(op, "traffic", ""), getattr(op, "landed_key", "")
        if traffic or landed:  # all are in the place of their sender
            place = self.key(landed or traffic).removesuffix(landed or traffic)
            moved.key = place + op.key
            moved.traffic = traffic and place + traffic
            moved.landed_key = landed and place + landed
        return moved

    def _ask(self, now: float, ask: Callable[[Then], None]) -> Any:
        """A clock that steps back stands still for each key; for the whole store it does so here, as the suite asks."""
        self.now = max(self.now, now)
        (result,) = self._connection.ask(ask)
        if isinstance(result, StateError):
            raise result
        return result


class SyncShardedStore(SyncRedisStore):
    """The same with keys in two places: windows are an agent's, of all else about half."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        # Nobody waits for what is given back: here the servers know these scripts, so that it comes before what is next.
        self.correct([AdjustCharge(BudgetSpec(1), name, 0) for name in "ab"], 0.0)
        self.settle([Settle(FingerprintSpec(1.0, 1), name, 0.0, 1) for name in "ab"], 0.0, failed=False)

    def made(self, connection: Connection) -> RedisStore:
        return ShardedStore(connection.nodes, lambda: self.now)

    def key(self, name: str) -> str:
        """By what the key is, and never by where it is asked for."""
        of_agent = "win" in name or sum(name.encode()) % 2
        return f"t:{self.project}|a:{name}" if of_agent else f"t:{self.project}:{name}"

    def breakers(self, prefix: str, now: float, most: int) -> list[StoredBreaker]:
        places = [f"t:{self.project}{agent}:{prefix}" for agent in ("", "|a")]
        found = [one for at in places for one in self._breakers(at, now, most)]
        return sorted(found, key=lambda one: (one.since is None, one.key))[:most]

    def accounts(self, prefix: str, now: float, most: int) -> list[StoredAccount]:
        places = [f"t:{self.project}{agent}:{prefix}" for agent in ("", "|a")]
        found = [one for at in places for one in self._accounts(at, now, most)]
        return sorted(found, key=lambda one: -one.used)[:most]


def redis_stores(*names: str) -> list[Any]:
    """Parameters for `store_in`: these start programs, so that only a full run has them."""
    return [pytest.param(name, marks=pytest.mark.e2e) for name in names or SERVERS]


@contextmanager
def store_in(name: str, request: pytest.FixtureRequest) -> Iterator[NewStore]:
    """Something that makes empty stores of a kind."""
    if name == "memory":
        yield MemoryStore
        return
    with connected(request.getfixturevalue(SERVERS[name]).url) as connection:
        kind = SyncShardedStore if name.endswith("by agent") else SyncRedisStore
        yield lambda: kind(connection)


@pytest.fixture(scope="session", params=["memory", *redis_stores()])
def new_store(request: pytest.FixtureRequest) -> Iterator[NewStore]:
    """Makes empty stores, of each kind in turn."""
    with store_in(request.param, request) as made:
        yield made


@pytest.fixture(scope="session", params=redis_stores("redis", "valkey", "cluster"))
def new_redis_store(request: pytest.FixtureRequest) -> Iterator[NewStore]:
    """The same, only those in Redis, in one slot each."""
    with store_in(request.param, request) as made:
        yield made


@pytest.fixture(scope="session", params=redis_stores("redis by agent", "cluster by agent"))
def new_sharded_store(request: pytest.FixtureRequest) -> Iterator[NewStore]:
    """The same, with keys in two slots."""
    with store_in(request.param, request) as made:
        yield made
