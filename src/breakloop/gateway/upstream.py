"""One connection to an upstream, for one exchange at a time; `pool` keeps it between two.

It cuts the stream of answers into heads and bodies and hands them to its exchange; what becomes of them, of faults and
of time-outs is decided there. Bytes that come while nobody asked end the connection.

Connections to one upstream: kept alive between requests, and made when none is idle. What goes over one of them is
`upstream`'s business.

Tells of upstreams that fail: each cause once in ten seconds, with a count of the others, because all of the requests
of an outage fail. What the client is told is the door's business.

What transports do not offer and their sockets do: ending with a reset, and seeing that somebody left unread.
"""

from __future__ import annotations

import asyncio
import errno
import re
import select
import socket
import ssl
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

from breakloop.clock import Clock
from breakloop.config.settings import HTTP_IDLE_S, HTTPS_IDLE_S, Proxy
from breakloop.errors import UpstreamError
from breakloop.gateway.http_request import BARE_LF
from breakloop.gateway.http_response import (
    HEAD_BYTES,
    ChunkBoundary,
    Chunked,
    Framing,
    ResponseHeadParser,
    UntilClose,
    framing_for,
)
from breakloop.gateway.hub import LoopTurn
from breakloop.model.call import Call
from breakloop.model.events import UPSTREAM_FAILED, Event, Publish
from breakloop.model.upstream import Upstream

if TYPE_CHECKING:
    from breakloop.gateway.exchange import Exchange


_AT_ONCE: Final = struct.pack("ii", 1, 0)  # linger for no time at all: what the other end gets is a reset


def reset(transport: asyncio.Transport) -> None:
    """End a connection so that the other end cannot take it for a proper end, nor has to read first to learn of it."""
    socket_ = transport.get_extra_info("socket")
    if socket_ is not None and not transport.is_closing():
        socket_.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
    transport.abort()


def has_left(transport: asyncio.Transport) -> bool:
    """Tell whether the other end is gone although nothing is read from it: a transport tells only readers."""
    socket_ = transport.get_extra_info("socket")
    if socket_ is None or socket_.fileno() < 0:
        return False
    poll = select.poll()
    poll.register(socket_.fileno(), select.POLLRDHUP)
    return bool(poll.poll(0))


_INTERIM_MAX: Final = 16  # 1xx answers before the real one
_PIECE_BYTES: Final = 64 * 1024  # up to here, head and body go out as one piece


