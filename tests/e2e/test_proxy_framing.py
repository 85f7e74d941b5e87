"""Request smuggling through the real server (Y-3): what can be read in two ways is refused, and never reaches the
upstream; what reaches it, h11 reads as we did."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.e2e.h11_upstream import H11Upstream, ThreadedUpstream
from tests.e2e.proxied import JSON, OCTETS
from tests.e2e.raw_client import RawClient, chunked, request
from tests.e2e.served import Served, eventually, serving

pytestmark = pytest.mark.e2e

SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"
LARGE = "x" * 70_000


class Gate(NamedTuple):
    """A gateway and what stands behind it."""

    served: Served
    upstream: H11Upstream


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gate]:
    with ThreadedUpstream() as upstream:
        url = f"http://127.0.0.1:{upstream.port}"
        with serving(tmp_path_factory.mktemp("framing"), "--upstream", f"openai={url}") as served:
            yield Gate(served, upstream)


@pytest.fixture
def gate(running: Gate) -> Iterator[Gate]:
    running.upstream.forget()
    yield running
    assert running.upstream.faults == [], "h11 did not understand what was sent"


def lines(*given: str, start: str = "POST /evil HTTP/1.1", host: str = "Host: a") -> bytes:
    return "\r\n".join((start, host, *given, "", "")).encode("latin-1")


def post(*given: str, content: bytes = b"") -> bytes:
    return lines(*given) + content


def te(content: bytes, *given: str) -> bytes:
    return post("Transfer-Encoding: chunked", JSON, *given, content=content)


HELLO = b"5\r\nhello\r\n0\r\n\r\n"

# What is sent -> how it is refused. Each is followed by a request that must not be seen either.
HEADS: dict[str, tuple[bytes, int]] = {
    # two lengths
    "length, then chunks": (post("Content-Length: 5", "Transfer-Encoding: chunked", content=HELLO), 400),
    "chunks, then length": (post("Transfer-Encoding: chunked", "Content-Length: 15", content=HELLO), 400),
    "length 0 and chunks": (post("Content-Length: 0", "Transfer-Encoding: chunked", content=HELLO), 400),
    "two lengths": (post("Content-Length: 5", "Content-Length: 6", content=b"hello"), 400),
    "the same length twice": (post("Content-Length: 5", "Content-Length: 5", content=b"hello"), 400),
    "a list of lengths": (post("Content-Length: 5, 5", content=b"hello"), 400),
    # odd lengths
    "a sign": (post("Content-Length: +5", content=b"hello"), 400),
    "negative": (post("Content-Length: -5", content=b"hello"), 400),
    "hexadecimal": (post("Content-Length: 0x5", content=b"hello"), 400),
    "an empty length": (post("Content-Length: ", content=b"hello"), 400),
    "a space inside": (post("Content-Length: 1 5", content=b"hello"), 400),
    "foreign digits": (post("Content-Length: \xb2", content=b"he"), 400),
    "a length beyond counting": (post("Content-Length: 99999999999999999999", content=b"hello"), 400),
    "underscore": (post("Content_Length: 5", content=b"hello"), 400),
    "underscore in coding": (post("Transfer_Encoding: chunked", content=HELLO), 400),
    # odd codings
    "coding twice": (post("Transfer-Encoding: chunked", "Transfer-Encoding: chunked", content=HELLO), 400),
    "identity beside": (post("Transfer-Encoding: chunked", "Transfer-Encoding: identity", content=HELLO), 400),
    "chunked, identity": (post("Transfer-Encoding: chunked, identity", content=HELLO), 400),
    "identity": (post("Transfer-Encoding: identity", content=b"hello"), 400),
    "gzip, chunked": (post("Transfer-Encoding: gzip, chunked", content=HELLO), 400),
    "xchunked": (post("Transfer-Encoding: xchunked", content=HELLO), 400),
    "quoted": (post('Transfer-Encoding: "chunked"', content=HELLO), 400),
    "a parameter": (post("Transfer-Encoding: chunked;a=b", content=HELLO), 400),
    "vertical tab": (post("Transfer-Encoding:\x0bchunked", content=HELLO), 400),
    "space before the colon": (post("Transfer-Encoding : chunked", content=HELLO), 400),
    "tab before the colon": (post("Content-Length\t: 5", content=b"hello"), 400),
    "chunks in 1.0": (lines("Transfer-Encoding: chunked", start="POST /evil HTTP/1.0") + HELLO, 400),
    # lines
    "folded": (post("X: a", " Transfer-Encoding: chunked", "Content-Length: 15", content=HELLO), 400),
    "folded first": (b"POST /evil HTTP/1.1\r\n Host: a\r\nHost: b\r\n\r\n", 400),
    "bare LF": (post("X: a\nContent-Length: 36"), 400),
    "only LF": (b"POST /evil HTTP/1.1\nHost: a\nContent-Length: 5\n\nhello", 400),
    "bare CR": (post("X: a\rContent-Length: 36"), 400),
    "NUL": (post("X: a\x00b"), 400),
    "no colon": (post("Content-Length"), 400),
    "no name": (post(": 5"), 400),
    "a name with a space": (post("Content Length: 5", content=b"hello"), 400),
    # Host
    "no Host": (lines(host="X: y"), 400),
    "two Hosts": (post("Host: b"), 400),
    "Host with a path": (lines(host="Host: a/b"), 400),
    "Host with a space": (lines(host="Host: a b"), 400),
    "two Hosts in one": (lines(host="Host: a, b"), 400),
    "Host with a user": (lines(host="Host: u@a"), 400),
    # the first line
    "0.9": (b"GET /evil\r\n\r\n", 400),
    "two spaces": (lines(start="GET  /evil HTTP/1.1"), 400),
    "a space in the target": (lines(start="GET /evil /b HTTP/1.1"), 400),
    "a tab": (lines(start="GET\t/evil HTTP/1.1"), 400),
    "a leading space": (lines(start=" GET /evil HTTP/1.1"), 400),
    "small http": (lines(start="GET /evil http/1.1"), 400),
    "1.2": (lines(start="GET /evil HTTP/1.2"), 505),
    "2.0": (lines(start="GET /evil HTTP/2.0"), 505),
    "HTTP/2's preface": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    "absolute": (lines(start="GET http://b/evil HTTP/1.1"), 400),
    "CONNECT": (lines(start="CONNECT a:443 HTTP/1.1"), 501),
    "an unknown method": (lines(start="BREW /evil HTTP/1.1"), 501),
    "a fragment": (lines(start="GET /evil#a HTTP/1.1"), 400),
    "bytes above ASCII": (lines(start="GET /\xe4 HTTP/1.1"), 400),
    "asterisk": (lines(start="GET * HTTP/1.1"), 400),
    # sizes
    "a large field": (post("X: " + LARGE), 431),
    "a large name": (post(LARGE + ": x"), 431),
    "many fields": (post(*["X: y"] * 201), 431),
    "a long target": (lines(start=f"GET /{'x' * 17_000} HTTP/1.1"), 414),
    "a head without end": (b"GET /evil HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 70_000, 431),
    "a first line without end": (b"GET /" + b"x" * 20_000, 414),
    # what asks for something else than an answer
    "websocket": (lines("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Key: x", start="GET /v1/messages HTTP/1.1"), 426),
    "another expectation": (post("Expect: tea", "Content-Length: 5", content=b"hello"), 417),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
}  # fmt: skip

CHUNKS: dict[str, bytes] = {
    "hex prefix": b"0x5\r\nhello\r\n0\r\n\r\n",
    "space behind the size": b"5 \r\nhello\r\n0\r\n\r\n",
    "space before the size": b" 5\r\nhello\r\n0\r\n\r\n",
    "a sign": b"+5\r\nhello\r\n0\r\n\r\n",
    "negative": b"-1\r\nhello\r\n0\r\n\r\n",
    "no size": b"\r\nhello\r\n0\r\n\r\n",
    "no digits": b";a=b\r\nhello\r\n0\r\n\r\n",
    "underscore": b"0_5\r\nhello\r\n0\r\n\r\n",
    "too large": b"10000000000000005\r\nhello\r\n0\r\n\r\n",
    "zeros": b"0" * 20 + b"5\r\nhello\r\n0\r\n\r\n",
    "size ends with LF": b"5\nhello\r\n0\r\n\r\n",
    "LF in an extension": b"5;a\nb\r\nhello\r\n0\r\n\r\n",
    "CR in an extension": b"5;a\rb\r\nhello\r\n0\r\n\r\n",
    "a long extension": b"5;" + b"x" * 300 + b"\r\nhello\r\n0\r\n\r\n",
    "longer than said": b"4\r\nhello\r\n0\r\n\r\n",
    "shorter than said": b"7\r\nhello\r\n0\r\n\r\n",
    "no end of a chunk": b"5\r\nhello0\r\n\r\n",
    "LF behind a chunk": b"5\r\nhello\n0\r\n\r\n",
    "two ends behind a chunk": b"5\r\nhello\r\n\r\n0\r\n\r\n",
    "a length in the trailer": b"5\r\nhello\r\n0\r\nContent-Length: 9\r\n\r\n",
    "a coding in the trailer": b"5\r\nhello\r\n0\r\nTransfer-Encoding: chunked\r\n\r\n",
    "a Host in the trailer": b"5\r\nhello\r\n0\r\nHost: b\r\n\r\n",
    "a trailer without a colon": b"5\r\nhello\r\n0\r\nX\r\n\r\n",
    "a folded trailer": b"5\r\nhello\r\n0\r\nX: a\r\n b\r\n\r\n",
    "LF in a trailer": b"5\r\nhello\r\n0\r\nX: a\nY: b\r\n\r\n",
    "long trailers": b"5\r\nhello\r\n0\r\n" + b"X: y\r\n" * 2000 + b"\r\n",
    "thousands of chunks": b"1\r\nx\r\n" * 3000 + b"0\r\n\r\n",
}


def refused(gate: Gate, sent: bytes, status: int) -> None:
    """It is answered so, once, and the connection ends."""
    with RawClient(gate.served.port) as client:
        client.send(sent)
        found = client.answer()
        assert found.status == status, found.body
        assert found["connection"] in {"close", "upgrade"}
        assert "detail" in found.json()
        assert client.ends() in {"closed", "reset"}


def still_serves(gate: Gate) -> None:
    """The next client gets its own answer, and nobody else's request was seen."""
    with RawClient(gate.served.port) as client:
        client.ask("GET", "/after")
        assert client.answer().body == b"GET /after"
    assert [heard.target for heard in gate.upstream.heard] == ["/after"]


