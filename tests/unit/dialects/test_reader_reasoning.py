"""What models think aloud, in every dialect that lets them."""

from __future__ import annotations

from typing import Any

from breakloop.dialects.answers import ListeningReader
from breakloop.dialects.registry import DIALECTS
from tests.each import each
from tests.unit.dialects.recorded.shape import events


class Listener:
    """Collects reasoning."""

    def __init__(self) -> None:
        self.pieces: list[tuple[int, str]] = []

    def on_text(self, choice: int, part: int, piece: str) -> None: ...

    def on_reasoning(self, choice: int, part: int, piece: str) -> None:
        self.pieces.append((choice + part, piece))

    def on_call(self, choice: int, name: str, arguments: str) -> None: ...

    def on_arguments(self, choice: int, piece: str) -> None: ...

    def on_finish(self, choice: int) -> None: ...

    def room(self, choice: int, part: int, *, is_reasoning: bool) -> int:
        return 0


def read(dialect: str, payload: Any) -> list[tuple[int, str]]:
    listener = Listener()
    ListeningReader(DIALECTS[dialect], listener).feed(events(payload))
    return listener.pieces


def chat(index: int = 0, **delta: Any) -> dict[str, Any]:
    return {"id": "c", "choices": [{"index": index, "delta": delta, "finish_reason": None}]}


def part(**fields: Any) -> dict[str, Any]:
    return {"candidates": [{"index": 2, "content": {"role": "model", "parts": [fields]}}]}


REASONING = "response.reasoning_text.delta"
SUMMARY = "response.reasoning_summary_text.delta"


@each(
    "dialect, payload, expected",
    [
        ("openai_chat", chat(1, reasoning_content="hm"), [(1, "hm")]),
        ("openai_chat", chat(reasoning="hm", reasoning_details=[{"text": "hm"}]), [(0, "hm")]),
        ("openai_chat", chat(reasoning="hm", reasoning_content="hm"), [(0, "hm")]),
        ("openai_chat", chat(content="x", reasoning_content=None), []),
        ("openai_chat", chat(content="x"), []),
        ("openai_chat", chat(reasoning={"text": "hm"}), []),
        ("openai_chat", {"choices": [], "note": "reasoning"}, []),
        ("openai_chat", {"choices": [{"reasoning": 1}]}, []),
        ("openai_completions", {"choices": [{"index": 0, "text": "x"}]}, []),
        ("openai_responses", {"type": REASONING, "output_index": 2, "content_index": 1, "delta": "hm"}, [(2001, "hm")]),
        ("openai_responses", {"type": SUMMARY, "output_index": 0, "summary_index": 3, "delta": "hm"}, [(3, "hm")]),
        ("openai_responses", {"type": "response.reasoning_text.done", "text": "hm"}, []),
        ("openai_responses", {"type": "response.output_text.delta", "delta": "x"}, []),
        (
            "anthropic_messages",
            {"type": "content_block_delta", "index": 4, "delta": {"type": "thinking_delta", "thinking": "hm"}},
            [(4, "hm")],
        ),
        ("anthropic_messages", {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta"}}, []),
        ("gemini", part(text="hm", thought=True), [(2, "hm")]),
        ("gemini", part(text="x", thought=False), []),
        ("gemini", part(text="x", thoughtSignature="s"), []),
        ("gemini", {"candidates": [{"finishReason": "STOP"}], "x": {"thought": 1}}, []),
    ],
)
def test_thoughts(dialect: str, payload: Any, expected: list[tuple[int, str]]) -> None:
    """With the number of what they belong to (LD-8)."""
    assert read(dialect, payload) == expected


@each("dialect", ["openai_chat", "openai_responses", "anthropic_messages", "gemini"])
@each("rest", [b"", b"{", b"[]", b'{"delta": 7, "choices": 7, "candidates": 7}', b"\xff", b"[" * 9999])
def test_what_cannot_be_read_is_nothing(dialect: str, rest: bytes) -> None:
    """Nothing that comes can make it fail (Y-2)."""
    for mark in (b"", b'"reasoning', b'"response.reasoning', b'"thinking_delta"', b'"thought"'):
        assert read(dialect, mark + rest) == read(dialect, rest + mark) == []
