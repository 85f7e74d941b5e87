"""A strict HTTP/1.1 request parser that shares no code with the gateway, heads of responses, and compression."""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from http import HTTPStatus
from typing import Any, Final

from breakloop.dialects.encoding import EncodingError, decoded

HEAD_MAX_BYTES: Final = 256 * 1024
_PLAIN_MAX_BYTES: Final = 256 * 1024 * 1024
_TOKEN: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_VALUE: Final = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
_TARGET: Final = re.compile(rb"[\x21-\x7e\x80-\xff]+")
_SIZE: Final = re.compile(rb"[0-9A-Fa-f]{1,16}")
_END: Final = object()

Pairs = list[tuple[bytes, bytes]]


class MalformedError(Exception):
    """The request violates the RFCs."""


class SeenRequest:
    """A received request, and the outcome of its response."""

    def __init__(self, method: str, target: str, version: str, headers: Pairs) -> None:
        self.method = method
        self.target = target
        self.version = version
        self.headers = headers  # as sent, in order
        self.trailers: Pairs = []
        self.number = 0  # of the request, from 1
        self.connection = 0  # number of its connection, from 1
        self.received_at = 0.0  # when the head was complete
        self.complete = False  # the body is complete
        self.outcome = "waiting"  # "answering", then "sent", "cut" (by the script) or "aborted" (by the client)
        self.chunks_sent = 0
        self.bytes_sent = 0
        self.is_housekeeping = False  # MCP: anything but a tool call
        self._body = bytearray()

    def __repr__(self) -> str:
        return f"<request {self.number}: {self.method} {self.target}, {len(self._body)} bytes, {self.outcome}>"

    @property
    def body(self) -> bytes:
        """Return the body as far as it was received."""
        return bytes(self._body)

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    @property
    def query(self) -> str:
        return self.target.partition("?")[2]

    @property
    def digest(self) -> str:
        return hashlib.sha256(self._body).hexdigest()

    def header(self, name: str) -> str | None:
        """Return the first value of a header, or None; case does not matter."""
        values = self.header_all(name)
        return values[0] if values else None

    def header_all(self, name: str) -> list[str]:
        wanted = name.lower().encode("latin-1")
        return [value.decode("latin-1") for key, value in self.headers if key.lower() == wanted]

    def json(self) -> Any:
        """Return the body as JSON, decompressed if necessary. Raises ValueError if it is not JSON."""
        coding = self.header("content-encoding")
        try:
            plain = decoded(self.body, coding.encode(), _PLAIN_MAX_BYTES) if coding else self._body
        except EncodingError as error:
            raise ValueError(f"the body cannot be decompressed: {error}") from error
        return json.loads(plain)

    @property
    def fields(self) -> dict[str, Any]:
        """Return the JSON object in the body, or an empty one."""
        try:
            found = self.json()
        except (ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    def take(self, data: bytes | bytearray) -> None:
        self._body += data


class RequestReader:
    """Parses the requests of one connection: `head()` until it returns one, then `body()` until it returns True."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._body: Iterator[None] = iter(())  # of the current request; yields when it needs more bytes

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def head(self) -> SeenRequest | None:
        """Return the next request when its head is complete."""
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self._buffer) > HEAD_MAX_BYTES:
                raise MalformedError("a head without an end")
            return None
        first, *lines = bytes(self._buffer[:end]).split(b"\r\n")
        del self._buffer[: end + 4]
        seen = _request_line(first)
        seen.headers = _header_lines(lines)
        self._body = self._frame(seen)
        return seen

    def body(self, seen: SeenRequest) -> bool:
        """Move received bytes of the body into the request; returns whether the body is complete."""
        seen.complete = next(self._body, _END) is _END
        return seen.complete

    def _frame(self, seen: SeenRequest) -> Iterator[None]:
        lengths, codings = seen.header_all("content-length"), seen.header_all("transfer-encoding")
        if len(seen.header_all("host")) != 1 and seen.version == "1.1":
            raise MalformedError("not exactly one Host")
        if lengths and codings:
            raise MalformedError("Content-Length together with Transfer-Encoding")
        if codings and (codings != ["chunked"] or seen.version == "1.0"):
            raise MalformedError(f"Transfer-Encoding {codings} in HTTP/{seen.version}")
        if lengths and (len(lengths) > 1 or not (lengths[0].isascii() and lengths[0].isdigit())):
            raise MalformedError(f"Content-Length {lengths}")
        return self._chunks(seen) if codings else self._bytes(seen, int(lengths[0]) if lengths else 0)

    def _bytes(self, seen: SeenRequest, left: int) -> Iterator[None]:
        while left:
            part = self._buffer[:left]
            del self._buffer[:left]
            seen.take(part)
            left -= len(part)
            if left:
                yield

    def _chunks(self, seen: SeenRequest) -> Iterator[None]:
        while True:
            size = (yield from self._line()).partition(b";")[0]
            if not _SIZE.fullmatch(size):
                raise MalformedError(f"chunk size {size[:20]!r}")
            if not int(size, 16):
                break
            yield from self._bytes(seen, int(size, 16))
            if (yield from self._line()):
                raise MalformedError("a chunk longer than its size")
        while line := (yield from self._line()):
            seen.trailers += _header_lines([line])

    def _line(self) -> Generator[None, None, bytes]:
        while (end := self._buffer.find(b"\r\n")) < 0:
            if len(self._buffer) > HEAD_MAX_BYTES:
                raise MalformedError("a line without an end")
            yield
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 2]
        return line


def _request_line(line: bytes) -> SeenRequest:
    parts = line.split(b" ")
    if len(parts) != 3 or parts[2] not in {b"HTTP/1.1", b"HTTP/1.0"}:
        raise MalformedError(f"request line {line[:80]!r}")
    method, target, version = parts
    if not _TOKEN.fullmatch(method) or not _TARGET.fullmatch(target):
        raise MalformedError(f"request line {line[:80]!r}")
    return SeenRequest(method.decode("ascii"), target.decode("latin-1"), version[5:].decode("ascii"), [])


def _header_lines(lines: list[bytes]) -> Pairs:
    pairs: Pairs = []
    for line in lines:
        name, colon, value = line.partition(b":")
        value = value.strip(b" \t")
        if not colon or not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value):
            raise MalformedError(f"header line {line[:80]!r}")
        pairs.append((name, value))
    return pairs


REALISTIC_COUNT: Final = 24
_REASONS: Final = {status.value: status.phrase for status in HTTPStatus} | {529: "Overloaded"}

# Headers of hosted models, with made-up values.
_REALISTIC: Final = (
    ("x-request-id", "req_0123456789abcdef0123456789abcdef"),
    ("openai-organization", "org-standin"),
    ("openai-processing-ms", "412"),
    ("openai-project", "proj_standin"),
    ("openai-version", "2020-10-01"),
    ("x-envoy-upstream-service-time", "431"),
    ("x-ratelimit-limit-requests", "10000"),
    ("x-ratelimit-limit-tokens", "2000000"),
    ("x-ratelimit-remaining-requests", "9999"),
    ("x-ratelimit-remaining-tokens", "1998213"),
    ("x-ratelimit-reset-requests", "6ms"),
    ("x-ratelimit-reset-tokens", "53ms"),
    ("strict-transport-security", "max-age=31536000; includeSubDomains; preload"),
    ("cf-cache-status", "DYNAMIC"),
    ("set-cookie", "__cf_bm=standin.0123456789abcdef; path=/; HttpOnly; Secure; SameSite=None"),
    ("set-cookie", "_cfuvid=standin.fedcba9876543210; path=/; HttpOnly; Secure; SameSite=None"),
    ("x-content-type-options", "nosniff"),
    ("server", "stand-in"),
    ("cf-ray", "0123456789abcdef-SIN"),
    ("alt-svc", 'h3=":443"; ma=86400'),
    ("access-control-expose-headers", "X-Request-ID"),
    ("cache-control", "no-cache"),
)


def head(
    status: int,
    fields: Iterable[tuple[str, str]],
    own: Sequence[tuple[str, str]] = (),
    *,
    version: str = "1.1",
    realistic: bool = False,
) -> bytes:
    """Return a head without those of the server's `fields` that are in `own`."""
    named = {name.lower() for name, _ in own}
    pairs = [(name, value) for name, value in fields if name.lower() not in named]
    if realistic:
        room = REALISTIC_COUNT - len(pairs) - len(own)
        pairs += [pair for pair in _REALISTIC if pair[0] not in named][: max(room, 0)]
    lines = "".join([f"{name}: {value}\r\n" for name, value in (*pairs, *own)])
    return f"HTTP/{version} {status} {_REASONS.get(status, 'Unknown')}\r\n{lines}\r\n".encode("latin-1")


_WINDOW_BITS = {"gzip": zlib.MAX_WBITS | 16, "deflate": zlib.MAX_WBITS}


def accepted(seen: SeenRequest, coding: str) -> bool:
    if not coding:
        return False
    offers = ",".join(seen.header_all("accept-encoding")).lower().split(",")
    named = {name.strip(): weight.replace(" ", "") for name, _, weight in (offer.partition(";") for offer in offers)}
    weight = named.get(coding, named.get("*"))
    return weight is not None and weight not in {"q=0", "q=0.0", "q=0.00", "q=0.000"}


def compressed(
    pieces: Iterable[bytes], coding: str, packed_by: Callable[[bytes], bytes] | None, *, streamed: bool
) -> Iterable[bytes]:
    """Compress a body, chunk by chunk if it is streamed and the encoding can be flushed."""
    if packed_by is not None:
        plain = list(pieces)
        packed = packed_by(b"".join(plain))
        return list(pieces_of([packed], -(-len(packed) // max(len(plain), 1)))) if packed else []
    if streamed:
        return _flushed(pieces, coding)
    packer = zlib.compressobj(wbits=_WINDOW_BITS[coding])
    return [packer.compress(b"".join(pieces)) + packer.flush()]


def _flushed(pieces: Iterable[bytes], coding: str) -> Iterator[bytes]:
    packer = zlib.compressobj(wbits=_WINDOW_BITS[coding])
    for piece in pieces:
        yield packer.compress(piece) + packer.flush(zlib.Z_SYNC_FLUSH)
    yield packer.flush()


def pieces_of(pieces: Iterable[bytes], size_bytes: int) -> Iterator[bytes]:
    kept = b""
    for piece in pieces:
        kept += piece
        whole = len(kept) - len(kept) % size_bytes
        for start in range(0, whole, size_bytes):
            yield kept[start : start + size_bytes]
        kept = kept[whole:]
    if kept:
        yield kept
