"""Which upstream a request goes to, under which path, and with which head.

Policies see the normalised path; the upstream gets the original one, unless that could mean something else there. The
head has the client's fields, in order and byte for byte, without hop-by-hop fields and copies of our own, and with
exactly one Host and one framing field. Paths and header lines recur, so the result for each is cached.

No provider gets the key of another. Only what a single provider has counts: its own host, the methods in its paths, the
header field or the first characters of its keys. Other servers (LiteLLM, vLLM, OpenRouter, Azure) accept keys of any
form, and belong to nobody here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Final
from urllib.parse import quote, unquote_to_bytes

import msgspec
from msgspec.structs import replace

from breakloop.clock import Clock, SystemClock
from breakloop.dialects.session_ids import DEPTH, PARENT, ROOT
from breakloop.errors import RequestError
from breakloop.gateway.admission import COOKIE
from breakloop.gateway.aws_signature import REPLACED, AwsRequest, aws_key, region_of, signature_lines
from breakloop.gateway.http_request import CHUNKED, HeadTemplate, Request, VaryingTemplate, mark
from breakloop.model.call import CREDENTIAL_HEADERS, Tree
from breakloop.model.upstream import Upstream
from breakloop.policy.cache import MemoDict
from breakloop.policy.paths import normalise, strip_agent

_VERSION: Final = re.compile(r"v[0-9]+(?:(?:alpha|beta)[0-9]*)?")
_OPENAI: Final = "openai"
_OPENAI_HOST: Final = "api.openai.com"
_AZURE_HOSTS: Final = (".azure.com", ".azure.us", ".azure.cn")
_DOT_SEGMENT: Final = re.compile(rb"/(?:\.|%2e){1,2}(?:/|$)", re.IGNORECASE)
_DOTS_AND_MORE: Final = re.compile(r"/\.\.?(?:;|%3B)")


_ADD_UPSTREAM: Final = "Add the provider with --upstream NAME=URL and use a base URL whose path begins with /NAME,"
_ADD_VERTEX: Final = "Add it with --upstream vertex=https://REGION-aiplatform.googleapis.com."


_SIGNED_FOR_US: Final = (
    "The request is signed for the gateway, and {0} (upstream {1}) would reject it. It was not sent. Give the gateway "
    "the keys to sign with (upstream_keys: {1}=env:VARIABLE, which holds ACCESS_KEY_ID:SECRET_ACCESS_KEY), or send an "
    "API key for Bedrock."
)


class Destination(msgspec.Struct, frozen=True, gc=False):
    upstream: Upstream
    path: str  # normalised, without /agents/x and /{upstream}: what policies see
    target: bytes  # the path to send, without the query
    agent: str  # from /agents/{agent}, or ""
    refusal: str = ""  # why the request must not be sent there
    may_hop: bool = False  # other agents and tools may be there: it is not the server of an LLM provider


_ByPath = MemoDict[bytes, Destination]


class UpstreamRoutes:
    """Finds the upstream of a path. The first upstream is the default. For the upstreams in `held`, the keys of clients
    are replaced.
    """

    def __init__(self, upstreams: Sequence[Upstream], held: Collection[str] = ()) -> None:
        self._default = upstreams[0]
        self._held = frozenset(held)
        self._by_name = {upstream.name: upstream for upstream in upstreams}
        self._azure = next(filter(is_azure, upstreams), self._by_name.get("azure"))
        vertex = (upstream for upstream in upstreams if upstream.name == "vertex" or is_vertex_host(upstream.host))
        self._vertex = next(vertex, self._default)
        # By the provider that alone has certain paths: the upstream of its name, or else at its own host.
        self._owned = {owner: one for one in reversed(upstreams) if (owner := owner_of_host(one.host))}
        self._owned |= {owner: self._by_name[name] for owner, name in UPSTREAM_NAMES.items() if name in self._by_name}
        anthropic = self._by_name.get("anthropic", self._default)
        # By the owner of the credentials, then by path.
        self._cache = MemoDict[str, _ByPath](lambda owner: self._by_path(owner, self._of(owner)))
        self._anthropic_cache = MemoDict[str, _ByPath](lambda owner: self._by_path(owner, anthropic))

    def find(
        self,
        path: bytes,
        headers: Mapping[str, bytes],
        query: bytes = b"",
        repeated: tuple[tuple[str, bytes], ...] = (),
    ) -> Destination:
        """Return the destination of a path as received, without its query. Raises `RequestError` (400) for a path with
        two meanings.

        Several providers have paths such as `/v1/models`; clients of Anthropic send `anthropic-version`.
        """
        owner = owner_of_credentials(headers, query, repeated)
        found = (self._anthropic_cache if "anthropic-version" in headers else self._cache)[owner][path]
        return found if owner != AWS else self._checked_signature(found, headers)

    def _checked_signature(self, found: Destination, headers: Mapping[str, bytes]) -> Destination:
        """Refuse a request whose signature is for another host than it goes to: AWS would reject it."""
        upstream = found.upstream
        is_signed = headers.get("authorization", b"").startswith(b"AWS4-")
        is_known = upstream.name in self._held or headers.get("host", b"").lower() == upstream.authority
        if not is_signed or is_known or owner_of_host(upstream.host) != AWS:
            return found
        return replace(found, refusal=_SIGNED_FOR_US.format(upstream.host, upstream.name))

    def _by_path(self, owner: str, v1: Upstream) -> _ByPath:
        return MemoDict(partial(self._find, owner=owner, v1=v1))

    def _of(self, owner: str) -> Upstream:
        """Return the upstream for the keys of a provider where the path names none.

        A server of the user's own is not passed over for a provider: it may expect exactly these keys.
        """
        default = self._default
        upstream = self._by_name.get(UPSTREAM_NAMES.get(owner, ""), default)
        own = owner_of_host(default.host)
        return default if own == owner or (not own and owner_of_host(upstream.host)) else upstream

    def _refusal(self, upstream: Upstream, owner: str, path: str) -> str:
        """Return why a request must not be sent to an upstream, or ""."""
        expected = owner_of_host(upstream.host)
        if not expected:
            return ""
        goes = f"but the request would go to {upstream.host} (upstream {upstream.name}). It was not sent."
        if expected != GOOGLE and is_vertex_path(path):
            return f"The path is one of Vertex AI, {goes} {_ADD_VERTEX}"
        owner_by_path = owner_of_path(path)
        if owner_by_path and owner_by_path != expected:
            return f"The path is one of {owner_by_path}, {goes} Add it with --upstream {_EXAMPLES[owner_by_path]}."
        if owner in ("", expected) or upstream.name in self._held:
            return ""
        if owner == SEVERAL:
            return f"The request has keys of several providers, {goes} Send only the key of {expected}."
        name = UPSTREAM_NAMES.get(owner, "")
        advice = f"Use a base URL whose path begins with /{name}," if name in self._by_name else _ADD_UPSTREAM
        return f"The key is one of {owner}, {goes} {advice} or send a key of {expected}."

    def _find(self, raw: bytes, owner: str, v1: Upstream) -> Destination:
        path = normalise(raw)
        if path[0] != "/":
            raise RequestError(400, "the path does not begin with a slash")
        agent = strip_agent(path)[0]
        cut = 2 if agent else 0  # segments of the original that are not sent
        upstream, named = self._choose(_after(path, cut), owner, v1)
        cut += named
        rest = _after(path, cut)
        base = upstream.base.decode("ascii")
        if _DOTS_AND_MORE.search(path):
            raise RequestError(400, "the path contains a dot segment with parameters")
        version, doubled = _overlap(base, rest)
        cut += doubled
        rest = _after(path, cut)
        target = upstream.base + _as_sent(raw, cut, rest, bool(base))
        refusal, may_hop = self._refusal(upstream, owner, rest), not owner_of_host(upstream.host)
        return Destination(upstream, version + rest or "/", target or b"/", agent, refusal, may_hop)

    def _choose(self, path: str, owner: str, v1: Upstream) -> tuple[Upstream, int]:
        """Return the upstream, and how many segments (0 or 1) only name it."""
        segment = path.split("/", 2)[1] if path else ""
        named = self._by_name.get(segment)
        if segment == _OPENAI:
            azure = self._azure_for(path, named)
            if azure is not None:
                return azure, azure.base.endswith(b"/openai")
        if named is not None:
            return named, 1
        if is_vertex_path(path):
            return self._vertex, 0
        owner_by_path = owner_of_path(path)
        if owner_by_path:
            return self._owned.get(owner_by_path, self._default), 0
        if _is_below(path, "/v1/messages"):
            return self._by_name.get("anthropic", self._default), 0
        if segment == "v1beta":
            return self._by_name.get("gemini", self._default), 0
        if is_gemini_method(path):
            return self._of(GOOGLE), 0
        return v1 if segment == "v1" else self._of(owner), 0

    def _azure_for(self, path: str, openai: Upstream | None) -> Upstream | None:
        """Return the upstream of a path where /openai is part of an Azure path, and not the name of the upstream.

        OpenAI has no paths outside of /v1, and only Azure (and servers that emulate it) has deployments.
        """
        if _is_below(path, "/openai/deployments"):
            return self._azure or (self._default if self._default.host != _OPENAI_HOST else None)
        if openai is None or is_azure(openai):
            return openai
        if openai.host == _OPENAI_HOST and not openai.base and not _is_below(path, "/openai/v1"):
            return self._azure
        return None


def _after(path: str, count: int) -> str:
    """Return the path after its first `count` segments: beginning with a slash, or empty."""
    parts = path.split("/", count + 1)
    return "/" + parts[-1] if len(parts) == count + 2 else ""


def _overlap(base: str, path: str) -> tuple[str, int]:
    """Return the version that the base ends with (`/v1`), and how many segments of the path repeat the base.

    So https://x/v1 accepts both /v1/chat/completions and /chat/completions, and policies see the first for both.
    """
    segments = base.split("/")[1:]
    if not segments or not _VERSION.fullmatch(segments[-1]):
        return "", 0
    for count in range(len(segments), 0, -1):
        if _is_below(path, "/" + "/".join(segments[-count:])):
            return "/" + segments[-1], count
    return "/" + segments[-1], 0


def _as_sent(raw: bytes, cut: int, rest: str, has_base: bool) -> bytes:  # noqa: FBT001 - private, one caller
    """Return the original without its first segments if it is equivalent to `rest`, else `rest`.

    It is not where dot segments reach over the cut. With a base they would leave it, so they are never sent.
    """
    parts = raw.split(b"/", cut + 1)
    original = b"/" + parts[-1] if len(parts) == cut + 2 else b""
    if normalise(original) != (rest or "/") or (has_base and _DOT_SEGMENT.search(original)):
        return rest.encode("ascii")
    return original


def _is_below(path: str, start: str) -> bool:
    return path.startswith(start) and path[len(start) : len(start) + 1] in ("", "/")


def is_azure(upstream: Upstream) -> bool:
    """Return whether an upstream is Azure, which has its own paths and key header."""
    return upstream.host.endswith(_AZURE_HOSTS)


HOP: Final = "x-breakloop-hop"  # independent of the configured prefix, so that all instances understand it
CREDENTIALS: Final = frozenset(CREDENTIAL_HEADERS)

_OWN: Final = "x-breakloop-"
_HOP_BY_HOP: Final = frozenset((
    "connection", "content-length", "expect", "host", "http2-settings", "keep-alive", "proxy-authenticate",
    "proxy-authorization", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade",
))  # fmt: skip
_REPLACED_BY_VIA: Final = frozenset(("x-forwarded-for", "x-forwarded-host", "x-forwarded-proto"))
_ACCEPT_ENCODING: Final = frozenset(("accept-encoding",))
_BAGGAGE: Final = "baggage"
_OWN_ENTRIES: Final = tuple(f"{name}=".encode() for name in (ROOT, PARENT, DEPTH))
_PLACE: Final = frozenset(("x-agent-root", "x-agent-parent", "x-agent-depth", _BAGGAGE))
_ABOUT_ENCODED_BODY: Final = frozenset(("content-digest", "content-encoding", "content-md5", "digest", "repr-digest"))
# A Connection line cannot remove these: the decision used them, or the request would change its meaning.
_PROTECTED: Final = CREDENTIALS | {"cookie", "forwarded", "idempotency-key", "range", "user-agent", "via"}
_PROTECTED_PREFIXES: Final = ("accept", "anthropic-", "content-", "if-", "mcp-", "openai-", "x-agent-", "x-forwarded-")
_USUAL_CONNECTIONS: Final = frozenset((b"keep-alive", b"Keep-Alive", b"close"))
_LENGTH_FIELD: Final = b"content-length: "
_NO_BODY_EXPECTED: Final = frozenset(("GET", "HEAD", "DELETE", "OPTIONS"))
_READABLE: Final = frozenset((b"gzip", b"x-gzip", b"deflate", b"br", b"zstd", b"identity"))
_DEBUG: Final = f"{COOKIE}=".encode()
_TOKEN: Final = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_TOKENS_MAX: Final = 16
_BEARER: Final = b"Authorization: Bearer "
_KEY_FIELDS: Final = (
    ("anthropic", "api.anthropic.com", b"x-api-key: "),
    ("gemini", "generativelanguage.googleapis.com", b"x-goog-api-key: "),
)


class HeadRewriter:
    """Makes the heads of forwarded requests; one per process.

    `token` marks requests that passed this proxy. `keys` are provider keys by upstream, which replace the credentials
    of clients. `trusts` returns whether X-Forwarded-Proto and -Host of a peer are used; `scheme` is that of our port.
    """

    def __init__(
        self,
        prefix: str,
        token: str,
        *,
        via: bool = False,
        keys: Mapping[str, bytes] | None = None,
        scheme: str = "http",
        trusts: Callable[[str], bool] | None = None,
        clock: Clock | None = None,
    ) -> None:
        own = (_OWN, prefix.lower())
        dropped = _HOP_BY_HOP | _REPLACED_BY_VIA if via else _HOP_BY_HOP
        self._line = MemoDict(partial(_line, own=own, dropped=dropped)).__getitem__
        self._line_without_keys = MemoDict(partial(_line, own=own, dropped=dropped | CREDENTIALS)).__getitem__
        self._hop = token.encode("ascii")
        self._hop_line = b"X-Breakloop-Hop: %b\r\n" % self._hop
        self._via = via
        self._keys = dict(keys or {})
        self._clock = clock or SystemClock()
        self._line_unsigned = MemoDict(partial(_line, own=own, dropped=dropped | CREDENTIALS | REPLACED)).__getitem__
        self._aws_keys = {name: found for name, key in self._keys.items() if (found := aws_key(key)) is not None}
        self._scheme = scheme.encode("ascii")
        self._trusts = trusts

    def came_through(self, request: Request) -> bool:
        """Return whether the request has passed this proxy before (LD-9)."""
        return HOP in request.headers and self._hop in _values(request, HOP)

    def rewrite(
        self,
        request: Request,
        destination: Destination,
        query: bytes,
        length: int,
        *,
        decoded: bool = False,
        identity: bool = False,
        place: Tree | None = None,
    ) -> bytes:
        """Return the head for the upstream. `length` is that of the body, or CHUNKED; `decoded`: the body was decoded
        and changed; `identity`: the response must not be compressed, because it will be changed; `place`: that of the
        receiver in the tree of agents, in place of the sender's.
        """
        template = None if decoded or identity or place is not None or length <= 0 else request.template
        if template is not None:
            known = template.forwarded.get(self)
            if known is None or known[0] is not destination:
                known = template.forwarded[self] = destination, self._form(request, template, destination, query)
            form: bytes = known[1]
            if form:
                headers, varying = request.headers, template.varying
                return form % (*[headers[name] for name in varying], length) if varying else form % length
        before, framing, after = self._rewritten(request, destination, query, length, decoded, identity, place)
        return before + framing + after

    def _form(self, request: Request, template: HeadTemplate, destination: Destination, query: bytes) -> bytes:
        """Return the head for the upstream with `%b` in the place of values that differ and `%d` in that of the length;
        b"" if it is not the same for all heads of the template."""
        if self._via or destination.upstream.name in self._aws_keys:
            return b""
        like = replace(request, raw=template.marked()) if isinstance(template, VaryingTemplate) else request
        before, _, after = self._rewritten(like, destination, query, 1, False, False, None)
        marks = [mark(number) for number in range(len(template.varying))]
        if any(before.count(one) != 1 for one in marks) or sorted(marks, key=before.find) != marks:
            return b""
        before, after = before.replace(b"%", b"%%"), after.replace(b"%", b"%%")
        for one in marks:
            before = before.replace(one, b"%b")
        return before + _LENGTH_FIELD + b"%d\r\n" + after

    def _rewritten(
        self,
        request: Request,
        destination: Destination,
        query: bytes,
        length: int,
        decoded: bool,  # noqa: FBT001 - private, one caller
        identity: bool,  # noqa: FBT001
        place: Tree | None,
    ) -> tuple[bytes, bytes, bytes]:
        """Return the head in three parts: the second is the framing of the body."""
        upstream = destination.upstream
        rewrite_line = self._line
        more = self._hop_line if HOP not in request.headers else self._hops(request)
        if identity:
            more += b"accept-encoding: identity\r\n"
        if place is not None:
            more += _place_lines(request, place)
        if self._via:
            more += self._via_lines(request)
        if self._keys and upstream.name in self._keys:
            rewrite_line = self._line_without_keys
            query = _without_key(query)
            if self.signs(upstream):
                rewrite_line = self._line_unsigned
                more += self._signature(request, destination, query)
            else:
                more += self._key_line(destination)
        template = None if decoded or identity or place is not None or _varies(request) else request.template
        lines = None if template is None else template.forwarded.get(rewrite_line)
        if lines is None:
            kept = _lines(request, decoded=decoded, identity=identity)
            if place is not None:
                kept = [line for line in kept if _name(line) not in _PLACE]
            lines = b"".join(map(rewrite_line, kept))
            if template is not None:
                template.forwarded[rewrite_line] = lines
        method = request.method
        target = destination.target
        if query:
            target = b"%b?%b" % (target, query)
        if length > 0:
            framing = b"%b%d\r\n" % (_LENGTH_FIELD, length)
        elif length == CHUNKED:
            framing = b"transfer-encoding: chunked\r\n"
        else:
            framing = b"" if method in _NO_BODY_EXPECTED else b"content-length: 0\r\n"
        start = b"%b %b HTTP/1.1\r\nhost: %b\r\n%b" % (method.encode(), target, upstream.authority, lines)
        return start, framing, more + b"\r\n"

    def signs(self, upstream: Upstream) -> bool:
        """Return whether requests to an upstream are signed with a held key."""
        return upstream.name in self._aws_keys and (upstream.name == "bedrock" or owner_of_host(upstream.host) == AWS)

    def _signature(self, request: Request, destination: Destination, query: bytes) -> bytes:
        upstream, lines = destination.upstream, filter(None, map(self._line_unsigned, _lines(request)))
        fields = [(_name(line), line.partition(b":")[2].strip().decode("latin-1")) for line in lines]
        fields.append(("host", upstream.authority.decode()))
        target = b"%b?%b" % (destination.target, query) if query else destination.target
        region = region_of(upstream.host, request.headers.get("authorization", b""))
        signed = AwsRequest(request.method, target, fields, request.body)
        return signature_lines(self._aws_keys[upstream.name], region, signed, self._clock.now())

    def _hops(self, request: Request) -> bytes:
        """Append our token to those of other instances."""
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


def _lines(request: Request, *, decoded: bool = False, identity: bool = False) -> list[bytes]:
    """Return the client's lines without those that are dropped for any upstream."""
    headers = request.headers
    lines = request.raw.split(b"\r\n")[1:-2]
    if decoded or identity:
        dropped = (_ABOUT_ENCODED_BODY if decoded else frozenset()) | (_ACCEPT_ENCODING if identity else frozenset())
        lines = [line for line in lines if _name(line) not in dropped]
    if "connection" in headers and (headers["connection"] not in _USUAL_CONNECTIONS or request.repeated):
        lines = _without_named(lines, request)
    return lines


