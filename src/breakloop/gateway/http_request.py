"""Reading HTTP/1.1 requests: limits, request heads, and the reader that cuts a byte stream into requests.

Heads are parsed strictly. Each line is checked against the grammar of RFC 9112, as llhttp does (tests compare the two);
what llhttp accepts and another server could read differently is rejected too. Lines are checked one by one, because
clients repeat most of them in every request, and a line that was valid once need not be checked again; neither need a
head in which only the length of the body differs, or a few values such as a trace id.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec
from msgspec.structs import replace

from breakloop.config import settings
from breakloop.errors import RequestError
from breakloop.gateway.framing import FIELD_LINE, LengthFraming, RequestChunks
from breakloop.model.call import CREDENTIAL_HEADERS
from breakloop.policy.cache import MemoDict

_DEFAULTS: Final = settings.Limits()


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Limits of the traffic port. Those that users can set have their defaults in the settings. Times are in whole
    seconds, because the server checks them once a second."""

    head_bytes: int = _DEFAULTS.head_bytes
    fields: int = _DEFAULTS.fields
    request_line_bytes: int = 16 * 1024
    body_bytes: int = _DEFAULTS.body_bytes
    all_bodies_bytes: int = 256 * 1024 * 1024  # of incomplete bodies, over all connections
    backlog_bytes: int = 64 * 1024  # buffered behind a pending reply before reading pauses
    pipelined: int = 16  # requests of one connection processed before others are served
    connections: int = _DEFAULTS.connections
    connections_per_peer: int = _DEFAULTS.connections_per_peer
    idle_s: int = _DEFAULTS.idle_seconds
    head_s: int = _DEFAULTS.head_seconds
    body_s: int = _DEFAULTS.body_seconds  # without progress; also for a client that does not read its response
    linger_s: int = 2  # after an error, so that the client can read it


CHUNKED: Final = -1  # `Request.length` of a chunked body
BODYLESS: Final = frozenset((204, 304))  # statuses whose responses have no body
CLOSE: Final = b"connection: close\r\n"
KEEP: Final = b"connection: keep-alive\r\n"

# The methods of llhttp, without CONNECT and PRI, which do not ask for a response, and TRACE, whose response would show
# the client the provider's key.
_METHOD_NAMES: Final = (
    "GET POST PUT DELETE HEAD OPTIONS PATCH QUERY COPY LOCK MKCOL MOVE PROPFIND PROPPATCH SEARCH UNLOCK BIND "
    "REBIND UNBIND ACL REPORT MKACTIVITY CHECKOUT MERGE M-SEARCH NOTIFY SUBSCRIBE UNSUBSCRIBE PURGE MKCALENDAR LINK "
    "UNLINK SOURCE"
)
_METHODS: Final = {name.encode(): name for name in _METHOD_NAMES.split()}
_REQUEST_LINE: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+) ([^ ]+) HTTP/([0-9]\.[0-9])")
_TARGET: Final = re.compile(rb"/[!-\"$-~]*")  # without `#`: only some servers strip a fragment
_lines_of: Final = re.compile(rb"\r\n").split  # takes two thirds of the time of `bytes.split`
_TOKEN_CHARS: Final = frozenset(b"!#$%&'*+-.^_`|~" + string.ascii_letters.encode() + string.digits.encode())
_HOST_CHARS: Final = (string.ascii_letters + string.digits + "-._~%!$&'()*+;=:[]").encode()
BARE_LF: Final = re.compile(rb"(?<!\r)\n")
_ONCE_ONLY: Final = frozenset(("host", "content-length", "transfer-encoding"))
_STRICT: Final = _ONCE_ONLY | {"expect"}
_MALFORMED: Final = "malformed request head"
NO_WEBSOCKET: Final = "WebSocket upgrades are not supported here; use plain HTTP"
_TOO_LARGE: Final = "request head too large"
_TOO_LONG: Final = "request target too long"
LENGTH_NAME: Final = b"ength: "  # the end of the name, whose first letters may be upper or lower case
_LENGTH_FIELD: Final = b"content-length: "
LENGTH_LINE: Final = b"\r\n" + _LENGTH_FIELD
LENGTH_DIGITS: Final = 18

