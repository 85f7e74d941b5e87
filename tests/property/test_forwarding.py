"""Whatever head a client sends, if we accept it, what goes to the upstream has one Host, one framing and one reading."""

from __future__ import annotations

from contextlib import suppress

import h11
from hypothesis import given
from hypothesis import strategies as st

from breakloop.errors import RequestError
from breakloop.gateway.forwarding import CREDENTIALS, HeadRewriter, UpstreamRoutes
from breakloop.gateway.http_request import CHUNKED, HeadParser, Request, RequestLimits
from breakloop.model.upstream import upstreams
from breakloop.policy.paths import normalise

TARGETS = UpstreamRoutes(
    upstreams(["x=http://up.example:81/api/v1", "azure=https://r.openai.azure.com", "plain=http://p"])
)
PLAIN = HeadRewriter("X-Own-", "own-token")
FULL = HeadRewriter("X-Own-", "own-token", via=True, keys={"x": b"sk-ours", "anthropic": b"sk-ours"})

names = st.sampled_from(
    [
        "Host",
        "Connection",
        "Content-Length",
        "content_type",
        "Transfer-Encoding",
        "TE",
        "Trailer",
        "Upgrade",
        "HTTP2-Settings",
        "Expect",
        "Keep-Alive",
        "Proxy-Connection",
        "Authorization",
        "x-api-key",
        "X_API_KEY",
        "Accept-Encoding",
        "Accept_Encoding",
        "X-Breakloop-Hop",
        "X_Breakloop_Hop",
        "X-Breakloop-Reason",
        "X-Own-Note",
        "x_own_note",
        "X-Forwarded-For",
        "X-Forwarded-Host",
        "Via",
        "Cookie",
        "X-A",
        "X_a",
        "x-b",
        "Content-Encoding",
        "Content-Digest",
    ]
)
values = st.sampled_from(
    [
        "close",
        "keep-alive",
        "x-a,x_b",
        "authorization,host",
        "content-length",
        "transfer-encoding",
        "upgrade,http2-settings",
        "h2c",
        "chunked",
        "100-continue",
        "trailers",
        "0",
        "5",
        "own-token",
        "t1,t2,own-token",
        "gzip,br,*",
        "*;q=0",
        "identity;q=0,compress",
        "a.example",
        "10.0.0.1",
    ]
) | st.text(st.characters(codec="latin-1"), max_size=12)
segments = st.sampled_from(
    [
        "openai",
        "anthropic",
        "gemini",
        "azure",
        "x",
        "plain",
        "agents",
        "bob",
        "v1",
        "v1beta",
        "messages",
        "chat",
        "api",
        "deployments",
        "..",
        ".",
        "%2e%2e",
        "..;",
        "%2E",
        "a%20b",
        "%6fpenai",
        "~",
        "%3b",
        "",
    ]
)
starts = st.sampled_from(
    ["", "/openai", "/x", "/agents/bob/x", "/agents/bob", "/x/v1", "/anthropic", "/x/../x", "//x", "/agents/a/../bob/x"]
)
targets = st.builds(
    lambda start, parts, query: (start + "/" + "/".join(parts) + query).encode(),
    starts,
    st.lists(segments, max_size=5),
    st.sampled_from(["", "?", "?key=k", "?a=b&key=k", "?%6bey=k#", "?x=/../"]),
)
lines = st.sampled_from(
    [
        b"Transfer-Encoding: chunked",
        b"Content-Length: 7",
        b"Connection: close, x-a, authorization",
        b"Connection: Upgrade, HTTP2-Settings",
        b"Upgrade: h2c",
        b"Expect: 100-continue",
        b"Keep_Alive: 5",
        b"X_Own_Note: n",
        b"X-Breakloop_Reason: r",
        b"X_Breakloop_Hop: t1, t2",
        b"Authorization: Bearer sk-theirs",
        b"X_API_KEY: sk-theirs",
        b"x-goog-api-key: sk-theirs",
        b"X-Forwarded-For: 10.0.0.1, x",
        b"X-A: \xff",
    ]
) | st.builds(lambda name, value: f"{name}: {value}".encode("latin-1"), names, values)
heads = st.builds(
    lambda method, target, fields, version: b"\r\n".join(
        (b"%b %b HTTP/1.%b" % (method, target, version), b"Host: client.example", *fields, b"", b"")
    ),
    st.sampled_from([b"GET", b"POST", b"HEAD", b"DELETE", b"PATCH"]),
    targets,
    st.lists(lines, max_size=6),
    st.sampled_from([b"1", b"1", b"0"]),
)


