"""What a server and its connections have in common: the phases, the handler, the limits, the parser, the counters.

The receiving side of one connection: bytes in any pieces, requests out, one at a time when asked for.

Requests that a client sends ahead stay bytes until it is their turn, so there is no queue of parsed ones and the
parser never runs past the request being read. A body is collected, unless the door wants it to pass in pieces. Refusals
are raised; answering them is `connection`'s.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Callable
from enum import IntEnum
from typing import Protocol

from breakloop.errors import RequestError
from breakloop.gateway.http_request import (
    Handler,
    HeadParser,
    Reply,
    Request,
    RequestBodyReader,
    RequestLimits,
    early_refusal,
    reader_for,
)
from breakloop.gateway.http_response import StatusLines, error_reply

Streams = Callable[[Request], bool]


class BodyMemory:
    """What the bodies that are still arriving may take, over all connections (Y-2)."""

    __slots__ = ("_most", "held")

    def __init__(self, limits: RequestLimits) -> None:
        self._most = limits.all_bodies_bytes
        self.held = 0

    def take(self, size: int) -> None:
        """Claim room for so many bytes. Raises `RequestError` when there is none."""
        if self.held + size > self._most:
            raise RequestError(503, "too many request bodies are arriving at once")
        self.held += size


class BodyCollector:
    """A request whose body is arriving."""

    __slots__ = ("_room", "content", "reader", "request")

    def __init__(self, request: Request, limits: RequestLimits, room: BodyMemory, most: int | None) -> None:
        self.request = request
        self.content = bytearray()  # and not a list of pieces: those of one byte would take 40 times their size
        self.reader: RequestBodyReader = reader_for(request.length, limits, self._keep, most)
        self._room = room

    def _keep(self, piece: bytes | bytearray | memoryview) -> None:
        self._room.take(len(piece))
        self.content.extend(piece)

    def take(self) -> bytes:
        """Take out what has arrived."""
        content = bytes(self.content)
        self.release()
        self.content.clear()
        return content

    def release(self) -> None:
        """The body is complete, or given up."""
        self._room.held -= len(self.content)


class IncomingBody:
    """The unread bytes of a connection and the request that they begin with."""

    __slots__ = ("_at", "_buffer", "_heads", "_limits", "_room", "_scanned", "_streams", "body", "continue_due")

    def __init__(
        self, heads: HeadParser, limits: RequestLimits, room: BodyMemory, streams: Streams | None = None
    ) -> None:
        self._heads = heads
        self._limits = limits
        self._room = room
        self._streams = streams  # None: every body is collected, and a larger one is refused
        self._buffer: bytes | bytearray = b""
        self._at = 0  # what comes before is used up
        self._scanned = 0  # how far the head at `_at` is known to be incomplete
        self.body: BodyCollector | None = None
        self.continue_due = False  # the client holds its body back until it is told to go on

    def __len__(self) -> int:
        return len(self._buffer) - self._at

    @property
    def streaming(self) -> bool:
        """A request has been handed out whose body is still arriving."""
        return self.body is not None and self.body.request.streamed

    def push(self, data: bytes) -> None:
        """Add what was received."""
        if not self._buffer:
            self._buffer = data
            return
        if isinstance(self._buffer, bytes):
            self._buffer = bytearray(self._buffer)  # grows in place: many small pieces must not be copied each time
        self._buffer += data

    def next(self, peer: str) -> Request | None:
        """Take the next request out if it is complete. Raises `RequestError` at the first fault in the stream."""
        if self.body is not None:
            return self._read_body(self.body)
        if self._at == len(self._buffer):
            return None
        head = self._take_head()
        if head is None:
            return None
        try:
            request = self._heads.parse(head, peer)
        except RequestError as error:
            raise early_refusal(head, 0, len(head), 0, self._limits) or error from None
        return self._open_body(request) if request.length else request

    def pump(self) -> tuple[bytes, bool]:
        """Take out what has arrived of a body that passes in pieces, and whether that was the end of it."""
        body = self.body
        assert body is not None  # noqa: S101 - only asked for while `streaming`
        self._at = body.reader.feed(self._buffer, self._at)
        self.compact()
        if body.reader.done:
            self.body = None
        return body.take(), body.reader.done

    def compact(self) -> None:
        """Give up the used part of the buffer; once per turn and not per request, for it copies the rest."""
        if self._at:
            self._buffer = self._buffer[self._at :]
            self._scanned = max(0, self._scanned - self._at)
            self._at = 0

    def clear(self) -> None:
        """Give up everything."""
        self._buffer = b""
        self._at = self._scanned = 0
        if self.body is not None:
            self.body.release()
        self.body = None

    def _take_head(self) -> bytes | None:
        buffer, at = self._buffer, self._at
        end = buffer.find(b"\r\n\r\n", max(at, self._scanned - 3))
        stop = len(buffer) if end < 0 else end + 4
        if end < 0 or stop - at > self._limits.head_bytes:
            refusal = early_refusal(buffer, at, stop, self._scanned, self._limits)
            if refusal:
                raise refusal
            self._scanned = stop
            return None
        self._at = stop
        self._scanned = 0
        return bytes(buffer[at:stop])

    def _open_body(self, request: Request) -> Request | None:
        """The head is accepted: here is decided what becomes of the body."""
        most, streams = self._limits.body_bytes, self._streams
        if request.length > most and streams is None:
            raise RequestError(413, "request body too large")
        stop = self._at + request.length
        if 0 < request.length <= most and stop <= len(self._buffer):  # usually it came along with its head
            request.body = bytes(self._buffer[self._at : stop])
            self._at = stop
            return request
        self.body = BodyCollector(request, self._limits, self._room, most if streams is None else None)
        self.continue_due = request.expects_continue
        if streams is not None and (request.length > most or streams(request)):
            request.streamed = True
            return request
        return self._read_body(self.body)

    def _read_body(self, body: BodyCollector) -> Request | None:
        self._at = body.reader.feed(self._buffer, self._at)
        if not body.reader.done:
            if len(body.content) <= self._limits.body_bytes:
                return None
            body.request.streamed = True  # it turned out too large to be judged, which is no reason to stop it
            body.request.body = body.take()
            return body.request
        body.request.body = body.take()
        self.body = None
        self.continue_due = False
        return body.request


_log = logging.getLogger("breakloop.gateway")


class Phase(IntEnum):
    """What a connection is doing. From WAITING on, received bytes are not looked at."""

    IDLE = 0  # between requests, with nothing received
    HEAD = 1
    BODY = 2
    WAITING = 3  # for the handler, or for a throttled reply's time
    QUEUED = 4  # more requests are here, but other connections get their turn first
    LINGERING = 5  # refused; reads on for a moment because closing on unread bytes would destroy the answer
    CLOSED = 6


class TurnReceiver(Protocol):
    """Whoever gets bytes: a client's connection, or one to an upstream."""

    def take(self, data: bytes) -> None:
        """Use what was received."""
        ...

    def abort(self) -> None:
        """Leave without waiting for what is still to be written."""
        ...


