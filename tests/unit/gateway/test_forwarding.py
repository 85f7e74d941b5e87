"""The head towards the upstream: what is taken away, what is added, and that nothing else changes."""

from __future__ import annotations

from typing import Any

import pytest

from breakloop.gateway.forwarding import HeadRewriter, UpstreamRoutes, key_field
from breakloop.gateway.http_request import CHUNKED, HeadParser, Request, RequestLimits
from breakloop.model.upstream import parse_upstream, upstreams
from tests.each import each

TOKEN = "own-token"
HOP = b"X-Breakloop-Hop: own-token"
UPSTREAMS = ("x=http://up.example:81/base", "azure=https://r.openai.azure.com")


def request(*fields: str | bytes, line: str = "POST /x/y", peer: str = "192.0.2.7", version: str = "1.1") -> Request:
    lines = [f"{line} HTTP/{version}".encode(), b"Host: client.example"]
    lines += [field.encode("latin-1") if isinstance(field, str) else field for field in fields]
    return HeadParser(RequestLimits()).parse(b"\r\n".join((*lines, b"", b"")), peer)


def sent(
    came: Request, forwarding: HeadRewriter | None = None, *, length: int = 0, **how: Any
) -> tuple[bytes, list[bytes]]:
    """Return request line and field lines; made twice, the second time from remembered lines."""
    path, _, query = came.target.partition(b"?")
    forwarding = forwarding or HeadRewriter("X-Breakloop-", TOKEN)
    destination = UpstreamRoutes(upstreams(UPSTREAMS)).find(path, {})
    head = forwarding.rewrite(came, destination, query, length, **how)
    assert forwarding.rewrite(came, destination, query, length, **how) == head
    assert head.endswith(b"\r\n\r\n")
    first, *lines = head[:-4].split(b"\r\n")
    return first, lines


def fields(came: Request, forwarding: HeadRewriter | None = None, *, decoded: bool = False) -> list[bytes]:
    """Return what is sent of the client's fields: without ours, Host and framing."""
    _, lines = sent(came, forwarding, decoded=decoded)
    assert lines[0] == b"host: up.example:81"
    assert lines[-2:] == [b"content-length: 0", HOP]
    return lines[1:-2]


def test_a_whole_head() -> None:
    """The request line, Host of the upstream, the client's fields as they came, framing, our mark (D-1)."""
    came = request(
        "accept: */*", "X-Odd:  two  spaces\t", b"X-Bytes: \xff", "X-Odd: again", "Empty:", line="PATCH /x/y?a=b&c"
    )
    assert sent(came, length=5) == (
        b"PATCH /base/y?a=b&c HTTP/1.1",
        [
            b"host: up.example:81",
            b"accept: */*",
            b"X-Odd:  two  spaces\t",
            b"X-Bytes: \xff",
            b"X-Odd: again",
            b"Empty:",
            b"content-length: 5",
            HOP,
        ],
    )


def test_a_head_that_began_with_an_empty_line_or_has_no_host() -> None:
    """Old clients; towards the upstream it is HTTP/1.1 with a Host like any other (D-1)."""
    head = b"\r\nGET /v1/x HTTP/1.0\r\nA: b\r\n\r\n"
    came = HeadParser(RequestLimits()).parse(head, "")
    destination = UpstreamRoutes(upstreams([])).find(b"/v1/x", {})
    made = HeadRewriter("X-Breakloop-", TOKEN).rewrite(came, destination, b"", 0)
    assert made == b"GET /v1/x HTTP/1.1\r\nhost: api.openai.com\r\nA: b\r\n" + HOP + b"\r\n\r\n"


@each(
    "method, length, framing",
    [
        ("POST", 0, [b"content-length: 0"]),
        ("PUT", 0, [b"content-length: 0"]),
        ("POST", 17, [b"content-length: 17"]),
        ("POST", CHUNKED, [b"transfer-encoding: chunked"]),
        ("GET", 0, []),
        ("HEAD", 0, []),
        ("DELETE", 0, []),
        ("OPTIONS", 0, []),
        ("GET", 3, [b"content-length: 3"]),
        ("GET", CHUNKED, [b"transfer-encoding: chunked"]),
    ],
)
def test_framing_is_ours(method: str, length: int, framing: list[bytes]) -> None:
    """Whatever the client's framing was, there is exactly the one that the body will have (D-1, Y-3)."""
    for client in ("Content-Length: 99", "Transfer-Encoding: chunked", "A: b"):
        _, lines = sent(request(client, line=f"{method} /x/y"), length=length)
        of_client = [b"A: b"] if client == "A: b" else []
        assert lines == [b"host: up.example:81", *of_client, *framing, HOP]


