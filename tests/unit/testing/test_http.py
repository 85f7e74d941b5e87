"""Reading requests: strictly, at any split, and as h11 reads them."""

from __future__ import annotations

import gzip
import hashlib
from itertools import pairwise

import h11
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from breakloop.testing.http import HEAD_MAX_BYTES, MalformedError, RequestReader, SeenRequest
from tests.each import each
from tests.unit.testing.talking import post, seen

CHUNKED = (
    b"POST /x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"3\r\nabc\r\n0a;note=1\r\n0123456789\r\n0\r\nX-Sum: 1\r\n\r\n"
)


def read(*parts: bytes) -> list[SeenRequest]:
    """All requests in these bytes; the last may be incomplete."""
    reader, found = RequestReader(), []
    current: SeenRequest | None = None
    for part in parts:
        reader.feed(part)
        while True:
            if current is None:
                current = reader.head()
                if current is None:
                    break
                found.append(current)
            if not reader.body(current):
                break
            current = None
    return found


def test_a_request() -> None:
    (request,) = read(post("/a?b=c", {"d": 1}, "X-Two: 1", "x-two:2 "))
    assert (request.method, request.target, request.version) == ("POST", "/a?b=c", "1.1")
    assert (request.path, request.query) == ("/a", "b=c")
    assert request.headers == [(b"Host", b"x"), (b"X-Two", b"1"), (b"x-two", b"2"), (b"Content-Length", b"8")]
    assert (request.header("X-TWO"), request.header_all("x-two"), request.header("none")) == ("1", ["1", "2"], None)
    assert (request.json(), request.fields) == ({"d": 1}, {"d": 1})
    assert request.digest == hashlib.sha256(request.body).hexdigest()
    assert request.complete


def test_a_chunked_request() -> None:
    (request,) = read(CHUNKED)
    assert (request.body, request.trailers) == (b"abc0123456789", [(b"X-Sum", b"1")])


@given(st.lists(st.integers(0, 200), max_size=12))
def test_any_split_gives_the_same(cuts: list[int]) -> None:
    """Three requests behind each other, cut anywhere."""
    data = post("/1") + CHUNKED + b"GET /3 HTTP/1.0\r\n\r\n"
    places = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    parts = [data[a:b] for a, b in pairwise(places)]
    found = [(one.method, one.target, one.version, one.body, one.complete) for one in read(*parts)]
    assert found == [
        ("POST", "/1", "1.1", b"{}", True),
        ("POST", "/x", "1.1", b"abc0123456789", True),
        ("GET", "/3", "1.0", b"", True),
    ]


@pytest.mark.parametrize("data", [post("/1", {"a": "b"}), CHUNKED])
def test_h11_reads_the_same(data: bytes) -> None:
    server = h11.Connection(h11.SERVER)
    server.receive_data(data)
    request, body = server.next_event(), b""
    assert isinstance(request, h11.Request)
    while isinstance(event := server.next_event(), h11.Data):
        body += event.data
    (ours,) = read(data)
    assert (ours.body, ours.target.encode()) == (body, request.target)
    assert [(name.lower(), value) for name, value in ours.headers] == list(request.headers)


HOST = b"Host: x\r\n"


@each(
    "data, problem",
    [
        (b"GET /\r\n\r\n", "request line"),
        (b"GET  / HTTP/1.1\r\n" + HOST, "request line"),
        (b"GET / HTTP/2.0\r\n" + HOST, "request line"),
        (b"G(T / HTTP/1.1\r\n" + HOST, "request line"),
        (b"\r\nGET / HTTP/1.1\r\n" + HOST, "request line"),
        (b"GET / HTTP/1.1\r\nHost : x\r\n", "header line"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n folded\r\n", "header line"),
        (b"GET / HTTP/1.1\r\nHost: x\nA: b\r\n", "header line"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nA: b\rc\r\n", "header line"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nA: \x00\r\n", "header line"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nnothing\r\n", "header line"),
        (b"GET / HTTP/1.1\r\nA: b\r\n", "exactly one Host"),
        (b"GET / HTTP/1.1\r\n" + HOST + HOST, "exactly one Host"),
        (b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 1\r\n" + HOST, "Content-Length"),
        (b"POST / HTTP/1.1\r\nContent-Length: +1\r\n" + HOST, "Content-Length"),
        (b"POST / HTTP/1.1\r\nContent-Length: \xb2\r\n" + HOST, "Content-Length"),
        (b"POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n" + HOST, "together with"),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n" + HOST, "Transfer-Encoding"),
        (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n" + HOST, "Transfer-Encoding"),
    ],
)
def test_what_is_no_http_is_refused(data: bytes, problem: str) -> None:
    with pytest.raises(MalformedError, match=problem):
        read(data + b"\r\n")


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"x\r\n", "chunk size"),
        (b"0x3\r\n", "chunk size"),
        (b" 3\r\n", "chunk size"),
        (b"3 ;note\r\n", "chunk size"),
        (b"11112222333344445\r\n", "chunk size"),
        (b"\r\n", "chunk size"),
        (b"3\r\nabcd\r\n", "longer than its size"),
        (b"0\r\nbad line\r\n", "header line"),
        (b"1" * (HEAD_MAX_BYTES + 1), "line without an end"),
    ],
)
def test_broken_chunks_are_refused(body: bytes, problem: str) -> None:
    with pytest.raises(MalformedError, match=problem):
        read(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + body)


def test_a_head_has_an_end() -> None:
    with pytest.raises(MalformedError, match="without an end"):
        read(b"GET / HTTP/1.1\r\nA: " + b"b" * HEAD_MAX_BYTES)


def test_compressed_bodies_are_read() -> None:
    """Clients compress, too; the body itself stays as it came."""
    for coding, packed in (("gzip", gzip.compress(b'{"a":1}')), ("zstd", zstandard.compress(b'{"a":1}'))):
        request = seen(content_encoding=coding)
        request.take(packed)
        assert (request.json(), request.body) == ({"a": 1}, packed)
    request = seen(content_encoding="gzip")
    request.take(b"no gzip")
    with pytest.raises(ValueError, match="cannot be decompressed"):
        request.json()


def test_fields_are_there_or_not() -> None:
    assert seen(fields=[1]).fields == {}
    assert seen().fields == {}
    assert repr(seen()) == "<request 1: POST /v1/chat/completions, 0 bytes, waiting>"
