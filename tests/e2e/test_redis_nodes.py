"""Connections over real servers: who may log in, who hangs, who dies, who takes over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from breakloop.errors import StateError
from breakloop.store.redis.connection import RedisError
from breakloop.store.redis.topology import Nodes, PubSub, command, make_nodes, slot_of
from breakloop.store.redis.url import parse_redis_url
from tests.deadlines import DEADLINE_S
from tests.fake_redis import Heard
from tests.redis_groups import Cluster, Watched, cluster, watched
from tests.redis_servers import Server, make_tls, running

pytestmark = pytest.mark.e2e

SERVERS = ("redis-server", "valkey-server")
Runner = Callable[[Any], None]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Runner:
    """Both event loops."""
    return asyncio.run if request.param == "asyncio" else uvloop.run


@pytest.fixture(params=SERVERS)
def any_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Three masters of Redis, which the session shares, then three of Valkey."""
    if request.param == "redis-server":
        yield request.getfixturevalue("redis_cluster")
        return
    with cluster(name=request.param) as made:
        yield made


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[tuple[Nodes, Heard]]:
    nodes, changes = make_nodes(parse_redis_url(url), asyncio.get_running_loop()), Heard()
    nodes.on_change = changes
    try:
        await nodes.start()
        assert (await changes.next())[0]
        yield nodes, changes
    finally:
        await nodes.close()


async def settled(ask: Callable[[], Awaitable[Any]], wanted: object) -> int:
    """Ask until the answer is the wanted one; errors on the way are what a fallback is for. Returns how many came."""
    async with asyncio.timeout(DEADLINE_S):
        errors = 0
        while (answer := await ask()) != wanted:
            assert isinstance(answer, StateError), answer
            errors += 1
            await asyncio.sleep(0.005)
        return errors


def test_standalone(any_server: Server, run: Runner) -> None:
    """Redis and Valkey (S-1)."""

    async def main() -> None:
        async with connected(any_server.url) as (nodes, _):
            assert await command(nodes, "SET", "a", b"\x00\r\n\xff") == b"OK"
            assert await command(nodes, "GET", "a") == b"\x00\r\n\xff"
            assert await command(nodes, "GET", "b") is None
            assert await command(nodes, "EVAL", "return {1, 'x', false}", 0) == [1, b"x", None]
            refused = await command(nodes, "EVALSHA", 40 * "0", 0)
            assert isinstance(refused, RedisError)
            assert refused.code == "NOSCRIPT"
            assert b"name=breakloop " in bytes(await command(nodes, "CLIENT", "LIST"))  # type: ignore[arg-type]
            heard = Heard()
            for _ in range(1000):
                nodes.send(b"n", (b"INCR", b"n"), heard)
            assert [await heard.next() for _ in range(1000)] == list(range(1, 1001))

    run(main())


def test_databases(redis_server: Server) -> None:
    async def main(db: int) -> None:
        async with connected(redis_server.url.removesuffix("0") + str(db)) as (nodes, _):
            assert await command(nodes, "SET", "a", db) == b"OK"

    asyncio.run(main(3))
    assert redis_server.client(db=3).get("a") == b"3"
    with pytest.raises(StateError, match="has no database 99"):
        asyncio.run(main(99))


def test_tls(redis_tls: Server, run: Runner) -> None:
    """A server is trusted for its certificate and its name, never just so."""

    async def main(url: str) -> None:
        async with connected(url) as (nodes, _):
            assert await command(nodes, "SET", "a", 300_000 * b"x") == b"OK"
            assert await command(nodes, "STRLEN", "a") == 300_000

    run(main(redis_tls.url))
    with pytest.raises(StateError, match="has a certificate that is not trusted"):
        run(main(redis_tls.url.partition("?")[0]))
    with pytest.raises(StateError, match="closed the connection"):
        run(main(f"redis://127.0.0.1:{redis_tls.port}"))


