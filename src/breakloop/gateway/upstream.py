"""One connection to an upstream, for one exchange at a time; `pool` keeps it between two.

It cuts the stream of answers into heads and bodies and hands them to its exchange; what becomes of them, of faults and
of time-outs is decided there. Bytes that come while nobody asked end the connection.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, cast

from breakloop.errors import UpstreamError
from breakloop.gateway.answer_body import Chunked, Framing, Joint, UntilClose, framing_for
from breakloop.gateway.answer_head import HEAD_BYTES
from breakloop.gateway.head import BARE_LF
from breakloop.gateway.hub import Hub
from breakloop.gateway.sockets import reset

if TYPE_CHECKING:
    from breakloop.gateway.exchange import Exchange
    from breakloop.gateway.pool import Pool

_INTERIM_MAX: Final = 16  # 1xx answers before the real one
_PIECE_BYTES: Final = 64 * 1024  # up to here, head and body go out as one piece


class UpstreamConnection(asyncio.Protocol):
    """One connection to an upstream."""

    __slots__ = (
        "_framing", "_held", "_hub", "_interims", "_paused", "_pool", "_unread", "by_line", "exchange", "full",
        "heard", "reusable", "since", "transport",
    )  # fmt: skip

    def __init__(self, hub: Hub, pool: Pool) -> None:
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
    def joint(self) -> Joint | None:
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
