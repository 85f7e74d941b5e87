"""Framing of answers: the same end and content however the bytes are cut, as h11 reads them."""

from __future__ import annotations

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakloop.errors import UpstreamError
from breakloop.gateway.framing import ChunkBoundary, ChunkedFraming, RequestChunks
from breakloop.gateway.http_request import CHUNKED
from breakloop.gateway.http_response import BODY_UNTIL_CLOSE, framing_for
from tests.each import each

STREAM = b"5\r\nhello\r\n6;ext=1\r\n world\r\n00a\r\n0123456789\r\n0\r\nX-Trailer: t\r\n\r\n"
CONTENT = b"hello world0123456789"


def feed(length: int, *pieces: bytes) -> tuple[bytes, int, bool]:
    """Content, bytes used, and whether it is complete."""
    framing = framing_for(length)
    content, used = b"", 0
    for piece in pieces:
        if framing.done:
            break
        used += framing.feed(piece)
        content += b"".join(framing.content)
    return content, used, framing.done


@each("cut", range(len(STREAM) + 1))
def test_chunks_cut_in_two_at_every_byte(cut: int) -> None:
    pieces = [piece for piece in (STREAM[:cut], STREAM[cut:] + b"NEXT") if piece]
    assert feed(CHUNKED, *pieces) == (CONTENT, len(STREAM), True)


def test_chunks_byte_by_byte() -> None:
    pieces = [STREAM[at : at + 1] for at in range(len(STREAM))]
    assert feed(CHUNKED, *pieces) == (CONTENT, len(STREAM), True)


@given(st.lists(st.binary(min_size=1, max_size=300), max_size=8), st.data())
def test_any_chunks_in_any_pieces(contents: list[bytes], data: st.DataObject) -> None:
    """What we take for the end of an answer is where h11 sees it."""
    stream = b"".join(b"%x\r\n%b\r\n" % (len(content), content) for content in contents) + b"0\r\n\r\n"
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True) if a < b]
    assert feed(CHUNKED, *pieces) == (b"".join(contents), len(stream), True)
    reader = h11.Connection(h11.CLIENT)
    reader.send(h11.Request(method="GET", target="/", headers=[("host", "x")]))
    reader.send(h11.EndOfMessage())
    reader.receive_data(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + stream + b"NEXT")
    read = b""
    event = reader.next_event()
    while not isinstance(event, h11.EndOfMessage):
        read += event.data if isinstance(event, h11.Data) else b""
        event = reader.next_event()
    assert (read, reader.trailing_data[0]) == (b"".join(contents), b"NEXT")


def test_a_cut_body_is_not_done() -> None:
    for stop in range(len(STREAM)):
        assert feed(CHUNKED, STREAM[:stop])[2] is False
    assert feed(10, b"123456789") == (b"123456789", 9, False)


@each(
    "stream",
    [
        b"g\r\n",
        b"\r\n",
        b"-1\r\n",
        b"0x5\r\nhello",
        b"+5\r\nhello\r\n",
        b"5 5\r\nhello",
        b"5\r\nhelloX\r\n0\r\n\r\n",
        b"5\r\nhello\n0\r\n\r\n",
        b"1\n2\r\n",
        b"1234567890abcdef1\r\n",
        b"1;" + b"e" * 300 + b"\r\n",
        b"1" * 300,
        b"0\r\nnot a trailer\r\n\r\n",
        b"0\r\n" + b"a: b\r\n" * 2000,
        b"0\r\na: " + b"b" * 9000,
    ],
)
def test_malformed_chunks(stream: bytes) -> None:
    """An upstream that cannot count is cut off, in one piece or byte by byte."""
    with pytest.raises(UpstreamError):
        feed(CHUNKED, stream)
    with pytest.raises(UpstreamError):
        feed(CHUNKED, *[stream[at : at + 1] for at in range(len(stream))])


def test_length() -> None:
    assert feed(5, b"he", b"lloNEXT") == (b"hello", 5, True)
    assert framing_for(0).done


