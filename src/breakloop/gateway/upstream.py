"""Connections to upstreams, their pool, and events about upstreams that fail.

A connection serves one exchange at a time. It cuts the received bytes into response heads and bodies and passes them to
its exchange, which handles failures and timeouts. Data that arrives while no request is pending closes the connection.
"""

from __future__ import annotations

import asyncio
import errno
import re
import select
import socket
import ssl
import struct
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar, cast

from breakloop.clock import Clock, Throttle
from breakloop.config.settings import HTTP_IDLE_S, HTTPS_IDLE_S, Proxy
from breakloop.errors import UpstreamError
from breakloop.gateway.framing import ChunkBoundary, ChunkedFraming
from breakloop.gateway.http_request import BARE_LF
from breakloop.gateway.http_response import (
    BODY_UNTIL_CLOSE,
    HEAD_BYTES,
    Framing,
    ResponseHead,
    ResponseHeadParser,
    framing_for,
)
from breakloop.model.call import Call
from breakloop.model.events import UPSTREAM_FAILED, Event, Publish
from breakloop.model.upstream import Upstream

if TYPE_CHECKING:
    from breakloop.gateway.connection import ServerCore
    from breakloop.gateway.exchange import Exchange


P = TypeVar("P", bound=asyncio.Protocol)
_NO_LINGER: Final = struct.pack("ii", 1, 0)  # SO_LINGER with a timeout of zero: closing sends a reset


def reset(transport: asyncio.Transport) -> None:
    """End a connection with a TCP reset: the peer cannot mistake it for a regular end, and learns of it at once."""
    socket_ = transport.get_extra_info("socket")
    if socket_ is not None and not transport.is_closing():
        socket_.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    transport.abort()


def peer_closed(transport: asyncio.Transport) -> bool:
    """Return whether the peer closed the connection. While reading is paused, a transport does not report that."""
    socket_ = transport.get_extra_info("socket")
    if socket_ is None or socket_.fileno() < 0:
        return False
    poll = select.poll()
    poll.register(socket_.fileno(), select.POLLRDHUP)
    return bool(poll.poll(0))


UNBOUNDED: Final = sys.maxsize
_INTERIM_MAX: Final = 16  # 1xx responses before the final one
_JOINED_BYTES: Final = 64 * 1024  # up to this size of the body, head and body are written as one piece