@pytest.mark.parametrize("name", HEADS)
def test_an_ambiguous_head_is_refused_and_never_forwarded(gate: Gate, name: str) -> None:
    """Refused with the reason's status, and not a byte of it goes on (Y-3, Y-2)."""
    sent, status = HEADS[name]
    refused(gate, sent + SMUGGLED, status)
    assert gate.upstream.received == 0
    still_serves(gate)


@pytest.mark.parametrize("name", CHUNKS)
def test_chunks_with_two_readings_are_refused_and_never_forwarded(gate: Gate, name: str) -> None:
    """A body that is collected is forwarded only when all of it was understood (Y-3)."""
    refused(gate, te(CHUNKS[name]) + SMUGGLED, 400)
    assert gate.upstream.received == 0
    still_serves(gate)


@pytest.mark.parametrize("name", CHUNKS)
def test_chunks_with_two_readings_never_complete_an_upload(gate: Gate, name: str) -> None:
    """A body that passes in pieces is broken off where it is not understood, and never comes to an end (Y-3)."""
    with RawClient(gate.served.port) as client:
        client.send(post("Transfer-Encoding: chunked", OCTETS) + b"3\r\nabc\r\n" + CHUNKS[name] + SMUGGLED)
        found = client.answer()
        assert found.status == 400
        assert client.ends() in {"closed", "reset"}
    if gate.upstream.received:
        eventually(lambda: gate.upstream.unfinished == ["/evil"], "the upload is given up")
    still_serves(gate)


