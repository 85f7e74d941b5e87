"""Operator state on real servers (S-1, K-3): one contract for every book, and a fleet that acts as one."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from breakloop.clock import Clock, FakeClock, SystemClock
from breakloop.engine.operator import TICK_S
from breakloop.errors import StateError
from breakloop.store.orders import LIFTED, OVER_KEPT_S, FileOrderStore, RedisOrderStore
from breakloop.store.redis.topology import PubSub, make_nodes
from breakloop.store.redis.url import parse_redis_url
from tests.deadlines import DEADLINE_S
from tests.operators import NOW, Instance, record
from tests.redis_groups import Cluster
from tests.redis_servers import Server

pytestmark = pytest.mark.e2e


Opened = Callable[[], Awaitable[FileOrderStore]]


async def until(true: Callable[[], object], within_s: float) -> None:
    """Look until something is true, in real time."""
    async with asyncio.timeout(within_s):
        while not true():  # noqa: ASYNC110 - other processes tell no event
            await asyncio.sleep(0.005)


# -- the contract of every book --------------------------------------------------------------------------------------


@pytest.fixture(params=["memory", "file", "redis", "cluster"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "redis":
        yield request.getfixturevalue("redis_server").url
    elif request.param == "cluster":
        yield request.getfixturevalue("redis_cluster").url
    else:
        yield str(tmp_path) if request.param == "file" else ""


@asynccontextmanager
async def book_at(url: str) -> AsyncIterator[FileOrderStore]:
    """A book: in memory, in a folder, or on a server with nothing on disk."""
    if not url.startswith("redis"):
        book = FileOrderStore(Path(url) if url else None, print)
        book.load()
        yield book
        await book.close()
        return
    nodes = make_nodes(parse_redis_url(url), asyncio.get_running_loop())
    await nodes.start()
    shared = RedisOrderStore(None, print, nodes, FakeClock(NOW))
    shared.load()
    shared.tick(NOW)
    await until(lambda: shared.synced, DEADLINE_S)
    yield shared
    await shared.close()
    await nodes.close()


def test_a_book_keeps_the_newest_of_each(url: str) -> None:
    """What was acknowledged is found by the next process (S-1)."""
    holds = [record(f"agent:p:{n}", kind="hold", why="x" * n, odd="\ud800 \u00fc \n") for n in range(450)]

    async def story() -> None:
        async with book_at(url) as book:
            assert book.put(holds) == holds
            book.put([record("a", n=1), record("b \ud800", until=NOW + 5.5), record("c")])
            assert book.put([record("a", at=NOW + 1e-6, n=2)]) == [record("a", at=NOW + 1e-6, n=2)]
            assert book.put([record("a", at=NOW - 1, n=0)]) == []
            book.put([record("c", at=NOW + 1, until=LIFTED, by="ann")])
            assert await book.settled(DEADLINE_S)
            before = {one.name: one for one in book.ledger.all()}
        if not url:
            return
        async with book_at(url) as book:
            assert {one.name: one for one in book.ledger.all()} == before
            assert len(book.ledger.live("hold", NOW)) == 450
            assert [one.key for one in book.ledger.live("switch", NOW + 6)] == ["a"]

    asyncio.run(story())


def test_a_book_forgets_what_is_stale(url: str) -> None:
    async def story() -> None:
        async with book_at(url) as book:
            book.put([record("a", until=NOW + 1), record("b")])
            assert await book.settled(DEADLINE_S)
            book.tick(NOW + 2 + OVER_KEPT_S)
            assert [one.key for one in book.ledger.all()] == ["b"]
        async with book_at(url) as book:
            assert [one.key for one in book.ledger.all()] in ([], ["b"])
            assert book.ledger.get("switch", "a") is None

    asyncio.run(story())


# -- fleets ----------------------------------------------------------------------------------------------------------


class Member:
    """An instance on a real Redis, running as in a process: a look each 0.25 s, and messages if it listens."""

    def __init__(self, url: str, folder: Path | None, clock: Clock, *, listens: bool) -> None:
        loop, parsed = asyncio.get_running_loop(), parse_redis_url(url)
        self.nodes = make_nodes(parsed, loop)
        self.feed = PubSub(parsed, loop)
        self.here = Instance(self.nodes, clock, folder)
        self.operator = self.here.operator
        if listens:
            self.here.book.listen(self.feed)

    async def run(self) -> None:
        with suppress(StateError):
            await self.nodes.start()
        with suppress(StateError):
            await self.feed.start()
        while True:
            await self.operator.watch()


@asynccontextmanager
async def member(
    url: str, folder: Path | None = None, *, listens: bool = True, clock: Clock | None = None
) -> AsyncIterator[Member]:
    made = Member(url, folder, clock or SystemClock(), listens=listens)
    task = asyncio.create_task(made.run())
    try:
        yield made
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await made.feed.close()
        await made.here.end()


async def synced(*members: Member) -> None:
    await until(lambda: all(one.here.book.synced for one in members), DEADLINE_S)


async def orders_arrive(one: Member, two: Member) -> None:
    """Kill, release, switch, lift, override on one are in force on the other."""
    away, there = one.operator, two.here
    away.kill("default", "a", "INC-1", "ann")
    await until(lambda: there.reason("a") == "agent_quarantined", DEADLINE_S)
    away.release("default", agent="a", by="ann")
    await until(lambda: there.reason("a") != "agent_quarantined", DEADLINE_S)
    switch = away.set_switch("header:x-team", "red", "ann")
    await until(lambda: there.reason("b", **{"x-team": "red"}) == "kill_switch", DEADLINE_S)
    away.lift_switch(switch, "ann")
    await until(lambda: there.reason("b", **{"x-team": "red"}) != "kill_switch", DEADLINE_S)
    away.set_override("global_shadow", "drill", one.here.clock.now() + 60, "ann")
    await until(lambda: not there.engine.enforces, DEADLINE_S)
    assert await away.acknowledged(DEADLINE_S)


@pytest.mark.parametrize("listens", [True, False], ids=["messages", "messages lost"])
def test_an_order_on_one_is_in_force_on_the_other(
    redis_server: Server, listens: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With messages, even if nobody looks, and by looking where none arrives (K-3)."""
    assert 3 * TICK_S < 1  # a message that is lost costs two looks
    if listens:
        monkeypatch.setattr("breakloop.engine.operator.TICK_S", 2 * DEADLINE_S)

    async def story() -> None:
        async with member(redis_server.url) as one, member(redis_server.url, listens=listens) as two:
            await synced(one, two)
            await orders_arrive(one, two)
            assert two.here.events == []

    asyncio.run(story())