def forwarded(head: bytes, forwarding: HeadRewriter, length: int) -> tuple[Request, Request, bytes] | None:
    """Return what came, what goes as our own parser reads it, and its bytes; None where we do not accept what came."""
    try:
        came = HeadParser(RequestLimits()).parse(head, "192.0.2.7")
        path, _, query = came.target.partition(b"?")
        destination = TARGETS.find(path, {})
    except RequestError:
        return None
    made = forwarding.rewrite(came, destination, query, length)
    return came, HeadParser(RequestLimits()).parse(made, ""), made


@given(heads, st.sampled_from([PLAIN, FULL]), st.sampled_from([0, 1, 12_345, CHUNKED]))
def test_what_is_forwarded_has_one_reading(head: bytes, forwarding: HeadRewriter, length: int) -> None:
    """Our own parser and h11 take it and agree; one Host, one framing, nothing of a hop, nothing of ours (D-1, Y-3)."""
    found = forwarded(head, forwarding, length)
    if found is None:
        return
    came, goes, made = found
    assert not goes.repeated or not {"host", "content-length", "transfer-encoding"} & dict(goes.repeated).keys()
    assert goes.length == length
    assert ("transfer-encoding" in goes.headers) == (length == CHUNKED)
    dropped = {"connection", "te", "trailer", "upgrade", "http2-settings", "expect", "keep-alive", "proxy-connection"}
    assert not dropped & goes.headers.keys()
    assert [name for name in goes.headers if name.startswith(("x-own-", "x-breakloop-"))] == ["x-breakloop-hop"]
    assert forwarding.came_through(goes)
    assert goes.method == came.method

    reader = h11.Connection(h11.SERVER)
    reader.receive_data(made)
    event = reader.next_event()
    assert isinstance(event, h11.Request)
    assert event.target == goes.target
    framing = [(name, value) for name, value in event.headers if name in {b"content-length", b"transfer-encoding"}]
    expected = (b"transfer-encoding", b"chunked") if length == CHUNKED else (b"content-length", b"%d" % length)
    assert framing in ([expected], [] if length == 0 and came.method in {"GET", "HEAD", "DELETE"} else [expected])
    assert [value for name, value in event.headers if name == b"host"] == [goes.headers["host"]]


@given(heads)
def test_no_credential_passes_where_we_hold_a_key(head: bytes) -> None:
    """Exactly ours, in no case the client's (Y-6)."""
    found = forwarded(head, FULL, 0)
    if found is None:
        return
    came, goes, _ = found
    if goes.headers["host"] not in {b"up.example:81", b"api.anthropic.com"}:
        assert [goes.headers.get(name) for name in CREDENTIALS] == [came.headers.get(name) for name in CREDENTIALS]
        return
    held = {name: goes.headers[name] for name in CREDENTIALS if name in goes.headers}
    assert list(held.values()) in ([b"sk-ours"], [b"Bearer sk-ours"])
    assert not CREDENTIALS & dict(goes.repeated).keys()
    assert b"key=k" not in goes.target


@given(targets)
def test_what_is_sent_is_what_was_judged(target: bytes) -> None:
    """The upstream, resolving dots, arrives at the path that policies saw, and never outside of its base (R-3)."""
    with suppress(RequestError):
        found = TARGETS.find(target.partition(b"?")[0], {})
        arrives = normalise(found.target)
        base = found.upstream.base.decode()
        assert arrives == base.removesuffix("/v1") + found.path or (arrives, found.path) == (base, "/")
        assert arrives == base or arrives.startswith(base + "/")
