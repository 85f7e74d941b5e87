"""HTTP/1.1 responses: rendering our own, parsing those of upstreams, and framing them for the client.

Heads of upstreams are parsed strictly, line by line as in `http_request`, with a cache of known lines. Hop-by-hop
fields are dropped (RFC 9110, 7.6.1). Bytes of a body are passed on as received; the framing classes find its end and
content. They are strict, because every recipient must find the same end.
"""

from __future__ import annotations

import json
import logging
import re
import traceback
from collections.abc import Callable
from email.utils import formatdate
from http import HTTPStatus
from typing import Final, NamedTuple, Protocol

import msgspec

from breakloop.errors import UpstreamError
from breakloop.gateway.http_request import BODYLESS, CHUNKED, CLOSE, FIELD_LINE, Reply, Request, is_trailer
from breakloop.policy.cache import MemoDict

_log: Final = logging.getLogger("breakloop.gateway")

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_PREPARED: Final = 2048
_LENGTHS: Final = tuple(b"content-length: %d\r\n\r\n" % size for size in range(_PREPARED))
_CODES: Final = {
    400: "bad_request",
    408: "request_timeout",
    413: "body_too_large",
    414: "target_too_long",
    417: "expectation_failed",
    426: "upgrade_refused",
    431: "head_too_large",
    500: "internal_error",
    501: "method_not_implemented",
    503: "overloaded",
    505: "version_not_supported",
}
_JSON: Final = b"content-type: application/json\r\n"
# A 426 must name the protocol to use; clients that try websockets first (Codex) then use HTTP.
_USE_HTTP: Final = _JSON + b"upgrade: HTTP/1.1\r\nconnection: upgrade\r\n"


class StatusLines(dict[int, bytes]):
    """Status line and Date line by status. Made on demand, and cleared every second."""

    date = b""

    def renew(self, now: float) -> None:
        """Set the time of the Date line."""
        self.date = f"\r\ndate: {formatdate(now, usegmt=True)}\r\n".encode()
        self.clear()

    def __missing__(self, status: int) -> bytes:
        try:
            phrase = HTTPStatus(status).phrase
        except ValueError:
            phrase = ""
        line = self[status] = b"HTTP/1.1 %d %b%b" % (status, phrase.encode(), self.date)
        return line


def render(lines: StatusLines, reply: Reply, connection: bytes, method: str) -> bytes:
    """Return a whole response to a request with `method`. `connection` is its Connection line, or empty."""
    status = reply.status
    body = reply.body
    size = len(body)
    if size < _PREPARED and method != "HEAD" and status not in BODYLESS:
        return lines[status] + reply.head + connection + _LENGTHS[size] + body
    if status in BODYLESS:
        return lines[status] + reply.head + connection + b"\r\n"
    head = lines[status] + reply.head + connection + b"content-length: %d\r\n\r\n" % size
    return head if method == "HEAD" else head + body


def error_reply(status: int, message: str) -> Reply:
    """Return an error in the format that all errors of the server have."""
    body = json.dumps({"detail": {"error": _CODES.get(status, "error"), "message": message}}).encode()
    return Reply(status, _USE_HTTP if status == 426 else _JSON, body)


def log_fault(error: BaseException, outcome: str) -> None:
    """Log an exception of ours by type and location. Its text is left out: it may quote the request."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f"{frames[-1].name}, line {frames[-1].lineno}" if frames else "an unknown place"
    _log.error("a handler failed with %s in %s; %s", type(error).__name__, where, outcome)


BODY_UNTIL_CLOSE: Final = -2  # `ResponseHead.length` of a body that ends with the connection
HEAD_BYTES: Final = 128 * 1024
_FIELDS: Final = 500
_STATUS_LINE: Final = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9][0-9])(?: ([\t -~\x80-\xff]*))?")
_FRAMING: Final = frozenset(("content-length", "transfer-encoding"))
_HOP_BY_HOP: Final = _FRAMING | {
    "connection", "keep-alive", "proxy-connection", "proxy-authenticate", "te", "upgrade",
}  # fmt: skip
_KNOWN: Final = _HOP_BY_HOP | {"content-type", "content-encoding"}
_PLAIN_CONNECTIONS: Final = frozenset((b"keep-alive", b"close"))
# A Connection line cannot remove these fields: the client needs them.
_PROTECTED: Final = frozenset(("content-type", "content-encoding", "set-cookie", "retry-after", "x-should-retry"))


class KnownField(bytes):
    """A header line that is interpreted here. The bytes are the line for the client: all of it, or nothing."""

    name: str
    value: bytes


class ResponseHead(msgspec.Struct, gc=False):
    """The head of an upstream's response."""

    status: int
    line: bytes  # the status line for the client, ending in CRLF
    lines: bytes  # the end-to-end fields as received, each ending in CRLF, without framing
    headers: dict[str, bytes]  # the fields that are interpreted here, by lower-case name; the last value of each
    length: int  # of the body: bytes, CHUNKED or BODY_UNTIL_CLOSE
    announced: bytes  # the Content-Length line of a response without a body (HEAD, 304), or empty
    keep_alive: bool  # the connection can be reused


