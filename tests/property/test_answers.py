"""Answers as they pass: how they are cut changes nothing, and nothing that comes can break the reading (D-1, C-9)."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakloop.dialects.aws_events import aws_event
from breakloop.dialects.framing import JsonLinesParser, SseParser, event_parser, form_of
from breakloop.dialects.registry import reader
from breakloop.model.call import Answer
from tests.each import each
from tests.unit.dialects.recorded.everything import EVERYTHING
from tests.unit.dialects.recorded.reading import read, started
from tests.unit.dialects.recorded.shape import AWS, JSON, LINES, SSE, Recorded, dump

EACH = each("recorded", EVERYTHING)
DIALECTS = sorted({recorded.dialect for recorded in EVERYTHING.values()})


def cut(body: bytes, places: list[int]) -> list[bytes]:
    """The body cut at these places, which may be the same one twice: empty pieces come too."""
    return [
        body[start:end] for start, end in pairwise([0, *sorted(place % (len(body) + 1) for place in places), len(body)])
    ]


def check(answer: Answer) -> None:
    """Every text can be encoded, and is within its bound."""
    for text in (answer.text, answer.model, answer.response_id, answer.finish, answer.error):
        text.encode()
    for call in answer.calls:
        call.name.encode()
        call.arguments.encode()
    assert len(answer.text) <= 70_000
    assert len(answer.calls) <= 1000


@EACH
def test_cut_in_two_at_every_byte(recorded: Recorded) -> None:
    """The same is read, wherever the cut is (D-1)."""
    body = recorded.body
    for place in range(len(body)):
        assert read(recorded, [body[:place], body[place:]]) == recorded.answer, place


@EACH
def test_byte_by_byte(recorded: Recorded) -> None:
    """And also in the smallest pieces (D-1)."""
    assert read(recorded, [bytes([one]) for one in recorded.body]) == recorded.answer


@given(name=st.sampled_from(sorted(EVERYTHING)), places=st.lists(st.integers(0, 100_000), max_size=30))
def test_cut_anywhere(name: str, places: list[int]) -> None:
    """Cut anywhere: several cuts (D-1)."""
    recorded = EVERYTHING[name]
    assert read(recorded, cut(recorded.body, places)) == recorded.answer


@EACH
def test_cut_short_at_every_byte(recorded: Recorded) -> None:
    """Of what came, all that could be is read; it is complete only if its end mark came (D-1)."""
    whole = recorded.answer
    for stop in range(len(recorded.body)):
        reading = started(recorded.dialect, recorded.content_type)
        reading.feed(recorded.body[:stop])
        answer = reading.answer(200, complete=False)
        assert not answer.complete or whole.complete, stop
        if recorded.content_type == SSE and "\n" not in whole.text:
            assert whole.text.startswith(answer.text), stop
        assert len(answer.calls) <= max(len(whole.calls), 1), stop


SSE_LINES = st.sampled_from(
    [b"data: a", b"data:", b"data: {", b"{", b"}", b": c", b"event: e", b"\xef\xbb\xbfdata: b", b"id: 7", b"", b""]
)
ENDS = st.sampled_from([b"\n", b"\r\n", b"\r", b""])
STREAMS = st.lists(st.tuples(SSE_LINES, ENDS), max_size=25).map(
    lambda lines: b"".join([part for line in lines for part in line])
)


@given(body=STREAMS, places=st.lists(st.integers(0, 500), max_size=10), max_bytes=st.sampled_from([6, 9, 1000]))
def test_events_cut_anywhere(body: bytes, places: list[int], max_bytes: int) -> None:
    """Any lines, any line ends, any cuts, any bound: the same events, and as many passed over (D-1)."""
    at_once, in_pieces = SseParser(max_bytes), SseParser(max_bytes)
    expected = [*at_once.feed(body), *at_once.finish()]
    found = [one for piece in cut(body, places) for one in in_pieces.feed(piece)] + list(in_pieces.finish())
    assert (found, in_pieces.skipped) == (expected, at_once.skipped)


@given(
    body=st.lists(st.sampled_from([b'{"a":1}', b"\n", b"\r\n", b" ", b"x" * 30]), max_size=20).map(b"".join),
    places=st.lists(st.integers(0, 500), max_size=10),
    max_bytes=st.sampled_from([6, 20, 1000]),
)
def test_lines_cut_anywhere(body: bytes, places: list[int], max_bytes: int) -> None:
    """One object a line, likewise (D-1)."""
    at_once, in_pieces = JsonLinesParser(max_bytes), JsonLinesParser(max_bytes)
    expected = [*at_once.feed(body), *at_once.finish()]
    found = [one for piece in cut(body, places) for one in in_pieces.feed(piece)] + list(in_pieces.finish())
    assert (found, in_pieces.skipped) == (expected, at_once.skipped)


def by_the_book(body: str) -> Iterator[str]:
    """The standard's own way: line by line."""
    data: list[str] = []
    for line in body.replace("\r\n", "\n").replace("\r", "\n").split("\n")[:-1]:
        if not line:
            if any(data):
                yield "\n".join(data)
            data = []
        name, _, value = line.partition(":")
        if name == "data":
            data.append(value.removeprefix(" "))


