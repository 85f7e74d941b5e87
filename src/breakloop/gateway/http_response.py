"""Answers as bytes: one `bytes` object per reply, from parts that are prepared once per status and second.

Heads of answers: the strict reading of what an upstream sends, and the lines of it that the client gets.

Field by field as in `head`, with the same memory of known lines. Hop-by-hop fields stay here (RFC 9110, 7.6.1); how the
body ends is told by `length`, and the exchange writes the framing that fits the client.

Framing of answers: where an answer ends in the stream of an upstream, and its content without the framing.

Bytes of the body pass on as they came; what is found here is for reading along and for knowing the end. Strict, because
whoever reads after us must come to the same end.

How a client gets an answer: the head in its version of HTTP, and the body as it came wherever that is possible.

A request body that passes in pieces, because nobody needs to see it whole: what comes before there is an upstream
waits, and chunks are framed anew. When to read more of it is decided by the connections on both sides.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from email.utils import formatdate
from http import HTTPStatus
from typing import Final, NamedTuple, Protocol

import msgspec

from breakloop.errors import UpstreamError
from breakloop.gateway.http_request import BODYLESS, CHUNKED, CLOSE, FIELD_LINE, Reply, Request, is_trailer
from breakloop.policy.cache import MemoDict

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
# A 426 must name what to use instead; clients that try websockets first (Codex) take it as "use HTTP".
_USE_HTTP: Final = _JSON + b"upgrade: HTTP/1.1\r\nconnection: upgrade\r\n"


class StatusLines(dict[int, bytes]):
    """Status -> its status line with the Date line, made on demand and thrown away every second."""

    date = b""

    def renew(self, now: float) -> None:
        """Start a new second."""
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
    """The whole answer to a request by `method`. `connection` is its Connection line or empty."""
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
    """A refusal in the one shape that all errors have."""
    body = json.dumps({"detail": {"error": _CODES.get(status, "error"), "message": message}}).encode()
    return Reply(status, _USE_HTTP if status == 426 else _JSON, body)


def render_refusal(lines: StatusLines, status: int, message: str) -> bytes:
    """A refusal that ends the connection."""
    return render(lines, error_reply(status, message), CLOSE, "")


BODY_UNTIL_CLOSE: Final = -2  # `ResponseHead.length` of a body that only the end of the connection ends
HEAD_BYTES: Final = 128 * 1024
_FIELDS: Final = 500
_STATUS_LINE: Final = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9][0-9])(?: ([\t -~\x80-\xff]*))?")
_FRAMING: Final = frozenset(("content-length", "transfer-encoding"))
_HOP_BY_HOP: Final = _FRAMING | {
    "connection", "keep-alive", "proxy-connection", "proxy-authenticate", "te", "upgrade",
}  # fmt: skip
_KNOWN: Final = _HOP_BY_HOP | {"content-type", "content-encoding"}
_PLAIN_CONNECTIONS: Final = frozenset((b"keep-alive", b"close"))
# What an answer cannot do without: a Connection line that names one of these must not take it away.
_PROTECTED: Final = frozenset(("content-type", "content-encoding", "set-cookie", "retry-after", "x-should-retry"))


class MeaningfulLine(bytes):
    """A line that means something here, as the client gets it: whole, or not at all."""

    name: str
    value: bytes


class ResponseHead(msgspec.Struct, gc=False):
    """One head."""

    status: int
    line: bytes  # the status line for the client, ending in CRLF
    lines: bytes  # the end-to-end fields as sent, each ending in CRLF, without framing
    headers: dict[str, bytes]  # what means something here, by lower-case name; the last value of a name
    length: int  # of the body: bytes, CHUNKED or UNTIL_CLOSE
    announced: bytes  # the Content-Length line of an answer that carries no body (HEAD, 304), or empty
    keeps: bool  # the connection can be used again after it


class ResponseHeadParser:
    """Reads heads; one per server."""

    __slots__ = ("_field", "_status_lines")

    def __init__(self) -> None:
        self._status_lines = MemoDict(_status_line)
        self._field = MemoDict(_field).__getitem__

    def parse(self, head: bytes, method: str) -> ResponseHead:
        """Read one head, ending in its empty line. Raises `UpstreamError` for what is no plain answer."""
        lines = head.split(b"\r\n")
        status, is_1_1, line = self._status_lines[lines[0]]
        if len(lines) > _FIELDS:
            raise UpstreamError("answered with too many header fields")
        fields = list(map(self._field, lines[1:-2]))
        kept = b"".join(fields)
        known = [field for field in fields if type(field) is MeaningfulLine]
        headers = {field.name: field.value for field in known}
        length = _length(status, headers, known, method, is_1_1=is_1_1)
        keeps, announced = is_1_1, b""
        options = headers.get("connection")
        if options is not None:
            if len(headers) != len(known):  # it may have come more than once
                options = b",".join([field.value for field in known if field.name == "connection"])
            options = options.lower()
            if options not in _PLAIN_CONNECTIONS:
                kept = _without_named(fields, options)
            keeps = (keeps or b"keep-alive" in options) and b"close" not in options
        if length == 0 and "content-length" in headers and (method == "HEAD" or status == 304):
            announced = b"content-length: %b\r\n" % headers["content-length"]
        return ResponseHead(status, line, kept, headers, length, announced, keeps and length != BODY_UNTIL_CLOSE)


def _length(status: int, headers: dict[str, bytes], known: list[MeaningfulLine], method: str, *, is_1_1: bool) -> int:
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
    """The line as the client gets it, CRLF included; nothing of one that is between neighbours."""
    found = FIELD_LINE.fullmatch(line)
    if found is None:
        raise UpstreamError("sent a malformed header field")
    name = found[1].lower().decode("latin-1")
    if name not in _KNOWN:
        return line + b"\r\n"
    known = MeaningfulLine(b"" if name in _HOP_BY_HOP else line + b"\r\n")
    known.name, known.value = name, found[2].strip(b" \t")
    return known


_CHUNK_LINE: Final = re.compile(rb"([0-9A-Fa-f]{1,15})(?:[ \t]*;[\t -~\x80-\xff]*+)?[ \t]*+")
_LINE_MAX: Final = 256
_TRAILERS_MAX: Final = 8 * 1024


class ChunkBoundary(NamedTuple):
    """A place where other content could follow in a chunked body."""

    before: bytes  # what has to be written first
    room: int  # bytes that the running chunk still takes, and must get


class Framing(Protocol):
    """Follows one body through the stream."""

    done: bool
    content: list[bytes]  # what the last `feed` held, without framing

    def feed(self, data: bytes) -> int:
        """Return how many bytes of `data` belong to this body. Raises `UpstreamError`."""
        ...


def framing_for(length: int) -> Framing:
    """The framing of a body of so many bytes, of chunks, or until the end of the connection."""
    if length == CHUNKED:
        return Chunked()
    return UntilClose() if length == BODY_UNTIL_CLOSE else Length(length)


class Length:
    """A body of known length."""

    __slots__ = ("_left", "content", "done")

    def __init__(self, length: int) -> None:
        self._left = length
        self.done = length == 0
        self.content: list[bytes] = []

    def feed(self, data: bytes) -> int:
        """Take what is there, up to the length."""
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


class UntilClose:
    """A body that the end of the connection ends."""

    __slots__ = ("content", "done")

    def __init__(self) -> None:
        self.done = False
        self.content: list[bytes] = []

    def feed(self, data: bytes) -> int:
        """Take everything."""
        self.content = [data]
        return len(data)


class Chunked:
    """A chunked body. Usually a piece of the stream is one whole chunk, and then one turn of the loop is all."""

    __slots__ = ("_left", "_partial", "_trailer_bytes", "content", "done")

    def __init__(self) -> None:
        self._left = 0  # of the chunk that is being read
        self._partial = b""  # the begun line; after a chunk's content, it begins with the line break that ends it
        self._trailer_bytes = -1  # not in the trailers yet
        self.content: list[bytes] = []
        self.done = False

    def feed(self, data: bytes) -> int:
        """Step through lines and contents as far as they are there."""
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
                    at, self._left = stop + 2, 0
                else:
                    at, self._left = stop, -1  # the line break after it is still to come
            else:
                at = self._line(data, at)
        return at

    @property
    def joint(self) -> ChunkBoundary | None:
        """Where what was fed so far ends; None within a line of the framing, and once all content has come."""
        left, begun = self._left, self._partial
        if self._trailer_bytes >= 0 or (left < 0 and len(begun) > 2) or (left == 0 and begun):
            return None
        return ChunkBoundary(b"\r\n"[len(begun) :], 0) if left < 0 else ChunkBoundary(b"", left)

    def _line(self, data: bytes, at: int) -> int:
        """Read a chunk's first line (with the line break that ends the chunk before) or a trailer."""
        begun = self._partial
        # The break after a content is two bytes that are not the end of the line that is looked for.
        skip = 2 if self._left < 0 else 0
        if begun:
            data = begun + data[at : at + _TRAILERS_MAX]
            start = 0
        else:
            start = at
        end = data.find(b"\r\n", start + skip)
        if end < 0:
            if len(data) - start > (_LINE_MAX if self._trailer_bytes < 0 else _TRAILERS_MAX):
                raise UpstreamError("sent a malformed chunk")
            self._check_break(data, start, skip)
            self._partial = data[start:]
            return at + len(data) - start - len(begun)
        self._check_break(data, start, skip)
        self._partial = b""
        self._use(data, start + skip, end)
        return at + end + 2 - start - len(begun)

    def _check_break(self, data: bytes, start: int, skip: int) -> None:
        if skip and not b"\r\n".startswith(data[start : start + 2]):
            raise UpstreamError("sent a malformed chunk")

    def _use(self, data: bytes, start: int, end: int) -> None:
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
    """Return a piece as one chunk."""
    return b"%x\r\n%b\r\n" % (len(piece), piece)


