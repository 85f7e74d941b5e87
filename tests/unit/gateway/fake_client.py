"""A client without a socket: a transport that records, a loop that runs only when told, and replies read by h11."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Self

import h11

from breakloop.clock import FakeClock
from breakloop.gateway.connection import Connection, Phase
from breakloop.gateway.http_request import Handler, Reply, Request, RequestLimits
from breakloop.gateway.server import Server


class FakeTransport(asyncio.Transport):
    """Records what is done to it; a write after close raises, as uvloop's does."""

    def __init__(self, peer: Any = ("192.0.2.7", 4711)) -> None:
        super().__init__({"peername": peer})
        self.sent = b""
        self.writes = 0
        self.closed = self.aborted = self.eof = False
        self.reading = True
        self.on_write: Callable[[], None] | None = None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self.closed or self.eof:
            raise RuntimeError("unable to perform operation; the handler is closed")
        self.sent += data
        self.writes += 1
        if self.on_write:
            self.on_write()

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = self.aborted = True

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.eof = True

    def pause_reading(self) -> None:
        assert self.reading
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.reading
        self.reading = True


class FakeLoop(asyncio.SelectorEventLoop):
    """A loop whose time moves only when told."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0

    def time(self) -> float:
        return self.now

    def turn(self, count: int = 1) -> None:
        """Run what is due, and no more."""
        for _ in range(count):
            self.call_soon(self.stop)
            self.run_forever()

    def advance(self, seconds: float) -> None:
        self.now += seconds
        self.turn(3)


class Client:
    """One connection to a server that listens nowhere."""

    def __init__(
        self,
        handler: Handler | None = None,
        limits: RequestLimits | None = None,
        server: Server | None = None,
        loop: FakeLoop | None = None,
    ) -> None:
        self.seen: list[Request] = []
        self.loop = loop or FakeLoop()
        self.server = server or Server(handler or self.echo, limits, clock=FakeClock(), loop=self.loop)
        self.transport = FakeTransport()
        self.connection = Connection(self.server)
        self.connection.connection_made(self.transport)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.connection_lost(None)
        self.loop.turn(3)
        self.loop.close()

    # Methods and not attributes, because mypy takes an attribute for unchanged between two asserts.

    def closed(self) -> bool:
        return self.transport.closed

    def reading(self) -> bool:
        return self.transport.reading

    def sent(self) -> bytes:
        return self.transport.sent

    def phase(self) -> Phase:
        return self.connection.phase

    def echo(self, request: Request) -> Reply:
        """The default handler: keeps the request, answers with method, target and body."""
        self.seen.append(request)
        return Reply(200, b"", request.method.encode() + b" " + request.target + b" " + request.body)

    def send(self, *pieces: bytes) -> bytes:
        """Deliver bytes as the transport would, let the loop finish, and return everything sent back so far."""
        for piece in pieces:
            if not self.transport.closed:
                self.connection.data_received(piece)
                self.server.process_reads()
        while self.phase() is Phase.QUEUED:
            self.loop.turn()
        return self.transport.sent

    def replies(self, *methods: str) -> list[tuple[int, bytes]]:
        """Status and body of each reply so far, as another HTTP implementation reads them."""
        return [(status, body) for status, body, _ in read_replies(self.transport.sent, *methods)]


def read_replies(data: bytes, *methods: str) -> list[tuple[int, bytes, dict[bytes, bytes]]]:
    """Every final reply in `data`; `methods` are those of the requests, as far as they matter (HEAD)."""
    replies: list[tuple[int, bytes, dict[bytes, bytes]]] = []
    while data:
        method = methods[len(replies)] if len(replies) < len(methods) else "GET"
        reader = h11.Connection(h11.CLIENT)
        reader.send(h11.Request(method=method, target="/", headers=[("host", "x")]))
        reader.send(h11.EndOfMessage())
        reader.receive_data(data)
        event = reader.next_event()
        while isinstance(event, h11.InformationalResponse):
            event = reader.next_event()
        assert isinstance(event, h11.Response), event
        body = b""
        while isinstance(piece := reader.next_event(), h11.Data):
            body += piece.data
        assert isinstance(piece, h11.EndOfMessage), piece
        replies.append((event.status_code, body, dict(event.headers)))
        data = reader.trailing_data[0]
    return replies


def get(target: str = "/", *fields: str, version: str = "1.1", method: str = "GET") -> bytes:
    """A request without a body."""
    return "".join(
        [f"{method} {target} HTTP/{version}\r\nHost: a.example\r\n", *(f"{f}\r\n" for f in fields), "\r\n"]
    ).encode()


def post(body: bytes, *fields: str) -> bytes:
    """A request with a body of known length."""
    return get("/p", f"Content-Length: {len(body)}", *fields, method="POST") + body


def chunked(*chunks: bytes, fields: tuple[str, ...] = (), trailers: bytes = b"") -> bytes:
    """A request with a chunked body."""
    head = get("/c", "Transfer-Encoding: chunked", *fields, method="POST")
    return head + b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n" + trailers + b"\r\n"