class UpstreamConnection(asyncio.Protocol):
    """One connection to an upstream."""

    __slots__ = (
        "_framing", "_held", "_hub", "_interims", "_paused", "_pool", "_unread", "by_line", "exchange", "full",
        "heard", "reusable", "since", "transport",
    )  # fmt: skip

    def __init__(self, hub: LoopTurn, pool: UpstreamPool) -> None:
        self._hub = hub
        self._pool = pool
        self._held = bytearray()  # the beginning of a head
        self._interims = 0
        self._paused = False
        self._unread = 0  # pieces that were received and not yet used
        self.full = False  # the upstream does not read
        self._framing: Framing | None = None
        self.heard = False  # something came since the request was sent
        self.exchange: Exchange | None = None
        self.reusable = False  # after the answer that is being read
        self.by_line = False  # the exchange waits for a certain place in it, which can only be the end of a line
        self.since = 0
        self.transport = cast("asyncio.Transport", None)  # comes with connection_made

    # The transport's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection."""
        self.transport = cast("asyncio.Transport", transport)
        self._pool.live.add(self)

    def data_received(self, data: bytes) -> None:
        """Hand over what came; it is used when everything of this turn has been read.

        Bytes that nobody asked for end the connection now: in the same turn a request may be about to be sent on it.
        """
        if self.exchange is None:
            self.discard()
        else:
            self._unread += 1
            self._hub.received(self, data)

    def eof_received(self) -> bool:
        """The upstream sends no more: the proper end of an answer without a length, and of no other."""
        self._hub.answer()
        if self.exchange is not None:
            self.exchange.upstream_ended()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the exchange, if one still waits."""
        self._hub.answer()
        self._pool.forget(self)
        exchange, self.exchange = self.exchange, None
        if exchange is not None:
            exchange.upstream_lost("closed the connection" if exc is None else "reset the connection")

    def pause_writing(self) -> None:
        """The upstream does not read: hold back the client's upload."""
        self.full = True
        if self.exchange is not None:
            self.exchange.hold_upload(hold=True)

    def resume_writing(self) -> None:
        """Carry on where `pause_writing` stopped."""
        self.full = False
        if self.exchange is not None:
            self.exchange.hold_upload(hold=False)

    # The exchange's side

    def begin(self, exchange: Exchange) -> None:
        """Belong to this exchange until its answer is complete."""
        self.exchange = exchange
        self._framing = None
        self._held = bytearray()
        self._interims = 0
        self.heard = self.by_line = False

    @property
    def joint(self) -> ChunkBoundary | None:
        """Where the part of a chunked answer ends that has come; None where nothing could follow."""
        framing = self._framing
        return framing.joint if type(framing) is Chunked else None

    @property
    def until_close(self) -> bool:
        """The answer that is being read has no other end than the connection's."""
        return isinstance(self._framing, UntilClose)

    def pause(self) -> None:
        """Read no more for now."""
        if not self._paused and not self.transport.is_closing():
            self._paused = True
            self.transport.pause_reading()

    def resume(self) -> None:
        """Read again."""
        if self._paused:
            self._paused = False
            if not self.transport.is_closing():
                self.transport.resume_reading()

    def send(self, head: bytes, body: bytes) -> None:
        """Send a request."""
        hub = self._hub
        if len(body) <= _PIECE_BYTES:
            hub.post(self.transport, head + body if body else head)
        else:
            hub.post(self.transport, head)
            hub.post(self.transport, body)
        if not hub.answering:
            hub.send()

    def finish(self) -> None:
        """The exchange is over: wait for another one, or close."""
        self.exchange = None
        self.resume()
        if self.reusable and not self._is_dirty():
            self._pool.give_back(self)
        else:
            self.discard()

    def spare(self) -> None:
        """Nobody needs it now that it is there: wait for the next exchange."""
        self.reusable = True
        self.finish()

    def _is_dirty(self) -> bool:
        """Whether something is left that the next exchange would trip over: of the request, or behind the answer."""
        transport = self.transport
        return transport.is_closing() or self._unread > 0 or self.full or transport.get_write_buffer_size() > 0

    def discard(self) -> None:
        """Close without regard to what is under way."""
        self.exchange = None
        self._pool.live.discard(self)
        self._hub.send()
        if self.full:
            reset(self.transport)  # a close would wait behind what the upstream does not read
        else:
            self.transport.abort()

    # The hub's side

    def take(self, data: bytes) -> None:
        """Use what came."""
        self._unread -= 1
        exchange = self.exchange
        if exchange is None:
            return  # it is over, and so is this connection
        self.heard = True
        try:
            if self._framing is None:
                data = self._take_head(exchange, data)
            framing = self._framing
            if framing is None or self.exchange is not exchange:  # which may have seen that it does not want this one
                return
            if self.by_line:
                self._take_lines(exchange, framing, data)
            else:
                self._take_body(exchange, framing, data)
        except UpstreamError as error:
            self.discard()
            exchange.upstream_lost(str(error), nonsense=True)

    def _take_head(self, exchange: Exchange, data: bytes | bytearray) -> bytes:
        """Read heads until the final one, and return what follows it."""
        scanned = 0
        if self._held:
            scanned = max(0, len(self._held) - 3)
            self._held += data  # grows in place: many small pieces must not be copied each time
            data = self._held
        while True:
            end = data.find(b"\r\n\r\n", scanned) + 4
            bare = BARE_LF.search(data, scanned) if end == 3 else None
            scanned = 0
            if end == 3:
                self._held = bytearray(data) if isinstance(data, bytes) else data
                if bare or len(data) > HEAD_BYTES or not b"HTTP/1."[: len(data)] == data[:7]:
                    raise UpstreamError("sent something that is no HTTP/1.1")
                return b""
            head = self._pool.heads.parse(bytes(data[:end]), exchange.method)
            data = bytes(data[end:])
            if head.status >= 200:
                break
            self._interims += 1
            if head.status == 101 or self._interims > _INTERIM_MAX:
                raise UpstreamError("changed the protocol, or sends provisional answers without end")
        self._held = bytearray()
        self._framing = framing_for(head.length)
        self.reusable = head.keeps
        exchange.answer_begins(head)
        return data

    def _take_body(self, exchange: Exchange, framing: Framing, data: bytes) -> None:
        used = framing.feed(data) if data else 0
        if framing.done:
            if used < len(data):
                self.reusable = False
                data = data[:used]
            self._framing = None
        exchange.answer_goes_on(data, framing.content, done=framing.done)

    def _take_lines(self, exchange: Exchange, framing: Framing, data: bytes) -> None:
        """Take the body line by line, for as long as the exchange wants it."""
        rest = len(data)
        for line in data.splitlines(keepends=True):
            rest -= len(line)
            used = framing.feed(line)
            if framing.done:
                self.reusable = self.reusable and used == len(line) and not rest
                self._framing = None
            exchange.answer_goes_on(line[:used], framing.content, done=framing.done)
            if self._framing is None or self.exchange is not exchange:
                return

    def abort(self) -> None:
        """A fault of ours while using what came."""
        exchange = self.exchange
        self.discard()
        if exchange is not None:
            exchange.upstream_lost("sent what made us fail")


