"""Request heads: the types that doors code against, and the strict reading of one complete head.

llhttp splits and checks the fields; whatever it lets through that another server could read differently is refused
here (Y-3). A head comes in whole and its size is checked before (Y-2): cutting the stream is `connection`'s work,
framing a body `body`'s.
"""

from __future__ import annotations

import re
import string
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser

from breakloop.errors import RequestError

CHUNKED: Final = -1  # `Request.length` of a body whose length its chunks tell
CLOSE: Final = b"connection: close\r\n"
KEEP: Final = b"connection: keep-alive\r\n"

# The methods of llhttp, without CONNECT and PRI, which ask for something else than an answer.
_METHOD_NAMES: Final = (
    "GET POST PUT DELETE HEAD OPTIONS PATCH TRACE QUERY COPY LOCK MKCOL MOVE PROPFIND PROPPATCH SEARCH UNLOCK BIND "
    "REBIND UNBIND ACL REPORT MKACTIVITY CHECKOUT MERGE M-SEARCH NOTIFY SUBSCRIBE UNSUBSCRIBE PURGE MKCALENDAR LINK "
    "UNLINK SOURCE"
)
_METHODS: Final = {name.encode(): name for name in _METHOD_NAMES.split()}
# Origin-form only, visible ASCII without `#`: a fragment is cut off by some servers and not by others.
_REQUEST_LINE: Final = re.compile(rb"([A-Z-]+) (/[!-\"$-~]*) HTTP/1\.([01])\r\n")
_ANY_REQUEST_LINE: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+) ([^ \r\n]+) HTTP/([0-9])\.([0-9])\r\n")
_TOKEN_CHARS: Final = frozenset(b"!#$%&'*+-.^_`|~" + string.ascii_letters.encode() + string.digits.encode())
_HOST_CHARS: Final = (string.ascii_letters + string.digits + "-._~%!$&'()*+;=:[]").encode()
_BARE_LF: Final = re.compile(rb"(?<!\r)\n")
_ONCE_ONLY: Final = frozenset(("host", "content-length", "transfer-encoding"))
_ALIAS: Final = "\x00framing-alias"  # stands in `headers` for Content_Length and Transfer_Encoding
_MALFORMED: Final = "malformed request head"
_TOO_LARGE: Final = "request head too large"


@dataclass(frozen=True, slots=True)
class Limits:
    """What one client may cost (Y-2). Sizes in bytes, times in whole seconds of the server's one coarse sweep."""

    head_bytes: int = 64 * 1024
    fields: int = 200
    request_line_bytes: int = 16 * 1024
    body_bytes: int = 10 * 1024 * 1024
    chunk_line_bytes: int = 256
    trailer_bytes: int = 8 * 1024
    free_chunks: int = 1000  # so many chunks of any size; beyond that they must carry 64 bytes each on average
    backlog_bytes: int = 64 * 1024  # read ahead of a pending reply before reading pauses
    pipelined: int = 16  # requests of one connection answered before others get their turn
    connections: int = 10_000
    idle_s: int = 75
    head_s: int = 10
    body_s: int = 60  # without progress; the same for a client that does not read its answers
    linger_s: int = 2  # after a refusal, so that the client reads it before the connection resets


class Request:
    """One request as received, complete with its body. Slotted and plain because one is made per request."""

    __slots__ = (
        "_raw",
        "body",
        "connection",
        "expects_continue",
        "headers",
        "length",
        "method",
        "peer",
        "repeated",
        "started",
        "target",
    )

    def __init__(
        self,
        method: str = "GET",
        target: bytes = b"/",
        headers: dict[str, bytes] | None = None,
        repeated: tuple[tuple[str, bytes], ...] = (),
        raw_headers: Iterable[tuple[bytes, bytes]] | Fields = (),
        body: bytes = b"",
        peer: str = "",
        started: float = 0.0,
    ) -> None:
        self.method = method
        self.target = target
        self.headers = {} if headers is None else headers
        self.repeated = repeated
        self._raw = raw_headers
        self.body = body
        self.peer = peer
        self.started = started
        self.connection = b""  # the Connection line of its reply: empty for the usual HTTP/1.1 keep-alive
        self.length = 0  # of the body as announced, or CHUNKED
        self.expects_continue = False

    @property
    def raw_headers(self) -> list[tuple[bytes, bytes]]:
        """The fields as received, in order, without trailers."""
        return list(self._raw.items() if isinstance(self._raw, Fields) else self._raw)


