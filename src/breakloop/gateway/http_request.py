"""Request heads: the types that doors code against, and the strict reading of one complete head.

Each line is checked by the grammar of RFC 9112, which is what llhttp does (tests hold the two equal); what llhttp lets
through and another server could read differently is refused too (Y-3). Lines are checked one by one because clients
repeat most of them in every request, and a line that was fine once need not be checked again; neither need a head in
which nothing but the length of the body is new. A head comes in whole and with its size checked (Y-2): cutting the
stream is `incoming`'s work, framing a body `body`'s.

Framing of request bodies: where a body ends in the stream, and its content without the framing.

Readers take bytes from a buffer and hand content to a `sink`; whether that sink collects or streams is not theirs to
know. Strict (Y-3): what they accept has one reading only. Trailers are checked and thrown away.

What one client may cost: the numbers behind every refusal for size, count or time (Y-2). The defaults of those that
can be set are declared in the settings.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

import msgspec
from msgspec.structs import replace

from breakloop.config import settings
from breakloop.errors import RequestError
from breakloop.policy.cache import MemoDict

_DEFAULTS: Final = settings.Limits()


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Bounds of the traffic port. Times are whole seconds, for the server's one coarse sweep."""

    head_bytes: int = _DEFAULTS.head_bytes
    fields: int = _DEFAULTS.fields
    request_line_bytes: int = 16 * 1024
    body_bytes: int = _DEFAULTS.body_bytes
    all_bodies_bytes: int = 256 * 1024 * 1024  # of bodies that are still arriving, over all connections
    chunk_line_bytes: int = 256  # a chunk's size with its extensions
    trailer_bytes: int = 8 * 1024
    free_chunks: int = 1000  # so many chunks of any size; beyond that they must carry 64 bytes each on average
    backlog_bytes: int = 64 * 1024  # read ahead of a reply that waits, before reading pauses
    pipelined: int = 16  # requests of one connection answered before others get their turn
    connections: int = _DEFAULTS.connections
    idle_s: int = _DEFAULTS.idle_seconds
    head_s: int = _DEFAULTS.head_seconds
    body_s: int = _DEFAULTS.body_seconds  # without progress; the same for a client that does not read its answers
    linger_s: int = 2  # after a refusal, so that the client can read it


CHUNKED: Final = -1  # `Request.length` of a body whose length only its chunks tell
BODYLESS: Final = frozenset((204, 304))  # answers of these statuses have none
CLOSE: Final = b"connection: close\r\n"
KEEP: Final = b"connection: keep-alive\r\n"

# The methods of llhttp, without CONNECT and PRI, which ask for something else than an answer.
_METHOD_NAMES: Final = (
    "GET POST PUT DELETE HEAD OPTIONS PATCH TRACE QUERY COPY LOCK MKCOL MOVE PROPFIND PROPPATCH SEARCH UNLOCK BIND "
    "REBIND UNBIND ACL REPORT MKACTIVITY CHECKOUT MERGE M-SEARCH NOTIFY SUBSCRIBE UNSUBSCRIBE PURGE MKCALENDAR LINK "
    "UNLINK SOURCE"
)
_METHODS: Final = {name.encode(): name for name in _METHOD_NAMES.split()}
_REQUEST_LINE: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+) ([^ ]+) HTTP/([0-9]\.[0-9])")
_TARGET: Final = re.compile(rb"/[!-\"$-~]*")  # without `#`: some servers cut a fragment off and some do not
# A name, a colon, and a value of visible characters, spaces, tabs and bytes above ASCII: no control, no bare CR or LF.
FIELD_LINE: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):([\t -~\x80-\xff]*)")
_TOKEN_CHARS: Final = frozenset(b"!#$%&'*+-.^_`|~" + string.ascii_letters.encode() + string.digits.encode())
_HOST_CHARS: Final = (string.ascii_letters + string.digits + "-._~%!$&'()*+;=:[]").encode()
BARE_LF: Final = re.compile(rb"(?<!\r)\n")
_ONCE_ONLY: Final = frozenset(("host", "content-length", "transfer-encoding"))
_STRICT: Final = _ONCE_ONLY | {"upgrade", "expect"}
_MALFORMED: Final = "malformed request head"
_TOO_LARGE: Final = "request head too large"
_TOO_LONG: Final = "request target too long"
_LENGTH: Final = b"ength: "  # the end of a name whose first letters are written large or small
_LENGTH_LINE: Final = b"\r\ncontent-length: "
_LENGTH_DIGITS: Final = 18


