"""The head that goes to the upstream (SPEC D-1, Y-3, LD-9, C-9): the client's fields in their order and bytes, without
what is only between two neighbours, without copies of our own, and with exactly one Host and one framing.
Which upstream it is for is `targets`' work. Lines recur, so what becomes of one is worked out once.

Which upstream a request goes to, and under which path (SPEC D-2, R-3). Policies see the normal form of the path;
what is sent is the original, unless that could mean something else there. Reserved paths are the door's business.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple
from urllib.parse import unquote_to_bytes

from breakloop.errors import RequestError
from breakloop.gateway.admission import COOKIE
from breakloop.gateway.http_request import CHUNKED, Request
from breakloop.model.call import CREDENTIAL_HEADERS
from breakloop.model.upstream import Upstream
from breakloop.policy.cache import MemoDict
from breakloop.policy.paths import normalise, strip_agent

_VERSION: Final = re.compile(r"v[0-9]+(?:(?:alpha|beta)[0-9]*)?")
_OPENAI: Final = "openai"
_OPENAI_HOST: Final = "api.openai.com"
_AZURE_HOSTS: Final = (".azure.com", ".azure.us", ".azure.cn")
_DOT_SEGMENT: Final = re.compile(rb"/(?:\.|%2e){1,2}(?:/|$)", re.IGNORECASE)
_DOTS_AND_MORE: Final = re.compile(r"/\.\.?(?:;|%3B)")


class Destination(NamedTuple):
    """Where a request goes."""

    upstream: Upstream
    path: str  # normalised, without /agents/x and /{upstream}: what policies see
    target: bytes  # the path to send, without query
    agent: str  # of /agents/{agent}, or ""


class UpstreamRoutes:
    """Finds destinations among the upstreams, of which the first is the default. Remembers, because paths recur."""

    __slots__ = ("_azure", "_by_name", "_default", "_found", "_found_for_anthropic")

    def __init__(self, upstreams: Sequence[Upstream]) -> None:
        self._default = upstreams[0]
        self._by_name = {upstream.name: upstream for upstream in upstreams}
        self._azure = next(filter(is_azure, upstreams), None)
        self._found = MemoDict(partial(self._find, v1=self._default))
        anthropic = self._by_name.get("anthropic", self._default)
        self._found_for_anthropic = MemoDict(partial(self._find, v1=anthropic))

    def find(self, path: bytes, headers: Mapping[str, bytes]) -> Destination:
        """Return where a path (as sent, without query) goes; raises `RequestError` (400) for one with two meanings.

        `/v1/models` and the like are paths of several providers; Anthropic's clients say `anthropic-version`.
        """
        return (self._found_for_anthropic if "anthropic-version" in headers else self._found)[path]

    def _find(self, raw: bytes, v1: Upstream) -> Destination:
        path = normalise(raw)
        if path[0] != "/":
            raise RequestError(400, "the path does not begin with a slash")
        agent = strip_agent(path)[0]
        cut = 2 if agent else 0  # how many segments of the original are not sent
        upstream, named = self._choose(_after(path, cut), v1)
        cut += named
        rest = _after(path, cut)
        base = upstream.base.decode("ascii")
        if _DOTS_AND_MORE.search(path):
            raise RequestError(400, "the path holds a dot segment with parameters")
        version, doubled = _overlap(base, rest)
        cut += doubled
        rest = _after(path, cut)
        target = upstream.base + _as_sent(raw, cut, rest, bool(base))
        return Destination(upstream, version + rest or "/", target or b"/", agent)

    def _choose(self, path: str, v1: Upstream) -> tuple[Upstream, int]:
        """The upstream, and how many segments (0 or 1) only served to name it."""
        segment = path.split("/", 2)[1] if path else ""
        named = self._by_name.get(segment)
        if segment == _OPENAI:
            azure = self._azures(path, named)
            if azure is not None:
                return azure, azure.base.endswith(b"/openai")
        if named is not None:
            return named, 1
        if _is_below(path, "/v1/messages"):
            return self._by_name.get("anthropic", self._default), 0
        if segment == "v1beta":
            return self._by_name.get("gemini", self._default), 0
        return v1 if segment == "v1" else self._default, 0

    def _azures(self, path: str, openai: Upstream | None) -> Upstream | None:
        """Who gets a path below /openai as it is, because that is Azure's own beginning and not the name of `openai`.

        OpenAI has nothing outside of /v1, and nobody but Azure, and what stands in for it, has deployments.
        """
        if _is_below(path, "/openai/deployments"):
            return self._azure or (self._default if self._default.host != _OPENAI_HOST else None)
        if openai is None or is_azure(openai):
            return openai
        if openai.host == _OPENAI_HOST and not openai.base and not _is_below(path, "/openai/v1"):
            return self._azure
        return None


def _after(path: str, count: int) -> str:
    """What follows the first `count` segments: from a slash on, or nothing."""
    parts = path.split("/", count + 1)
    return "/" + parts[-1] if len(parts) == count + 2 else ""


def _overlap(base: str, path: str) -> tuple[str, int]:
    """The version that the base ends in (`/v1`), and how many segments of the path say again what the base says.

    So https://x/v1 takes /v1/chat/completions and /chat/completions alike, and policies see the first for both.
    """
    segments = base.split("/")[1:]
    if not segments or not _VERSION.fullmatch(segments[-1]):
        return "", 0
    for count in range(len(segments), 0, -1):
        if _is_below(path, "/" + "/".join(segments[-count:])):
            return "/" + segments[-1], count
    return "/" + segments[-1], 0


def _as_sent(raw: bytes, cut: int, rest: str, has_base: bool) -> bytes:  # noqa: FBT001 - private, one caller
    """The original without its first segments, where it means the same as `rest`; else `rest`.

    It does not where dot segments reach over the cut. With a base they would leave it, so they are not sent at all.
    """
    parts = raw.split(b"/", cut + 1)
    original = b"/" + parts[-1] if len(parts) == cut + 2 else b""
    if normalise(original) != (rest or "/") or (has_base and _DOT_SEGMENT.search(original)):
        return rest.encode("ascii")
    return original


def _is_below(path: str, start: str) -> bool:
    return path.startswith(start) and path[len(start) : len(start) + 1] in ("", "/")


def is_azure(upstream: Upstream) -> bool:
    """Tell whether it is Azure's, whose paths and key header are its own."""
    return upstream.host.endswith(_AZURE_HOSTS)


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
        self._line = MemoDict(partial(_line, own=own, dropped=dropped)).__getitem__
        self._keyless = MemoDict(partial(_line, own=own, dropped=dropped | CREDENTIALS)).__getitem__
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