class Reply:
    """An answer. `head` holds complete extra lines, each ending in CRLF; the server adds what framing needs."""

    __slots__ = ("body", "delay_s", "head", "status")

    def __init__(self, status: int, head: bytes = b"", body: bytes = b"", delay_s: float = 0.0) -> None:
        self.status = status
        self.head = head
        self.body = body
        self.delay_s = delay_s


Buffer = bytes | bytearray
Handler = Callable[[Request], Reply | Awaitable[Reply]]


class Fields(dict[bytes, bytes]):
    """llhttp's callback object when no field repeats: storing a field is one C call."""

    on_header = dict.__setitem__


class FieldList(list[tuple[bytes, bytes]]):
    """llhttp's callback object when one does."""

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep every field; white space after a value is no part of it, llhttp leaves it there."""
        self.append((name, value.rstrip(b" \t")))


class CanonicalNames(dict[bytes, str]):
    """Field name as received -> canonical name (`X-API_Key` -> `x-api-key`), remembered up to a bound."""

    max_names = 4096
    max_name_bytes = 64

    def __missing__(self, raw: bytes) -> str:
        name = raw.lower().replace(b"_", b"-").decode("latin-1")
        if b"_" in raw and name in _ONCE_ONLY:
            name = _ALIAS
        if len(self) < self.max_names and len(raw) <= self.max_name_bytes:
            self[raw] = name
        return name


class HeadParser:
    """Reads complete heads; one per server, without state between heads except the remembered names."""

    __slots__ = ("_max_fields", "_max_line", "_names")

    def __init__(self, limits: Limits) -> None:
        self._names = CanonicalNames()
        self._max_fields = limits.fields
        self._max_line = limits.request_line_bytes

    def parse(self, head: bytes, peer: str) -> Request:
        """Read one head, ending in its empty line. Raises `RequestError` for whatever is not plain and strict."""
        line = _REQUEST_LINE.match(head)
        if line is None:
            return self._after_empty_line(head, peer)
        method, target, minor = line.groups()
        count = head.count(b"\n") - 2
        if line.end() > self._max_line:
            raise RequestError(414, "request target too long")
        if count > self._max_fields:
            raise RequestError(431, _TOO_LARGE)
        if method not in _METHODS:
            raise RequestError(501, "method not implemented")
        fields = Fields()
        _feed(fields, head)
        names = self._names
        headers = {names[name]: value for name, value in fields.items()}
        if len(headers) != count or b" \r\n" in head or b"\t\r\n" in head:
            request = self._uncommon(head)
            headers = request.headers
        else:
            request = Request("", b"", headers, (), fields)
        request.method = _METHODS[method]
        request.target = target
        request.peer = peer
        host = headers.get("host")
        if host is None:
            if minor == b"1":
                raise RequestError(400, "Host is missing")
        elif host.translate(None, _HOST_CHARS):
            raise RequestError(400, "Host is not a host")
        if "content-length" in headers or "transfer-encoding" in headers or _ALIAS in headers:
            request.length = _length(headers, minor)
        if minor == b"0" or "connection" in headers:
            request.connection = _connection(request, minor)
        if "expect" in headers or "upgrade" in headers:
            request.expects_continue = _expects_continue(headers, minor)
        return request

    def _after_empty_line(self, head: bytes, peer: str) -> Request:
        """One empty line before a request is skipped (old clients end a body with one); the rest is refused."""
        if head.startswith(b"\r\n") and _REQUEST_LINE.match(head, 2):
            return self.parse(head[2:], peer)
        raise _refuse_line(head, self._max_line)

    def _uncommon(self, head: bytes) -> Request:
        """Repeated fields, or white space after values: the first value counts, the others are kept apart."""
        fields = FieldList()
        _feed(fields, head)
        headers: dict[str, bytes] = {}
        repeated: list[tuple[str, bytes]] = []
        for raw, value in fields:
            name = self._names[raw]
            if name not in headers:
                headers[name] = value
            elif name in _ONCE_ONLY:
                raise RequestError(400, f"repeated {name}")
            else:
                repeated.append((name, value))
        return Request("", b"", headers, tuple(repeated), fields)


def early_refusal(buffer: Buffer, start: int, stop: int, scanned: int, limits: Limits) -> RequestError | None:
    """What is already wrong with a head that is incomplete or was refused: the first fault in stream order.

    Asking this both before and after a head is complete makes the answer independent of how bytes were cut up.
    Everything before `scanned` was found in order by an earlier call.
    """
    size = stop - start
    if size and buffer[start] not in _TOKEN_CHARS and buffer[start] != 0x0D:
        return RequestError(400, _MALFORMED)
    line = start + 2 if buffer.startswith(b"\r\n", start) else start
    line_stop = line + limits.request_line_bytes
    if stop >= line_stop and buffer.find(b"\n", line, line_stop) < 0:
        return RequestError(414, "request target too long")
    if _BARE_LF.search(buffer, max(start, scanned), min(stop, start + limits.head_bytes)):
        return RequestError(400, _MALFORMED)
    return RequestError(431, _TOO_LARGE) if size > limits.head_bytes else None


def _feed(fields: Fields | FieldList, head: bytes) -> None:
    try:
        HttpRequestParser(fields).feed_data(head)
    except HttpParserUpgrade:
        pass  # every field is in by then, and the body is framed by us, so an upgrade nobody grants changes nothing
    except HttpParserError:
        raise RequestError(400, _MALFORMED) from None


def _refuse_line(head: bytes, max_line: int) -> RequestError:
    line = _ANY_REQUEST_LINE.match(head, 2 if head.startswith(b"\r\n") else 0)
    if line is None:
        return RequestError(400, "malformed request line")
    method, target, major, minor = line.groups()
    if line.end() > max_line:
        return RequestError(414, "request target too long")
    if (major, minor) not in ((b"1", b"0"), (b"1", b"1")):
        return RequestError(505, "only HTTP/1.1 and HTTP/1.0 are spoken here")
    if method not in _METHODS:
        return RequestError(501, "method not implemented")
    if not target.startswith(b"/"):
        return RequestError(400, "the request target must be a path")
    return RequestError(400, "the request target has characters that it must not have")


def _length(headers: dict[str, bytes], minor: bytes) -> int:
    if _ALIAS in headers:
        raise RequestError(400, "Content-Length or Transfer-Encoding spelled with an underscore")
    coding = headers.get("transfer-encoding")
    length = headers.get("content-length", b"0")
    if coding is not None:
        if coding.lower() != b"chunked" or minor == b"0" or "content-length" in headers:
            raise RequestError(400, "Transfer-Encoding must be chunked, alone and on HTTP/1.1")
        return CHUNKED
    if not length.isdigit() or len(length) > 18:
        raise RequestError(400, "Content-Length is not a number")
    return int(length)


def _connection(request: Request, minor: bytes) -> bytes:
    values = [request.headers.get("connection", b"")]
    values += [value for name, value in request.repeated if name == "connection"]
    options = {option.strip(b" \t") for option in b",".join(values).lower().split(b",")}
    if b"close" in options:
        return CLOSE
    if minor == b"1":
        return b""
    return KEEP if b"keep-alive" in options else CLOSE


def _expects_continue(headers: dict[str, bytes], minor: bytes) -> bool:
    if b"websocket" in headers.get("upgrade", b"").lower():
        raise RequestError(426, "websockets are not spoken here, use plain HTTP")
    if "expect" not in headers or minor == b"0":
        return False
    if headers["expect"].lower() != b"100-continue":
        raise RequestError(417, "only 100-continue can be expected")
    return True
