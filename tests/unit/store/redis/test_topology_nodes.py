from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from breakloop.errors import StateError
from breakloop.store.redis.connection import Answer, Send
from breakloop.store.redis.topology import ClusterNodes, OneNode, command, make_nodes
from breakloop.store.redis.url import parse_redis_url
from tests.fake_redis import Command, Heard, array, bulk, fake_redis, polite
from tests.unit.gateway.fake_client import FakeLoop
from tests.unit.store.redis.test_connection_link import RUNNERS


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_single_server(runner: Callable[..., None]) -> None:
    """Used, lost, and back; `up` and `on_change` say so, and what is sent meanwhile fails at once (S-1, S-3)."""

    async def main() -> None:
        async with fake_redis() as fake:
            nodes, changes = (
                make_nodes(parse_redis_url(f"redis://{fake.address}/2"), asyncio.get_running_loop()),
                Heard(),
            )
            nodes.on_change = changes
            before = nodes.up
            await nodes.start()
            assert (before, nodes.up) == (False, True)
            assert await command(nodes, "SET", b"a", 1) == b"OK"
            heard = Heard()
            [send] = nodes.each()
            send((b"DBSIZE",), heard)
            assert await heard.next() == b"OK"
            assert fake.seen == [(b"SET", b"a", b"1"), (b"DBSIZE",)]
            assert (b"SELECT", b"2") in fake.greetings
            fake.drop()
            assert [await changes.next() for _ in range(2)] == [(True, "connected"), (False, "the connection was lost")]
            assert not nodes.up
            got: list[Answer] = []
            nodes.send(b"a", (b"GET", b"a"), got.append)
            assert got == []  # never before `send` returns
            assert await changes.next() == (True, "connected")
            assert [str(answer) for answer in got] == ["the connection was lost"]
            await nodes.close()
            assert not nodes.up
            assert fake.seen == [(b"SET", b"a", b"1"), (b"DBSIZE",)]

    runner(main())


def test_behind_sentinel() -> None:
    """The master is asked for anew with each connection."""

    async def main() -> None:
        async with fake_redis() as first, fake_redis() as second:
            masters = [first.address, second.address]

            def sentinel(asked: Command) -> bytes:
                if asked[0] == b"SENTINEL":
                    master = masters.pop(0)
                    return array(master.host.encode(), str(master.port).encode())
                return polite(asked)

            async with fake_redis(sentinel) as watcher:
                url = parse_redis_url(f"redis+sentinel://{watcher.address}/main")
                nodes, changes = make_nodes(url, asyncio.get_running_loop()), Heard()
                nodes.on_change = changes
                await nodes.start()
                first.drop()
                assert [(await changes.next())[0] for _ in range(3)] == [True, False, True]
                assert await command(nodes, "GET", "a") == b"OK"
                assert (first.seen, second.seen) == ([], [(b"GET", b"a")])
                await nodes.close()

    asyncio.run(main())


def test_forms() -> None:
    loop = asyncio.new_event_loop()
    assert isinstance(make_nodes(parse_redis_url("redis+cluster://h"), loop), ClusterNodes)
    assert isinstance(make_nodes(parse_redis_url("redis://h"), loop), OneNode)
    loop.close()


def test_nobody_there() -> None:
    """`start` says why, and leaves trying to the background until it is closed."""

    async def main() -> None:
        nodes = make_nodes(parse_redis_url("redis://:hunter2@127.0.0.1:1"), asyncio.get_running_loop())
        with pytest.raises(StateError) as caught:
            await nodes.start()
        assert str(caught.value) == "127.0.0.1:1 refused the connection"
        assert isinstance(await command(nodes, "GET", "a"), StateError)
        await nodes.close()

    asyncio.run(main())


class Recorder:
    """Nodes that only remember."""

    def __init__(self, answer: Answer | None = b"yes") -> None:
        self.up = True
        self.on_change: Callable[[bool, str], None] | None = None
        self.sent: list[tuple[bytes, tuple[bytes, ...]]] = []
        self.answer = answer

    def send(self, key: bytes, args: tuple[bytes, ...], then: Callable[[Answer], None]) -> None:
        self.sent.append((key, args))
        if self.answer is not None:
            then(self.answer)

    def each(self) -> list[Send]:
        return []

    async def start(self) -> None: ...

    async def close(self) -> None: ...


def test_where_a_command_goes() -> None:
    async def main() -> None:
        nodes = Recorder()
        assert await command(nodes, "SET", "a", 7) == b"yes"
        await command(nodes, "EVAL", "return 1", 1, "b", key=b"b")
        await command(nodes, "PING")
        await command(nodes, "GET", "a")
        assert nodes.sent == [
            (b"a", (b"SET", b"a", b"7")),
            (b"b", (b"EVAL", b"return 1", b"1", b"b")),
            (b"", (b"PING",)),
            (b"a", (b"GET", b"a")),
        ]

    asyncio.run(main())


def test_a_command_without_an_answer() -> None:
    """An operator waits for five seconds, and is told so."""
    loop = FakeLoop()
    asked = loop.create_task(command(Recorder(None), "PING"))
    loop.turn()
    loop.advance(4.99)
    assert not asked.done()
    loop.advance(0.01)
    assert str(asked.result()) == "Redis did not respond within 5 s"
    loop.close()


def test_large_values() -> None:
    """More than one segment each way."""

    async def main() -> None:
        async with fake_redis(lambda asked: bulk(asked[-1]) if asked[0] == b"ECHO" else polite(asked)) as fake:
            nodes = make_nodes(parse_redis_url(f"redis://{fake.address}"), asyncio.get_running_loop())
            await nodes.start()
            data = bytes(range(256)) * 20_000
            assert await command(nodes, "ECHO", data) == data
            await nodes.close()

    asyncio.run(main())
