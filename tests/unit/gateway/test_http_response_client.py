"""What a client gets of a head, for every kind of body and version; whole answers are in test_exchange."""

from __future__ import annotations

import pytest

from breakloop.gateway.framing import ChunkBoundary
from breakloop.gateway.http_request import CLOSE, KEEP, Request
from breakloop.gateway.http_response import (
    RECHUNKED,
    UNCHANGED,
    UNTIL_CLOSE,
    ResponseHeadParser,
    can_append,
    client_head,
    final_bytes,
    reframe,
)

LENGTH, CHUNKED, NONE = b"Content-Length: 3\r\n", b"Transfer-Encoding: chunked\r\n", b""


@pytest.mark.parametrize(
    ("fields", "is_1_1", "connection", "close", "lines", "framing"),
    [
        (LENGTH, True, b"", False, b"content-length: 3\r\n", UNCHANGED),
        (LENGTH, True, b"", True, CLOSE + b"content-length: 3\r\n", UNCHANGED),
        (LENGTH, False, KEEP, False, KEEP + b"content-length: 3\r\n", UNCHANGED),
        (CHUNKED, True, b"", False, b"transfer-encoding: chunked\r\n", UNCHANGED),
        (CHUNKED, False, KEEP, False, CLOSE, UNTIL_CLOSE),
        (NONE, True, b"", False, b"transfer-encoding: chunked\r\n", RECHUNKED),
        (NONE, False, CLOSE, False, CLOSE, UNTIL_CLOSE),
    ],
)
def test_framing_fits_the_client(
    fields: bytes, is_1_1: bool, connection: bytes, close: bool, lines: bytes, framing: int
) -> None:
    """Exactly one framing, and a connection that is said to end does (D-1)."""
    request = Request("GET", b"/", {}, connection=connection, is_1_1=is_1_1)
    head = ResponseHeadParser().parse(b"HTTP/1.1 200 OK\r\nX: y\r\n" + fields + b"\r\n", "GET")
    out = client_head(request, head, b"Ours: 1\r\n", close=close)
    assert out == (b"HTTP/1.1 200 OK\r\nX: y\r\nOurs: 1\r\n" + lines + b"\r\n", framing)
    assert (request.connection is CLOSE) is (CLOSE in lines)


def test_reframing() -> None:
    assert reframe(UNTIL_CLOSE, [b"a", b"bc"], done=True) == b"abc"
    assert reframe(RECHUNKED, [b"a", b"", b"bc"], done=False) == b"1\r\na\r\n2\r\nbc\r\n"
    assert reframe(RECHUNKED, [], done=True) == b"0\r\n\r\n"


BETWEEN = ChunkBoundary(b"", 0)


@pytest.mark.parametrize(
    ("framing", "joint", "expected"),
    [
        (UNTIL_CLOSE, None, b"OURS"),
        (UNTIL_CLOSE, ChunkBoundary(b"", 9), b"OURS"),  # the upstream's chunks are nothing to a client that gets none
        (RECHUNKED, None, b"4\r\nOURS\r\n0\r\n\r\n"),
        (UNCHANGED, BETWEEN, b"4\r\nOURS\r\n0\r\n\r\n"),
        (UNCHANGED, ChunkBoundary(b"\r\n", 0), b"\r\n4\r\nOURS\r\n0\r\n\r\n"),
        (UNCHANGED, ChunkBoundary(b"", 1), b"O\r\n3\r\nURS\r\n0\r\n\r\n"),
        (UNCHANGED, ChunkBoundary(b"", 4), b"OURS\r\n0\r\n\r\n"),
        (UNCHANGED, ChunkBoundary(b"", 6), b"OURS\n\n\r\n0\r\n\r\n"),
    ],
)
def test_ending_with_something_of_ours(framing: int, joint: ChunkBoundary | None, expected: bytes) -> None:
    """Whatever the framing, and wherever in it (LD-8)."""
    assert can_append(framing, joint)
    assert final_bytes(b"OURS", framing, joint) == expected


@pytest.mark.parametrize("joint", [None, ChunkBoundary(b"", 65 * 1024)])
def test_where_nothing_can_follow(joint: ChunkBoundary | None) -> None:
    """An answer of known length, the middle of a chunk's size, and a chunk that would have to be filled (LD-8)."""
    assert not can_append(UNCHANGED, joint)
