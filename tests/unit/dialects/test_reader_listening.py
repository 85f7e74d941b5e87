"""Streams that somebody listens to: what he is told, that the answer read is the same, and how they could be ended."""

from __future__ import annotations

import json
from typing import Any

import pytest

from breakloop.dialects import registry
from breakloop.dialects.answers import ListeningReader
from breakloop.dialects.framing import SseParser
from breakloop.dialects.registry import DIALECTS, reader
from tests.each import each
from tests.unit.dialects.recorded.everything import EVERYTHING
from tests.unit.dialects.recorded.shape import SSE, Recorded, events, named

STREAMS = {
    name: one
    for name, one in EVERYTHING.items()
    if one.content_type == SSE and registry.DIALECTS[one.dialect].ends_streams
}


class Notes:
    """Writes down what it hears."""

    def __init__(self) -> None:
        self.text: dict[tuple[int, int], str] = {}
        self.thoughts: dict[tuple[int, int], str] = {}
        self.arguments: dict[int, str] = {}
        self.over: list[int] = []

    def on_text(self, choice: int, part: int, piece: str) -> None:
        self.text[choice, part] = self.text.get((choice, part), "") + piece

    def on_reasoning(self, choice: int, part: int, piece: str) -> None:
        self.thoughts[choice, part] = self.thoughts.get((choice, part), "") + piece

    def on_call(self, choice: int, name: str, arguments: str) -> None: ...

    def on_arguments(self, choice: int, piece: str) -> None:
        self.arguments[choice] = self.arguments.get(choice, "") + piece

    def on_finish(self, choice: int) -> None:
        self.over.append(choice)

    def room(self, choice: int, part: int, *, is_reasoning: bool) -> int:
        return 0


def hear(dialect: str, body: bytes) -> tuple[Notes, ListeningReader]:
    notes = Notes()
    overheard = ListeningReader(DIALECTS[dialect], notes)
    overheard.feed(body)
    return notes, overheard


def told(ending: bytes) -> list[Any]:
    return ["[DONE]" if data == b"[DONE]" else json.loads(data) for data in SseParser().feed(ending)]


@each("name", list(STREAMS))
def test_the_answer_is_the_same_as_without(name: str) -> None:
    """Listening changes nothing about what is read (LD-8)."""
    one: Recorded = STREAMS[name]
    alone = reader(one.dialect, one.content_type)
    assert alone is not None
    alone.feed(one.body)
    _, overheard = hear(one.dialect, one.body)
    assert overheard.answer(200, complete=True) == alone.answer(200, complete=True)
    assert overheard.unreadable == alone.unreadable


def chat(*choices: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"id": "c", "model": "m", "choices": list(choices), **more}


def delta(index: int, finish: str | None = None, **said: Any) -> dict[str, Any]:
    return {"index": index, "delta": said, "finish_reason": finish}


def test_a_chat_of_several_answers() -> None:
    """Texts, refusals and thoughts by their answer, and which have ended (LD-8)."""
    sent = [
        chat(delta(0, content="a"), delta(1, content="")),
        chat(delta(1, reasoning_content="hm")),
        chat(delta(0, content="b"), delta(1, refusal="no")),
        chat(delta(0, "stop")),
    ]
    notes, overheard = hear("openai_chat", events(*sent))
    assert notes.text == {(0, 0): "ab", (1, 1): "no"}
    assert (notes.thoughts, notes.over) == ({(1, 0): "hm"}, [0])
    ending = told(overheard.ending([1], 0))
    assert [(one["index"], one["finish_reason"]) for one in ending[0]["choices"]] == [(1, "length")]


@pytest.mark.parametrize(
    ("dialect", "odd"),
    [
        (
            "openai_chat",
            chat({"index": 3, "delta": {"content": [{"type": "text", "text": "x"}]}, "finish_reason": "stop"}),
        ),
        ("openai_completions", {"choices": [{"index": 3, "text": "x", "finish_reason": "stop"}], "id": 7}),
        (
            "gemini",
            {
                "candidates": [{"index": 3, "content": {"parts": [{"text": "x"}]}, "finishReason": "STOP"}],
                "responseId": 7,
            },
        ),
    ],
)
def test_what_is_read_tolerantly_is_told_as_well(dialect: str, odd: dict[str, Any]) -> None:
    """Odd types take another way through the readers (LD-8)."""
    notes, _ = hear(dialect, events(odd))
    assert (notes.text, notes.over) == ({(3, 0): "x"}, [3])


def test_more_than_is_kept_is_told() -> None:
    """A model may begin to repeat itself after any length (LD-8)."""
    notes, overheard = hear("openai_chat", events(*[chat(delta(0, content="x" * 40_000))] * 3))
    assert len(notes.text[0, 0]) == 120_000
    assert len(overheard.answer(200, complete=True).text) == 64 * 1024


BLOCKS = [
    {"type": "message_start", "message": {"id": "m", "model": "c", "usage": {"input_tokens": 5, "output_tokens": 2}}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "hm"}},
    {"type": "content_block_stop", "index": 0},
    {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "so"}},
]