class ResponseHeadParser:
    """Parses heads of responses; one per server."""

    __slots__ = ("_field", "_status_lines")

    def __init__(self) -> None:
        self._status_lines = MemoDict(_status_line)
        self._field = MemoDict(_field).__getitem__

    def parse(self, head: bytes, method: str) -> ResponseHead:
        """Parse one head, up to and including its empty line. Raises `UpstreamError`."""
        lines = head.split(b"\r\n")
        status, is_1_1, line = self._status_lines[lines[0]]
        if len(lines) > _FIELDS:
            raise UpstreamError("answered with too many header fields")
        fields = list(map(self._field, lines[1:-2]))
        kept = b"".join(fields)
        known = [field for field in fields if type(field) is KnownField]
        headers = {field.name: field.value for field in known}
        length = _length(status, headers, known, method, is_1_1=is_1_1)
        keep_alive = is_1_1
        announced = b""
        options = headers.get("connection")
        if options is not None:
            if len(headers) != len(known):  # it may have come more than once
                options = b",".join([field.value for field in known if field.name == "connection"])
            options = options.lower()
            if options not in _PLAIN_CONNECTIONS:
                kept = _without_named(fields, options)
            keep_alive = (keep_alive or b"keep-alive" in options) and b"close" not in options
        if length == 0 and "content-length" in headers and (method == "HEAD" or status == 304):
            announced = b"content-length: %b\r\n" % headers["content-length"]
        keep_alive = keep_alive and length != BODY_UNTIL_CLOSE
        return ResponseHead(status, line, kept, headers, length, announced, keep_alive)


def _length(status: int, headers: dict[str, bytes], known: list[KnownField], method: str, *, is_1_1: bool) -> int:
    if len(headers) != len(known):
        names = [field.name for field in known]
        if any(names.count(name) > 1 for name in _FRAMING):
            raise UpstreamError("answered with two lengths")
    coding, size = headers.get("transfer-encoding"), headers.get("content-length")
    if coding is not None and (size is not None or coding.lower() != b"chunked" or not is_1_1):
        raise UpstreamError("sent an answer whose length can be read in two ways")
    if size is not None and not (size.isdigit() and len(size) <= 18):
        raise UpstreamError("sent an answer whose length is no number")
    if method == "HEAD" or status in BODYLESS or status < 200:
        return 0
    if coding is not None:
        return CHUNKED
    return BODY_UNTIL_CLOSE if size is None else int(size)


def _without_named(fields: list[bytes], options: bytes) -> bytes:
    named = {option.strip(b" \t").decode("latin-1") for option in options.split(b",")} - _PROTECTED
    return b"".join(field for field in fields if field.partition(b":")[0].lower().decode("latin-1") not in named)


def _status_line(line: bytes) -> tuple[int, bool, bytes]:
    found = _STATUS_LINE.fullmatch(line)
    if found is None:
        raise UpstreamError("sent something that is no HTTP/1.1")
    minor, status, phrase = found.groups()
    return int(status), minor == b"1", b"HTTP/1.1 %b %b\r\n" % (status, phrase or b"")


def _field(line: bytes) -> bytes:
    """Return the line for the client, with CRLF; empty for a hop-by-hop field."""
    found = FIELD_LINE.fullmatch(line)
    if found is None:
        raise UpstreamError("sent a malformed header field")
    name = found[1].lower().decode("latin-1")
    if name not in _KNOWN:
        return line + b"\r\n"
    known = KnownField(b"" if name in _HOP_BY_HOP else line + b"\r\n")
    known.name = name
    known.value = found[2].strip(b" \t")
    return known