def test_until_close() -> None:
    assert feed(BODY_UNTIL_CLOSE, b"a", b"b") == (b"ab", 2, False)


def test_content_is_not_copied_where_it_need_not_be() -> None:
    """The middle of a large chunk is handed on as the very object that was received."""
    framing = ChunkedFraming()
    framing.feed(b"100000\r\n")
    piece = b"x" * 1000
    framing.feed(piece)
    assert framing.content[0] is piece


@each(
    "before",
    [
        b"",
        b"5\r\nhello\r\n",
        b"5\r",
        b"5\r\n",
        b"20\r\n",
        b"20\r\nhe",
        b"5\r\nhello",
        b"5\r\nhello\r",
        b"0\r\n",
        b"1;a=b\r\nx\r\n",
    ],
)
@each(
    "read",
    [
        b"5\r\nhello\r\n",
        b"0005\r\nhello\r\n",
        b"5\r\nhe\r\no\r\n",
        b"5\r\nhello\r\n5\r\nhello\r\n",
        b"5\r\nhello\r\n0\r\n\r\n",
        b"5\r\nhello",
        b"5\r\nhelloab",
        b"6\r\nhello\r\n",
        b"4\r\nhello\r\n",
        b"5 \r\nhello\r\n",
        b"5;a=b\r\nhello\r\n",
        b"0x5\r\nhello\r\n",
        b"0_5\r\nhello\r\n",
        b"+5\r\nhello\r\n",
        b"5\r\r\nhello\r\n",
        b"0\r\n\r\n",
    ],
)
def test_a_read_that_looks_like_a_chunk(before: bytes, read: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its size known, a read means the same as with an unknown one, whatever came before."""
    found: list[object] = []
    for known in ({}, {b"5": 5, b"0005": 5, b"6": 6, b"4": 4}):
        monkeypatch.setattr(ChunkedFraming, "sizes", known)
        framing = ChunkedFraming()
        framing.feed(before)
        try:
            used: object = framing.feed(read)
        except UpstreamError as error:
            found.append((str(error), None, None, None))
        else:
            found.append((used, b"".join(framing.content), framing.done, framing.boundary))
    assert found[0] == found[1]


def test_sizes_of_chunks_are_learnt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of short lines that were read as such, and at most so many. None of requests, which are counted."""
    sizes: dict[bytes, int] = {}
    monkeypatch.setattr(ChunkedFraming, "sizes", sizes)
    monkeypatch.setattr(ChunkedFraming, "sizes_max", 3)
    feed(CHUNKED, b"a\r\n0123456789\r\n4;x=y\r\nabcd\r\n00001\r\nx\r\n01\r\nx\r\n1\r\ny\r\n2\r\nxy\r\n0\r\n\r\n")
    assert sizes == {b"2": 2}  # with a fourth, all others are dropped
    requests = RequestChunks(None)
    for _ in range(2):
        requests.feed(b"3\r\nabc\r\n")
    assert requests.sizes == {}


@each(
    "fed, joint",
    [
        (b"", ChunkBoundary(b"", 0)),
        (b"5", None),
        (b"5\r", None),
        (b"5\r\n", ChunkBoundary(b"", 5)),
        (b"5\r\nhel", ChunkBoundary(b"", 2)),
        (b"5\r\nhello", ChunkBoundary(b"\r\n", 0)),
        (b"5\r\nhello\r", ChunkBoundary(b"\n", 0)),
        (b"5\r\nhello\r\n", ChunkBoundary(b"", 0)),
        (b"5\r\nhello\r\n6", None),
        (b"5\r\nhello\r\n0\r\n", None),
        (b"5\r\nhello\r\n0\r\n\r\n", None),
    ],
)
@each("whole", [True, False])
def test_where_other_content_could_follow(fed: bytes, joint: ChunkBoundary | None, whole: bool) -> None:
    """After any byte it is known what has to be written first, and what the running chunk still needs (LD-8)."""
    framing = ChunkedFraming()
    for piece in [fed] if whole else [fed[at : at + 1] for at in range(len(fed))]:
        framing.feed(piece)
    assert framing.boundary == joint