def _place_lines(request: Request, place: Tree) -> bytes:
    """Return the place of the receiver, as header fields of ours and as entries of the client's `baggage`."""
    stated = [(ROOT, place.root), (PARENT, place.parent), (DEPTH, str(place.depth))]
    kept = [one for one in _values(request, _BAGGAGE) if not one.startswith(_OWN_ENTRIES)]
    kept += [f"{name}={quote(value, safe='')}".encode() for name, value in stated if value]
    lines = [b"baggage: " + b",".join(kept)]
    for name, value in stated:
        if value and value.isascii() and value.isprintable():  # it may come from a body
            lines.append(f"X-Agent-{name.rpartition('.')[2].capitalize()}: {value.strip()}".encode())
    return b"".join([line + b"\r\n" for line in lines])


def key_field(upstream: Upstream, path: str) -> bytes:
    """Return the field name that an upstream expects its key in. Anthropic and Gemini also have OpenAI's API."""
    if upstream.name == "azure" or is_azure(upstream):
        return b"api-key: "
    for name, host, field in _KEY_FIELDS:
        if upstream.name == name or upstream.host == host:
            return _BEARER if "/openai/" in path or path.endswith("/chat/completions") else field
    return _BEARER


def _line(line: bytes, *, own: tuple[str, ...], dropped: frozenset[str]) -> bytes:
    """Return a line as it is sent: unchanged, rewritten or empty."""
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
    """Keep only encodings that we can decode, to read the response; `identity` if none is left."""
    name, _, value = line.partition(b":")
    offered = [coding.strip(b" \t") for coding in value.split(b",")]
    kept = [coding for coding in offered if coding.partition(b";")[0].strip(b" \t").lower() in _READABLE]
    if len(kept) == len(offered) or not value.strip(b" \t"):
        return line
    return b"%b: %b" % (name, b", ".join(kept) or b"identity")