_CHUNK_LINE: Final = re.compile(rb"([0-9A-Fa-f]{1,15})(?:[ \t]*;[\t -~\x80-\xff]*+)?[ \t]*+")
_LINE_MAX: Final = 256
_TRAILERS_MAX: Final = 8 * 1024


class ChunkBoundary(NamedTuple):
    """A position in a chunked body where content can be inserted."""

    before: bytes  # must be written first
    room: int  # bytes that the current chunk is missing


class Framing(Protocol):
    """Finds the end of one body in the received bytes, and its content."""

    done: bool
    content: list[bytes]  # of the last `feed`, without framing

    def feed(self, data: bytes) -> int:
        """Return how many bytes of `data` belong to this body. Raises `UpstreamError`."""
        ...


def framing_for(length: int) -> Framing:
    """Return the framing for `ResponseHead.length`."""
    if length == CHUNKED:
        return ChunkedFraming()
    return CloseFraming() if length == BODY_UNTIL_CLOSE else LengthFraming(length)


class LengthFraming:
    """A body of known length."""

    __slots__ = ("_left", "content", "done")

    def __init__(self, length: int) -> None:
        self._left = length
        self.done = length == 0
        self.content: list[bytes] = []

    def feed(self, data: bytes) -> int:
        size = len(data)
        if size < self._left:
            self._left -= size
            self.content = [data]
            return size
        taken = self._left
        self._left = 0
        self.done = True
        self.content = [data if taken == size else data[:taken]]
        return taken


class CloseFraming:
    """A body that ends with the connection."""

    __slots__ = ("content", "done")

    def __init__(self) -> None:
        self.done = False
        self.content: list[bytes] = []

    def feed(self, data: bytes) -> int:
        self.content = [data]
        return len(data)


class ChunkedFraming:
    """A chunked body. Usually one read is one complete chunk, which takes one iteration of the loop in `feed`."""

    __slots__ = ("_left", "_partial", "_trailer_bytes", "content", "done")

    def __init__(self) -> None:
        self._left = 0  # bytes that the current chunk is missing; -1: the line break after its content
        self._partial = b""  # an incomplete line; after a chunk's content, it begins with the line break that ends it
        self._trailer_bytes = -1  # the trailers have not begun
        self.content: list[bytes] = []
        self.done = False

    def feed(self, data: bytes) -> int:
        """Consume complete lines and chunk content."""
        self.content = content = []
        at, size = 0, len(data)
        while at < size and not self.done:
            left = self._left
            if left > 0:
                stop = at + left
                if stop > size:
                    content.append(data[at:] if at else data)
                    self._left = stop - size
                    return size
                content.append(data[at:stop])
                if data.startswith(b"\r\n", stop):
                    at = stop + 2
                    self._left = 0
                else:
                    at = stop
                    self._left = -1
            else:
                at = self._line(data, at)
        return at

    @property
    def boundary(self) -> ChunkBoundary | None:
        """Where the received part ends; None within a line of the framing, and after the last chunk."""
        left, partial = self._left, self._partial
        if self._trailer_bytes >= 0 or (left < 0 and len(partial) > 2) or (left == 0 and partial):
            return None
        return ChunkBoundary(b"\r\n"[len(partial) :], 0) if left < 0 else ChunkBoundary(b"", left)

    def _line(self, data: bytes, at: int) -> int:
        """Read the first line of a chunk, with the line break that ends the chunk before, or a trailer."""
        partial = self._partial
        skip = 2 if self._left < 0 else 0  # the line break after the content does not end this line
        if partial:
            data = partial + data[at : at + _TRAILERS_MAX]
            start = 0
        else:
            start = at
        end = data.find(b"\r\n", start + skip)
        if end < 0:
            if len(data) - start > (_LINE_MAX if self._trailer_bytes < 0 else _TRAILERS_MAX):
                raise UpstreamError("sent a malformed chunk")
            self._check_break(data, start, skip)
            self._partial = data[start:]
            return at + len(data) - start - len(partial)
        self._check_break(data, start, skip)
        self._partial = b""
        self._read_line(data, start + skip, end)
        return at + end + 2 - start - len(partial)

    def _check_break(self, data: bytes, start: int, skip: int) -> None:
        if skip and not b"\r\n".startswith(data[start : start + 2]):
            raise UpstreamError("sent a malformed chunk")

    def _read_line(self, data: bytes, start: int, end: int) -> None:
        if self._trailer_bytes >= 0:
            self._trailer_bytes += end + 2 - start
            if end == start:
                self.done = True
            elif self._trailer_bytes > _TRAILERS_MAX or not is_trailer(data, start, end):
                raise UpstreamError("sent a malformed trailer")
            return
        found = _CHUNK_LINE.fullmatch(data, start, end)
        if found is None or end - start > _LINE_MAX:
            raise UpstreamError("sent a malformed chunk")
        self._left = int(found[1], 16)
        if not self._left:
            self._trailer_bytes = 0