class Request(msgspec.Struct, gc=False):
    """One request as received, complete with its body. A `Struct` because one is made per request (0.1 us, not 0.4)."""

    method: str
    target: bytes  # as sent: path and query
    headers: dict[str, bytes]  # canonical name -> first value
    repeated: tuple[tuple[str, bytes], ...] = ()  # further values of repeated fields
    raw: bytes = b""  # the head as sent
    body: bytes = b""
    peer: str = ""  # client address without port, empty on a Unix socket
    connection: bytes = b""  # the Connection line of its reply: empty for the usual HTTP/1.1 keep-alive
    length: int = 0  # of the body as announced, or CHUNKED
    expects_continue: bool = False
    is_1_1: bool = True
    streamed: bool = False  # `body` is only its beginning; the rest comes in pieces and is seen by nobody
    like: HeadTemplate | None = None  # what is known of heads that differ from its own in nothing but Content-Length


class HeadTemplate(msgspec.Struct, gc=False):
    """What heads have in common that differ in nothing but the number in Content-Length."""

    request: Request  # one of them
    passed: dict[Any, bytes] = msgspec.field(default_factory=dict)  # the lines that go to an upstream, by who made them


class Reply:
    """An answer. `head` holds complete extra lines, each ending in CRLF; the server adds what framing needs."""

    __slots__ = ("body", "delay_s", "head", "status")

    def __init__(self, status: int, head: bytes = b"", body: bytes = b"", delay_s: float = 0.0) -> None:
        self.status = status
        self.head = head
        self.body = body
        self.delay_s = delay_s


Buffer = bytes | bytearray
# What a door returns: a reply, one that is being made, or an exchange with an upstream (`gateway.exchange`).
Handler = Callable[[Request], Any]


class HeadParser:
    """Reads complete heads; one per server. Nothing but heads and lines that come again is kept for the next."""

    __slots__ = ("_field", "_likes", "_limits", "_request_lines")

    def __init__(self, limits: RequestLimits) -> None:
        self._limits = limits
        self._request_lines = MemoDict(self._request_line)
        self._field = MemoDict(_field).__getitem__
        self._likes = HeadCache()

    def parse(self, head: bytes, peer: str) -> Request:
        """Read one head, ending in its empty line. Raises `RequestError` for whatever is not plain and strict."""
        start = head.rfind(_LENGTH) + len(_LENGTH)
        stop = head.find(b"\r", start)
        size = head[start:stop]
        if not size.isdigit() or len(size) > _LENGTH_DIGITS:
            return self._parse(head, peer)
        key = head[:start] + head[stop:]
        like = self._likes.get(key)
        if like is None:
            request = self._parse(head, peer)
            if request.raw is head and head[:start].lower().endswith(_LENGTH_LINE):
                self._likes.met(key, request)
            return request
        headers = like.request.headers.copy()
        headers["content-length"] = size
        return replace(like.request, headers=headers, raw=head, peer=peer, length=int(size), like=like)

    def _parse(self, head: bytes, peer: str) -> Request:
        lines = head.split(b"\r\n")
        count = len(lines) - 3
        if count > self._limits.fields:
            raise RequestError(431, _TOO_LARGE)
        if not lines[0] and count:
            return self._parse(head[2:], peer)  # one empty line before a request is allowed: old clients send it
        method, target, is_1_1 = self._request_lines[lines[0]]
        headers = dict(map(self._field, lines[1:-2]))
        repeated = () if len(headers) == count else self._repeated(headers, lines)
        request = Request(method, target, headers, repeated, head, b"", peer)
        if "host" not in headers and is_1_1:
            raise RequestError(400, "Host is missing")
        if "content-length" in headers or "transfer-encoding" in headers:
            request.length = _length(headers, is_1_1=is_1_1)
        if not is_1_1 or "connection" in headers:
            request.is_1_1 = is_1_1
            request.connection = _connection(request, is_1_1=is_1_1)
        if "expect" in headers:
            request.expects_continue = is_1_1
        return request

    def _request_line(self, line: bytes) -> tuple[str, bytes, bool]:
        """Method, target, and whether it is HTTP/1.1 (and not 1.0)."""
        if len(line) + 2 > self._limits.request_line_bytes:
            raise RequestError(414, _TOO_LONG)
        match = _REQUEST_LINE.fullmatch(line)
        if match is None:
            raise RequestError(400, "malformed request line")
        method, target, version = match.groups()
        if version not in (b"1.1", b"1.0"):
            raise RequestError(505, "only HTTP/1.1 and HTTP/1.0 are spoken here")
        if method not in _METHODS:
            raise RequestError(501, "method not implemented")
        if not _TARGET.fullmatch(target):
            raise RequestError(400, "the request target must be a path in visible ASCII")
        return _METHODS[method], target, version == b"1.1"

    def _repeated(self, headers: dict[str, bytes], lines: list[bytes]) -> tuple[tuple[str, bytes], ...]:
        """Make the first value of each repeated field the one in `headers`; return the others."""
        headers.clear()
        repeated: list[tuple[str, bytes]] = []
        for name, value in map(self._field, lines[1:-2]):
            if name not in headers:
                headers[name] = value
            elif name in _ONCE_ONLY:
                raise RequestError(400, f"repeated {name}")
            else:
                repeated.append((name, value))
        return tuple(repeated)