@given(
    lines=st.lists(
        st.tuples(st.sampled_from(["data: a", "data:b", "data:  c", ": x", "event: e", "id: 1", "", ""]), ENDS)
    )
)
def test_events_as_the_standard_has_them(lines: list[tuple[str, bytes]]) -> None:
    """Of streams that are streams (D-1)."""
    body = "".join([line + (end or b"\n").decode() for line, end in lines])
    assert [one.decode() for one in SseParser().feed(body.encode())] == list(by_the_book(body))


@pytest.mark.parametrize("dialect", DIALECTS)
@given(
    pieces=st.lists(st.binary(max_size=60), max_size=5),
    kind=st.sampled_from([SSE, JSON, LINES, AWS]),
    ended=st.booleans(),
)
def test_noise(dialect: str, pieces: list[bytes], kind: bytes, ended: bool) -> None:
    """Any bytes are an answer in which nothing can be read (C-9)."""
    for framed in (pieces, [b"data: " + piece + b"\n\n" for piece in pieces]):
        reading = started(dialect, kind)
        for piece in framed:
            reading.feed(piece)
        check(reading.answer(200, complete=ended))


NAMES = st.sampled_from(
    [
        *("type", "delta", "index", "content", "text", "choices", "message", "tool_calls", "function", "name"),
        *("arguments", "id", "model", "usage", "error", "code", "response", "output", "item", "candidates"),
        *("parts", "functionCall", "partialArgs", "willContinue", "result", "isError", "content_block"),
        *("input", "output_index", "prompt_tokens", "stop_reason"),
    ]
)
WORDS = st.sampled_from(
    [
        *("content_block_delta", "text_delta", "input_json_delta", "content_block_start", "tool_use"),
        *("message_start", "message_delta", "error", "response.output_text.delta", "response.completed"),
        *("response.output_item.done", "function_call", "message", "text", "{"),
        "response.function_call_arguments.delta",
        "\ud83d",
    ]
)
ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | WORDS | st.text(max_size=5),
    lambda values: st.lists(values, max_size=3) | st.dictionaries(NAMES, values, max_size=6),
    max_leaves=25,
)


def framed(kind: bytes, value: Any) -> bytes:
    """A value as an event of a stream, or as a body."""
    written = json.dumps(value).encode()
    if kind == SSE:
        return b"data: " + written + b"\n\n"
    if kind == LINES:
        return written + b"\n"
    if kind != AWS:
        return written
    if isinstance(value, dict) and len(value) == 1:
        ((name, inner),) = value.items()
        return aws_event(name, json.dumps(inner).encode())
    return aws_event("chunk", json.dumps({"bytes": b64encode(written).decode()}).encode())


@pytest.mark.parametrize("dialect", DIALECTS)
@given(values=st.lists(ODD, min_size=1, max_size=4), kind=st.sampled_from([SSE, JSON, LINES, AWS]))
def test_odd_values(dialect: str, values: list[Any], kind: bytes) -> None:
    """Any JSON is an answer, of which as much is read as there is (C-9)."""
    reading = started(dialect, kind)
    for value in values if kind != JSON else values[:1]:
        reading.feed(framed(kind, value))
    check(reading.answer(200, complete=True))


def places_of(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield from places_of(child, (*path, key))


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copy = value.copy()
    copy[path[0]] = replaced(value[path[0]], path[1:], new)
    return copy


def payloads(recorded: Recorded) -> list[Any]:
    """The JSON of a recorded answer: of its events, or of its body."""
    if recorded.content_type == JSON:
        return [json.loads(recorded.body)]
    form = form_of(recorded.content_type)
    assert form is not None
    found = event_parser(form, 10**6).feed(recorded.body)
    return [json.loads(one) for one in found if one.startswith(b"{")]


WHOLE = {
    name: payloads(recorded)
    for name, recorded in EVERYTHING.items()
    if "cut short" not in name and (recorded.content_type != JSON or recorded.body.startswith((b"{", b"[")))
}


@given(name=st.sampled_from(sorted(WHOLE)), data=st.data(), new=ODD)
def test_one_odd_value(name: str, data: st.DataObject, new: Any) -> None:
    """A recorded answer with one value replaced by anything (C-9)."""
    recorded, events = EVERYTHING[name], WHOLE[name]
    which = data.draw(st.integers(0, len(events) - 1))
    path = data.draw(st.sampled_from(list(places_of(events[which]))))
    changed = [*events[:which], replaced(events[which], path, new), *events[which + 1 :]]
    reading = reader(recorded.dialect, recorded.content_type)
    assert reading is not None
    for one in changed:
        reading.feed(framed(recorded.content_type, one))
    check(reading.answer(200, complete=True))


@given(texts=st.lists(st.text(max_size=20), max_size=10))
def test_any_text(texts: list[str]) -> None:
    """What is said comes out as it went in, in every dialect that streams (C-8)."""
    whole = "".join(texts)
    shapes: dict[str, list[Any]] = {
        "openai_chat": [{"choices": [{"index": 0, "delta": {"content": one}}]} for one in texts],
        "openai_completions": [{"choices": [{"index": 0, "text": one}]} for one in texts],
        "openai_responses": [{"type": "response.output_text.delta", "delta": one} for one in texts],
        "anthropic_messages": [
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": one}} for one in texts
        ],
        "gemini": [{"candidates": [{"content": {"parts": [{"text": one}]}}]} for one in texts],
    }
    for dialect, events in shapes.items():
        reading = started(dialect, SSE)
        for one in events:
            reading.feed(b"data: " + dump(one) + b"\n\n")
        assert reading.answer(200, complete=True).text == whole