def test_orders_whose_messages_are_lost_are_found_by_looking(redis_server: Server) -> None:
    """A subscription that is there, and does not tell (K-3)."""

    async def story() -> None:
        async with member(redis_server.url) as one, member(redis_server.url) as two:
            await synced(one, two)
            two.feed.subscribe(b"bl:operator", lambda _message: None)
            await orders_arrive(one, two)

    asyncio.run(story())


def test_the_same_on_a_cluster(redis_cluster: Cluster) -> None:
    """All of it is in one slot; messages come from any node (K-3)."""

    async def story() -> None:
        async with member(redis_cluster.url) as one, member(redis_cluster.url) as two:
            await synced(one, two)
            await orders_arrive(one, two)

    asyncio.run(story())


@pytest.mark.parametrize("empty", [False, True], ids=["with its data", "empty"])
def test_what_happens_while_redis_is_away_is_merged_when_it_is_back(own_redis: Server, empty: bool) -> None:
    """In force here at once; the newest wins, also a release over an older hold; nothing old is lost (K-3, S-3)."""

    async def story() -> None:
        async with member(own_redis.url) as one, member(own_redis.url) as two:
            await synced(one, two)
            one.operator.kill("default", "old", "before", "ann")
            one.operator.kill("default", "freed", "before", "ann")
            await until(lambda: two.here.reason("freed") == "agent_quarantined", DEADLINE_S)
            if not empty:
                own_redis.client().save()
            own_redis.kill()
            await until(lambda: not (one.nodes.up or two.nodes.up), DEADLINE_S)
            one.operator.kill("default", "new", "meanwhile", "ann")
            two.operator.release("default", agent="freed", by="bob")
            switch = two.operator.set_switch("header:x-team", "red", "bob")
            assert one.here.reason("new") == "agent_quarantined"
            assert two.here.reason("new") != "agent_quarantined"
            assert not await one.operator.acknowledged(0.05)
            own_redis.restart(empty=empty)
            await until(lambda: two.here.reason("new") == "agent_quarantined", DEADLINE_S)
            await until(lambda: one.here.reason("freed") != "agent_quarantined", DEADLINE_S)
            await until(lambda: [one.id for one in one.operator.switches()] == [switch], DEADLINE_S)
            assert one.here.reason("old") == two.here.reason("old") == "agent_quarantined"
            await until(lambda: one.here.live() == two.here.live(), DEADLINE_S)
        async with member(own_redis.url) as third:
            await synced(third)
            assert await third.operator.ready(DEADLINE_S)
            assert third.here.reason("new") == "agent_quarantined"
            assert third.here.reason("freed") != "agent_quarantined"

    asyncio.run(story())