def _without_debug(line: bytes) -> bytes:
    """Remove the cookie of our debug sessions."""
    name, _, value = line.partition(b":")
    kept = [pair.strip(b" \t") for pair in value.split(b";") if not pair.strip(b" \t").startswith(_DEBUG)]
    return b"%b: %b\r\n" % (name, b"; ".join(kept)) if kept else b""


def _varies(request: Request) -> bool:
    """Return whether the heads of the request's template differ in more than the length of the body."""
    return request.template is not None and bool(request.template.varying)


def _values(request: Request, name: str) -> list[bytes]:
    """Return the elements of a list field, from all of its lines."""
    values = [request.headers.get(name, b"")]
    values += [value for other, value in request.repeated if other == name]
    return [element for value in values for part in value.split(b",") if (element := part.strip(b" \t"))]


def _without_named(lines: Iterable[bytes], request: Request) -> list[bytes]:
    """Drop the fields that Connection names, except those that are meant for the upstream."""
    options = {_name(option) for option in _values(request, "connection")}
    named = {name for name in options if name not in _PROTECTED and not name.startswith(_PROTECTED_PREFIXES)}
    return [line for line in lines if _name(line) not in named]


def _without_key(query: bytes) -> bytes:
    """Remove `key=` from a query: clients of Gemini may send their key there."""
    if b"key" not in query and b"%" not in query:
        return query
    return b"&".join(part for part in query.split(b"&") if unquote_to_bytes(part.partition(b"=")[0]) != b"key")