@each(
    "field",
    [
        "Connection: close",
        "Connection: keep-alive, TE",
        "Keep-Alive: timeout=5",
        "keep_alive: 5",
        "Proxy-Connection: keep-alive",
        "Proxy-Authenticate: x",
        "Proxy-Authorization: x",
        "Proxy_Authorization: x",
        "TE: trailers",
        "Trailer: X-Sum",
        "Upgrade: h2c",
        "HTTP2-Settings: AAMAAABkAAQAAP__",
        "Expect: 100-continue",
        "X-Breakloop-Reason: x",
        "x-breakloop-request-id: x",
        "X_Breakloop_Key: x",
        "X-BREAKLOOP_Anything: x",
        "X-Breakloop-Expect-Repeats: 5",
    ],
)
def test_fields_that_end_here(field: str) -> None:
    """What is between neighbours, and copies of our own, in every spelling (D-1, Y-3)."""
    assert fields(request("A: b", field, "C: d")) == [b"A: b", b"C: d"]


@each(
    "field",
    [
        "Authorization: Bearer sk-x",
        "x-api-key: k",
        "Cookie: breakloop=1.2; a=b",
        "X-Agent-Id: a",
        "X-Breakloops: x",
        "X-Forwarded-For: 203.0.113.9",
        "X-Forwarded-Host: h",
        "Forwarded: for=203.0.113.9",
        "Via: 1.1 other",
        "Content-Encoding: zstd",
        "Content-Digest: sha-256=:x:",
        "Accept_Language: de",
        "Connectionx: y",
        "Hosts: y",
        "Range: bytes=0-1",
    ],
)
def test_fields_that_pass(field: str) -> None:
    """Everything else, byte for byte (D-1)."""
    assert fields(request("A: b", field)) == [b"A: b", field.encode()]


def test_the_configured_prefix_is_ours_too() -> None:
    """And so is the default one (A-1, Y-3)."""
    forwarding = HeadRewriter("X-Own-", TOKEN)
    assert fields(request("x_own-reason: x", "X-Breakloop-Reason: x", "X-Other: y"), forwarding) == [b"X-Other: y"]


@pytest.mark.parametrize(
    ("option", "passes"),
    [
        ("X-Private", False),
        ("x_private", False),
        ("keep-alive, X-Private", False),
        ("close,x-PRIVATE ,", False),
        ("Authorization", True),
        ("close, Authorization, content-type", True),
        ("Keep-Alive", True),
        ("", True),
    ],
)
def test_fields_that_connection_names(option: str, passes: bool) -> None:
    """They end here, but nobody can make us lose what the other end is meant to see (D-1)."""
    kept = ["Authorization: Bearer k", "Content-Type: a/b"]
    came = request(f"Connection: {option}", "X-Private: 1", *kept)
    private = [b"X-Private: 1"] if passes else []
    assert fields(came) == [*private, *(field.encode() for field in kept)]


@each(
    "field",
    [
        "x-api-key",
        "api_key",
        "X-Goog-Api-Key",
        "Cookie",
        "Content-Encoding",
        "Accept",
        "Anthropic-Version",
        "If-Match",
        "OpenAI-Organization",
        "Mcp-Session-Id",
        "X-Forwarded-For",
        "Via",
        "User-Agent",
        "Idempotency-Key",
        "X-Agent-Id",
    ],
)
def test_connection_cannot_take_these(field: str) -> None:
    """The request was judged with them."""
    assert fields(request(f"Connection: close, {field}", f"{field}: x")) == [f"{field}: x".encode()]


def test_connection_in_several_lines() -> None:
    """All of them count (D-1)."""
    came = request("Connection: close", "X-A: 1", "Connection: x-a, x-b", "X-B: 2", "X-C: 3")
    assert fields(came) == [b"X-C: 3"]
    assert fields(request("Connection: keep-alive", "X-A: 1", "X-A: 2")) == [b"X-A: 1", b"X-A: 2"]


@each(
    "offered, sent_on",
    [
        ("gzip, deflate, br, zstd", "gzip, deflate, br, zstd"),
        ("gzip;q=1.0,  br;q=0.5", "gzip;q=1.0,  br;q=0.5"),
        ("identity", "identity"),
        ("", ""),
        ("GZIP, compress", "GZIP"),
        ("gzip, *", "gzip"),
        ("gzip;q=0.9, dcb;q=1, br ; q=0.1, *;q=0", "gzip;q=0.9, br ; q=0.1"),
        ("*", "identity"),
        ("compress, lzma", "identity"),
        ("identity;q=0, *", "identity;q=0"),
        ("x-gzip", "x-gzip"),
        ("gzip,,br", "gzip, br"),
    ],
)
def test_accept_encoding_is_what_we_can_read(offered: str, sent_on: str) -> None:
    """q values stay; a client that names nothing readable gets it plain (C-9)."""
    assert fields(request(f"Accept-Encoding: {offered}")) == [f"Accept-Encoding: {sent_on}".encode()]