def test_passwords_and_users() -> None:
    """requirepass and ACL users; a wrong password is said to be wrong, and not said (Y-1)."""

    async def main(url: str) -> None:
        async with connected(url) as (nodes, _):
            assert await command(nodes, "SET", "bl:a", "1") == b"OK"

    with running({"requirepass": "hunter2"}) as server:
        client = server.client()
        client.acl_setuser("agent", enabled=True, passwords=["+pa@ss"], keys=["bl:*"], commands=["+set"])
        place = f"127.0.0.1:{server.port}"
        asyncio.run(main(f"redis://:hunter2@{place}"))
        asyncio.run(main(f"redis://agent:pa%40ss@{place}"))
        for url, says in (
            (f"redis://:wrong-one@{place}", "rejected the user or password"),
            (f"redis://agent:wrong-one@{place}", "rejected the user or password"),
            (f"redis://{place}", "requires a password"),
        ):
            with pytest.raises(StateError) as caught:
                asyncio.run(main(url))
            assert str(caught.value) == f"{place} {says}"


def test_a_stopped_server(own_redis: Server, run: Runner) -> None:
    """It hangs with open connections; given up within seconds, and used again when it goes on (S-3)."""

    async def main() -> None:
        async with connected(own_redis.url) as (nodes, changes):
            heard = Heard()
            own_redis.pause()
            nodes.send(b"a", (b"INCR", b"a"), heard)
            up, why = await changes.next()
            assert not up
            assert why == "the server did not respond for 2 s"
            assert isinstance(await heard.next(), StateError)
            assert isinstance(await command(nodes, "PING"), StateError)
            own_redis.resume()
            assert (await changes.next())[0]
            # Carried out though nobody heard the answer, or not; never twice.
            assert await command(nodes, "GET", "a") in (None, b"1")

    run(main())


def test_a_server_that_dies(own_redis: Server, run: Runner) -> None:
    """What is in flight fails at once, and a new server on the old address is found (S-3)."""

    async def main() -> None:
        async with connected(own_redis.url) as (nodes, changes):
            assert await command(nodes, "SET", "a", "1") == b"OK"
            heard = Heard()
            nodes.send(b"a", (b"BLPOP", b"nothing", b"0"), heard)
            nodes.send(b"a", (b"INCR", b"a"), heard)
            own_redis.kill()
            assert str(await heard.next()) == str(await heard.next()) == "the connection was lost"
            assert await changes.next() == (False, "the connection was lost")
            await asyncio.to_thread(own_redis.restart)
            assert await changes.next() == (True, "connected")
            assert await command(nodes, "GET", "a") is None

    run(main())


@pytest.mark.parametrize(("name", "crash"), [("redis-server", False), ("redis-server", True), ("valkey-server", True)])
def test_sentinel(name: str, crash: bool) -> None:
    """By order or by crash, the new master is found without anybody's doing (S-1)."""

    async def main(group: Watched) -> None:
        async with connected(group.url) as (nodes, changes):
            assert await command(nodes, "SET", "a", "1") == b"OK"
            old = group.master
            new = await asyncio.to_thread(group.failover, crash=crash)
            assert (await changes.next())[0] is False
            await settled(lambda: command(nodes, "SET", "a", "2"), b"OK")
            assert nodes.up
            assert new is not old
            assert new.client().get("a") == b"2"

    with watched(name=name) as group:
        asyncio.run(main(group))


def test_sentinels_that_are_gone(redis_sentinel: Watched) -> None:
    """One that answers is enough; none is said to be none."""

    async def main() -> None:
        async with connected(redis_sentinel.url) as (nodes, _):
            assert await command(nodes, "PING") == b"PONG"

    for sentinel in redis_sentinel.sentinels[:2]:
        sentinel.kill()
    asyncio.run(main())
    redis_sentinel.sentinels[2].kill()
    with pytest.raises(StateError, match="no Sentinel knows the master of state"):
        asyncio.run(main())


def test_cluster(redis_cluster: Cluster, run: Runner) -> None:
    """Keys with one tag are on one node, and a script may have them all (E-5)."""

    async def main() -> None:
        async with connected(redis_cluster.url) as (nodes, _):
            for tag in range(30):
                key = f"bl:{{{tag}}}:a"
                script = "redis.call('SET', KEYS[1], 1) return redis.call('INCR', KEYS[2])"
                args = ("EVAL", script, 2, key, f"bl:{{{tag}}}:b")
                assert await command(nodes, *args, key=key.encode()) == 1

    run(main())
    sizes = [int(node.client().dbsize()) for node in redis_cluster.nodes]
    assert sum(sizes) == 60
    assert min(sizes) > 0