class UpstreamConnection(asyncio.Protocol):
    __slots__ = (
        "_framing", "_head", "_heads", "_held", "_interims", "_paused", "_pool", "_queued_reads", "_reading",
        "_server", "by_line", "exchange", "idle_since", "received", "reusable", "transport", "turn_bytes",
        "until_close", "write_paused",
    )  # fmt: skip

    def __init__(self, server: ServerCore, pool: UpstreamPool) -> None:
        self._server = server
        self._pool = pool
        self._heads = pool.heads
        self._head: bytes | bytearray = b""  # an incomplete head
        self._interims = 0
        self._paused = False  # the client does not read
        self._reading = True
        self._held = b""  # received, and left for the next turn of the event loop
        self._queued_reads = 0  # received and not yet processed
        self.write_paused = False  # the upstream does not read
        self._framing: Framing | None = None
        self.received = False  # something arrived since the request was sent
        self.exchange: Exchange | None = None
        self.reusable = False  # after the current response
        self.by_line = False  # pass on the body line by line: the exchange waits for a point where it can be cut
        self.until_close = False  # the current response ends with the connection
        self.turn_bytes = UNBOUNDED  # of a body, processed in one turn of the event loop
        self.idle_since = 0
        self.transport = cast("asyncio.Transport", None)  # set by connection_made

    # -- asyncio.Protocol --------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._pool.live.add(self)

    def data_received(self, data: bytes) -> None:
        """Queue what was received; `process` gets it with the rest of the batch.

        Unexpected data closes the connection at once: a request may be about to be sent on it in the same batch.
        """
        if self.exchange is None:
            self.discard()
            return
        self._queued_reads += 1
        server = self._server  # as in `queue_read`, without the call
        reads = server.reads
        reads.append((self, data))
        if len(data) > server.large_read:
            server.process_reads()
        elif len(reads) == 1:
            server.loop.call_soon(server.process_reads)

    def eof_received(self) -> bool:
        """The upstream sends nothing more. This is the regular end only of a response without a length."""
        self._server.process_reads()
        if self.exchange is not None:
            self.exchange.upstream_eof()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Notify the exchange, if one is waiting."""
        self._server.process_reads()
        if self._held:
            self._paused, self.turn_bytes = False, UNBOUNDED
            self._continue()
        self._pool.remove(self)
        exchange, self.exchange = self.exchange, None
        if exchange is not None:
            exchange.upstream_lost("closed the connection" if exc is None else "reset the connection")

    def pause_writing(self) -> None:
        """The upstream does not read: pause the client's upload."""
        self.write_paused = True
        if self.exchange is not None:
            self.exchange.pause_upload(paused=True)

    def resume_writing(self) -> None:
        self.write_paused = False
        if self.exchange is not None:
            self.exchange.pause_upload(paused=False)

    # -- called by the exchange --------------------------------------------------------------------------------------

    def begin(self, exchange: Exchange) -> None:
        """Serve this exchange until its response is complete. The one before, if there was one, has left nothing."""
        self.exchange = exchange
        self.received = False
        self.by_line = False
        self.turn_bytes = UNBOUNDED
        self._interims = 0  # a head that arrives by itself does not reset it

    @property
    def chunk_boundary(self) -> ChunkBoundary | None:
        """Where the received part of a chunked body ends; None where nothing could be inserted."""
        framing = self._framing
        return framing.boundary if type(framing) is ChunkedFraming else None

    def pause(self) -> None:
        self._paused = True
        self._update_reading()

    def resume(self) -> None:
        self._paused = False
        self._update_reading()
        if self._held:
            self._server.loop.call_soon(self._continue)

    def _update_reading(self) -> None:
        wanted = not self._paused and not self._held
        if wanted is not self._reading and not self.transport.is_closing():
            self._reading = wanted
            if wanted:
                self.transport.resume_reading()
            else:
                self.transport.pause_reading()

    def send(self, head: bytes, body: bytes) -> None:
        server = self._server
        if len(body) <= _JOINED_BYTES:
            server.writes.append((self.transport, head + body))
        else:
            server.writes += ((self.transport, head), (self.transport, body))
        if not server.batching:
            server.flush_writes()

    def finish(self) -> None:
        """The exchange is complete: return to the pool, or close."""
        self.exchange = None
        if self._paused or not self._reading:
            self.resume()
        unread = self._queued_reads or self._held
        if not self.reusable or unread or self.transport.is_closing() or self._has_unsent():
            self.discard()
        else:
            self._pool.give_back(self)

    def _has_unsent(self) -> bool:
        return self.write_paused or self.transport.get_write_buffer_size() > 0

    def release_unused(self) -> None:
        """The exchange ended while the connection was being made: keep it for the next one."""
        self.reusable = True
        self.finish()

    def discard(self) -> None:
        self.exchange = None
        self._pool.live.discard(self)
        self._server.flush_writes()
        if self.write_paused:
            reset(self.transport)  # a regular close would wait for an upstream that does not read
        else:
            self.transport.abort()

    # -- called by the server ----------------------------------------------------------------------------------------

    def process(self, data: bytes) -> None:
        self._queued_reads -= 1
        exchange = self.exchange
        if exchange is None:
            return  # the exchange has ended, and this connection was closed
        self.received = True
        try:
            if self._framing is None:
                found = None if self._head else self._heads.read(data, exchange.method)
                if found is not None and found[0].status >= 200:
                    head, end = found
                    data = data[end:]
                else:
                    final, data = self._read_heads(exchange.method, data)
                    if final is None:
                        return
                    head = final
                self.reusable = head.keep_alive
                if head.is_plain and data and head.length == len(data) and exchange.whole_response(head, data):
                    return
                self.until_close = head.length == BODY_UNTIL_CLOSE
                exchange.response_head(head)
                if self.exchange is not exchange:  # it has discarded this connection
                    return
                if 0 < head.length == len(data) <= self.turn_bytes:  # complete, but compressed, or an error
                    exchange.response_body(data, [data], done=True)
                    return
                self._framing = framing_for(head.length)
            framing = self._framing
            if len(data) > self.turn_bytes or self._held:
                data = self._hold(data)
            if self.by_line:
                self._read_lines(exchange, framing, data)
            else:
                self._read_body(exchange, framing, data)
        except UpstreamError as error:
            self.discard()
            exchange.upstream_lost(str(error), invalid=True)

    def _hold(self, data: bytes) -> bytes:
        """Return what is processed in this turn of the event loop. The rest waits, and no more is read meanwhile, so
        that other connections get their turns.
        """
        data = self._held + data
        self._held = data[self.turn_bytes :]
        if self._held:
            self._update_reading()
            self._server.loop.call_soon(self._continue)
        return data[: self.turn_bytes]

    def _continue(self) -> None:
        """Process what was held as if it had just been received."""
        if self._held and not self._paused and self.exchange is not None:
            data, self._held = self._held, b""
            self._queued_reads += 1
            self._server.queue_read(self, data)
            self._server.process_reads()
            self._update_reading()

    def _read_heads(self, method: str, data: bytes | bytearray) -> tuple[ResponseHead | None, bytes]:
        """Read heads that arrive in pieces, or after interim ones, up to the final one; return that, if it is complete,
        and what follows it.
        """
        scanned = 0
        if self._head:
            scanned = max(0, len(self._head) - 3)
            self._head += data  # a bytearray: many small reads are not copied each time
            data = self._head
        while True:
            end = data.find(b"\r\n\r\n", scanned) + 4
            bare = BARE_LF.search(data, scanned) if end == 3 else None
            scanned = 0
            if end == 3:
                self._head = bytearray(data) if isinstance(data, bytes) else data
                if bare or len(data) > HEAD_BYTES or not b"HTTP/1."[: len(data)] == data[:7]:
                    raise UpstreamError("sent a response that is not valid HTTP/1.1")
                return None, b""
            head = self._heads.parse(bytes(data[:end]), method)
            data = bytes(data[end:])
            if head.status >= 200:
                break
            self._interims += 1
            if head.status == 101 or self._interims > _INTERIM_MAX:
                raise UpstreamError("switched protocols, or sent too many 1xx responses")
        self._head = b""
        self._interims = 0
        return head, data

    def _read_body(self, exchange: Exchange, framing: Framing, data: bytes) -> None:
        used = framing.feed(data) if data else 0
        if framing.done:
            if used < len(data):
                self.reusable = False
                data = data[:used]
            self._framing = None
        exchange.response_body(data, framing.content, done=framing.done)

    def _read_lines(self, exchange: Exchange, framing: Framing, data: bytes) -> None:
        """Pass on the body line by line, until the exchange ends it."""
        rest = len(data)
        for line in data.splitlines(keepends=True):
            rest -= len(line)
            used = framing.feed(line)
            if framing.done:
                self.reusable = self.reusable and used == len(line) and not rest
                self._framing = None
            exchange.response_body(line[:used], framing.content, done=framing.done)
            if self._framing is None or self.exchange is not exchange:
                return

    def abort(self) -> None:
        """Processing failed with an exception of ours: close."""
        exchange = self.exchange
        self.discard()
        if exchange is not None:
            exchange.upstream_lost("sent a response that breakloop could not process")