_IDLE_MAX: Final = 256  # connections kept without work, for each upstream
_RESET: Final = "closed the connection while it was made"
_NO_WAY: Final = "cannot be reached: there is no way to its address from here"
_CAUSES: Final = {
    errno.ECONNREFUSED: "refused the connection",
    errno.ECONNRESET: _RESET,
    errno.ECONNABORTED: _RESET,
    errno.EPIPE: _RESET,
    errno.EHOSTUNREACH: _NO_WAY,
    errno.ENETUNREACH: _NO_WAY,
    errno.EADDRNOTAVAIL: "cannot be reached: this machine has no free port or no fitting address left",
    errno.EMFILE: "cannot be reached: this process has too many files open",
    errno.ETIMEDOUT: "did not take the connection in time",
}
_KINDS: Final = ((ConnectionRefusedError, errno.ECONNREFUSED), (ConnectionError, errno.ECONNRESET))


_DEFAULTS: Final = Proxy()


@dataclass(frozen=True, slots=True)
class UpstreamTimeouts:
    """How long an upstream may take, in seconds."""

    connect_s: float = _DEFAULTS.connect_seconds
    answer_s: float = _DEFAULTS.answer_seconds  # until its answer begins, and between two pieces of it
    idle_s: float = _DEFAULTS.idle_seconds  # how long a connection is kept without work; 0: `idle_for` decides

    def idle_for(self, *, tls: bool) -> float:
        """Return how long a connection is kept."""
        return self.idle_s or (HTTPS_IDLE_S if tls else HTTP_IDLE_S)