def test_a_slot_that_moves(any_cluster: Cluster) -> None:
    """ASK while it moves, MOVED when it has moved: no command fails, and each is carried out once."""
    key = b"{p}n"
    old = any_cluster.node_of(slot_of(key))
    new = next(node for node in any_cluster.nodes if node is not old)

    async def main() -> None:
        async with connected(any_cluster.url) as (nodes, changes):
            await asyncio.to_thread(any_cluster.begin_move, slot_of(key), new)
            counts = [
                await command(nodes, "INCR", key) for _ in range(5)
            ]  # absent at its owner: asked for at the other
            assert new.client().execute_command("CLUSTER COUNTKEYSINSLOT", slot_of(key)) == 1  # type: ignore[no-untyped-call]
            moving = asyncio.create_task(asyncio.to_thread(any_cluster.move_slot, slot_of(key), new))
            while not moving.done():
                counts.append(await command(nodes, "INCR", key))
            await moving
            counts += [await command(nodes, "INCR", key) for _ in range(5)]
            assert counts == list(range(1, len(counts) + 1))
            assert nodes.up
            assert len(changes.all) == 1
        assert new.client().get(key) == str(len(counts)).encode()

    asyncio.run(main())


@pytest.mark.parametrize("name", SERVERS)
def test_a_node_that_dies_is_replaced(name: str) -> None:
    """Its replica takes over, and is found; the other nodes work all the time."""

    async def main(made: Cluster) -> None:
        victim = made.node_of(slot_of(b"foo"))
        other = next(name for name in map(str.encode, "abcdefgh") if made.node_of(slot_of(name)) is not victim)
        async with connected(made.url) as (nodes, changes):
            assert await command(nodes, "SET", "foo", "1") == b"OK"
            victim.kill()
            assert (await changes.next())[0] is False
            assert await command(nodes, "SET", other, "1") == b"OK"
            assert await settled(lambda: command(nodes, "SET", "foo", "2"), b"OK") > 0
            while not nodes.up:
                assert (await changes.next())[0] is True

    with cluster(replicas=True, name=name) as made:
        asyncio.run(main(made))


def test_a_cluster_with_tls(tmp_path: Path) -> None:
    async def main(made: Cluster) -> None:
        async with connected(made.url) as (nodes, _):
            for key in ("foo", "bar", "baz"):
                assert await command(nodes, "SET", key, "1") == b"OK"

    with cluster(tls=make_tls(tmp_path)) as made:
        asyncio.run(main(made))


def test_messages(own_redis: Server, run: Runner) -> None:
    """Heard at once; after a restart the gap is told, and later messages are heard again (B-3)."""

    async def main() -> None:
        feed, gaps, news = PubSub(parse_redis_url(own_redis.url), asyncio.get_running_loop()), Heard(), Heard()
        feed.on_gap = gaps
        feed.subscribe(b"bl:news", news)
        await feed.start()
        await gaps.next()
        own_redis.client().publish("bl:news", "1")
        assert await news.next() == b"1"
        await asyncio.to_thread(own_redis.restart)
        await gaps.next()
        own_redis.client().publish("bl:news", "2")
        assert await news.next() == b"2"
        await feed.close()

    run(main())


def test_messages_in_a_cluster(redis_cluster: Cluster) -> None:
    """Published at one node, heard at another."""

    async def main() -> None:
        feed, gaps, news = PubSub(parse_redis_url(redis_cluster.url), asyncio.get_running_loop()), Heard(), Heard()
        feed.on_gap = gaps
        feed.subscribe(b"bl:news", news)
        await feed.start()
        await gaps.next()
        redis_cluster.nodes[2].client().publish("bl:news", "1")
        assert await news.next() == b"1"
        await feed.close()

    asyncio.run(main())
