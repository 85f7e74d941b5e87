"""The head that goes to the upstream (SPEC D-1, Y-3, LD-9, C-9): the client's fields in their order and bytes, without
what is only between two neighbours, without copies of our own, and with exactly one Host and one framing.
Which upstream it is for is `targets`' work. Lines recur, so what becomes of one is worked out once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final
from urllib.parse import unquote_to_bytes

from breakloop.gateway.debug import COOKIE
from breakloop.gateway.head import CHUNKED, Request
from breakloop.gateway.targets import Destination, is_azure
from breakloop.model.call import CREDENTIAL_HEADERS
from breakloop.model.upstream import Upstream
from breakloop.policy.recent import Remembered

HOP: Final = "x-breakloop-hop"  # whatever the prefix of our other fields is: instances have to understand each other
CREDENTIALS: Final = frozenset(CREDENTIAL_HEADERS)

_OWN: Final = "x-breakloop-"
_BETWEEN_NEIGHBOURS: Final = frozenset(
    (
        "connection",
        "content-length",
        "expect",
        "host",
        "http2-settings",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    )
)
_SAID_ANEW: Final = frozenset(("x-forwarded-for", "x-forwarded-host", "x-forwarded-proto"))
_OF_THE_BYTES: Final = frozenset(("content-digest", "content-encoding", "content-md5", "digest", "repr-digest"))
# What `Connection: name` cannot take away: the request was judged by these, or would mean something else without them.
_KEPT: Final = CREDENTIALS | {"cookie", "forwarded", "idempotency-key", "range", "user-agent", "via"}
_KEPT_BEGINNINGS: Final = ("accept", "anthropic-", "content-", "if-", "mcp-", "openai-", "x-agent-", "x-forwarded-")
_USUAL_CONNECTIONS: Final = frozenset((b"keep-alive", b"Keep-Alive", b"close"))
_NO_BODY_EXPECTED: Final = frozenset(("GET", "HEAD", "DELETE", "OPTIONS", "TRACE"))
_READABLE: Final = frozenset((b"gzip", b"x-gzip", b"deflate", b"br", b"zstd", b"identity"))
_DEBUG: Final = f"{COOKIE}=".encode()
_TOKEN: Final = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_TOKENS_MAX: Final = 16
_BEARER: Final = b"Authorization: Bearer "
_KEY_FIELDS: Final = (
    ("anthropic", "api.anthropic.com", b"x-api-key: "),
    ("gemini", "generativelanguage.googleapis.com", b"x-goog-api-key: "),
)


class Forwarding:
    """Makes heads; one per process. `token` is this proxy's own mark, which a request that came through it carries.

    `keys` are provider keys by name of upstream: requests there lose the client's credentials and carry these.
    `trusts` says of a peer whether its X-Forwarded-Proto and -Host are believed; `scheme` is that of our own port.
    """

    __slots__ = ("_hop", "_hop_line", "_keyless", "_keys", "_line", "_scheme", "_trusts", "_via")

    def __init__(
        self,
        prefix: str,
        token: str,
        *,
        via: bool = False,
        keys: Mapping[str, bytes] | None = None,
        scheme: str = "http",
        trusts: Callable[[str], bool] | None = None,
    ) -> None:
        own = (_OWN, prefix.lower())
        dropped = _BETWEEN_NEIGHBOURS | _SAID_ANEW if via else _BETWEEN_NEIGHBOURS
        self._line = Remembered(partial(_line, own=own, dropped=dropped)).__getitem__
        self._keyless = Remembered(partial(_line, own=own, dropped=dropped | CREDENTIALS)).__getitem__
        self._hop = token.encode("ascii")
        self._hop_line = b"X-Breakloop-Hop: %b\r\n" % self._hop
        self._via = via
        self._keys = dict(keys or {})
        self._scheme = scheme.encode("ascii")
        self._trusts = trusts

    def came_through(self, request: Request) -> bool:
        """LD-9: tell whether the request has passed this proxy before."""
        return HOP in request.headers and self._hop in _values(request, HOP)

    def head(
        self,
        request: Request,
        destination: Destination,
        query: bytes,
        length: int,
        *,
        plain: bool = False,
        wants_plain: bool = False,
    ) -> bytes:
        """Return the whole head. `length` is the body's, or CHUNKED; `plain`: it was unpacked and rewritten;
        `wants_plain`: the answer must not be packed, because it will be rewritten.
        """
        upstream = destination.upstream
        to_send = self._line
        more = self._hop_line if HOP not in request.headers else self._hops(request)
        if wants_plain:
            more += b"accept-encoding: identity\r\n"
        if self._via:
            more += self._via_lines(request)
        if self._keys and upstream.name in self._keys:
            to_send = self._keyless
            more += self._key_line(destination)
            query = _without_key(query)
        like = None if plain or wants_plain else request.like
        passed = None if like is None else like.passed.get(to_send)
        if passed is None:
            passed = b"".join(map(to_send, _lines(request, plain=plain, wants_plain=wants_plain)))
            if like is not None:
                like.passed[to_send] = passed
        method, target = request.method, destination.target
        if query:
            target = b"%b?%b" % (target, query)
        if length > 0:
            framing = b"content-length: %d\r\n" % length
        elif length == CHUNKED:
            framing = b"transfer-encoding: chunked\r\n"
        else:
            framing = b"" if method in _NO_BODY_EXPECTED else b"content-length: 0\r\n"
        authority = upstream.authority
        return b"%b %b HTTP/1.1\r\nhost: %b\r\n%b%b%b\r\n" % (
            method.encode(), target, authority, passed, framing, more,
        )  # fmt: skip

    def _hops(self, request: Request) -> bytes:
        """Our token behind those of other breakloops."""
        tokens = [token for token in _values(request, HOP) if _TOKEN.fullmatch(token)]
        return b"X-Breakloop-Hop: %b\r\n" % b", ".join((*tokens[-_TOKENS_MAX:], self._hop))

    def _via_lines(self, request: Request) -> bytes:
        headers, peer = request.headers, request.peer.encode("ascii", "replace")
        chain = _values(request, "x-forwarded-for")
        if peer:
            chain.append(peer)
        trusted = self._trusts is not None and self._trusts(request.peer)
        host = headers.get("x-forwarded-host") if trusted else None
        proto = headers.get("x-forwarded-proto") if trusted else None
        lines = b"Via: 1.1 breakloop\r\nX-Forwarded-Proto: %b\r\n" % (proto or self._scheme)
        if host or "host" in headers:
            lines += b"X-Forwarded-Host: %b\r\n" % (host or headers["host"])
        return lines + b"X-Forwarded-For: %b\r\n" % b", ".join(chain) if chain else lines

    def _key_line(self, destination: Destination) -> bytes:
        field = key_field(destination.upstream, destination.path)
        return b"%b%b\r\n" % (field, self._keys[destination.upstream.name])


def _lines(request: Request, *, plain: bool, wants_plain: bool) -> list[bytes]:
    """Return the client's lines, without what cannot be passed on whoever gets them."""
    headers, lines = request.headers, request.raw.split(b"\r\n")[1:-2]
    if plain:
        lines = [line for line in lines if _name(line) not in _OF_THE_BYTES]
    if "connection" in headers and (headers["connection"] not in _USUAL_CONNECTIONS or request.repeated):
        lines = _without_named(lines, request)
    if wants_plain:
        lines = [line for line in lines if _name(line) != "accept-encoding"]
    return lines