_IDLE_MAX: Final = 256  # idle connections for each upstream
_RESET: Final = "closed the connection while connecting"
_NO_WAY: Final = "cannot be reached: no route to host"
_CAUSES: Final = {
    errno.ECONNREFUSED: "refused the connection",
    errno.ECONNRESET: _RESET,
    errno.ECONNABORTED: _RESET,
    errno.EPIPE: _RESET,
    errno.EHOSTUNREACH: _NO_WAY,
    errno.ENETUNREACH: _NO_WAY,
    errno.EADDRNOTAVAIL: "cannot be reached: this machine has no free port or no suitable address",
    errno.EMFILE: "cannot be reached: this process has too many open files",
    errno.ETIMEDOUT: "did not accept the connection in time",
}
_KINDS: Final = ((ConnectionRefusedError, errno.ECONNREFUSED), (ConnectionError, errno.ECONNRESET))


class UpstreamPool:
    def __init__(
        self,
        upstream: Upstream,
        server: ServerCore,
        timeouts: Proxy,
        tls: ssl.SSLContext | None,
        heads: ResponseHeadParser,
    ) -> None:
        self.upstream = upstream
        self.timeouts = timeouts
        self.heads = heads
        self.opened = 0  # connections since the start
        self.live: set[UpstreamConnection] = set()
        self.server = server
        self._ssl = tls if upstream.tls else None
        self._idle: list[UpstreamConnection] = []  # the most recently used last: it is the least likely to be closed
        self._idle_s = timeouts.idle_seconds or (HTTPS_IDLE_S if upstream.tls else HTTP_IDLE_S)

    def take(self) -> UpstreamConnection | None:
        idle = self._idle
        while idle:
            connection = idle.pop()
            if not connection.transport.is_closing():
                return connection
        return None

    async def connect(self) -> UpstreamConnection:
        """Open a connection. Raises `OSError`, which includes TLS errors."""
        return await self.open(lambda: UpstreamConnection(self.server, self))

    async def open(self, make: Callable[[], P]) -> P:
        """Open a connection with a protocol of another kind, which is not kept for reuse. Raises `OSError`."""
        upstream = self.upstream
        name = upstream.host if self._ssl is not None else None
        _, connection = await self.server.loop.create_connection(
            make, upstream.host, upstream.port, ssl=self._ssl, server_hostname=name
        )
        self.opened += 1
        return connection

    def give_back(self, connection: UpstreamConnection) -> None:
        if len(self._idle) >= _IDLE_MAX or self.server.draining:
            connection.discard()
        else:
            connection.idle_since = self.server.tick
            self._idle.append(connection)

    def sweep(self) -> None:
        """Close connections that were idle for too long; called once a second."""
        oldest = self.server.tick - self._idle_s
        while self._idle and self._idle[0].idle_since <= oldest:
            self._idle.pop(0).discard()

    def remove(self, connection: UpstreamConnection) -> None:
        self.live.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def close(self) -> None:
        for connection in tuple(self.live):
            connection.discard()
        self._idle.clear()