class HeadCache(dict[bytes, HeadTemplate]):
    """Heads that came twice, by all of their bytes but the number in Content-Length. Those with something new in each
    (the id of a trace) never come twice; of them no more is kept than a number."""

    max_entries = 2048
    max_key = 4096
    max_met = 16384

    def __init__(self) -> None:
        super().__init__()
        self._met: set[int] = set()

    def met(self, key: bytes, request: Request) -> None:
        """Take note of a head that was read, and keep it the second time."""
        mark, met = hash(key), self._met
        if mark not in met:
            if len(met) >= self.max_met:
                met.clear()
            met.add(mark)
        elif len(key) <= self.max_key:
            if len(self) >= self.max_entries:
                self.clear()
            self[key] = HeadTemplate(replace(request, raw=b"", peer="", headers=request.headers.copy()))


def early_refusal(buffer: Buffer, start: int, stop: int, scanned: int, limits: RequestLimits) -> RequestError | None:
    """What is already wrong with a head that is incomplete or was refused: the first fault in stream order.

    Asking this both before and after a head is complete makes the answer independent of how the bytes were cut up.
    Everything before `scanned` was found in order by an earlier call.
    """
    if stop > start and buffer[start] not in _TOKEN_CHARS and buffer[start] != 0x0D:
        return RequestError(400, _MALFORMED)
    line = start + 2 if buffer.startswith(b"\r\n", start) else start
    line_stop = line + limits.request_line_bytes
    if stop >= line_stop and buffer.find(b"\n", line, line_stop) < 0:
        return RequestError(414, _TOO_LONG)
    if BARE_LF.search(buffer, max(start, scanned), min(stop, start + limits.head_bytes)):
        return RequestError(400, _MALFORMED)
    return RequestError(431, _TOO_LARGE) if stop - start > limits.head_bytes else None


def _field(line: bytes) -> tuple[str, bytes]:
    """Canonical name (`X-API_Key` is `x-api-key`) and value; refuses what is wrong whatever the other lines say."""
    found = FIELD_LINE.fullmatch(line)
    if found is None:
        raise RequestError(400, _MALFORMED)
    raw, value = found.groups()
    value = value.strip(b" \t")
    name = _canonical(raw)
    if name in _STRICT:
        _check_field(name, raw, value)
    return name, value


def _spelled(raw: bytes) -> str:
    return raw.lower().replace(b"_", b"-").decode("latin-1")


# Clients share a few dozen names, also where the values are new each time.
_canonical: Final = MemoDict(_spelled).__getitem__


def _check_field(name: str, raw: bytes, value: bytes) -> None:
    if b"_" in raw and name in _ONCE_ONLY:  # some servers take Content_Length for the real one
        raise RequestError(400, "Content-Length or Transfer-Encoding spelled with an underscore")
    if name == "host" and value.translate(None, _HOST_CHARS):
        raise RequestError(400, "Host is not a host")
    if name == "content-length" and (not value.isdigit() or len(value) > _LENGTH_DIGITS):
        raise RequestError(400, "Content-Length is not a number")
    if name == "transfer-encoding" and value.lower() != b"chunked":
        raise RequestError(400, "Transfer-Encoding must be chunked")
    if name == "upgrade" and b"websocket" in value.lower():
        raise RequestError(426, "websockets are not spoken here, use plain HTTP")
    if name == "expect" and value.lower() != b"100-continue":
        raise RequestError(417, "only 100-continue can be expected")


def _length(headers: dict[str, bytes], *, is_1_1: bool) -> int:
    if "transfer-encoding" not in headers:
        return int(headers["content-length"])
    if not is_1_1 or "content-length" in headers:
        raise RequestError(400, "Transfer-Encoding must be alone and on HTTP/1.1")
    return CHUNKED


def _connection(request: Request, *, is_1_1: bool) -> bytes:
    values = [request.headers.get("connection", b"")]
    values += [value for name, value in request.repeated if name == "connection"]
    options = {option.strip(b" \t") for option in b",".join(values).lower().split(b",")}
    if b"close" in options:
        return CLOSE
    if is_1_1:
        return b""
    return KEEP if b"keep-alive" in options else CLOSE


Sink = Callable[[bytes], object]