OPENAI: Final = "OpenAI"
ANTHROPIC: Final = "Anthropic"
GOOGLE: Final = "Google"
AWS: Final = "AWS"
COHERE: Final = "Cohere"
OLLAMA: Final = "Ollama"
SEVERAL: Final = "several providers"
UPSTREAM_NAMES: Final[Mapping[str, str]] = MappingProxyType(
    {OPENAI: "openai", ANTHROPIC: "anthropic", GOOGLE: "gemini", AWS: "bedrock", COHERE: "cohere", OLLAMA: "ollama"}
)  # the usual names of their upstreams
_EXAMPLES: Final = {
    AWS: "bedrock=https://bedrock-runtime.REGION.amazonaws.com",
    COHERE: "cohere=https://api.cohere.com",
    OLLAMA: "ollama=http://127.0.0.1:11434",
}
# Paths that a single provider has.
_PATHS: Final = (
    (re.compile(r"/model/[^/]+/(?:converse|converse-stream|invoke|invoke-with-response-stream|count-tokens)$"), AWS),
    (re.compile(r"/v2/(?:chat|embed|rerank)$"), COHERE),
    (re.compile(r"/api/(?:chat|generate|embed|embeddings|tags|ps|show|version)$"), OLLAMA),
)
_HOSTS: Final = (
    (re.compile(r"api\.cohere\.(?:com|ai)"), COHERE),
    (re.compile(r"api\.mistral\.ai"), "Mistral"),
    (re.compile(r"(?:.+\.)?bedrock-runtime(?:-fips)?\.[a-z0-9-]+\.(?:vpce\.)?amazonaws\.com(?:\.cn)?"), AWS),
    (re.compile(r"(?:.+\.)?api\.openai\.com"), OPENAI),  # also eu.api.openai.com
    (re.compile(r"api\.anthropic\.com"), ANTHROPIC),
    (re.compile(r"generativelanguage\.googleapis\.com"), GOOGLE),
)
_VERTEX_HOST: Final = re.compile(r"(?:[a-z0-9-]+-)?aiplatform(?:\.[a-z0-9-]+\.rep)?\.googleapis\.com")
_VERTEX_PATH: Final = re.compile(r"(?:/v[0-9]+(?:beta[0-9]+)?)?/(?:projects/[^/]+/locations|publishers/[^/]+/models)/")
_GEMINI_METHOD: Final = re.compile(
    r"/(?:models|tunedModels)/[^/:]+:(?:(?:stream|batch)?[gG]enerateContent|(?:batchE|asyncBatchE|e)mbedContents?"
    r"|countTokens|predict(?:LongRunning)?)$"
)
_KEY_STARTS: Final = (
    (b"sk-ant-", ANTHROPIC),
    ((b"sk-proj-", b"sk-svcacct-", b"sk-admin-"), OPENAI),
    ((b"AIza", b"AQ.", b"ya29."), GOOGLE),
    (b"sk-or-", "OpenRouter"),
    (b"gsk_", "Groq"),
    (b"xai-", "xAI"),
    ((b"ABSK", b"bedrock-api-key-"), AWS),
)
_QUERY_KEY: Final = re.compile(rb"(?:^|&)key=(?:AIza|AQ\.)")