def connect_error(error: BaseException) -> str:
    """Describe why connecting failed, without the addresses that the system's message may contain."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"has a certificate that is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return "failed the TLS handshake"
    if isinstance(error, socket.gaierror):
        return "has a host name that cannot be resolved (DNS)"
    if isinstance(error, TimeoutError):
        return "did not accept the connection in time"
    return _CAUSES.get(_errno(error), "could not be reached")


def _errno(error: BaseException) -> int:
    """Return the error number. For a host with several addresses, asyncio puts those of all attempts into one text."""
    if isinstance(error, OSError) and error.errno:
        return error.errno
    found = {int(number) for number in re.findall(r"\[Errno (\d+)\]", str(error))}
    number = found.pop() if len(found) == 1 else 0
    return number or next((code for kind, code in _KINDS if isinstance(error, kind)), 0)


INTERVAL_S: Final = 10.0
_CAUSES_MAX: Final = 100  # further causes are not reported: there are few, but a library words some of them


class UpstreamFaults:
    """Publishes failures of upstreams. An outage fails all requests, so each cause is published once in ten seconds,
    and the others are counted. One per process."""

    def __init__(self, publish: Publish, clock: Clock) -> None:
        self._publish = publish
        self._clock = clock
        self._throttle: Throttle[tuple[str, str], tuple[str, str, int]] = Throttle(INTERVAL_S, _CAUSES_MAX)

    def record(self, call: Call, status: int, cause: str) -> None:
        """Publish a failed request, or count it."""
        now = self._clock.now()
        key = call.upstream, cause
        last = call.identity.project, call.request_id, status
        if self._throttle.admit(key, last, now):
            self._send(key, last, 0, now)

    def sweep(self) -> None:
        """Publish what was counted in intervals that are over; called once a second."""
        now = self._clock.now()
        for key, last, omitted in self._throttle.expired(now):
            self._send(key, last, omitted, now)

    def _send(self, key: tuple[str, str], last: tuple[str, str, int], omitted: int, now: float) -> None:
        project, request_id, status = last
        data: dict[str, object] = {"upstream": key[0], "cause": key[1], "status": status}
        if omitted:
            data["left_out"] = omitted
        self._publish(Event(UPSTREAM_FAILED, now, data, project, request_id))
