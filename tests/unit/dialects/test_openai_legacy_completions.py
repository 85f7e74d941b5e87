"""OpenAI's older completions: one prompt, several, or tokens."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest

from breakloop.model.call import Chat, Message
from tests.unit.dialects import parsing

read = partial(parsing.chat, "openai_completions")
opening = partial(parsing.opening, "openai_completions")


def text(prompt: Any, **more: Any) -> str:
    chat = read(json.dumps({"model": "m", "prompt": prompt, **more}).encode(), 3)
    assert chat is not None
    (message,) = chat.tail
    assert message.role == "prompt"
    return message.text


def test_a_plain_request() -> None:
    """Prompt, model, stream and token limit (C-8)."""
    raw = b'{"model":"m","prompt":"once upon","stream":true,"max_tokens":5}'
    assert read(raw, 3) == Chat("openai_completions", "m", (Message("prompt", "once upon"),), 1, True, 5)


def test_batches_and_tokens() -> None:
    """A batch is one request, all of which counts; tokens count by digest (C-8)."""
    assert text(["a", "b", "c", "d", "e"]) == "a\nb\nc\nd\ne"
    assert text([1, 2]).startswith("<tokens:")
    assert text([1, 2]) == text([1, 2]) != text([1, 3])
    assert text([[1, 2], [3]]) != text([[1], [2, 3]])


def test_the_suffix_counts() -> None:
    """Filling two different gaps is not the same request (C-8)."""
    assert len({text("a"), text("a", suffix="b"), text("a", suffix="c")}) == 3


@pytest.mark.parametrize("value", [{}, {"model": "m"}, {"prompt": "x"}, {"model": "m", "messages": []}])
def test_other_apis_have_completions_too(value: Any) -> None:
    """Without model and prompt it is plain HTTP (C-8)."""
    assert read(json.dumps(value).encode(), 3) is None


def test_odd_types() -> None:
    """What is no prompt stands as its JSON text or a digest (C-9)."""
    assert text({"b": 1, "a": 2}) == '{"a":2,"b":1}'
    assert text(["a", None]).startswith("<tokens:")
    assert text("x", max_tokens="9", suffix=5) == "x\n<suffix> 5"


def test_no_opening() -> None:
    """A prompt is not the beginning of a conversation (C-7)."""
    assert opening(b'{"model":"m","prompt":"x"}') == ""