# The values of these are the same in all heads of a template: what follows from them is kept with it.
_NEVER_VARYING: Final = frozenset((
    *CREDENTIAL_HEADERS, "accept-encoding", "anthropic-version", "connection", "content-encoding", "content-length",
    "cookie", "expect", "host", "http2-settings", "keep-alive", "proxy-authenticate", "proxy-authorization",
    "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade", "x-breakloop-hop",
))  # fmt: skip
# Control characters but tabs become question marks. `bytes.translate` takes a third of the time of an expression.
_NO_CONTROLS: Final = bytes(code if code == 9 or (code >= 32 and code != 127) else 63 for code in range(256))
_VARYING_MAX: Final = 5  # fields whose values differ, with Content-Length
_VARYING_BYTES: Final = 1024  # of one value
_LATEST_MAX: Final = 64  # request lines whose last head is kept
_PAUSE_MAX: Final = 64  # heads that are not compared after one that shares no template

TWO_DIGITS: Final = tuple([f"{number:02x}" for number in range(256)])

T = TypeVar("T")


class Request(msgspec.Struct, gc=False):
    """One request as received. A `Struct`, because one is made per request (0.1 us instead of 0.4)."""

    method: str
    target: bytes  # as sent: path and query
    headers: dict[str, bytes]  # canonical name -> first value
    repeated: tuple[tuple[str, bytes], ...] = ()  # further values of repeated fields
    raw: bytes = b""  # the head as sent
    body: bytes = b""
    peer: str = ""  # client address without port, empty on a Unix socket
    connection: bytes = b""  # the Connection line of the response: empty for the usual HTTP/1.1 keep-alive
    length: int = 0  # of the body as declared, or CHUNKED
    expects_continue: bool = False
    is_1_1: bool = True
    streamed: bool = False  # `body` is only its beginning; the rest is passed on as it arrives, without inspection
    template: HeadTemplate | None = None  # shared by heads that differ in a few values


class HeadTemplate(msgspec.Struct, weakref=True):
    """What heads that differ only in a few values have in common."""

    request: Request  # one of them
    before: bytes  # what comes before the first of these values
    forwarded: dict[Any, Any] = msgspec.field(default_factory=dict)  # what is sent to the upstream, by its rewriter
    route: Any = None  # what the proxy has found out about them
    asked: Any = None  # what the decision service has found out about them
    sender: Any = None  # what `policy` keeps of their sender
    varying: tuple[str, ...] = ()  # the names of these fields, without Content-Length

    @property
    def max_bytes(self) -> int:
        """How long such a head can be."""
        raise NotImplementedError

    def whole_request(self, data: bytes, peer: str) -> Request | None:
        """Return the request if `data` is one of these heads, its body, and nothing else."""
        raise NotImplementedError


class LengthTemplate(HeadTemplate, kw_only=True):
    """Of heads that differ only in the value of Content-Length, as most agents send them."""

    after: bytes

    @property
    def max_bytes(self) -> int:
        return len(self.before) + LENGTH_DIGITS + len(self.after)

    def whole_request(self, data: bytes, peer: str) -> Request | None:
        before, after = self.before, self.after
        start = len(before)
        end = data.find(b"\r", start, start + LENGTH_DIGITS + 1)  # looking for all of `after` takes ten times as long
        size = data[start:end]
        if not (size.isdigit() and data.startswith(after, end) and data.startswith(before)):
            return None
        end += len(after)
        return self.with_length(size, data[:end], data[end:], peer) if len(data) == end + int(size) else None

    def with_length(self, size: bytes, head: bytes, body: bytes, peer: str) -> Request:
        headers = self.request.headers.copy()
        headers["content-length"] = size
        return replace(self.request, headers=headers, raw=head, body=body, peer=peer, length=int(size), template=self)