@pytest.mark.parametrize("name", [*HEADS, *CHUNKS])
def test_what_came_before_is_answered_and_what_comes_after_is_not(gate: Gate, name: str) -> None:
    """A fault behind a good request does not touch it, and ends the connection (Y-3)."""
    sent = HEADS[name][0] if name in HEADS else te(CHUNKS[name])
    with RawClient(gate.served.port) as client:
        client.send(request("GET", "/before"), sent, SMUGGLED)
        assert client.answer().body == b"GET /before"
        assert client.answer().status >= 400
        assert client.ends() in {"closed", "reset"}
    assert [heard.target for heard in gate.upstream.heard] == ["/before"]


@pytest.mark.parametrize("path", ["/a%2fb", "/a%5cb", "/a%00", "/agents/x%2f..%2fy", "/a%2F..%2fv1/files"])
def test_a_path_with_two_readings_is_refused_alone(gate: Gate, path: str) -> None:
    """That is no matter of framing, so the connection lives on (R-3)."""
    with RawClient(gate.served.port) as client:
        client.send(request("POST", path, b"hello"), request("GET", "/next"))
        assert client.answer().status == 400
        assert client.answer().body == b"GET /next"
    assert [heard.target for heard in gate.upstream.heard] == ["/next"]


# What is accepted, and what the upstream gets of it. Our differences to passing bytes through are all here:
# the target as sent, one Host, one framing of ours, no field that is between two neighbours, no copy of our own.
ACCEPTED: dict[str, tuple[bytes, bytes, dict[bytes, list[bytes]]]] = {
    "zeros before a length": (post("Content-Length: 0005", content=b"hello"), b"hello", {b"content-length": [b"5"]}),
    "chunks that are collected": (te(HELLO), b"hello", {b"content-length": [b"5"], b"transfer-encoding": []}),
    "chunks that pass": (post("Transfer-Encoding: chunked", OCTETS, content=chunked(b"hello")), b"hello", {}),
    "an extension": (te(b"5;a=b\r\nhello\r\n0;c\r\n\r\n"), b"hello", {b"content-length": [b"5"]}),
    "trailers": (te(chunked(b"hello", trailers=b"Authorization: x\r\n"), "Trailer: Authorization"), b"hello", {b"authorization": [], b"trailer": []}),
    "capitals": (post("TRANSFER-ENCODING: CHUNKED", JSON, content=HELLO), b"hello", {b"transfer-encoding": []}),
    "no body": (post("Content-Length: 0"), b"", {b"content-length": [b"0"]}),
    "no length": (post(), b"", {b"content-length": [b"0"]}),
    "empty chunks": (te(b"0\r\n\r\n"), b"", {b"content-length": [b"0"]}),
    "an empty line before": (b"\r\n" + post("Content-Length: 5", content=b"hello"), b"hello", {b"content-length": [b"5"]}),
    "a request as content": (post(f"Content-Length: {len(SMUGGLED)}", content=SMUGGLED), SMUGGLED, {}),
    "h2c": (post("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAA", "Content-Length: 5", content=b"hello"), b"hello", {b"upgrade": [], b"http2-settings": [], b"connection": []}),
    "Connection names the length": (post("Connection: content-length", "Content-Length: 5", content=b"hello"), b"hello", {b"content-length": [b"5"], b"connection": []}),
    "Connection names the key": (post("Connection: authorization", "Authorization: k", content=b""), b"", {b"authorization": [b"k"]}),
    "Connection names another": (post("Connection: x-hop", "X-Hop: 1", "X-End: 2"), b"", {b"x-hop": [], b"x-end": [b"2"]}),
    "fields of the way": (post("Keep-Alive: 5", "TE: trailers", "Proxy-Authorization: x", "Proxy-Connection: x"), b"", {b"keep-alive": [], b"te": [], b"proxy-authorization": [], b"proxy-connection": []}),
    "our own fields": (post("X-Breakloop-Reason: x", "x_breakloop_note: y"), b"", {b"x-breakloop-reason": [], b"x_breakloop_note": []}),
    "an empty Host": (lines(host="Host:"), b"", {}),
}  # fmt: skip