_CHUNK_LINE: Final = re.compile(rb"([0-9A-Fa-f]{1,8})(?:;[\t -~\x80-\xff]*)?")
_TRAILER_LINE: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t -~\x80-\xff]*")
_FRAMING_LINE: Final = re.compile(rb"(?i:host|content[-_]length|transfer[-_]encoding):")  # never in a trailer
_BYTES_PER_CHUNK: Final = 64


class RequestBodyReader(Protocol):
    """Takes a body out of the stream, piece by piece."""

    done: bool

    def feed(self, buffer: bytes | bytearray, at: int) -> int:
        """Read from `buffer[at:]` and return where reading stopped: after the body, or for want of more bytes."""
        ...


def reader_for(length: int, limits: RequestLimits, sink: Sink, most: int | None) -> RequestBodyReader:
    """The reader for a body of `length` bytes, or of chunks that come to `most` bytes at the most (None: to any)."""
    return ChunkedReader(limits, sink, most) if length == CHUNKED else LengthReader(length, sink)


class LengthReader:
    """A body of known length."""

    __slots__ = ("_left", "_sink", "done")

    def __init__(self, length: int, sink: Sink) -> None:
        self._left = length
        self._sink = sink
        self.done = length == 0

    def feed(self, buffer: bytes | bytearray, at: int) -> int:
        """Pass on what is there, up to the length."""
        stop = min(len(buffer), at + self._left)
        if stop > at:
            self._sink(bytes(buffer[at:stop]))
            self._left -= stop - at
            self.done = self._left == 0
        return stop


class ChunkedReader:
    """A chunked body: bounded lines, bounded trailers, and not many more chunks than its size needs."""

    __slots__ = ("_chunks", "_left", "_limits", "_most", "_sink", "_size", "_step", "_trailer_bytes", "done")

    def __init__(self, limits: RequestLimits, sink: Sink, most: int | None) -> None:
        self._limits = limits
        self._most = most
        self._sink = sink
        self._left = 0  # of the current chunk
        self._size = 0  # of all chunks so far
        self._chunks = 0
        self._trailer_bytes = 0
        self._step: Callable[[bytes | bytearray, int], int] = self._chunk_line
        self.done = False

    def feed(self, buffer: bytes | bytearray, at: int) -> int:
        """Step through lines and chunk contents as far as they are there. Raises `RequestError`."""
        while not self.done:
            after = self._step(buffer, at)
            if after < 0:
                break
            at = after
        return at

    def _chunk_line(self, buffer: bytes | bytearray, at: int) -> int:
        end = _line_end(buffer, at, self._limits.chunk_line_bytes)
        if end < 0:
            return -1
        line = _CHUNK_LINE.fullmatch(buffer, at, end)
        if line is None:
            raise RequestError(400, "malformed chunk")
        self._left = int(line[1], 16)
        self._size += self._left
        self._chunks += 1
        if self._most is not None and self._size > self._most:
            raise RequestError(413, "request body too large")
        if self._chunks > self._limits.free_chunks + self._size // _BYTES_PER_CHUNK:
            raise RequestError(400, "too many small chunks")
        self._step = self._content if self._left else self._trailer_line
        return end + 2

    def _content(self, buffer: bytes | bytearray, at: int) -> int:
        stop = min(len(buffer), at + self._left)
        if stop == at:
            return -1
        self._sink(bytes(buffer[at:stop]))
        self._left -= stop - at
        if not self._left:
            self._step = self._after_content
        return stop

    def _after_content(self, buffer: bytes | bytearray, at: int) -> int:
        if len(buffer) < at + 2:
            return -1
        if not buffer.startswith(b"\r\n", at):
            raise RequestError(400, "malformed chunk")
        self._step = self._chunk_line
        return at + 2

    def _trailer_line(self, buffer: bytes | bytearray, at: int) -> int:
        end = _line_end(buffer, at, self._limits.trailer_bytes - self._trailer_bytes)
        if end < 0:
            return -1
        if end == at:
            self.done = True
        elif not is_trailer(buffer, at, end):
            raise RequestError(400, "malformed trailer")
        self._trailer_bytes += end + 2 - at
        return end + 2


def is_trailer(buffer: bytes | bytearray, at: int, end: int) -> bool:
    """Tell whether the line there may stand behind the last chunk: a field, and none that is about framing."""
    return _TRAILER_LINE.fullmatch(buffer, at, end) is not None and _FRAMING_LINE.match(buffer, at, end) is None


def _line_end(buffer: bytes | bytearray, at: int, max_bytes: int) -> int:
    """Where the line at `at` ends, -1 if that is not there yet; refused once it cannot be within `max_bytes`."""
    end = buffer.find(b"\r\n", at, at + max_bytes)
    if end < 0 and len(buffer) - at >= max_bytes:
        raise RequestError(400, "chunk line or trailers too long")
    return end
