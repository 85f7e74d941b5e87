"""HTTP/1.1 responses: rendering our own, parsing those of upstreams, and framing them for the client.

Heads of upstreams are parsed strictly, line by line. The heads of a provider have the same names again and again, and
other values each time: for names that are known, only the values that matter are looked at. Hop-by-hop fields are
dropped (RFC 9110, 7.6.1). Bytes of a body are passed on as received.
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
from typing import Final, NamedTuple

import msgspec

from breakloop.dialects.denial import PREFIX
from breakloop.errors import UpstreamError
from breakloop.gateway.http_request import (
    BODYLESS,
    CHUNKED,
    CLOSE,
    FIELD_LINE,
    ChunkBoundary,
    ChunkedFraming,
    LengthFraming,
    Reply,
    Request,
    lines_of,
)
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
_KEEP_ALIVE: Final = b"keep-alive"
_PLAIN_CONNECTIONS: Final = frozenset((_KEEP_ALIVE, b"close"))
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
    headers: dict[str, bytes]  # the fields that are interpreted here, by lower-case name; the last value of each
    length: int  # of the body: bytes, CHUNKED or BODY_UNTIL_CLOSE
    announced: bytes  # the Content-Length line of a response without a body (HEAD, 304), or empty
    keep_alive: bool  # the connection can be reused


class _KnownNames(NamedTuple):
    """What follows from the names of a head's fields, in their order."""

    begins: tuple[bytes, ...]  # of each line of the head, split at each CRLF: the name with its colon, or nothing
    known: tuple[
        tuple[int, str, int], ...
    ]  # line, name and where the value begins, of fields that are interpreted here
    dropped: tuple[int, ...]  # lines that are not passed on, the last one first


# Of a line without a colon, the next one too. Without any colon, all that follows: it is not searched again.
_NAMES: Final = re.compile(rb"\r\n([^:]++):?").findall
_TEXT: Final = bytes(code for code in range(256) if code == 9 or (code >= 32 and code != 127))
_NAMES_MAX: Final = 512
_NAMES_BYTES_MAX: Final = 8192


class ResponseHeadParser:
    """Parses heads of responses; one per server. `prefix` is that of our own header fields."""

    def __init__(self, prefix: str = PREFIX) -> None:
        self._status_lines = MemoDict(_status_line)
        self._prefix = prefix
        self._names: dict[bytes, _KnownNames] = {}
        self._latest: dict[int, _KnownNames] = {}  # of the last head with this number of lines

    def parse(self, head: bytes, method: str) -> ResponseHead:
        """Parse one head, up to and including its empty line. Raises `UpstreamError`."""
        lines = lines_of(head)
        count = len(lines)
        seen = self._latest.get(count)
        if seen is None or False in map(bytes.startswith, lines, seen[0]):
            # Another one than the last: finding its names takes three times as long as comparing them.
            names = b"\n".join(_NAMES(head))
            seen = self._names.get(names)
            if seen is None or len(seen[0]) != count:
                return self._parse(lines, method, names)
            self._latest[count] = seen
        # No control characters, and no line end but these.
        if len(head.translate(None, _TEXT)) != 2 * count - 2:
            return self._parse(lines, method)
        headers: dict[str, bytes] = {}
        for at, name, start in seen[1]:
            headers[name] = lines[at][start:].strip(b" \t")
        status, is_1_1, line = self._status_lines[lines[0]]
        keep_alive = is_1_1
        options = headers.get("connection")
        if options is not None:
            if options not in _PLAIN_CONNECTIONS:
                return self._parse(lines, method)
            keep_alive = options == _KEEP_ALIVE
        length = _length(status, headers, method, is_1_1=is_1_1)
        if length == BODY_UNTIL_CLOSE:
            keep_alive = False
        for at in seen[2]:
            del lines[at]
        kept = b"\r\n".join(lines[1:-1])
        return ResponseHead(status, line, kept, headers, length, _announced(status, headers, method), keep_alive)

    def _parse(self, lines: list[bytes], method: str, names: bytes | None = None) -> ResponseHead:
        """Parse each line, and keep what follows from the names, unless that is known."""
        status, is_1_1, line = self._status_lines[lines[0]]
        if len(lines) > _FIELDS:
            raise UpstreamError("sent too many header fields")
        fields = [_field(one, self._prefix) for one in lines[1:-2]]
        kept = b"".join(fields)
        known = [field for field in fields if type(field) is KnownField]
        headers = {field.name: field.value for field in known}
        if len(headers) != len(known):
            found = [field.name for field in known]
            if any(found.count(name) > 1 for name in _FRAMING):
                raise UpstreamError("sent a response with two lengths")
        length = _length(status, headers, method, is_1_1=is_1_1)
        keep_alive = is_1_1
        options = headers.get("connection")
        if options is not None:
            if len(headers) != len(known):  # it may have come more than once
                options = b",".join([field.value for field in known if field.name == "connection"])
            options = options.lower()
            if options not in _PLAIN_CONNECTIONS:
                kept = _without_named(fields, options)
            keep_alive = (keep_alive or b"keep-alive" in options) and b"close" not in options
        keep_alive = keep_alive and length != BODY_UNTIL_CLOSE
        if names is not None:
            self._keep_names(names, lines, fields)
        return ResponseHead(status, line, kept, headers, length, _announced(status, headers, method), keep_alive)

    def _keep_names(self, names: bytes, lines: list[bytes], fields: list[bytes]) -> None:
        known: list[tuple[int, str, int]] = []
        dropped: list[int] = []
        for at, field in enumerate(fields, 1):
            if type(field) is KnownField:
                known.append((at, field.name, len(field.name) + 1))
                if not field:
                    dropped.append(at)
            elif not field.startswith(lines[at]):
                return  # it was renamed
        if len({name for _, name, _ in known}) == len(known) and len(names) <= _NAMES_BYTES_MAX:
            if len(self._names) >= _NAMES_MAX:
                self._names.clear()
            begins = (b"", *[line[: line.index(b":") + 1] for line in lines[1:-2]], b"", b"")
            self._names[names] = _KnownNames(begins, tuple(known), tuple(reversed(dropped)))


def _announced(status: int, headers: dict[str, bytes], method: str) -> bytes:
    """Return the Content-Length line of a response without a body, or b""."""
    if (method == "HEAD" or status == 304) and "content-length" in headers:
        return b"content-length: %b\r\n" % headers["content-length"]
    return b""


def _length(status: int, headers: dict[str, bytes], method: str, *, is_1_1: bool) -> int:
    coding, size = headers.get("transfer-encoding"), headers.get("content-length")
    if coding is not None and (size is not None or coding.lower() != b"chunked" or not is_1_1):
        raise UpstreamError("sent a response whose length is ambiguous")
    if size is not None and not (size.isdigit() and len(size) <= 18):
        raise UpstreamError("sent a response whose length is not a number")
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