def test_a_rewritten_body_loses_what_was_said_of_its_bytes() -> None:
    """Steer unpacks the body; encoding and digests spoke of the old bytes (LD-5)."""
    came = request("Content-Encoding: zstd", "content_md5: x", "Digest: x", "Content-Digest: x", "Content-Type: a/b")
    assert fields(came, decoded=True) == [b"Content-Type: a/b"]
    assert len(fields(came)) == 5


def test_an_answer_that_will_be_rewritten_must_not_be_packed() -> None:
    """Whatever the client can unpack (D-1)."""
    came = request("Accept-Encoding: gzip, br", "accept_encoding: zstd", "Accept: */*")
    _, lines = sent(came, identity=True)
    assert lines[1:] == [b"Accept: */*", b"content-length: 0", HOP, b"accept-encoding: identity"]


# -- hop tokens --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "came"),
    [
        ((), False),
        (("X-Breakloop-Hop: own-token",), True),
        (("x_breakloop_hop: other, own-token",), True),
        (("X-Breakloop-Hop: other", "X-Breakloop-Hop: third,own-token"), True),
        (("X-Breakloop-Hop: other",), False),
        (("X-Breakloop-Hop: own-token2, xown-token",), False),
        (("X-Hop: own-token",), False),
    ],
)
def test_a_request_that_came_through_is_recognised(lines: tuple[str, ...], came: bool) -> None:
    """By this proxy's own token, among those of others (LD-9)."""
    assert HeadRewriter("X-Breakloop-", TOKEN).came_through(request(*lines)) is came


def test_what_is_forwarded_is_recognised_when_it_comes_back() -> None:
    """Over another breakloop with a prefix of its own, too (LD-9)."""
    ours, other = HeadRewriter("X-Breakloop-", TOKEN), HeadRewriter("X-Own-", "other-token")
    destination = UpstreamRoutes(upstreams([])).find(b"/v1/x", {})
    came = request("A: b", line="GET /v1/x")
    for forwarding in (ours, other):
        came = HeadParser(RequestLimits()).parse(forwarding.rewrite(came, destination, b"", 0), "")
    assert ours.came_through(came)
    assert other.came_through(came)
    assert came.headers["x-breakloop-hop"] == b"own-token, other-token"
    assert not HeadRewriter("X-Breakloop-", "third").came_through(came)


def test_made_up_tokens_do_not_grow() -> None:
    """Only what looks like a token, and not too many, the nearest ones (Y-2)."""
    many = ", ".join(f"t{number}" for number in range(100))
    _, lines = sent(request(f"X-Breakloop-Hop: {many}, {'x' * 65}, a b, <c>"))
    tokens = lines[-1].removeprefix(b"X-Breakloop-Hop: ").split(b", ")
    assert tokens == [b"t%d" % number for number in range(84, 100)] + [TOKEN.encode()]


# -- Via and X-Forwarded-* ----------------------------------------------------------------------------------------------


def test_via() -> None:
    """A setting: who asked, by which host and scheme; the client's own Via stays in front of ours (D-1)."""
    forwarding = HeadRewriter("X-Breakloop-", TOKEN, via=True, scheme="https")
    came = request(
        "Via: 1.0 a",
        "X-Forwarded-For: 203.0.113.1",
        "x_forwarded_for: b",
        "X-Forwarded-Host: evil",
        "X-Forwarded-Proto: x",
    )
    _, lines = sent(came, forwarding)
    assert lines[1:] == [
        b"Via: 1.0 a",
        b"content-length: 0",
        HOP,
        b"Via: 1.1 breakloop",
        b"X-Forwarded-Proto: https",
        b"X-Forwarded-Host: client.example",
        b"X-Forwarded-For: 203.0.113.1, b, 192.0.2.7",
    ]


def test_via_of_a_trusted_proxy_and_of_a_socket() -> None:
    """A trusted proxy knows scheme and host better; a Unix socket has no address (C-4, D-1)."""
    forwarding = HeadRewriter("X-Breakloop-", TOKEN, via=True, trusts=lambda peer: peer == "192.0.2.7")
    named = ("X-Forwarded-Host: real.example", "X-Forwarded-Proto: https")
    assert sent(request(*named), forwarding)[1][-3:-1] == [
        b"X-Forwarded-Proto: https",
        b"X-Forwarded-Host: real.example",
    ]
    lines = sent(request(*named, peer=""), forwarding)[1]
    assert lines[-2:] == [b"X-Forwarded-Proto: http", b"X-Forwarded-Host: client.example"]


