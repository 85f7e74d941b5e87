"""A proxy without sockets: a client and upstreams that are recorded transports, and a clock that stands still.

Reads like a sequence diagram: `client.send(...)`, then `proxy.upstream().says(...)`, then look at what the client got.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from breakloop.config import settings
from breakloop.dialects.denial import VerdictHeaders
from breakloop.gateway.admission import Admission
from breakloop.gateway.decision import DecisionHandler
from breakloop.gateway.forwarding import HeadRewriter, UpstreamRoutes
from breakloop.gateway.http_request import RequestLimits
from breakloop.gateway.http_response import ResponseHeadParser
from breakloop.gateway.proxy import ProxyHandler
from breakloop.gateway.server import Server
from breakloop.gateway.upstream import UpstreamConnection, UpstreamPool
from breakloop.model.upstream import Upstream, parse_upstream
from breakloop.policy.client import CallerKeys
from breakloop.policy.descriptors import ContextSettings
from tests.builders import SECRET, Json, World, bundle, world
from tests.unit.gateway.fake_client import Client, FakeLoop, FakeTransport, get

UP = parse_upstream("up", "http://up.example:8000")
ANTHROPIC = parse_upstream("anthropic", "https://a.example")


class FakeConnection(UpstreamConnection):
    """A connection to an upstream that the test plays."""

    @property
    def wire(self) -> FakeTransport:
        assert isinstance(self.transport, FakeTransport)
        return self.transport

    def says(self, *pieces: bytes) -> None:
        """Deliver bytes, each as the transport would."""
        for piece in pieces:
            self.data_received(piece)
            self._server.process_reads()

    def ends(self) -> None:
        """Close properly."""
        self.eof_received()
        self.goes()

    def goes(self, error: Exception | None = None) -> None:
        """Be gone."""
        self.wire.closed = True
        self.connection_lost(error)


class FakePool(UpstreamPool):
    """Connects to nowhere, at once, or as the test wants."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.made: list[FakeConnection] = []
        self.refuses: list[BaseException] = []
        self.never = False

    async def connect(self) -> UpstreamConnection:
        if self.never:
            await asyncio.Event().wait()
        if self.refuses:
            raise self.refuses.pop(0)
        connection = FakeConnection(self.server, self)
        connection.connection_made(FakeTransport(("192.0.2.99", 443)))
        self.made.append(connection)
        self.opened += 1
        return connection


class Proxy(Client):
    """One client in front of a proxy with one upstream `up`, and whatever else is named."""

    def __init__(
        self,
        data: Json | None = None,
        *,
        limits: RequestLimits | None = None,
        times: settings.Proxy | None = None,
        callers: CallerKeys | None = None,
        named: Sequence[Upstream] = (UP, ANTHROPIC),
        **door: Any,
    ) -> None:
        loop = FakeLoop()
        self.world: World = world(data or bundle(), settings=ContextSettings(secret=SECRET, callers=callers))
        judging = Admission(
            self.world.engine,
            self.world.descriptors,
            VerdictHeaders("X-Breakloop-", SECRET),
            run_id="t-",
        )
        own = DecisionHandler(judging, ready=lambda: (200, {"status": "ready"}))
        server = Server(own, limits, clock=self.world.clock, loop=loop)
        self.pools = {
            upstream.name: FakePool(upstream, server, times or settings.Proxy(), None, ResponseHeadParser())
            for upstream in named
        }
        door.setdefault("rewriter", HeadRewriter("X-Breakloop-", "hop-token"))
        self.door = ProxyHandler(judging, own, routes=UpstreamRoutes(named), pools=self.pools, **door)
        server.handler = self.door
        server.streams_body = self.door.streams_body
        server.large_bodies = judging
        server.on_sweep += [pool.sweep for pool in self.pools.values()]
        super().__init__(server=server, loop=loop)

    def send(self, *pieces: bytes) -> bytes:
        """Deliver bytes, and let the proxy connect."""
        super().send(*pieces)
        self.loop.turn(3)
        return self.transport.sent

    def upstream(self, number: int = -1, name: str = "up") -> FakeConnection:
        """A connection that the proxy made."""
        return self.pools[name].made[number]

    def exchange(self, sent: bytes = b"", answer: bytes = b"") -> bytes:
        """One whole exchange; returns what the client got for it."""
        before = len(self.transport.sent)
        self.send(sent or get("/v1/models"))
        self.upstream().says(answer or ok())
        return self.transport.sent[before:]


def ok(body: bytes = b"fine", *fields: str, status: str = "200 OK") -> bytes:
    """An answer with a length."""
    return answer(f"Content-Length: {len(body)}", *fields, status=status) + body


def answer(*fields: str, status: str = "200 OK") -> bytes:
    """The head of an answer."""
    return "".join([f"HTTP/1.1 {status}\r\n", *(f"{field}\r\n" for field in fields), "\r\n"]).encode()


def chunks(*pieces: bytes, end: bytes = b"0\r\n\r\n") -> bytes:
    """A chunked body."""
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + end
