"""Several servers that accept from one socket, on one loop: who takes a connection, and what if nobody wants to."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest
import uvloop

from breakloop.gateway import server as sharing
from breakloop.gateway.http_request import Reply, Request
from breakloop.gateway.server import ConnectionCounts, Server, bind
from tests.deadlines import DEADLINE_S
from tests.e2e.certificates import Authority


@pytest.fixture
def shares() -> ConnectionCounts:
    memory = os.memfd_create("shares")
    os.ftruncate(memory, 12)
    made = ConnectionCounts(memory, 3)
    os.close(memory)
    for index in range(3):
        made.remove(index)
    return made


def snapshot(counts: ConnectionCounts) -> list[int | None]:
    """All numbers; None for processes that do not accept."""
    return [None if count == 0xFFFFFFFF else count for count in counts._counts]


def test_who_has_no_more_than_the_others_may_take_one(shares: ConnectionCounts) -> None:
    """An eighth more than the least is fair; whoever is absent does not count (S-5)."""
    shares.set(0, 0)
    assert shares.may_accept(0)
    assert not shares.may_accept(1)
    shares.set(0, 16)
    assert shares.may_accept(18)
    assert not shares.may_accept(19)
    shares.set(1, 2)
    assert not shares.may_accept(3)
    shares.remove(1)
    assert shares.may_accept(18)
    assert snapshot(shares) == [16, None, None]


def test_many_that_come_and_go_need_speed(shares: ConnectionCounts) -> None:
    """Whoever has taken thousands within a second does not wait for the others at each (S-5)."""
    shares.set(0, 0)
    assert not shares.may_accept(1, recent=15)
    assert shares.may_accept(1, recent=16)
    assert shares.may_accept(8, recent=2000)


def test_all_processes_see_the_same() -> None:
    """It is one memory, however often it is mapped (S-5)."""
    memory = os.memfd_create("shares")
    os.ftruncate(memory, 8)
    one, other = ConnectionCounts(memory, 2), ConnectionCounts(memory, 2)
    os.close(memory)
    one.set(0, 5)
    other.remove(1)
    assert snapshot(one) == snapshot(other) == [5, None]


def answering(name: str) -> Callable[[Request], Reply]:
    return lambda _request: Reply(200, b"", name.encode())


def run(shares: ConnectionCounts, steps: Callable[[list[Server], int], Awaitable[None]]) -> None:
    """Two servers on one socket."""

    async def main() -> None:
        (listener,) = bind("127.0.0.1", 0)
        with listener:
            servers = [Server(answering(name)) for name in "ab"]
            for index, server in enumerate(servers):
                server.share(listener.dup(), shares, index)
            try:
                await asyncio.wait_for(steps(servers, listener.getsockname()[1]), DEADLINE_S)
            finally:
                for server in servers:
                    await server.stop(0)
        assert snapshot(shares) == [None] * 3

    uvloop.run(main())


async def connect(port: int) -> tuple[bytes, asyncio.StreamWriter]:
    """A connection that stays, and who has it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    await reader.readuntil(b"\r\n\r\n")
    return await reader.readexactly(1), writer


async def until(happened: Callable[[], bool]) -> None:
    while not happened():  # noqa: ASYNC110 - nobody is told
        await asyncio.sleep(0)


@pytest.mark.parametrize("together", [True, False])
def test_connections_are_shared_evenly(
    shares: ConnectionCounts, together: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A burst and one after the other; those that close make room for new ones (S-5)."""
    monkeypatch.setattr(sharing, "_PATIENCE_S", DEADLINE_S)  # a busy machine may take longer than the real one

    async def steps(servers: list[Server], port: int) -> None:
        if together:
            opened = await asyncio.gather(*[connect(port) for _ in range(16)])
        else:
            opened = [await connect(port) for _ in range(16)]
        counts = [sum(who == name for who, _ in opened) for name in (b"a", b"b")]
        assert max(counts) <= 10
        assert snapshot(shares)[:2] == counts
        for who, writer in opened:
            if who == b"a":
                writer.close()
        await until(lambda: snapshot(shares)[0] == 0)
        more = [await connect(port) for _ in range(4)]
        assert [who for who, _ in more].count(b"a") >= 3
        for _, writer in (*opened, *more):
            writer.close()

    run(shares, steps)


def test_who_hangs_holds_up_nobody(shares: ConnectionCounts) -> None:
    """Somebody with fewer connections who does not take any is waited for, but only a moment, and ever less (S-5)."""

    async def steps(servers: list[Server], port: int) -> None:
        shares.set(2, 0)  # takes none
        loop = asyncio.get_running_loop()
        began = loop.time()
        opened = [await connect(port) for _ in range(40)]
        assert loop.time() - began < 2.0
        for _, writer in opened:
            writer.close()
        shares.remove(2)

    run(shares, steps)


def test_who_stops_leaves_the_rest_to_the_others(shares: ConnectionCounts) -> None:
    """What waits in the queue is not lost (S-5, S-6)."""

    async def steps(servers: list[Server], port: int) -> None:
        await servers[0].stop(0)
        assert snapshot(shares)[:2] == [None, 0]
        opened = [await connect(port) for _ in range(3)]
        assert [who for who, _ in opened] == [b"b"] * 3
        for _, writer in opened:
            writer.close()

    run(shares, steps)


def test_encrypted_connections(shares: ConnectionCounts, tmp_path: Path) -> None:
    """A handshake that fails leaves nothing behind, and counts no more (S-5, Y-6)."""
    authority = Authority(tmp_path)
    files = authority.issue("127.0.0.1")
    own = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    own.load_cert_chain(files.certificate, files.key)
    theirs = ssl.create_default_context(cafile=authority.file)

    async def main() -> None:
        (listener,) = bind("127.0.0.1", 0)
        with listener:
            server = Server(answering("a"))
            server.share(listener.dup(), shares, 0, own)
            port = listener.getsockname()[1]
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
                with suppress(OSError):
                    await reader.read()
                writer.close()
                await asyncio.wait_for(until(lambda: snapshot(shares)[0] == 0), DEADLINE_S)
                reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=theirs)
                writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                assert (await reader.read()).endswith(b"\r\n\r\na")
                writer.close()
            finally:
                await server.stop(0)

    uvloop.run(main())


def test_without_descriptors_it_rests(shares: ConnectionCounts, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections wait, and nothing spins or breaks (S-5)."""
    monkeypatch.setattr(sharing, "_NO_DESCRIPTORS_S", 0.01)

    class Poor:
        """A socket whose system has no descriptors for a while."""

        def __init__(self, real: socket.socket, failures: int) -> None:
            self._real = real
            self.failures = failures

        def accept(self) -> object:
            if self.failures:
                self.failures -= 1
                raise OSError(24, "Too many open files")
            return self._real.accept()

        def __getattr__(self, name: str) -> object:
            return getattr(self._real, name)

    async def steps(servers: list[Server], port: int) -> None:
        await servers[1].stop(0)
        (turns,) = servers[0]._acceptors
        poor = Poor(turns._sock, 3)
        turns._sock = poor  # type: ignore[assignment]
        _, writer = await connect(port)
        assert poor.failures == 0
        writer.close()

    run(shares, steps)