# -- provider keys -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("upstream", "path", "field"),
    [
        ("openai=https://api.openai.com", "/v1/x", b"Authorization: Bearer "),
        ("x=http://up.example", "/v1/messages", b"Authorization: Bearer "),
        ("anthropic=http://127.0.0.1:9", "/v1/messages", b"x-api-key: "),
        ("mine=https://api.anthropic.com", "/v1/messages", b"x-api-key: "),
        ("anthropic=https://api.anthropic.com", "/v1/chat/completions", b"Authorization: Bearer "),
        ("gemini=http://127.0.0.1:9", "/v1beta/models/g:generateContent", b"x-goog-api-key: "),
        ("gemini=http://127.0.0.1:9", "/v1beta/openai/embeddings", b"Authorization: Bearer "),
        ("mine=https://r.openai.azure.com", "/openai/deployments/d/chat/completions", b"api-key: "),
        ("azure=https://gateway.example", "/x", b"api-key: "),
    ],
)
def test_each_dialect_has_its_key_field(upstream: str, path: str, field: bytes) -> None:
    """The key goes where that upstream looks for it (Y-6)."""
    assert key_field(parse_upstream(*upstream.split("=")), path) == field


def test_our_key_replaces_every_key_of_the_client() -> None:
    """The client's credentials do not reach the upstream, wherever they stood; other upstreams get them as ever
    (Y-6)."""
    forwarding = HeadRewriter("X-Breakloop-", TOKEN, keys={"x": b"sk-ours"})
    theirs = ["Authorization: Bearer t", "authorization: Basic t", "X_API_Key: t", "api-key: t", "X-Goog-Api-Key: t"]
    came = request("A: b", *theirs, "X-Breakloop-Key: t", "Cookie: c", line="POST /x/y?key=t&a=b&%6Bey=t&monkey=1&key")
    line, lines = sent(came, forwarding)
    assert line == b"POST /base/y?a=b&monkey=1 HTTP/1.1"
    assert lines[1:] == [b"A: b", b"Cookie: c", b"content-length: 0", HOP, b"Authorization: Bearer sk-ours"]
    other = request(*theirs, line="POST /azure/y?key=t")
    line, lines = sent(other, forwarding)
    assert line == b"POST /y?key=t HTTP/1.1"
    assert lines[1:-2] == [field.encode() for field in theirs]
    assert b"sk-ours" not in b"".join(lines)
    assert "sk-ours" not in repr(forwarding)


def test_a_query_that_was_only_a_key() -> None:
    """No question mark is left over (Y-6)."""
    forwarding = HeadRewriter("X-Breakloop-", TOKEN, keys={"x": b"sk-ours"})
    assert sent(request(line="GET /x/y?key=t"), forwarding)[0] == b"GET /base/y HTTP/1.1"


def test_the_cookie_of_our_debug_sessions_stays_here() -> None:
    """It is a secret between the client and us; the client's other cookies pass (A-6)."""
    assert fields(request("Cookie: a=1; breakloop_debug=9.x; b=2", "X: y")) == [b"Cookie: a=1; b=2", b"X: y"]
    assert fields(request("cookie: breakloop_debug=9.x", "X: y")) == [b"X: y"]


@pytest.mark.parametrize("keys", [{}, {"x": b"provider"}])
@pytest.mark.parametrize("how", [{}, {"decoded": True}, {"identity": True}])
def test_lines_of_a_head_that_is_known_are_passed_on_as_before(keys: dict[str, bytes], how: dict[str, bool]) -> None:
    """Whatever was made of them for another upstream, or for another body (D-1)."""
    own = (
        "Authorization: Bearer mine",
        "Accept-Encoding: gzip, odd",
        "Content-MD5: x",
        "Connection: keep-alive, a",
        "A: 1",
    )
    head = b"\r\n".join((b"POST /x/y HTTP/1.1", b"Host: c", *map(str.encode, own), b"Content-Length: 5", b"", b""))
    parser, forwarding = HeadParser(RequestLimits()), HeadRewriter("X-Breakloop-", TOKEN, keys=keys)
    came = [parser.parse(head, "192.0.2.7") for _ in range(3)]
    assert came[0].template is None
    assert came[2].template is not None
    other = HeadRewriter("X-Breakloop-", "another", keys={} if keys else {"x": b"provider"})
    sent(came[2], other, length=5)  # remembers its own
    sent(came[2], forwarding, length=5)
    assert sent(came[2], forwarding, length=6, **how) == sent(came[0], forwarding, length=6, **how)
