"""HTTP/1.1 responses: rendering our own, parsing those of upstreams, and framing them for the client.

Heads of upstreams are parsed strictly, line by line. The heads of a provider have the same names again and again, and
other values each time, but for a few that say how to read the body. For names that recur, an expression is made that
checks a whole head, with the same grammar; if those few values are known too, the head is read like the one before it,
and has only a length of its own. Hop-by-hop fields are dropped (RFC 9110, 7.6.1). Bytes of a body are passed on as
received.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import traceback
from collections.abc import Callable
from email.utils import formatdate
from http import HTTPStatus
from operator import itemgetter
from typing import Any, Final

import msgspec

from breakloop.dialects.denial import PREFIX
from breakloop.dialects.framing import BODY, form_of
from breakloop.errors import UpstreamError
from breakloop.gateway.framing import FIELD_LINE, ChunkBoundary, ChunkedFraming, LengthFraming
from breakloop.gateway.http_request import BODYLESS, CHUNKED, CLOSE, LENGTH_DIGITS, Reply, Request
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
_FOR_READERS: Final = frozenset(("content-type", "content-encoding"))
_KNOWN: Final = _HOP_BY_HOP | _FOR_READERS
_TELLING: Final = _FOR_READERS | {"connection", "transfer-encoding"}
_PLAIN_CONNECTIONS: Final = frozenset((b"keep-alive", b"close"))
# A Connection line cannot remove these fields: the client needs them.
_PROTECTED: Final = frozenset(("content-type", "content-encoding", "set-cookie", "retry-after", "x-should-retry"))


class KnownField(bytes):
    """A header line that is interpreted here. The bytes are the line for the client: all of it, or nothing."""

    name: str
    value: bytes


class ResponseHead(msgspec.Struct, gc=False):
    status: int
    line: bytes  # the status line for the client, ending in CRLF
    lines: bytes  # the end-to-end fields as received, each ending in CRLF, without framing
    headers: dict[str, bytes]  # Content-Type and -Encoding, by lower-case name; the last value of each. Never changed
    length: int  # of the body: bytes, CHUNKED or BODY_UNTIL_CLOSE
    announced: bytes  # the Content-Length line of a response without a body (HEAD, 304), or empty
    keep_alive: bool  # the connection can be reused
    is_plain: bool = False  # no error, and a body that is neither compressed nor a stream: it is read when complete


_VALUE: Final = rb"[\t -~\x80-\xff]*+\r\n"  # as in `FIELD_LINE`
_LENGTH_VALUE: Final = rb"[\t ]*+([0-9]{1,%d})[\t ]*+\r\n" % LENGTH_DIGITS


class _Layout:
    """An expression for heads whose fields have the same names in the same order, and such heads by the few values that
    tell how to read them. `lines` are the fields of a valid head, none of which is renamed, or interpreted here twice.
    """

    __slots__ = ("_likes", "_passed", "_size", "_telling", "match")

    likes_max = 16
    telling_bytes_max = 1024

    def __init__(self, lines: list[bytes]) -> None:
        self._likes: dict[tuple[bytes, ...], ResponseHead] = {}
        self._size = 0  # the group with the value of Content-Length
        passed, telling, groups = [2], [1], 2
        pattern = [rb"([^\r]*+)\r\n("]
        for line in lines:
            name = line[: line.index(b":")]
            known = name.lower().decode("latin-1")
            field = re.escape(name) + b":" + _VALUE
            if known == "content-length":
                field = re.escape(name) + b":" + _LENGTH_VALUE
                groups += 1
                self._size = groups
            elif known in _TELLING:
                field = b"(%b)" % field
                groups += 1
                telling.append(groups)
            if known in _HOP_BY_HOP:
                field = b")%b(" % field
                groups += 1
                passed.append(groups)
            pattern.append(field)
        pattern.append(rb")()\r\n")  # an empty group at the end, because an `itemgetter` of one makes no tuple
        self._passed: itemgetter[Any] = itemgetter(*passed, groups + 1)
        self._telling: itemgetter[Any] = itemgetter(*telling, groups + 1)
        self.match = re.compile(b"".join(pattern)).match

    def read(self, found: re.Match[bytes]) -> ResponseHead | None:
        """Return the head, if one like it was kept."""
        like = self._likes.get(self._telling(found))
        if like is None:
            return None
        length = int(found[self._size]) if self._size else like.length
        passed = b"".join(self._passed(found))
        return ResponseHead(like.status, like.line, passed, like.headers, length, b"", like.keep_alive, like.is_plain)

    def keep(self, found: re.Match[bytes], head: ResponseHead) -> None:
        """Keep a head with a body, if others that are read like it are read correctly."""
        key = self._telling(found)
        if head.status >= 200 and head.status not in BODYLESS and len(b"".join(key)) <= self.telling_bytes_max:
            if len(self._likes) >= self.likes_max:
                self._likes.clear()
            self._likes[key] = msgspec.structs.replace(head, lines=b"")
            if self.read(found) != head:  # the Connection line takes other lines away
                del self._likes[key]


class ResponseHeadParser:
    """Parses heads of responses; one per server. `prefix` is that of our own header fields."""

    learns_after = 16  # heads with the same names: making an expression takes as long as parsing thirty
    fields_max = 100  # of a head for which one is made
    names_bytes_max = 8192
    names_max = 512
    layouts_max = 64
    recent_max = 8

    def __init__(self, prefix: str = PREFIX) -> None:
        self._status_lines = MemoDict(_status_line)
        self._prefix = prefix
        self._seen: dict[bytes, int] = {}  # how often each list of names was seen
        self._layouts: dict[bytes, _Layout] = {}  # by names
        self._recent: list[_Layout] = []  # the latest one first

    def parse(self, head: bytes, method: str) -> ResponseHead:
        """Parse one head, up to and including its empty line. Raises `UpstreamError`."""
        found = self.read(head, method)
        assert found is not None  # noqa: S101 - it is complete
        return found[0]

    def read(self, data: bytes, method: str) -> tuple[ResponseHead, int] | None:
        """Parse the head at the beginning of `data`; return it and its length, or None if it is not complete. Raises
        `UpstreamError`.
        """
        if method != "HEAD":
            for layout in self._recent:
                found = layout.match(data)
                if found is not None:
                    end = found.end()
                    known = layout.read(found)
                    if known is None:
                        known = self._parse(data[:end].split(b"\r\n"), method)
                        layout.keep(found, known)
                    return known, end
        end = data.find(b"\r\n\r\n") + 4
        if end == 3:
            return None
        lines = data[:end].split(b"\r\n")
        parsed = self._parse(lines, method)
        if method != "HEAD":
            self._learn(lines[1:-2])
        return parsed, end

    def _learn(self, lines: list[bytes]) -> None:
        """Note the names of a valid head. If they recur, heads with these names are looked for first from now on."""
        names = b"\n".join([line.partition(b":")[0] for line in lines])
        layout = self._layouts.get(names)
        if layout is None:
            if len(names) > self.names_bytes_max or len(lines) > self.fields_max:
                return
            if len(self._seen) >= self.names_max:
                self._seen.clear()
            seen = self._seen[names] = self._seen.get(names, 0) + 1
            if seen != self.learns_after or not self._can_learn(lines):
                return
            if len(self._layouts) >= self.layouts_max:
                self._layouts.clear()
                self._seen.clear()
            layout = self._layouts[names] = _Layout(lines)
        self._recent = [layout, *[other for other in self._recent if other is not layout]][: self.recent_max]

    def _can_learn(self, lines: list[bytes]) -> bool:
        fields = [_field(line, self._prefix) for line in lines]
        known = [field.name for field in fields if type(field) is KnownField]
        renamed = [
            field for field, line in zip(fields, lines, strict=True) if field and not field.startswith(line + b"\r\n")
        ]
        return not renamed and len(set(known)) == len(known)

    def _parse(self, lines: list[bytes], method: str) -> ResponseHead:
        status, is_1_1, line = self._status_lines[lines[0]]
        if len(lines) > _FIELDS:
            raise UpstreamError("sent too many header fields")
        fields = [_field(one, self._prefix) for one in lines[1:-2]]
        kept = b"".join(fields)
        known = [field for field in fields if type(field) is KnownField]
        values = {field.name: field.value for field in known}
        if len(values) != len(known):
            found = [field.name for field in known]
            if any(found.count(name) > 1 for name in _FRAMING):
                raise UpstreamError("sent a response with two lengths")
        length = _length(status, values, method, is_1_1=is_1_1)
        keep_alive = is_1_1
        options = values.get("connection")
        if options is not None:
            if len(values) != len(known):  # it may have come more than once
                options = b",".join([field.value for field in known if field.name == "connection"])
            options = options.lower()
            if options not in _PLAIN_CONNECTIONS:
                kept = _without_named(fields, options)
            keep_alive = (keep_alive or b"keep-alive" in options) and b"close" not in options
        keep_alive = keep_alive and length != BODY_UNTIL_CLOSE
        headers = {name: value for name, value in values.items() if name in _FOR_READERS}
        is_json = form_of(headers.get("content-type", b""), streamed=True) == BODY  # whatever was asked for
        is_plain = is_json and status < 400 and "content-encoding" not in headers
        announced = _announced(status, values, method)
        return ResponseHead(status, line, kept, headers, length, announced, keep_alive, is_plain)


def _announced(status: int, headers: dict[str, bytes], method: str) -> bytes:
    """Return the Content-Length line of a response without a body, or b""."""
    if (method == "HEAD" or status == 304) and "content-length" in headers:
        return b"content-length: %b\r\n" % headers["content-length"]
    return b""


def _length(status: int, headers: dict[str, bytes], method: str, *, is_1_1: bool) -> int:
    coding, size = headers.get("transfer-encoding"), headers.get("content-length")
    if coding is not None and (size is not None or coding.lower() != b"chunked" or not is_1_1):
        raise UpstreamError("sent a response whose length is ambiguous")
    length = BODY_UNTIL_CLOSE if size is None else _size(size)
    if method == "HEAD" or status in BODYLESS or status < 200:
        return 0
    return length if coding is None else CHUNKED


def _size(value: bytes) -> int:
    if not value.isdigit() or len(value) > LENGTH_DIGITS:
        raise UpstreamError("sent a response whose length is not a number")
    return int(value)


def _without_named(fields: list[bytes], options: bytes) -> bytes:
    named = {option.strip(b" \t").decode("latin-1") for option in options.split(b",")} - _PROTECTED
    return b"".join(field for field in fields if field.partition(b":")[0].lower().decode("latin-1") not in named)


def _status_line(line: bytes) -> tuple[int, bool, bytes]:
    found = _STATUS_LINE.fullmatch(line)
    if found is None:
        raise UpstreamError("sent a response that is not valid HTTP/1.1")
    minor, status, phrase = found.groups()
    return int(status), minor == b"1", b"HTTP/1.1 %b %b\r\n" % (status, phrase or b"")


def _field(line: bytes, prefix: str) -> bytes:
    """Return the line for the client, with CRLF; empty for a hop-by-hop field.

    A field of the upstream with our prefix is renamed, so that the client can tell it from ours: another breakloop may
    be the upstream, or a server that imitates one.
    """
    found = FIELD_LINE.fullmatch(line)
    if found is None:
        raise UpstreamError("sent a malformed header field")
    name = found[1].lower().decode("latin-1")
    if name.replace("_", "-").startswith(prefix.lower()):
        return f"{prefix}Upstream-".encode("ascii") + line[len(prefix) :] + b"\r\n"
    if name not in _KNOWN:
        return line + b"\r\n"
    known = KnownField(b"" if name in _HOP_BY_HOP else line + b"\r\n")
    known.name = name
    known.value = found[2].strip(b" \t")
    return known


Framing = LengthFraming | ChunkedFraming


def framing_for(length: int) -> Framing:
    """Return the framing for `ResponseHead.length`."""
    if length == CHUNKED:
        return ChunkedFraming()
    return LengthFraming(sys.maxsize if length == BODY_UNTIL_CLOSE else length)


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