class Upload:
    """One body. `done`: all of it has come from the client."""

    __slots__ = ("_chunked", "_send", "_waiting", "done")

    def __init__(self, request: Request) -> None:
        self._chunked = request.length == CHUNKED
        self._send: Callable[[bytes], None] | None = None
        self._waiting = [request.body] if request.body else []
        self.done = False

    def begin(self, send: Callable[[bytes], None]) -> None:
        """There is somebody to send it to now."""
        self._send = send
        waiting, self._waiting = self._waiting, []
        for piece in waiting:
            self.add(piece)
        if self.done:
            self.finish()

    def add(self, piece: bytes) -> None:
        """Pass on a piece."""
        if self._send is None:
            self._waiting.append(piece)
        else:
            self._send(as_chunk(piece) if self._chunked else piece)

    def finish(self) -> None:
        """All of it has come."""
        self.done = True
        if self._chunked and self._send is not None:
            self._send(LAST_CHUNK)


AS_IT_CAME, IN_CHUNKS, UNTIL_CLOSE = range(3)
_FILLED_MAX: Final = 64 * 1024  # so much of a chunk that was begun may be filled up
_CHUNKED_LINE: Final = b"transfer-encoding: chunked\r\n\r\n"


def head_out(request: Request, head: ResponseHead, lines: bytes, *, close: bool) -> tuple[bytes, int]:
    """Return the head for the client, with `lines` of ours, and how its body is framed.

    `request.connection` says afterwards whether the connection ends with this answer.
    """
    length, framing_out = head.length, AS_IT_CAME
    if close:
        request.connection = CLOSE
    if length < 0:
        if request.is_1_1:
            framing = _CHUNKED_LINE
            framing_out = AS_IT_CAME if length == CHUNKED else IN_CHUNKS
        else:
            framing, framing_out = b"\r\n", UNTIL_CLOSE
            request.connection = CLOSE
    elif length or not (request.method == "HEAD" or head.status in BODYLESS):
        framing = b"content-length: %d\r\n\r\n" % length
    else:
        framing = head.announced + b"\r\n"
    return b"".join((head.line, head.lines, lines, request.connection, framing)), framing_out


def reframed(framing: int, content: list[bytes], *, done: bool) -> bytes:
    """Return content that cannot pass as it came: in chunks of ours, or plain."""
    if framing == UNTIL_CLOSE:
        return b"".join(content)
    out = b"".join(as_chunk(piece) for piece in content if piece)
    return out + LAST_CHUNK if done else out


def can_follow(framing: int, joint: ChunkBoundary | None) -> bool:
    """Tell whether content of ours can follow what a client got, whose framing is at `joint`."""
    return framing != AS_IT_CAME or (joint is not None and joint.room <= _FILLED_MAX)


def ended_with(ours: bytes, framing: int, joint: ChunkBoundary | None) -> bytes:
    """Return what ends an answer that consists of events: `ours` as its last content.

    A chunk that was begun gets it, as far as it has room; empty lines, which are nothing behind an event, fill it up.
    """
    if framing == UNTIL_CLOSE:
        return ours
    before = b""
    if framing == AS_IT_CAME and joint is not None:
        before, room = joint
        if room:
            ours += b"\n" * (room - len(ours))
            before, ours = ours[:room] + b"\r\n", ours[room:]
    return before + (as_chunk(ours) if ours else b"") + LAST_CHUNK