def key_field(upstream: Upstream, path: str) -> bytes:
    """Return the beginning of the line in which an upstream wants its key. Anthropic and Gemini speak OpenAI's too."""
    if upstream.name == "azure" or is_azure(upstream):
        return b"api-key: "
    for name, host, field in _KEY_FIELDS:
        if upstream.name == name or upstream.host == host:
            return _BEARER if "/openai/" in path or path.endswith("/chat/completions") else field
    return _BEARER


def _line(line: bytes, *, own: tuple[str, ...], dropped: frozenset[str]) -> bytes:
    """What is sent of one line: most often all of it."""
    name = _name(line)
    if name in dropped or name.startswith(own):
        return b""
    if name == "accept-encoding":
        line = _readable(line)
    elif name == "cookie" and _DEBUG in line:
        return _without_debug(line)
    return line + b"\r\n"


def _name(line: bytes) -> str:
    return line.partition(b":")[0].lower().replace(b"_", b"-").decode("latin-1")


def _readable(line: bytes) -> bytes:
    """C-9: only codings that we can undo to read the answer; `identity` when the client names no such."""
    name, _, value = line.partition(b":")
    offered = [coding.strip(b" \t") for coding in value.split(b",")]
    kept = [coding for coding in offered if coding.partition(b";")[0].strip(b" \t").lower() in _READABLE]
    if len(kept) == len(offered) or not value.strip(b" \t"):
        return line
    return b"%b: %b" % (name, b", ".join(kept) or b"identity")


def _without_debug(line: bytes) -> bytes:
    """A cookie that opens our debug sessions is nobody else's business."""
    name, _, value = line.partition(b":")
    kept = [pair.strip(b" \t") for pair in value.split(b";") if not pair.strip(b" \t").startswith(_DEBUG)]
    return b"%b: %b\r\n" % (name, b"; ".join(kept)) if kept else b""


def _values(request: Request, name: str) -> list[bytes]:
    """The elements of a list field, over all its lines."""
    values = [request.headers.get(name, b"")]
    values += [value for other, value in request.repeated if other == name]
    return [element for value in values for part in value.split(b",") if (element := part.strip(b" \t"))]


def _without_named(lines: Iterable[bytes], request: Request) -> list[bytes]:
    """Drop the fields that Connection names, but none that is meant for the other end."""
    options = {_name(option) for option in _values(request, "connection")}
    named = {name for name in options if name not in _KEPT and not name.startswith(_KEPT_BEGINNINGS)}
    return [line for line in lines if _name(line) not in named]


def _without_key(query: bytes) -> bytes:
    """A query without `key=`, the place where Gemini's clients may put theirs."""
    if b"key" not in query and b"%" not in query:
        return query
    return b"&".join(part for part in query.split(b"&") if unquote_to_bytes(part.partition(b"=")[0]) != b"key")
