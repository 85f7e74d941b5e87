"""A real server on real sockets, with uvloop: listening, limits, shutting down."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest
import uvloop

from breakloop.clock import FakeClock
from breakloop.gateway.exchange import DeferredReply
from breakloop.gateway.http_request import Handler, Reply, Request, RequestLimits
from breakloop.gateway.server import ListenError, Server
from tests.deadlines import DEADLINE_S
from tests.unit.gateway.fake_client import FakeLoop, get, post, read_replies

LOCAL = "127.0.0.1"


def echo(request: Request) -> Reply:
    return Reply(200, b"", request.peer.encode() + b" " + request.body)


def run(
    handler: Handler, steps: Callable[[Server, int], Awaitable[None]], limits: RequestLimits | None = None
) -> Server:
    """Start a server, take the steps with its port, stop it."""

    async def main() -> Server:
        server = Server(handler, limits)
        port = await server.start(LOCAL)
        try:
            await asyncio.wait_for(steps(server, port), DEADLINE_S)
        finally:
            await server.stop(0)
        assert not server.live
        return server

    return uvloop.run(main())


async def until(happened: Callable[[], bool]) -> None:
    """Let the loop run until the other side has got there."""
    while not happened():  # noqa: ASYNC110 - the server tells nobody when it has read something
        await asyncio.sleep(0)


async def ask(port: int, data: bytes) -> bytes:
    """Send, close after the last reply, return everything that came back."""
    reader, writer = await asyncio.open_connection(LOCAL, port)
    writer.write(data)
    answer = await reader.read(-1)
    writer.close()
    await writer.wait_closed()
    return answer


def test_requests_over_a_socket() -> None:
    async def steps(server: Server, port: int) -> None:
        body = b"x" * 1_000_000
        replies = read_replies(await ask(port, post(body) + get("/", "Connection: close")))
        assert [(status, reply) for status, reply, _ in replies] == [(200, b"127.0.0.1 " + body), (200, b"127.0.0.1 ")]

    server = run(echo, steps)
    assert (server.connections, server.requests, server.refused) == (1, 2, 0)


def test_a_refused_client_reads_why() -> None:
    """Also when it is still sending its body: no reset before the answer (Y-2)."""

    async def steps(_: Server, port: int) -> None:
        answer = await ask(port, get("/", "Content-Length: 700000", method="POST") + b"x" * 700_000)
        assert read_replies(answer)[0][0] == 413

    run(echo, steps, RequestLimits(body_bytes=10))


def test_a_client_that_does_not_read_holds_no_more_than_the_buffers() -> None:
    """Back-pressure through real sockets; every reply arrives once the client reads (D-1)."""

    body = b"x" * 20_000

    async def steps(server: Server, port: int) -> None:
        reader, writer = await asyncio.open_connection(LOCAL, port)
        writer.write(get() * 2000)
        await until(lambda: any(one._write_paused for one in server.live))
        assert server.requests < 2000
        writer.write(get("/", "Connection: close"))
        answer = await reader.read(-1)
        assert (answer.count(b"HTTP/1.1 200 OK\r\n"), answer.count(b"\r\n\r\n" + body)) == (2001, 2001)
        writer.close()
        await writer.wait_closed()

    run(lambda _: Reply(200, b"", body), steps)


def test_connections_above_the_cap_are_closed() -> None:
    """Accepted and closed at once, and counted, if none is idle (Y-2)."""

    async def steps(server: Server, port: int) -> None:
        reader, writer = await asyncio.open_connection(LOCAL, port)
        writer.write(get() + get()[:10])
        await reader.readuntil(b"\r\n\r\n")
        with suppress(ConnectionResetError):  # whether it is reset or just ends depends on who is first
            assert await ask(port, get()) == b""
        assert server.refused == 1
        writer.close()
        await writer.wait_closed()

    run(lambda _: Reply(200), steps, RequestLimits(connections=1))


def test_a_disconnected_client_frees_its_throttled_slot() -> None:
    """Noticed through the socket, not after the delay (E-6)."""

    async def steps(server: Server, port: int) -> None:
        _, writer = await asyncio.open_connection(LOCAL, port)
        writer.write(get())
        await until(lambda: server.requests > 0)
        writer.close()
        await writer.wait_closed()
        await until(lambda: not server.live)
        assert server.abandoned == 1

    run(lambda _: Reply(200, delay_s=30.0), steps)


def test_a_second_server_on_the_same_port_fails_clearly() -> None:
    async def steps(_: Server, port: int) -> None:
        with pytest.raises(ListenError, match=rf"cannot listen on 127\.0\.0\.1:{port}: the port is in use") as error:
            await Server(echo).start(LOCAL, port)
        assert error.value.errno == errno.EADDRINUSE

    run(echo, steps)


def test_an_address_that_is_not_ours() -> None:
    async def main() -> None:
        with pytest.raises(ListenError, match=r"cannot listen on 192\.0\.2\.1:0: "):
            await Server(echo).start("192.0.2.1", 0)

    uvloop.run(main())


def test_stop_finishes_what_runs_and_accepts_no_more() -> None:
    """The throttled reply comes at its time, with Connection: close; idle connections end at once (S-6)."""

    async def main() -> None:
        server = Server(lambda r: Reply(200, b"", b"done", 0.05 if r.target == b"/slow" else 0.0))
        port = await server.start(LOCAL)
        slow, slow_writer = await asyncio.open_connection(LOCAL, port)
        idle, idle_writer = await asyncio.open_connection(LOCAL, port)
        slow_writer.write(get("/slow"))
        idle_writer.write(get("/idle"))
        await until(lambda: server.requests == 2)
        assert await server.stop(10) == 0
        assert [reply[:2] for reply in read_replies(await idle.read(-1))] == [(200, b"done")]
        ((status, body, head),) = read_replies(await slow.read(-1))
        assert (status, body, head[b"connection"]) == (200, b"done", b"close")
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(LOCAL, port)
        for writer in (slow_writer, idle_writer):
            writer.close()
            await writer.wait_closed()

    uvloop.run(main())


def test_stop_cuts_what_outlasts_the_grace() -> None:
    """A throttled reply goes out early, a request that hangs is cancelled; both are counted as cut (S-6)."""
    hanging = DeferredReply()

    async def main() -> None:
        server = Server(lambda r: hanging if r.target == b"/hang" else Reply(200, delay_s=30.0))
        port = await server.start(LOCAL)
        answers = [asyncio.create_task(ask(port, get(target))) for target in ("/hang", "/throttled")]
        await until(lambda: server.requests == 2)
        assert await server.stop(0.01) == 2
        hung, throttled = await asyncio.gather(*answers)
        assert hung == b""
        assert read_replies(throttled)[0][0] == 200
        assert hanging._cancelled

    uvloop.run(main())


def test_stop_ends_although_a_client_does_not_read() -> None:
    """What is still to be written to it does not hold the process (S-6)."""

    async def main() -> None:
        server = Server(lambda _: Reply(200, b"", b"x" * 20_000_000))
        port = await server.start(LOCAL)
        _, writer = await asyncio.open_connection(LOCAL, port)
        writer.write(get())
        await until(lambda: server.requests == 1)
        assert await server.stop(0.01) == 1
        await until(lambda: not server.live)
        writer.transport.abort()

    uvloop.run(main())


def test_one_timer_sweeps_once_a_second() -> None:
    """No timer per request or connection; the Date line moves with it (Y-2)."""
    loop, clock = FakeLoop(), FakeClock()
    server = Server(echo, clock=clock, loop=loop)
    loop.run_until_complete(server.start(LOCAL))
    date = server.status_lines[200]
    assert server.tick == 0
    for second in range(1, 4):
        clock.advance(1)
        loop.advance(1.01)
        assert server.tick == second
    assert server.status_lines[200] != date
    loop.run_until_complete(server.stop(0))
    loop.advance(5)
    assert server.tick == 3
    loop.close()
