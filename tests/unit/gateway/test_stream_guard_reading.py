"""Reading along: what is read, and that nothing which goes wrong there reaches anybody."""

from __future__ import annotations

import gzip
import json
import zlib

import pytest

from breakloop.detect.stream import RepetitionWatch
from breakloop.dialects.answers import PassingAnswer, WholeAnswerReader
from breakloop.dialects.registry import DIALECTS
from breakloop.gateway.exchange import GuardedAnswer, read_response
from breakloop.gateway.http_response import ResponseHead
from breakloop.model.call import Answer, Chat
from tests.each import each

BODY = json.dumps(
    {
        "id": "c-1",
        "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2},
    }
).encode()


def chat(dialect: str, *, stream: bool = False) -> Chat:
    return Chat(dialect, "m", (), 1, stream)


def head(**fields: str) -> ResponseHead:
    headers = {name.replace("_", "-"): value.encode() for name, value in fields.items()}
    return ResponseHead(200, b"HTTP/1.1 200 OK\r\n", b"", headers, 0, b"", True)


def read(body: bytes, *, step: int, **fields: str) -> tuple[Answer, list[str]]:
    """Read a body in pieces; returns the answer and why reading was given up."""
    why: list[str] = []
    reading = read_response(chat("openai_chat"), head(**fields), why.append)
    assert reading is not None
    for at in range(0, len(body), step):
        reading.feed([body[at : at + step]])
    return reading.answer(200, complete=True), why


@each("step", [1, 7, 10_000])
@each(
    "coding, packed",
    [("", BODY), ("identity", BODY), ("gzip", gzip.compress(BODY)), ("deflate", zlib.compress(BODY))],
)
def test_packed_answers_are_read_in_any_pieces(step: int, coding: str, packed: bytes) -> None:
    """Packed answers are read in any pieces (C-9, D-1)."""
    fields = {"content_encoding": coding} if coding else {}
    answer, why = read(packed, step=step, content_type="application/json", **fields)
    assert (answer.text, answer.response_id, answer.finish, why) == ("hello", "c-1", "stop", [])
    assert answer.usage is not None
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (3, 2)


def stored(*contents: bytes) -> list[bytes]:
    """A packed stream of these contents as they are, each with what the packer puts before it."""
    packer = zlib.compressobj(0)
    return [packer.compress(content) + packer.flush(zlib.Z_SYNC_FLUSH) for content in contents]


def guarded(content_encoding: str, why: list[str]) -> GuardedAnswer:
    fields = head(content_type="text/event-stream", content_encoding=content_encoding)
    watch = RepetitionWatch(lambda *_: None)
    reading = read_response(chat("openai_chat", stream=True), fields, why.append, lambda _can_cut: watch)
    assert isinstance(reading, GuardedAnswer)
    return reading


def said(word: bytes) -> bytes:
    return b'data: {"id":"c","model":"m","choices":[{"index":0,"delta":{"content":"%b"}}]}\n\n' % word


def test_packed_bytes_that_look_like_an_event_are_unpacked() -> None:
    """Packers store what they cannot make smaller, so a piece may be an event as it is (D-1)."""
    why: list[str] = []
    reading = guarded("deflate", why)
    one, two, three, four = stored(said(b"One"), said(b" two"), said(b" three"), said(b" four"))
    begun = three.index(b"data: ")
    for piece in (one, two + three[:begun]):
        reading.feed([piece])
    assert reading._stream.collecting is not None
    reading.feed([three[begun : begun + len(said(b" three"))]])
    reading.feed([three[begun + len(said(b" three")) :] + four])
    assert (reading.answer(200, complete=True).text, why) == ("One two three four", [])


def test_nothing_is_collected_of_what_cannot_be_unpacked() -> None:
    """Even if it looks like an event (C-9)."""
    why: list[str] = []
    reading = guarded("deflate", why)
    for piece in (*stored(said(b"One"), said(b" two")), b"\xff" * 6, said(b" three"), said(b" four")):
        reading.feed([piece])
    reading.answer(200, complete=True)
    assert reading._stream.answer(200, complete=True).text == "One two"
    assert why == ["broken"]


def test_what_cannot_be_unpacked_is_given_up_once() -> None:
    answer, why = read(b"no gzip at all", step=3, content_type="application/json", content_encoding="gzip")
    assert (answer, len(why)) == (Answer(200, complete=True), 1)


def test_a_coding_nobody_knows_is_not_read() -> None:
    why: list[str] = []
    fields = head(content_type="application/json", content_encoding="rot13")
    assert read_response(chat("openai_chat"), fields, why.append) is None
    assert len(why) == 1


@pytest.mark.parametrize(("dialect", "kind"), [("", "application/json"), ("openai_chat", "text/html")])
def test_nothing_to_read(dialect: str, kind: str) -> None:
    assert read_response(chat(dialect), head(content_type=kind), lambda _why: None) is None


class Broken(WholeAnswerReader):
    """A reader with a mistake in it."""

    def feed(self, content: bytes) -> None:
        if content == b"bad":
            raise KeyError(content)

    def answer(self, status: int, *, complete: bool) -> Answer:
        raise IndexError(status, complete)


@pytest.mark.parametrize("piece", [b"bad", b"good"])
def test_a_mistake_of_a_reader_is_the_end_of_reading_only(piece: bytes) -> None:
    why: list[str] = []
    reading = PassingAnswer(Broken(DIALECTS["openai_chat"]), None, why.append)
    reading.feed([piece])
    reading.feed([piece])
    assert reading.answer(200, complete=False) == Answer(200, complete=False)
    assert why == ["fault"]


def test_a_stream_without_a_type_is_read_as_what_was_asked_for() -> None:
    reading = read_response(chat("openai_chat", stream=True), head(), lambda _why: None)
    assert reading is not None
    reading.feed([b'data: {"choices":[{"index":0,"delta":{"content":"hello"}}]}\n\ndata: [DONE]\n\n'])
    assert reading.answer(200, complete=True).text == "hello"


def test_what_is_no_json_is_counted() -> None:
    """Each fallback is counted (C-9)."""
    answer, why = read(b"{broken", step=100, content_type="application/json")
    assert (answer.text, why) == ("", ["unreadable"])