LAST_CHUNK: Final = b"0\r\n\r\n"


def as_chunk(piece: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(piece), piece)


class Upload:
    """A request body that is streamed to the upstream. Buffers it until there is a connection. `done`: the client has
    sent all of it."""

    __slots__ = ("_buffered", "_chunked", "_send", "done")

    def __init__(self, request: Request) -> None:
        self._chunked = request.length == CHUNKED
        self._send: Callable[[bytes], None] | None = None
        self._buffered = [request.body] if request.body else []
        self.done = False

    def begin(self, send: Callable[[bytes], None]) -> None:
        """Send what is buffered, and everything that follows."""
        self._send = send
        buffered, self._buffered = self._buffered, []
        for piece in buffered:
            self.add(piece)
        if self.done:
            self.finish()

    def add(self, piece: bytes) -> None:
        if self._send is None:
            self._buffered.append(piece)
        else:
            self._send(as_chunk(piece) if self._chunked else piece)

    def finish(self) -> None:
        self.done = True
        if self._chunked and self._send is not None:
            self._send(LAST_CHUNK)


UNCHANGED, RECHUNKED, UNTIL_CLOSE = range(3)  # framing of a response for the client
_PADDING_MAX: Final = 64 * 1024  # a chunk that is missing more bytes is not filled up
_CHUNKED_LINE: Final = b"transfer-encoding: chunked\r\n\r\n"


def client_head(request: Request, head: ResponseHead, lines: bytes, *, close: bool) -> tuple[bytes, int]:
    """Return the head for the client, with `lines` of ours, and the framing of its body.

    Sets `request.connection` to CLOSE where the connection ends with this response.
    """
    length = head.length
    framing_out = UNCHANGED
    if close:
        request.connection = CLOSE
    if length < 0:
        if request.is_1_1:
            framing = _CHUNKED_LINE
            framing_out = UNCHANGED if length == CHUNKED else RECHUNKED
        else:
            framing = b"\r\n"
            framing_out = UNTIL_CLOSE
            request.connection = CLOSE
    elif length or not (request.method == "HEAD" or head.status in BODYLESS):
        framing = b"content-length: %d\r\n\r\n" % length
    else:
        framing = head.announced + b"\r\n"
    return b"".join((head.line, head.lines, lines, request.connection, framing)), framing_out


def reframe(framing: int, content: list[bytes], *, done: bool) -> bytes:
    """Return content in RECHUNKED or UNTIL_CLOSE framing."""
    if framing == UNTIL_CLOSE:
        return b"".join(content)
    out = b"".join(as_chunk(piece) for piece in content if piece)
    return out + LAST_CHUNK if done else out


def can_append(framing: int, boundary: ChunkBoundary | None) -> bool:
    """Return whether content can be appended to what the client has received."""
    return framing != UNCHANGED or (boundary is not None and boundary.room <= _PADDING_MAX)


def final_bytes(content: bytes, framing: int, boundary: ChunkBoundary | None) -> bytes:
    """Return the bytes that end an event stream with `content`.

    An incomplete chunk is filled up with it, and then with empty lines, which mean nothing between events.
    """
    if framing == UNTIL_CLOSE:
        return content
    before = b""
    if framing == UNCHANGED and boundary is not None:
        before, room = boundary
        if room:
            content += b"\n" * (room - len(content))
            before = content[:room] + b"\r\n"
            content = content[room:]
    return before + (as_chunk(content) if content else b"") + LAST_CHUNK