class UpstreamPool:
    """The connections to one upstream."""

    __slots__ = ("_idle", "_idle_s", "_ssl", "heads", "hub", "live", "opened", "times", "upstream")

    def __init__(
        self,
        upstream: Upstream,
        hub: LoopTurn,
        times: UpstreamTimeouts,
        tls: ssl.SSLContext | None,
        heads: ResponseHeadParser,
    ) -> None:
        self.upstream = upstream
        self.times = times
        self.heads = heads
        self.opened = 0  # connections made since the start
        self.live: set[UpstreamConnection] = set()
        self.hub = hub
        self._ssl = tls if upstream.tls else None
        self._idle: list[UpstreamConnection] = []  # the latest last: it is the surest to be alive
        self._idle_s = times.idle_for(tls=upstream.tls)

    def take(self) -> UpstreamConnection | None:
        """Return an idle connection, or None."""
        idle = self._idle
        while idle:
            connection = idle.pop()
            if not connection.transport.is_closing():
                return connection
        return None

    async def connect(self) -> UpstreamConnection:
        """Make a connection. Raises `OSError` (of `ssl` too)."""
        upstream = self.upstream
        name = upstream.host if self._ssl is not None else None
        _, connection = await self.hub.loop.create_connection(
            lambda: UpstreamConnection(self.hub, self),
            upstream.host,
            upstream.port,
            ssl=self._ssl,
            server_hostname=name,
        )
        self.opened += 1
        return connection

    def give_back(self, connection: UpstreamConnection) -> None:
        """Keep a connection for the next request."""
        if len(self._idle) >= _IDLE_MAX or self.hub.draining:
            connection.discard()
        else:
            connection.since = self.hub.tick
            self._idle.append(connection)

    def sweep(self) -> None:
        """Close what was idle for too long; called once a second."""
        oldest = self.hub.tick - self._idle_s
        while self._idle and self._idle[0].since <= oldest:
            self._idle.pop(0).discard()

    def forget(self, connection: UpstreamConnection) -> None:
        """A connection is gone."""
        self.live.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def close(self) -> None:
        """End everything."""
        for connection in tuple(self.live):
            connection.discard()
        self._idle.clear()


def unreachable(error: BaseException) -> str:
    """Say what kind of failure it was that there is no connection, without what the system says about addresses."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"has a certificate that is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return "does not speak TLS as we do"
    if isinstance(error, socket.gaierror):
        return "has a host name that cannot be resolved (DNS)"
    if isinstance(error, TimeoutError):
        return "did not take the connection in time"
    return _CAUSES.get(_errno(error), "could not be reached")


def _errno(error: BaseException) -> int:
    """Return the system's number for it. A host with several addresses fails with all of their numbers in one text."""
    if isinstance(error, OSError) and error.errno:
        return error.errno
    found = {int(number) for number in re.findall(r"\[Errno (\d+)\]", str(error))}
    number = found.pop() if len(found) == 1 else 0
    return number or next((code for kind, code in _KINDS if isinstance(error, kind)), 0)


INTERVAL_S: Final = 10.0
_KEYS_MAX: Final = 100  # more different ones are not told of: causes are few, but some are worded by a library


@dataclass(slots=True)
class _Told:
    since: float
    project: str
    request_id: str
    status: int
    left_out: int = 0


class UpstreamFaults:
    """One per process."""

    __slots__ = ("_clock", "_publish", "_told")

    def __init__(self, publish: Publish, clock: Clock) -> None:
        self._publish = publish
        self._clock = clock
        self._told: dict[tuple[str, str], _Told] = {}

    def note(self, call: Call, status: int, cause: str) -> None:
        """Tell of a request that failed, or count it."""
        key = call.upstream, cause
        known = self._told.get(key)
        if known is not None:
            known.left_out += 1
            known.project, known.request_id, known.status = call.identity.project, call.request_id, status
        elif len(self._told) < _KEYS_MAX:
            known = self._told[key] = _Told(self._clock.now(), call.identity.project, call.request_id, status)
            self._tell(key, known, 0)

    def sweep(self) -> None:
        """Tell what was left out in intervals that are over; called once a second."""
        if not self._told:
            return
        now = self._clock.now()
        for key, known in list(self._told.items()):
            if not 0 <= now - known.since < INTERVAL_S:
                del self._told[key]
                if known.left_out:
                    self._tell(key, known, known.left_out - 1)  # this event stands for one of them

    def _tell(self, key: tuple[str, str], known: _Told, left_out: int) -> None:
        data: dict[str, object] = {"upstream": key[0], "cause": key[1], "status": known.status}
        if left_out:
            data["left_out"] = left_out
        self._publish(Event(UPSTREAM_FAILED, self._clock.now(), data, known.project, known.request_id))
