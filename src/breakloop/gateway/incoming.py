"""The receiving side of one connection: bytes in any pieces, requests out, one at a time when asked for.

Requests that a client sends ahead stay bytes until it is their turn, so there is no queue of parsed ones and the
parser never runs past the request being read. A body is collected, unless the door wants it to pass in pieces. Refusals
are raised; answering them is `connection`'s.
"""

from __future__ import annotations

from collections.abc import Callable

from breakloop.errors import RequestError
from breakloop.gateway.body import BodyReader, reader_for
from breakloop.gateway.bounds import Limits
from breakloop.gateway.head import HeadParser, Request, early_refusal

Streams = Callable[[Request], bool]


class Room:
    """What the bodies that are still arriving may take, over all connections (Y-2)."""

    __slots__ = ("_most", "held")

    def __init__(self, limits: Limits) -> None:
        self._most = limits.all_bodies_bytes
        self.held = 0

    def take(self, size: int) -> None:
        """Claim room for so many bytes. Raises `RequestError` when there is none."""
        if self.held + size > self._most:
            raise RequestError(503, "too many request bodies are arriving at once")
        self.held += size


class Collecting:
    """A request whose body is arriving."""

    __slots__ = ("_room", "content", "reader", "request")

    def __init__(self, request: Request, limits: Limits, room: Room, most: int | None) -> None:
        self.request = request
        self.content = bytearray()  # and not a list of pieces: those of one byte would take 40 times their size
        self.reader: BodyReader = reader_for(request.length, limits, self._keep, most)
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


class Incoming:
    """The unread bytes of a connection and the request that they begin with."""

    __slots__ = ("_at", "_buffer", "_heads", "_limits", "_room", "_scanned", "_streams", "body", "continue_due")

    def __init__(self, heads: HeadParser, limits: Limits, room: Room, streams: Streams | None = None) -> None:
        self._heads = heads
        self._limits = limits
        self._room = room
        self._streams = streams  # None: every body is collected, and a larger one is refused
        self._buffer: bytes | bytearray = b""
        self._at = 0  # what comes before is used up
        self._scanned = 0  # how far the head at `_at` is known to be incomplete
        self.body: Collecting | None = None
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
        self.body = Collecting(request, self._limits, self._room, most if streams is None else None)
        self.continue_due = request.expects_continue
        if streams is not None and (request.length > most or streams(request)):
            request.streamed = True
            return request
        return self._read_body(self.body)

    def _read_body(self, body: Collecting) -> Request | None:
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