def owner_of_host(host: str) -> str:
    """Return the provider whose own host this is, or ""."""
    if _VERTEX_HOST.fullmatch(host):
        return GOOGLE
    return next((owner for pattern, owner in _HOSTS if pattern.fullmatch(host)), "")


def is_vertex_host(host: str) -> bool:
    return _VERTEX_HOST.fullmatch(host) is not None


def is_vertex_path(path: str) -> bool:
    return _VERTEX_PATH.match(path) is not None


def owner_of_path(path: str) -> str:
    """Return the provider that alone has this path, or ""."""
    return next((owner for pattern, owner in _PATHS if pattern.match(path)), "")


def is_gemini_method(path: str) -> bool:
    """Return whether a path ends in a method of the Gemini API, in any version of it."""
    return _GEMINI_METHOD.search(path) is not None


def owner_of_credentials(headers: Mapping[str, bytes], query: bytes, repeated: Iterable[tuple[str, bytes]] = ()) -> str:
    """Return the provider of the keys in a request, SEVERAL if they are of different ones, or "" if nothing tells.
    `repeated` are the further values of header fields that came more than once.
    """
    authorization = headers.get("authorization")
    owner = "" if authorization is None else _owner_of_authorization(authorization)
    if "x-goog-api-key" in headers:
        owner = _both(owner, _owner_of_key(headers["x-goog-api-key"]) or GOOGLE)
    if "x-api-key" in headers:
        other = ANTHROPIC if "anthropic-version" in headers else ""
        owner = _both(owner, _owner_of_key(headers["x-api-key"]) or other)
    if authorization is None and "api-key" in headers:  # Azure's clients may send both
        owner = _both(owner, _owner_of_key(headers["api-key"]) or "Azure")
    if query and _QUERY_KEY.search(query):
        owner = _both(owner, GOOGLE)
    for name, value in repeated:
        if name in CREDENTIAL_HEADERS:
            owner = _both(owner, _authorization_owner(value) if name == "authorization" else _key_owner(value))
    return owner


def _both(owner: str, other: str) -> str:
    return owner or other if not (owner and other) or owner == other else SEVERAL


def _key_owner(key: bytes) -> str:
    return next((owner for starts, owner in _KEY_STARTS if key.startswith(starts)), "")


def _authorization_owner(value: bytes) -> str:
    scheme, _, key = value.partition(b" ")
    if scheme.lower() == b"bearer":
        return _key_owner(key.strip())
    return AWS if scheme.startswith(b"AWS4-") else ""


# Clients send the same key in every request.
_owner_of_key: Final = MemoDict(_key_owner).__getitem__
_owner_of_authorization: Final = MemoDict(_authorization_owner).__getitem__
