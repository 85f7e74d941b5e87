"""Faults of the proxy that need real sockets to be seen, each with what was wrong; they must not come back."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import uvloop

from breakloop.config import settings
from breakloop.dialects.denial import VerdictHeaders
from breakloop.gateway.admission import Admission
from breakloop.gateway.decision import DecisionHandler
from breakloop.gateway.forwarding import HeadRewriter, UpstreamRoutes
from breakloop.gateway.http_request import RequestLimits
from breakloop.gateway.http_response import ResponseHeadParser
from breakloop.gateway.proxy import ProxyHandler
from breakloop.gateway.server import Server
from breakloop.gateway.upstream import UpstreamPool
from breakloop.model.upstream import parse_upstream
from tests.builders import SECRET, world
from tests.unit.testing.talking import tls_contexts

pytestmark = pytest.mark.e2e

Play = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
_WAIT_S = 30.0  # less than the minute or more that everybody waited before


class Gate:
    """A proxy on a port of its own, in front of one upstream that the test plays."""

    def __init__(self, server: Server, upstream: asyncio.Server, port: int) -> None:
        self._server, self._upstream, self._port = server, upstream, port

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self._port)

    async def stop(self) -> None:
        """End both; a loop with a server that is open cannot be closed."""
        await self._server.stop(0)
        self._upstream.close()


async def gate(play: Play, limits: RequestLimits | None = None, tls: ssl.SSLContext | None = None) -> Gate:
    upstream = await asyncio.start_server(play, "127.0.0.1", 0, limit=4096)
    port = upstream.sockets[0].getsockname()[1]
    own_world = world({"bundle_version": 1, "policies": []})
    judging = Admission(own_world.engine, own_world.descriptors, VerdictHeaders("X-Breakloop-", SECRET), run_id="t-")
    own = DecisionHandler(judging, ready=lambda: (200, {}))
    server = Server(own, limits)
    named = parse_upstream("up", f"http://127.0.0.1:{port}")
    pool = UpstreamPool(named, server, settings.Proxy(), None, ResponseHeadParser())
    rewriter = HeadRewriter("X-Breakloop-", "hop")
    door = ProxyHandler(judging, own, routes=UpstreamRoutes([named]), pools={"up": pool}, rewriter=rewriter)
    server.handler, server.streams_body = door, door.streams_body
    server.on_stop.append(pool.close)
    return Gate(server, upstream, await server.start(tls=tls))


def test_a_connection_with_an_unsent_body_is_not_used_again() -> None:
    """An upstream may answer (413) and keep the connection before it has read a collected body of some megabytes. The
    connection goes back to the pool with the rest of that body unsent, and the next request, of any client, waits
    behind it for ten minutes (or is read by a careless upstream after what it takes for a request) (D-1)."""

    async def run() -> None:
        over = asyncio.Event()

        async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = await reader.readuntil(b"\r\n\r\n")
            writer.transport.pause_reading()  # type: ignore[attr-defined]  # a stream's transport reads
            status = b"413 Content Too Large" if head.startswith(b"POST") else b"200 OK"
            writer.write(b"HTTP/1.1 %b\r\nContent-Length: 0\r\n\r\n" % status)
            await over.wait()
            writer.close()

        made = await gate(play)
        body = b" " * (9 * 1024 * 1024)
        head = b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        reader, writer = await made.connect()
        writer.write(head % len(body) + body)
        assert (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), _WAIT_S)).startswith(b"HTTP/1.1 413")
        other_reader, other_writer = await made.connect()
        other_writer.write(b"GET /b HTTP/1.1\r\nHost: x\r\n\r\n")
        try:
            assert (await asyncio.wait_for(other_reader.readuntil(b"\r\n\r\n"), _WAIT_S)).startswith(b"HTTP/1.1 200")
        finally:
            over.set()
            writer.close()
            other_writer.close()
            await made.stop()

    uvloop.run(run())


def test_a_cut_answer_does_not_end_cleanly_for_http_1_0() -> None:
    """uvloop's `abort` closes with a FIN. To a client whose answer ends with the connection, that is a proper end of a
    cut answer: it needs a reset (SO_LINGER with 0 seconds before the abort) (D-1)."""

    async def run() -> None:
        async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
            await writer.drain()
            writer.close()

        made = await gate(play)
        reader, writer = await made.connect()
        writer.write(b"GET /a HTTP/1.0\r\n\r\n")
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(reader.read(), _WAIT_S)
        writer.close()
        await made.stop()

    uvloop.run(run())


def test_connections_that_never_finish_their_handshake_count(tmp_path: Path) -> None:
    """A TLS connection is counted, and its time measured, only after its handshake: before it any number may stand
    open, for the sixty seconds that are the loop's default (Y-2)."""
    tls, _ = tls_contexts(tmp_path)

    async def run() -> None:
        async def play(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.close()

        made = await gate(play, RequestLimits(connections=5, head_s=1), tls)
        clients = [await made.connect() for _ in range(20)]
        ends = [asyncio.ensure_future(reader.read(1)) for reader, _ in clients]
        _, open_still = await asyncio.wait(ends, timeout=_WAIT_S)
        for end in open_still:
            end.cancel()
        for _, writer in clients:
            writer.close()
        await made.stop()
        assert len(open_still) <= 5

    uvloop.run(run())