@pytest.mark.parametrize("name", ACCEPTED)
def test_what_is_accepted_has_one_framing_for_everybody(gate: Gate, name: str) -> None:
    """h11 reads one request with that body, and the next is the next (Y-3, D-1)."""
    sent, body, wanted = ACCEPTED[name]
    with RawClient(gate.served.port) as client:
        client.send(sent + request("GET", "/next"))
        assert client.answer().body == b"POST /evil"
        assert client.answer().body == b"GET /next"
    evil, following = gate.upstream.heard
    assert (evil.method, evil.target, evil.body) == ("POST", "/evil", body)
    assert (following.target, following.body) == ("/next", b"")
    for heard in gate.upstream.heard:
        assert heard.all(b"host") == [f"127.0.0.1:{gate.upstream.port}".encode()]
        assert len(heard.all(b"content-length")) + len(heard.all(b"transfer-encoding")) <= 1
        assert [name for name, _ in heard.headers if b"connection" in name] == []
    assert {field: evil.all(field) for field in wanted} == wanted


def test_an_unended_request_is_given_up(tmp_path: Path) -> None:
    """A head or a body that does not come to its end in time is answered 408, and never reaches anybody whole (Y-2)."""
    with ThreadedUpstream() as upstream:
        url = f"http://127.0.0.1:{upstream.port}"
        limits = {"BREAKLOOP_LIMITS_HEAD_SECONDS": "1", "BREAKLOOP_LIMITS_BODY_SECONDS": "1"}
        clients: list[RawClient] = []
        with serving(tmp_path, "--upstream", f"openai={url}", **limits) as served, ExitStack() as stack:
            for sent in (
                b"GET / HTTP/1.1\r\nHost:",
                post("Content-Length: 9", JSON, content=b"half"),
                post("Transfer-Encoding: chunked", JSON, content=b"5\r\nhe"),
                post("Content-Length: 9", OCTETS, content=b"half"),
                post("Transfer-Encoding: chunked", OCTETS, content=b"5\r\nhe"),
            ):
                stack.enter_context(client := RawClient(served.port))
                client.send(sent)
                clients.append(client)
            assert [client.answer().status for client in clients] == [408] * 5
            eventually(lambda: upstream.unfinished == ["/evil"] * 2, "both uploads are given up")
        assert upstream.heard == []
