"""Server-Sent Events: what is an event, whatever ends its lines, and what is passed over."""

from __future__ import annotations

import pytest

from breakloop.dialects.framing import SseParser
from tests.each import each


def split(body: bytes, size: int = 0, max_bytes: int = 1000) -> list[bytes]:
    """All events of a body that comes in pieces of this size, its end included."""
    events = SseParser(max_bytes)
    size = size or len(body) or 1
    found = [one for start in range(0, len(body), size) for one in events.feed(body[start : start + size])]
    return found + list(events.finish())


@each(
    "body, expected",
    [
        (b"data: a\n\n", [b"a"]),
        (b"data:a\n\n", [b"a"]),
        (b"data:  a \n\n", [b" a "]),
        (b"data: a\n\ndata: b\n\n", [b"a", b"b"]),
        (b"event: x\ndata: a\n\nevent: y\ndata: b\n\n", [b"a", b"b"]),
        (b"data: a\nevent: x\nid: 7\nretry: 100\n\n", [b"a"]),
        (b"data: a\ndata: b\n\n", [b"a\nb"]),
        (b"data: a\r\n\r\ndata: b\r\n\r\n", [b"a", b"b"]),
        (b"data: a\r\rdata: b\r\r", [b"a", b"b"]),
        (b"data: a\r\n\ndata: b\n\r\ndata: c\r\r\n", [b"a", b"b", b"c"]),
        (b": ping\n\ndata: a\n\n: OPENROUTER PROCESSING\n\n:\n", [b"a"]),
        (b"\xef\xbb\xbfdata: a\n\n", [b"a"]),
        (b"\n\n\n\ndata: a\n\n\n\n\ndata: b\n\n\n", [b"a", b"b"]),
        (b"data: a\n\ndata: [DONE]", [b"a", b"[DONE]"]),
        (b"data: a\n\ndata: [DONE]\n", [b"a", b"[DONE]"]),
        (b"data: a\n\ndata: [DONE]\r", [b"a", b"[DONE]"]),
        (b"data:\n\ndata: \n\ndata: a\n\n", [b"a"]),
        (b"event: ping\n\ndata\n\nnothing: x\n\ndatabase: y\n\n", []),
        (b"", []),
        (b"\r", []),
    ],
)
def test_events(body: bytes, expected: list[bytes]) -> None:
    """Fields, line ends and comments as they are written; the end of the stream ends an event too (D-1)."""
    for size in range(len(body) + 1):
        assert split(body, size) == expected, size


@each(
    "pieces, expected",
    [
        ([b"data: a\n", b"data: b\n\n"], [b"a\nb"]),
        ([b"x", b"data: b\n\n"], []),
        ([b"data: a\r", b"\ndata: b\n\n"], [b"a\nb"]),
        ([b"data: a\r", b"", b"\ndata: b\n\n"], [b"a\nb"]),
        ([b"data: a\r\r", b"\n", b"data: b\n\n"], [b"a", b"b"]),
        ([b"data: a\r\r", b"\ndata: b\n\n", b"data: c\n\n"], [b"a", b"b", b"c"]),
        ([b"data: " + b"x" * 50 + b"\n\n", b"data: b\n\n"], [b"b"]),
        ([b"data: " + b"x" * 50 + b"\n", b"data: b\n\n", b"data: c\n\n"], [b"c"]),
        ([b"data:x\ndata: b\n\n"], [b"x\nb"]),
        ([b"event: ping\nretry: 50\n\n"], []),
        ([b"data: \n\n", b"data: b\n\n"], [b"b"]),
    ],
)
def test_pieces_that_look_like_events(pieces: list[bytes], expected: list[bytes]) -> None:
    """The short way for one event in one piece is not taken where it is not the same (D-1)."""
    events = SseParser(40)
    assert [one for piece in pieces for one in events.feed(piece)] == expected


def test_nothing_is_held_back() -> None:
    """An event is there as soon as its empty line is (D-1)."""
    events = SseParser()
    assert list(events.feed(b"data: a\n")) == []
    assert list(events.feed(b"\ndata: b\r\n\r")) == [b"a", b"b"]
    assert list(events.feed(b"\ndata: c\n\n")) == [b"c"]
    assert list(events.finish()) == []


@pytest.mark.parametrize("size", [0, 1, 2, 7, 39, 40, 41])
def test_long_events_are_passed_over(size: int) -> None:
    """The next ones are read again, however the long one came; what is just within the bound is read (Y-2)."""
    within = b"x" * 34  # with the name of its field 40 bytes
    body = b"data: a\n\ndata: %s\n\ndata: %sx\n\ndata: b\n\n" % (within, within)
    assert split(body, size, 40) == [b"a", within, b"b"]
    lines = b"data: %s\n" % (b"y" * 10) * 4
    assert split(b"data: a\n\n" + lines + b"\ndata: b\n\n", size, 40) == [b"a", b"b"]
    for other in (b":" + b"c" * 60, b"event: " + b"c" * 60, b"data: z\nid: " + b"c" * 60):
        assert split(b"data: a\n\n%s\ndata: y\n\ndata: b\n\n" % other, size, 40) == [b"a", b"b"]


def test_what_is_passed_over_is_counted() -> None:
    """Once an event, and memory stays within the bound (Y-2)."""
    events = SseParser(100)
    for _ in range(3):
        events.feed(b"data: ")
        for _ in range(50):
            events.feed(b"x" * 30)
            assert len(events._partial) <= 130
        events.feed(b"\ndata: y\n\n")
    assert events.skipped == 3


def test_long_events_in_small_pieces_cost_their_length() -> None:
    """A megabyte, 16 bytes at a time, is found without going over all of it again and again (Y-2)."""
    events = SseParser(2 * 1024 * 1024)
    events.feed(b"data: ")
    for _ in range(65_536):
        events.feed(b"0123456789abcdef")
    assert [len(one) for one in events.feed(b"\n\n")] == [1024 * 1024]


@pytest.mark.parametrize("size", [0, 1, 5])
def test_an_object_in_place_of_an_event(size: int) -> None:
    """Servers that fail in the middle of a stream write their error as they always do (C-9)."""
    error = b'{\n  "error": {\n    "code": 500\n  }\n}'
    assert split(b"data: a\n\n" + error, size) == [b"a", error]
    assert split(b"data: a\n\n" + error + b"\n\ndata: b\n\n", size) == [b"a", error, b"b"]
    assert split(error + b"\ndata: b\n\n", size) == [error, b"b"]
    assert split(b"data: a\n{\n\n", size) == [b"a"]