class VaryingTemplate(HeadTemplate, kw_only=True):
    """Of heads that differ in other values: a trace id, the address that a gateway asks about."""

    slots: tuple[tuple[str, bytes], ...]  # the name of each field, and what follows its value
    has_length: bool

    @property
    def max_bytes(self) -> int:
        return len(self.before) + sum(_VARYING_BYTES + len(after) for _, after in self.slots)

    def marked(self) -> bytes:
        """Return the head with `mark(0)`, `mark(1)` and so on in the place of the values."""
        marks = {name: mark(number) for number, name in enumerate(self.varying)}
        return self.before + b"".join([marks.get(name, b"0") + after for name, after in self.slots])

    def whole_request(self, data: bytes, peer: str) -> Request | None:
        before, like = self.before, self.request
        if not data.startswith(before):
            return None
        headers = like.headers.copy()
        at = len(before)
        for name, after in self.slots:
            end = data.find(b"\r", at, at + _VARYING_BYTES + 1)
            value = data[at:end]
            if not data.startswith(after, end) or not value or value.translate(_NO_CONTROLS) != value.strip():
                return None  # as `_is_plain_value`, without the call
            headers[name] = value
            at = end + len(after)
        length = 0
        if self.has_length:
            value = headers["content-length"]
            if not value.isdigit() or len(value) > LENGTH_DIGITS:
                return None
            length = int(value)
        if len(data) != at + length:
            return None
        return Request(
            like.method, like.target, headers, (), data[:at], data[at:], peer, b"", length, False, True, False, self
        )


def mark(number: int) -> bytes:
    """Bytes that no head contains."""
    return b"\0%d\0" % number


class Reply(msgspec.Struct, eq=False, gc=False):
    """A response of our own. `head` holds complete header lines, each ending in CRLF; the server adds the framing."""

    status: int
    head: bytes = b""
    body: bytes = b""
    delay_s: float = 0.0


Buffer = bytes | bytearray
# Returns a `Reply`, or a `DeferredReply` or `Exchange` (`gateway.exchange`).
Handler = Callable[[Request], Any]


def asks_for_websocket(request: Request) -> bool:
    """Return whether a client asks to switch to the websocket protocol."""
    return request.is_1_1 and b"websocket" in request.headers.get("upgrade", b"").lower()


class HeadParser:
    """Parses complete heads; one per server. Caches heads and lines that recur."""

    def __init__(self, limits: RequestLimits) -> None:
        self._limits = limits
        self._request_lines = MemoDict(self._request_line)
        self._field = MemoDict(_field).__getitem__
        self._templates = HeadCache[LengthTemplate]()
        self._varying = HeadCache[VaryingTemplate]()
        # The lines of the last new head, by its request line; what differed from the head before it is cut off.
        self._latest: dict[bytes, list[bytes]] = {}
        self._pause = 0  # so many heads are not compared with the one before
        self._next_pause = 0
        self.websockets = False  # the handler decides about them; else they are refused here

    def parse(self, head: bytes, peer: str) -> Request:
        """Parse one head, up to and including its empty line. Raises `RequestError`."""
        start = head.rfind(LENGTH_NAME)
        if start < 0:
            return self.parse_new(head, peer)
        start += 7  # its length
        size, _, rest = head[start:].partition(b"\r")
        if not size.isdigit() or len(size) > LENGTH_DIGITS:
            return self.parse_new(head, peer)
        key = head[:start] + rest
        template = self._templates.get(key)
        if template is None:
            request = self.parse_new(head, peer)
            if request.raw is head and head[:start].lower().endswith(LENGTH_LINE):
                if self._templates.recurs(key):
                    like = replace(request, raw=b"", peer="", headers=request.headers.copy())
                    self._templates.put(key, LengthTemplate(like, head[:start], after=b"\r" + rest))
                else:
                    self._find_template(request)
            return request
        return template.with_length(size, head, b"", peer)

    def parse_bodiless(self, head: bytes, peer: str) -> Request:
        """Parse a head that arrived alone, usually of a request without a body."""
        request = self.parse_new(head, peer)
        if request.raw is head and not request.length:
            self._find_template(request)
        return request

    def _find_template(self, request: Request) -> None:
        """Set the template of a new head that differs from the one before in a few values, if it came before."""
        if self._pause:  # where each head is another one, comparing is of no use
            self._pause -= 1
            return
        slots: dict[int, str] | None = None
        lines: list[bytes] = []
        is_usual = request.is_1_1 and not (request.repeated or request.connection or request.expects_continue)
        if is_usual and request.length >= 0 and len(request.raw) <= self._varying.max_key:
            lines = _lines_of(request.raw)
            before = self._latest.get(lines[0])
            if before is None and len(self._latest) >= _LATEST_MAX:
                self._latest.clear()
            self._latest[lines[0]] = lines
            slots = None if before is None else _slots(lines, before)
        if slots is None or (request.length and "content-length" not in slots.values()):
            self._pause, self._next_pause = self._next_pause, min(2 * self._next_pause + 1, _PAUSE_MAX)
            return
        self._next_pause = 0
        for at, name in slots.items():
            lines[at] = lines[at][: len(name) + 2] + b"\0"
        key = b"\r\n".join(lines)
        template = self._varying.get(key)
        if template is None and self._varying.recurs(key):
            first, *rest = key.split(b"\0")
            names = slots.values()
            like = replace(request, raw=b"", peer="", headers=request.headers | dict.fromkeys(names, b""))
            varying = tuple([name for name in names if name != "content-length"])
            template = VaryingTemplate(
                like,
                first,
                slots=tuple(zip(names, rest, strict=True)),
                varying=varying,
                has_length=len(varying) < len(slots),
            )
            self._varying.put(key, template)
        if template is not None:
            request.template = template

    def parse_new(self, head: bytes, peer: str) -> Request:
        """Do the same, without looking for a head that differs only in its length."""
        lines = _lines_of(head)
        count = len(lines) - 3
        if count > self._limits.fields:
            raise RequestError(431, _TOO_LARGE)
        if not lines[0] and lines[1]:
            return self.parse_new(head[2:], peer)  # one empty line before a request is allowed: old clients send it
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
        if "upgrade" in headers and not self.websockets and asks_for_websocket(request):
            raise RequestError(426, NO_WEBSOCKET)
        return request

    def _request_line(self, line: bytes) -> tuple[str, bytes, bool]:
        """Return the method, the target, and whether the version is 1.1 (not 1.0)."""
        if len(line) + 2 > self._limits.request_line_bytes:
            raise RequestError(414, _TOO_LONG)
        match = _REQUEST_LINE.fullmatch(line)
        if match is None:
            raise RequestError(400, "malformed request line")
        method, target, version = match.groups()
        if version not in (b"1.1", b"1.0"):
            raise RequestError(505, "only HTTP/1.1 and HTTP/1.0 are supported")
        if method not in _METHODS:
            raise RequestError(501, "method not implemented")
        if not _TARGET.fullmatch(target):
            raise RequestError(400, "the request target must be a path in visible ASCII")
        return _METHODS[method], target, version == b"1.1"

    def _repeated(self, headers: dict[str, bytes], lines: list[bytes]) -> tuple[tuple[str, bytes], ...]:
        """Keep the first value of each repeated field in `headers`; return the others."""
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