class TurnMember(TurnReceiver, Protocol):
    """What a server needs of a client's connection."""

    def expire(self) -> None:
        """End what takes too long; called once a second."""
        ...

    def drain(self) -> None:
        """Leave now if nothing is under way."""
        ...

    def cut(self) -> None:
        """Leave now whatever is under way."""
        ...


class LoopTurn:
    """Shared by the connections of one server. Counters are plain integers and only ever grow.

    What arrives in one turn of the event loop is first all read, then all decided, then all answered. Answering each
    at once costs up to half as much again: a write that wakes a client on another core is the dearest step of all, and
    in a burst only the first does.
    """

    burst = 32  # so many answers at the most wait for each other
    large = 16 * 1024  # a longer piece is used at once, so that what is kept for a turn stays small

    def __init__(self, handler: Handler, limits: RequestLimits, loop: asyncio.AbstractEventLoop) -> None:
        self.handler = handler
        self.limits = limits
        self.loop = loop
        self.heads = HeadParser(limits)
        self.room = BodyMemory(limits)
        self.lines = StatusLines()
        self.streams: Streams | None = None  # which bodies pass in pieces; None: none
        self.sweeps: list[Callable[[], None]] = []  # called once a second
        self.endings: list[Callable[[], None]] = []  # called when the last client is gone
        self.live: set[TurnMember] = set()
        self._inbox: list[tuple[TurnReceiver, bytes]] = []
        self._outbox: list[tuple[asyncio.Transport, bytes]] = []
        self.answering = False  # in a burst: replies go through `post`
        self.tick = 0  # seconds, counted by the sweep
        self.draining = False
        self.connections = 0  # taken since the start
        self.refused = 0  # connections above the cap
        self.requests = 0  # handed to the handler
        self.bad_requests = 0
        self.handler_errors = 0
        self.timeouts = 0
        self.abandoned = 0  # clients that left while their reply was pending

    def received(self, connection: TurnReceiver, data: bytes) -> None:
        """Keep what came until everything of this turn has been read."""
        inbox = self._inbox
        inbox.append((connection, data))
        if len(data) > self.large:
            self.answer()
        elif len(inbox) == 1:
            self.loop.call_soon(self.answer)

    def answer(self) -> None:
        """Decide on all that was received, and send the answers."""
        inbox, self._inbox = self._inbox, []
        self.answering = True
        for connection, data in inbox:
            try:
                connection.take(data)
            except Exception as error:  # noqa: BLE001 - the outermost edge: the others must get their answers
                self.handler_failed(error)
                self._give_up(connection)
            if len(self._outbox) >= self.burst:
                self.send()
        self.answering = False
        self.send()

    def _give_up(self, connection: TurnReceiver) -> None:
        try:
            connection.abort()
        except Exception as error:  # noqa: BLE001 - as in `answer`
            self.handler_failed(error)

    def post(self, transport: asyncio.Transport, data: bytes) -> None:
        """Send this with the others of the burst."""
        self._outbox.append((transport, data))

    def send(self) -> None:
        """Write what is posted. Whoever writes or closes by himself calls this first, so that nothing overtakes."""
        if self._outbox:
            outbox, self._outbox = self._outbox, []
            for transport, data in outbox:
                if not transport.is_closing():  # uvloop raises on a write after close
                    try:
                        transport.write(data)
                    except Exception as error:  # noqa: BLE001 - the outermost edge, as in `answer`
                        self.handler_failed(error)
                        transport.abort()

    def gone(self, connection: TurnMember) -> None:
        """Forget a closed connection."""
        self.live.discard(connection)

    def handler_failed(self, error: BaseException) -> Reply:
        """Count a handler's exception and log it."""
        self.handler_errors += 1
        log_fault(error, "answered 500")
        return error_reply(500, "internal error")


def log_fault(error: BaseException, outcome: str) -> None:
    """Log a fault of ours by kind and place, without its text, which may quote the request (Y-1)."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f"{frames[-1].name}, line {frames[-1].lineno}" if frames else "an unknown place"
    _log.error("a handler failed with %s in %s; %s", type(error).__name__, where, outcome)
