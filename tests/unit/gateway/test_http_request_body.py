"""Framing of bodies: content without framing, the exact end, and bounds on everything else."""

from __future__ import annotations

import pytest

from breakloop.errors import RequestError
from breakloop.gateway.framing import RequestChunks
from breakloop.gateway.http_request import CHUNKED, BodyCollector, BodyMemory, Request, RequestLimits
from tests.each import each


def read(stream: bytes, length: int = CHUNKED, limits: RequestLimits | None = None) -> tuple[bytes, int, bool]:
    """Content, where reading stopped, and whether the body is complete."""
    bounds = limits or RequestLimits()
    body = BodyCollector(Request("POST", b"/", {}, length=length), BodyMemory(bounds), bounds.body_bytes)
    at = body.feed(stream)
    return bytes(body.content), at, body.done


def refused(stream: bytes, limits: RequestLimits | None = None) -> tuple[int, str]:
    with pytest.raises(RequestError) as error:
        read(stream, limits=limits)
    return error.value.status, str(error.value)


def test_length() -> None:
    assert read(b"abcdef", 4) == (b"abcd", 4, True)
    assert read(b"ab", 4) == (b"ab", 2, False)
    assert read(b"", 0) == (b"", 0, True)


def test_chunks() -> None:
    stream = b"3\r\nabc\r\nA\r\n0123456789\r\n0\r\n\r\n"
    assert read(stream + b"GET") == (b"abc0123456789", len(stream), True)
    stream = b'3;a=b;c="d e"\r\nabc\r\n00000;x\r\n\r\n'
    assert read(stream) == (b"abc", len(stream), True)


def test_trailers_are_thrown_away() -> None:
    """A trailer named Authorization must not become part of a request."""
    stream = b"1\r\na\r\n0\r\nAuthorization: x\r\nB:\r\n\r\n"
    assert read(stream + b".") == (b"a", len(stream), True)


@each(
    "stream",
    [
        b"\r\n",
        b"g\r\n",
        b"0x3\r\nabc\r\n",
        b"+3\r\nabc\r\n",
        b" 3\r\nabc\r\n",
        b"3 \r\nabc\r\n",
        b"3 ;a\r\nabc\r\n",
        b"3\n abc\r\n",
        b"3;a\nb\r\nabc\r\n",
        b"3;a\rb\r\nabc\r\n",
        b"3\r\nabcd\r\n",
        b"3\r\nabc\n0\r\n\r\n",
        b"000000003\r\nabc\r\n",
        b"fffffffff\r\n",
        b"-1\r\n",
    ],
)
def test_malformed_chunks(stream: bytes) -> None:
    """One reading only (Y-3)."""
    assert refused(stream) == (400, "malformed chunk")


@pytest.mark.parametrize(
    "line",
    [
        b"A",
        b" A: b",
        b"A : b",
        b"A: \x00",
        b"A: b\nC: d",
        b": b",
        b"Transfer-Encoding: x",
        b"content_length: 3",
        b"HOST: b",
    ],
)
def test_malformed_trailers(line: bytes) -> None:
    assert refused(b"0\r\n" + line + b"\r\n\r\n") == (400, "malformed trailer")


def test_a_bare_line_feed_is_refused_at_once() -> None:
    """Not waited on until the time limit: nothing that follows can make the line valid (Y-3)."""
    assert refused(b"3\n") == (400, "malformed chunk")
    assert refused(b"3\nabc\n0\n\n") == (400, "malformed chunk")
    assert refused(b"3\r\nabc\r\n0\n") == (400, "malformed chunk")
    assert refused(b"0\r\n\n") == (400, "malformed trailer")
    assert refused(b"0\r\nA: b\n") == (400, "malformed trailer")
    assert read(b"3\r\nabc\r\n0\r") == (b"abc", 10, False)


def test_lines_are_bounded() -> None:
    """Chunk extensions, zeros and trailers are capped, complete or not (Y-2)."""
    long = "chunk line or trailers too long"
    assert read(b"1;" + b"x" * 252)[2] is False
    assert refused(b"1;" + b"x" * 254) == (400, long)
    assert refused(b"1;" + b"x" * 254 + b"\r\na\r\n0\r\n\r\n") == (400, long)
    assert refused(b"0\r\n" + b"A: b\r\n" * 1400) == (400, long)
    assert refused(b"0\r\nA: " + b"x" * 8200) == (400, long)


def test_size_is_bounded_by_what_a_chunk_announces() -> None:
    """The content is not waited for (Y-2)."""
    limits = RequestLimits(body_bytes=10)
    assert read(b"a\r\n", limits=limits)[2] is False
    assert refused(b"b\r\n", limits=limits)[0] == 413
    assert refused(b"5\r\nabcde\r\n6\r\n", limits=limits)[0] == 413


def test_many_tiny_chunks_are_refused_early() -> None:
    """256 KB in chunks of one byte would be 262,144 steps; it ends after about a thousand (Y-2)."""
    stream = b"1\r\nx\r\n" * 262_144 + b"0\r\n\r\n"
    chunks = RequestChunks(None)
    with pytest.raises(RequestError, match="too many small chunks"):
        chunks.feed(stream)
    assert 1000 <= len(chunks.content) < 1100


def test_small_chunks_of_a_streaming_client_are_fine() -> None:
    chunk = b"50\r\n" + b"x" * 80 + b"\r\n"
    content, _, done = read(chunk * 20_000 + b"0\r\n\r\n")
    assert (len(content), done) == (1_600_000, True)


@each("length, stream", [(300_000, b"x"), (CHUNKED, b"50000\r\n" + b"x" * 300_000)])
def test_large_bodies_are_refused_while_memory_is_short(length: int, stream: bytes) -> None:
    """At once, if their length is known; small ones and those that are only passed on are not (Y-2)."""
    memory = BodyMemory(RequestLimits())
    memory.is_short = True
    with pytest.raises(RequestError) as error:
        BodyCollector(Request("POST", b"/", {}, length=length), memory, None).feed(stream)
    assert (error.value.status, memory.shed, memory.held) == (503, 1, 0)
    assert BodyCollector(Request("POST", b"/", {}, length=200_000), memory, None).feed(b"x" * 200_000) == 200_000
    passed_on = Request("POST", b"/", {}, length=300_000, streamed=True)
    assert BodyCollector(passed_on, memory, None).feed(b"x") == 1
    assert memory.shed == 1