def test_a_start_without_redis_has_what_the_fleet_had_ordered(own_redis: Server, tmp_path: Path) -> None:
    """The copy in the file; what is ordered now is pushed when Redis comes (K-3, S-1)."""

    async def story() -> None:
        async with member(own_redis.url) as one, member(own_redis.url, tmp_path) as two:
            await synced(one, two)
            one.operator.kill("default", "a", "INC-1", "ann")
            await until(lambda: two.here.reason("a") == "agent_quarantined", DEADLINE_S)
        own_redis.kill()
        async with member(own_redis.url, tmp_path) as two:
            assert two.here.reason("a") == "agent_quarantined"
            two.operator.kill("default", "b", "INC-2", "ann")
            own_redis.restart(empty=True)
            async with member(own_redis.url) as fresh:
                await until(lambda: fresh.here.reason("b") == "agent_quarantined", DEADLINE_S)
                assert fresh.here.reason("a") == "agent_quarantined"

    asyncio.run(story())


def test_a_redis_that_hangs_keeps_nobody_waiting(own_redis: Server) -> None:
    """An order is in force here at once, though nothing answers (S-3)."""

    async def story() -> None:
        async with member(own_redis.url) as one:
            await synced(one)
            own_redis.pause()
            try:
                began = asyncio.get_running_loop().time()
                one.operator.kill("default", "a", "INC-1", "ann")
                assert one.here.reason("a") == "agent_quarantined"
                assert asyncio.get_running_loop().time() - began < 0.05
            finally:
                own_redis.resume()
            assert await one.operator.acknowledged(DEADLINE_S)

    asyncio.run(story())


def test_the_script_takes_what_is_newer_and_nothing_else(redis_server: Server) -> None:
    """Times that differ by a microsecond are different; what is no record gives way."""

    async def story() -> None:
        nodes = make_nodes(parse_redis_url(redis_server.url), asyncio.get_running_loop())
        await nodes.start()
        one, two = (Instance(nodes, FakeClock(NOW)) for _ in range(2))
        with redis_server.client() as client:
            client.hset("bl:{operator}:switch", "a", "nonsense")
            for book, at, expected in [(one, 0.0, 0.0), (two, 2e-6, 2e-6), (one, 1e-6, 2e-6), (one, 5e9, 5e9)]:
                book.book.put([record("a", at=NOW + at, until=math.inf)])
                assert await book.book.settled(DEADLINE_S)
                [text] = client.hvals("bl:{operator}:switch")
                assert text.startswith(f"[{NOW + expected!r},".encode())
                known = book.book.ledger.get("switch", "a")
                assert known is not None
                assert known.changed_at == NOW + expected  # whoever is refused is told what stays
            version = int(client.get("bl:{operator}:version"))
            assert version > NOW * 900  # it begins with the time, so that none comes twice
            one.book.put([record("b", at=NOW + 6e9, until=math.inf)])
            assert await one.book.settled(DEADLINE_S)
            assert int(client.get("bl:{operator}:version")) == version + 1
            assert client.ttl("bl:{operator}:switch") == -1
        await nodes.close()

    asyncio.run(story())