class HeadCache(dict[bytes, T]):
    """What is kept for heads that were received at least twice, by what they have in common. Heads that never recur
    cost no more than one hash each."""

    max_entries = 2048
    max_key = 4096
    max_seen = 16384

    def __init__(self) -> None:
        super().__init__()
        self._seen: set[int] = set()

    def recurs(self, key: bytes) -> bool:
        """Note a head that was parsed; return whether to `put` it here, because it was noted before."""
        mark = hash(key)
        seen = self._seen
        if mark in seen:
            return len(key) <= self.max_key
        if len(seen) >= self.max_seen:
            seen.clear()
        seen.add(mark)
        return False

    def put(self, key: bytes, value: T) -> None:
        if len(self) >= self.max_entries:
            self.clear()
        self[key] = value


def early_error(buffer: Buffer, start: int, stop: int, scanned: int, limits: RequestLimits) -> RequestError | None:
    """Return the first error in stream order of a head that is incomplete or was rejected.

    Checked both before and after a head is complete, so that the error does not depend on how the bytes were split.
    Everything before `scanned` was checked by an earlier call.
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
    """Canonical name (`X-API_Key` is `x-api-key`) and value. Checks what does not depend on other lines."""
    found = FIELD_LINE.fullmatch(line)
    if found is None:
        raise RequestError(400, _MALFORMED)
    raw, value = found.groups()
    value = value.strip(b" \t")
    name = _canonical(raw)
    if name in _STRICT:
        _check_field(name, raw, value)
    return name, value


def _slots(lines: list[bytes], before: list[bytes]) -> dict[int, str] | None:
    """Return which lines differ in their values from those of the head before, with their names, and the line of
    Content-Length; None for heads that cannot share a template."""
    if len(lines) != len(before):
        return None
    found: dict[int, str] = {}
    for at, (line, other) in enumerate(zip(lines, before, strict=True)):
        is_length = line[: len(_LENGTH_FIELD)].lower() == _LENGTH_FIELD
        if line == other and not is_length:
            continue
        raw, _, value = line.partition(b":")
        name = _canonical_name(raw)
        if (name in _NEVER_VARYING and not is_length) or value[:1] != b" " or not _is_plain_value(value[1:]):
            return None
        found[at] = name
    return found if len(found) <= _VARYING_MAX and [*found.values()] != ["content-length"] else None


def _is_plain_value(value: bytes) -> bool:
    """Return whether a value is not empty, and has neither control characters nor white space around it."""
    return bool(value) and value.translate(_NO_CONTROLS) == value.strip()


def _canonical_name(raw: bytes) -> str:
    return raw.lower().replace(b"_", b"-").decode("latin-1")


# Clients share a few dozen names, even where the values are new each time.
_canonical: Final = MemoDict(_canonical_name).__getitem__


def _check_field(name: str, raw: bytes, value: bytes) -> None:
    if b"_" in raw and name in _ONCE_ONLY:  # some servers treat Content_Length as the real one
        raise RequestError(400, "Content-Length or Transfer-Encoding spelled with an underscore")
    if name == "host" and value.translate(None, _HOST_CHARS):
        raise RequestError(400, "Host is not a valid host")
    if name == "content-length" and (not value.isdigit() or len(value) > LENGTH_DIGITS):
        raise RequestError(400, "Content-Length is not a number")
    if name == "transfer-encoding" and value.lower() != b"chunked":
        raise RequestError(400, "Transfer-Encoding must be chunked")
    if name == "expect" and value.lower() != b"100-continue":
        raise RequestError(417, "the only supported Expect value is 100-continue")


def _length(headers: dict[str, bytes], *, is_1_1: bool) -> int:
    if "transfer-encoding" not in headers:
        return int(headers["content-length"])
    if not is_1_1 or "content-length" in headers:
        raise RequestError(400, "Transfer-Encoding needs HTTP/1.1 and no Content-Length")
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


StreamsBody = Callable[[Request], bool]  # whether the body of a request is streamed to the upstream


SMALL_BODY_BYTES: Final = 256 * 1024  # accepted even when memory is short


class BodyMemory:
    """Memory that incomplete request bodies take, over all connections of a server."""

    def __init__(self, limits: RequestLimits) -> None:
        self._limit = limits.all_bodies_bytes
        self.held = 0
        self.is_short = False  # the memory of the container is nearly used up
        self.shed = 0  # bodies that were refused for that

    @property
    def room(self) -> int:
        """How many more bytes may be held."""
        return SMALL_BODY_BYTES if self.is_short else max(0, self._limit - self.held)

    def check(self, size: int) -> None:
        """Raise `RequestError` (503) for a body that is too large while memory is short."""
        if size > SMALL_BODY_BYTES:
            self.shed += 1
            raise RequestError(503, "the memory limit is nearly reached, and only small request bodies are accepted")

    def reserve(self, size: int) -> None:
        """Reserve bytes. Raises `RequestError` (503) when the limit is reached."""
        if self.held + size > self._limit:
            raise RequestError(503, "too many request bodies are arriving at once")
        self.held += size


class BodyCollector:
    """The body of a request that is still arriving. `most` is explained at `RequestChunks`."""

    __slots__ = ("_framing", "_memory", "content", "request")

    def __init__(self, request: Request, memory: BodyMemory, most: int | None) -> None:
        self.request = request
        self.content = bytearray()  # not a list of pieces: pieces of one byte would take 40 times their size
        self._framing = RequestChunks(most) if request.length == CHUNKED else LengthFraming(request.length)
        self._memory = memory

    @property
    def done(self) -> bool:
        return self._framing.done

    def feed(self, data: bytes) -> int:
        """Add the content of `data`; return how many bytes belong to this body. Raises `RequestError`."""
        used = self._framing.feed(data)
        if self._memory.is_short and not self.request.streamed:
            self._memory.check(max(self.request.length, len(self.content) + used))
        for piece in self._framing.content:
            self._memory.reserve(len(piece))
            self.content += piece
        return used

    def take(self) -> bytes:
        """Return what has arrived, and release its memory."""
        content = bytes(self.content)
        self.release()
        self.content.clear()
        return content

    def release(self) -> None:
        self._memory.held -= len(self.content)


class RequestReader:
    """Cuts the bytes of one connection into requests.

    Pipelined requests stay bytes until they are processed, so there is no queue of parsed requests and the parser never
    runs past the current one. A body is collected, unless `streams_body` says that it is streamed.
    """

    __slots__ = ("_at", "_heads", "_limits", "_memory", "_scanned", "_streams_body", "body", "buffer", "continue_due")

    def __init__(
        self, heads: HeadParser, limits: RequestLimits, memory: BodyMemory, streams_body: StreamsBody | None = None
    ) -> None:
        self._heads = heads
        self._limits = limits
        self._memory = memory
        self._streams_body = streams_body  # None: every body is collected, and a larger one rejected
        self.buffer: bytes | bytearray = b""  # received; not empty while bytes are not consumed
        self._at = 0  # everything before is consumed
        self._scanned = 0  # the end of the head at `_at` was not found before this position
        self.body: BodyCollector | None = None
        self.continue_due = False  # the client waits for "100 Continue" before it sends its body

    def __len__(self) -> int:
        return len(self.buffer) - self._at

    @property
    def streaming(self) -> bool:
        """Whether a request was returned whose body is still arriving."""
        return self.body is not None and self.body.request.streamed

    def push(self, data: bytes) -> None:
        if not self.buffer:
            self.buffer = data
            return
        if isinstance(self.buffer, bytes):
            self.buffer = bytearray(self.buffer)  # grows in place, so that many small reads are not copied each time
        self.buffer += data

    def next(self, peer: str) -> Request | None:
        """Return the next request if it is complete. Raises `RequestError` at the first error in the stream."""
        if self.body is not None:
            return self._read_body(self.body)
        if self._at == len(self.buffer):
            return None
        head = self._take_head()
        if head is None:
            return None
        try:
            request = self._heads.parse(head, peer)
        except RequestError as error:
            raise early_error(head, 0, len(head), 0, self._limits) or error from None
        return self._open_body(request) if request.length else request

    def read_streamed(self) -> tuple[bytes, bool]:
        """Return the next piece of a streamed body, and whether it was the last."""
        body = self.body
        assert body is not None  # noqa: S101 - only called while `streaming`
        self._feed(body)
        self.compact()
        if body.done:
            self.body = None
        return body.take(), body.done

    def _feed(self, body: BodyCollector) -> None:
        self._at += body.feed(bytes(self.buffer[self._at :]))

    def compact(self) -> None:
        """Drop the consumed part of the buffer. Called once per batch and not per request, because it copies."""
        if self._at:
            self.buffer = self.buffer[self._at :]
            self._scanned = max(0, self._scanned - self._at)
            self._at = 0

    def take(self) -> bytes:
        """Return everything that is buffered, which is not HTTP."""
        taken = bytes(self.buffer[self._at :])
        self.clear()
        return taken

    def clear(self) -> None:
        self.buffer = b""
        self._at = 0
        self._scanned = 0
        if self.body is not None:
            self.body.release()
        self.body = None

    def _take_head(self) -> bytes | None:
        buffer, at = self.buffer, self._at
        end = buffer.find(b"\r\n\r\n", max(at, self._scanned - 3))
        stop = len(buffer) if end < 0 else end + 4
        if end < 0 or stop - at > self._limits.head_bytes:
            error = early_error(buffer, at, stop, self._scanned, self._limits)
            if error:
                raise error
            self._scanned = stop
            return None
        self._at = stop
        self._scanned = 0
        return bytes(buffer[at:stop])

    def _open_body(self, request: Request) -> Request | None:
        """Decide whether the body is complete, streamed, collected or rejected."""
        most, streams_body = self._limits.body_bytes, self._streams_body
        if request.length > most and streams_body is None:
            raise RequestError(413, "request body too large")
        stop = self._at + request.length
        if 0 < request.length <= most and stop <= len(self.buffer):  # usually it arrived with its head
            request.body = bytes(self.buffer[self._at : stop])
            self._at = stop
            return request
        self.body = BodyCollector(request, self._memory, most if streams_body is None else None)
        self.continue_due = request.expects_continue
        if streams_body is not None and (request.length > most or streams_body(request)):
            request.streamed = True
            return request
        return self._read_body(self.body)

    def _read_body(self, body: BodyCollector) -> Request | None:
        self._feed(body)
        if not body.done:
            if len(body.content) <= self._limits.body_bytes:
                return None
            body.request.streamed = True  # a chunked body that is too large to be inspected is forwarded all the same
            body.request.body = body.take()
            return body.request
        body.request.body = body.take()
        self.body = None
        self.continue_due = False
        return body.request
