"""How a stream is cut into pieces changes nothing, and what we accept has one reading only (Y-3)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import h11
import httptools
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from breakloop.errors import RequestError
from breakloop.gateway.framing import RequestChunks
from breakloop.gateway.http_request import HeadParser, RequestLimits
from tests.each import each
from tests.unit.gateway.fake_client import Client, chunked, get, post

LIMITS = RequestLimits(
    head_bytes=300,
    request_line_bytes=60,
    fields=8,
    body_bytes=200,
)

VALID = {
    "get": get("/a?b=c"),
    "pipelined": get("/1") + get("/2", method="HEAD") + post(b"three") + chunked(b"fo", b"ur") + get("/5"),
    "http 1.0": b"GET /a HTTP/1.0\r\nConnection: keep-alive\r\n\r\nGET /b HTTP/1.0\r\n\r\nGET /c HTTP/1.0\r\n\r\n",
    "close": get("/a", "Connection: close") + get("/b"),
    "repeated": get("/a", "X-Key: 1", "x_key: 2", "X-Key: 3 "),
    "length": post(b"hello\r\n\r\nGET / HTTP/1.1\r\n\r\n") + get("/b"),
    "continue": post(b"hello", "Expect: 100-continue") + get("/b"),
    "chunked": chunked(b"a", b"bc\r\n", b"\r\n\r\n" * 9, trailers=b"Authorization: x\r\nX:\r\n") + get("/b"),
    "chunk extensions": get("/c", "Transfer-Encoding: chunked", method="POST")
    + b"3;a=b\r\nabc\r\n0;last\r\n\r\n"
    + get("/b"),
    "h2c": post(b"body", "Connection: Upgrade", "Upgrade: h2c") + get("/b"),
    "empty line before": b"\r\n" + get("/a") + b"\r\n" + get("/b"),
    "after a body": post(b"x") + b"\r\n" + get("/b"),
}
INVALID = {
    "garbage": b"\x16\x03\x01\x00\xa5\r\n\r\n",
    "bare LF": get("/a") + b"GET / HTTP/1.1\nHost: a\n\n",
    "bare LF late": get("/a", "X: a\nY: b"),
    "bare LF and method": b"FOO / HTTP/1.1\r\nHost: a\r\nX: a\nb\r\n\r\n",
    "bare LF then too large": get("/a", "X: a\nY: b", "Z: " + "z" * 300),
    "too large then bare LF": get("/a", "Z: " + "z" * 300, "X: a\nY: b"),
    "no host": b"GET / HTTP/1.1\r\n\r\n" + get(),
    "two hosts": get("/", "Host: b") + get(),
    "two lengths": post(b"abc", "Content-Length: 3") + get(),
    "length and chunks": chunked(b"abc", fields=("Content-Length: 3",)) + get(),
    "gzip, chunked": get("/", "Transfer-Encoding: gzip, chunked", method="POST") + b"0\r\n\r\n" + get(),
    "underscore": get("/", "Content_Length: 30", method="POST") + get("/smuggled"),
    "obs-fold": get("/", "X: a", " b"),
    "method": get(method="BREW") + get(),
    "version": get(version="1.2") + get(),
    "0.9": b"GET /\r\n\r\n",
    "absolute": get("http://b/"),
    "websocket": get("/", "Connection: upgrade", "Upgrade: websocket") + get(),
    "expectation": post(b"abc", "Expect: tea"),
    "long line": get("/" + "x" * 60),
    "long line without end": b"GET /" + b"x" * 100,
    "long line after empty line": b"\r\n" + get("/" + "x" * 60),
    "longest line": get("/" + "x" * 44) + b"\r\n" + get("/" + "x" * 44) + get("/" + "x" * 45),
    "long head": get("/", "X: " + "x" * 300) + get(),
    "many fields": get("/", *["X: y"] * 9) + get(),
    "body too large": get("/", "Content-Length: 201", method="POST") + b"x" * 201,
    "chunks too large": chunked(b"x" * 100, b"x" * 101),
    "many chunks": chunked(*[b"x"] * 7),
    "bad chunk size": chunked(b"ab")[:-5] + b"0x2\r\nab\r\n0\r\n\r\n",
    "bad chunk end": chunked(b"ab")[:-7] + b"XX0\r\n\r\n",
    "long chunk extension": chunked()[:-5] + b"1;" + b"x" * 40 + b"\r\n",
    "bad trailer": chunked(b"ab", trailers=b"Nope\r\n") + get(),
    "long trailers": chunked(b"ab", trailers=b"A: b\r\n" * 20) + get(),
    "two empty lines": b"\r\n\r\n" + get(),
}
STREAMS = VALID | INVALID


@pytest.fixture(scope="module", autouse=True)
def small_chunks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(RequestChunks, "trailer_bytes", 60)
        patched.setattr(RequestChunks, "line_bytes", 30)
        patched.setattr(RequestChunks, "free_chunks", 5)
        yield


def outcome(*pieces: bytes) -> tuple[object, ...]:
    """Everything a client and a handler can see of a connection; an interim 100 may come or not."""
    with Client(limits=LIMITS) as client:
        client.send(*pieces)
        sent = client.transport.sent.replace(b"HTTP/1.1 100 Continue\r\n\r\n", b"")
        seen = [(r.method, r.target, r.headers, r.repeated, r.raw, r.body) for r in client.seen]
        return sent, seen, client.transport.closed, client.transport.eof, client.server.bad_requests


@each("name", list(STREAMS))
def test_every_single_cut(name: str) -> None:
    """In two pieces, cut at any place, as in one (Y-3)."""
    stream = STREAMS[name]
    whole = outcome(stream)
    assert (whole[-1] == 0) is (name in VALID)
    for at in range(1, len(stream)):
        assert outcome(stream[:at], stream[at:]) == whole, at


@each("name", list(STREAMS))
def test_byte_by_byte(name: str) -> None:
    stream = STREAMS[name]
    assert outcome(*(stream[at : at + 1] for at in range(len(stream)))) == outcome(stream)


@given(st.lists(st.sampled_from(sorted(STREAMS)), min_size=1, max_size=4), st.lists(st.integers(1, 40), min_size=1))
def test_random_cuts_of_random_sequences(names: list[str], sizes: list[int]) -> None:
    stream = b"".join(STREAMS[name] for name in names)
    pieces: list[bytes] = []
    at = 0
    while at < len(stream):
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(stream[at : at + size])
        at += size
    assert outcome(*pieces) == outcome(stream)


# Fragments from which hypothesis builds heads and bodies that are right, wrong, and nearly right.
LINES = st.sampled_from(
    [
        b"GET / HTTP/1.1",
        b"POST /p HTTP/1.1",
        b"POST /p HTTP/1.0",
        b"HEAD /x HTTP/1.1",
        b"GET  / HTTP/1.1",
        b"PUT / HTTP/0.9",
    ]
)
FIELDS = st.sampled_from(
    [
        b"Host: a", b"host: b:80", b"Host:", b"Content-Length: 5", b"Content-Length: 05", b"Content-Length: 0", b"content-length:5 ", b"Content-Length: 5,5",
        b"Transfer-Encoding: chunked", b"Transfer-Encoding: Chunked ", b"Transfer-Encoding: gzip, chunked", b"Transfer-Encoding : chunked",
        b"Content_Length: 7", b"Transfer_Encoding: chunked", b"X: \x80\xff", b"X: a\x01b", b"X: a\x7fb", b"X:\ta\t", b"X: a\nContent-Length: 5",
        b"X: a\r", b" folded", b"X", b"Connection: close", b"Connection: upgrade", b"Upgrade: h2c", b"Expect: 100-continue", b"X-\xe4: 1", b"Trailer: X",
    ]
)  # fmt: skip
BODIES = st.sampled_from(
    [
        b"", b"hello", b"5\r\nhello\r\n0\r\n\r\n", b"05\r\nhello\r\n0\r\n\r\n", b"5;x=y\r\nhello\r\n0\r\nA: b\r\n\r\n", b"5 \r\nhello\r\n0\r\n\r\n",
        b"5\nhello\n0\n\n", b"5\r\nhello0\r\n\r\n", b"5;\nx\r\nhello\r\n0\r\n\r\n", b"5;\rx\r\nhello\r\n0\r\n\r\n", b"0\r\n\r\n", b"0\r\nA\r\n\r\n", b"0x5\r\nhello\r\n0\r\n\r\n",
    ]
)  # fmt: skip
NEXT = b"GET /next HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"

# Where h11 differs. It refuses what we accept in one case, and takes more than we do in others:
EMPTY_LINE = b"\r\n"  # before a request: RFC 9112 section 2.2 asks servers to skip one, h11 refuses it
H11_TAKES_MORE = {
    "equal repeated lengths": b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\nx",
    "folded fields": b"GET / HTTP/1.1\r\nHost: a\r\nX: a\r\n b\r\n\r\n",
    "bare LF": b"GET / HTTP/1.1\nHost: a\n\n",
    "control characters": b"GET / HTTP/1.1\r\nHost: a\r\nX: a\x01b\r\n\r\n",
    "space after a chunk size": b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1 \r\nx\r\n0\r\n\r\n",
    "twenty digits of chunk size": b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    + b"0" * 19
    + b"1\r\nx\r\n0\r\n\r\n",
    "absolute-form": b"GET http://a/ HTTP/1.1\r\nHost: a\r\n\r\n",
    "underscores": b"GET / HTTP/1.1\r\nHost: a\r\nContent_Length: 1\r\n\r\n",
    "fragments": b"GET /#a HTTP/1.1\r\nHost: a\r\n\r\n",
}


def h11_reads(stream: bytes) -> list[tuple[bytes, bytes, bytes]]:
    """Method, target and body of every request, as h11 frames them, until it refuses or has no more."""
    requests: list[tuple[bytes, bytes, bytes]] = []
    while stream:
        server = h11.Connection(h11.SERVER)
        server.receive_data(stream.removeprefix(EMPTY_LINE))
        try:
            request, body = server.next_event(), b""
            while isinstance(event := server.next_event(), h11.Data):
                body += event.data
        except h11.RemoteProtocolError:
            break
        if not isinstance(request, h11.Request) or not isinstance(event, h11.EndOfMessage):
            break
        requests.append((request.method, request.target, body))
        stream = server.trailing_data[0]
    return requests


@pytest.mark.parametrize("name", H11_TAKES_MORE)
def test_where_we_are_stricter_than_h11(name: str) -> None:
    """The table of differences is true: h11 reads one request, we refuse."""
    assert len(h11_reads(H11_TAKES_MORE[name])) == 1
    assert we_read(H11_TAKES_MORE[name]) == ([], 1)


class LlhttpReader:
    """The same with llhttp."""

    def __init__(self) -> None:
        self.requests: list[tuple[bytes, bytes, bytes]] = []
        self.url = self.body = b""
        self.parser = httptools.HttpRequestParser(self)

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.requests.append((self.parser.get_method(), self.url, self.body))
        self.url = self.body = b""


def we_read(stream: bytes) -> tuple[list[tuple[bytes, bytes, bytes]], int]:
    with Client() as client:
        client.send(stream)
        return [(r.method.encode(), r.target, r.body) for r in client.seen], client.server.bad_requests


@given(LINES, st.lists(FIELDS, max_size=5), BODIES)
@example(b"POST /p HTTP/1.1", [b"Host: a", b"Content-Length: 5"], b"hello")
@example(b"POST /p HTTP/1.1", [b"Host: a", b"Transfer-Encoding: chunked"], b"5;x=y\r\nhello\r\n0\r\nA: b\r\n\r\n")
def test_whatever_we_accept_others_frame_the_same(line: bytes, fields: list[bytes], body: bytes) -> None:
    """Every request that reached a handler is one that h11 and llhttp cut out of the stream in the same place (Y-3)."""
    stream = b"\r\n".join([line, *fields, b"", b""]) + body + NEXT
    requests, _ = we_read(stream)
    if not requests:
        return
    assert h11_reads(stream)[: len(requests)] == requests
    if b"Upgrade: h2c" in fields and b"Connection: upgrade" in fields:
        return  # httptools loses the body of an offered upgrade, which is why bodies are framed by us
    reader = LlhttpReader()
    with suppress(httptools.HttpParserError):  # a fault after what is compared, such as data after `Connection: close`
        reader.parser.feed_data(stream)
    assert reader.requests[: len(requests)] == requests


@each("name", list(VALID))
def test_valid_streams_are_read_whole_by_h11(name: str) -> None:
    stream = VALID[name]
    assert h11_reads(stream)[: len(we_read(stream)[0])] == we_read(stream)[0]
    assert we_read(stream)[1] == 0


@given(st.binary(max_size=200))
def test_any_bytes_at_all_leave_the_process_alive(data: bytes) -> None:
    """An answer, a wait for more, or nothing; never an exception (Y-2)."""
    with Client(limits=LIMITS) as client:
        client.send(data, data)
        assert client.server.handler_errors == 0


LINES = st.one_of(
    st.binary(max_size=24),
    st.builds(
        lambda name, gap, value: name + b":" + gap + value,
        st.text("aZ09-_!~", min_size=1, max_size=6).map(str.encode),
        st.sampled_from([b"", b" ", b"\t ", b"\x0b"]),
        st.binary(max_size=16),
    ),
)


def _llhttp_takes(line: bytes) -> bool:
    try:
        httptools.HttpRequestParser(object()).feed_data(b"GET / HTTP/1.1\r\nHost: a\r\n" + line + b"\r\n\r\n")
    except httptools.HttpParserUpgrade:
        return True
    except httptools.HttpParserError:
        return False
    return True


@given(LINES)
@example(b"")
@example(b"x: a\x00")
@example(b"x: a\x7f")
@example(b"x: \xff\x80 \t")
@example(b"x : a")
@example(b" x: a")
@example(b"x")
@example(b": a")
def test_a_line_of_a_head_is_fine_exactly_when_llhttp_says_so(line: bytes) -> None:
    """Heads are checked line by line by us; llhttp is what holds that check to the grammar (Y-3)."""
    if b"\r\n" in line:
        return  # two lines
    parser = HeadParser(RequestLimits())
    try:
        parser.parse(b"GET / HTTP/1.1\r\nHost: a\r\n" + line + b"\r\n\r\n", "")
        taken = True
    except RequestError as error:
        if "Host" in str(error) or "repeated" in str(error) or "Content-Length" in str(error) or error.status != 400:
            return  # stricter than llhttp on purpose, see STRICT above and the table of `head`
        taken = False
    if line:  # an empty line ends the head before: what follows is no part of it
        assert taken == _llhttp_takes(line)