def test_blocks_are_parts_of_one_answer() -> None:
    """Anthropic; the tokens are guessed by what was said, where the stream counted fewer (LD-8)."""
    notes, overheard = hear("anthropic_messages", named(*BLOCKS))
    assert {key: text for key, text in notes.text.items() if text} == {(0, 1): "so"}
    assert notes.thoughts == {(0, 0): "hm"}
    counts = [told(overheard.ending([0], chars))[1]["usage"]["output_tokens"] for chars in (4, 400)]
    assert counts == [2, 100]


def test_items_are_parts_of_one_answer() -> None:
    """Responses; the part that is cut is repeated with all its text (LD-8)."""
    at: dict[str, Any] = {"item_id": "i", "output_index": 1, "content_index": 0}
    sent: list[dict[str, Any]] = [{"type": "response.created", "response": {"id": "r"}}]
    sent += [{"type": "response.output_text.delta", **at, "delta": piece} for piece in ("so ", "what")]
    sent.insert(1, {"type": "response.reasoning_text.delta", "output_index": 0, "content_index": 0, "delta": "hm"})
    notes, overheard = hear("openai_responses", named(*sent))
    assert (notes.text, notes.thoughts) == ({(0, 1000): "so what"}, {(0, 0): "hm"})
    ending = told(overheard.ending([0], 9))
    assert (ending[0]["text"], ending[-1]["type"]) == ("so what", "response.incomplete")


@pytest.mark.parametrize(
    ("dialect", "body", "choices"),
    [
        ("openai_chat", events(chat(delta(0, content="x")), b"[DONE]"), [0]),
        ("openai_chat", events(chat(delta(0, content="x")), chat(error={"code": "overloaded"})), [0]),
        ("openai_chat", events(chat(delta(0, content="x"))), []),
        ("anthropic_messages", named(*BLOCKS, {"type": "message_delta", "delta": {"stop_reason": "end_turn"}}), [0]),
        ("anthropic_messages", named(*BLOCKS, {"type": "error", "error": {"type": "overloaded_error"}}), [0]),
        ("openai_responses", named({"type": "response.completed", "response": {"status": "completed"}}), [0]),
        ("openai_chat", events(chat(delta(0, content="x")), *[b"no JSON"] * 102), [0]),
        ("openai_chat", b"", [0]),
    ],
)
def test_what_has_ended_or_failed_or_cannot_be_read_has_no_other_end(
    dialect: str, body: bytes, choices: list[int]
) -> None:
    """Nothing is made up where it is not known what the client has (LD-8)."""
    assert hear(dialect, body)[1].ending(choices, 10) == b""


def test_what_is_not_read_on_is_not_ended() -> None:
    """Reading stops at what was made to cost time, and nobody knows what the client has got since (Y-2)."""
    _, overheard = hear("openai_chat", events(chat(delta(0, content="x"))))
    assert overheard.ending([0], 1)
    overheard.feed(b":" * (1024 * 1024 + 1))
    assert overheard.ending([0], 1) == b""


# -- calls


@each("name", [name for name, one in STREAMS.items() if one.dialect != "openai_responses"])
def test_arguments_are_reported(name: str) -> None:
    """About as many characters as are read, each once (L-3)."""
    one: Recorded = STREAMS[name]
    notes, overheard = hear(one.dialect, one.body)
    made = sum(len(call.arguments) for call in overheard.answer(200, complete=True).calls)
    heard = sum(map(len, notes.arguments.values()))
    assert 0.6 * made - 2 <= heard <= 1.4 * made + 2


def test_arguments_that_come_twice() -> None:
    """Responses repeats them when they are whole (L-3)."""
    item = {"type": "function_call", "name": "ls", "call_id": "c", "arguments": ""}
    sent: list[dict[str, Any]] = [{"type": "response.output_item.added", "output_index": 0, "item": item}]
    more = {"type": "response.function_call_arguments.delta", "output_index": 0}
    sent += [more | {"delta": piece} for piece in ('{"a"', ":1}")]
    whole = item | {"arguments": '{"a":1}'}
    sent.append({"type": "response.output_item.done", "output_index": 0, "item": whole})
    assert hear("openai_responses", named(*sent))[0].arguments == {0: '{"a":1}'}


def test_whose_calls_they_are() -> None:
    """Each answer's own; whole values too (L-3)."""
    pieces = [{"index": 0, "id": "c", "function": {"name": "ls", "arguments": part}} for part in ('{"a"', ":1}")]
    whole = {"index": 0, "id": "d", "function": {"name": "ls", "arguments": {"b": 2}}}
    sent = [chat(delta(0, tool_calls=[piece])) for piece in pieces] + [chat(delta(1, tool_calls=[whole]))]
    assert hear("openai_chat", events(*sent))[0].arguments == {0: '{"a":1}', 1: '{"b":2}'}
