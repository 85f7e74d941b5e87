"""Answers of the older Completions, and of Embeddings."""

from __future__ import annotations

import pytest

from breakloop.model.call import Answer, Usage
from tests.unit.dialects.recorded.openai import COMPLETIONS, OLD
from tests.unit.dialects.recorded.reading import read, stream, whole
from tests.unit.dialects.recorded.shape import Recorded


@pytest.mark.parametrize("recorded", COMPLETIONS.values(), ids=COMPLETIONS)
def test_recorded(recorded: Recorded) -> None:
    """Text, usage, model, id, reason and end of each (C-8)."""
    assert read(recorded) == recorded.answer


def test_errors() -> None:
    """In a stream, in a body, with vectors or without (C-8)."""
    error = {"error": {"code": None, "type": "server_error", "message": "secrets"}}
    begun = OLD | {"choices": [{"text": "One", "index": 0, "finish_reason": None}]}
    assert stream("openai_completions", begun | error).error == "server_error"
    assert stream("openai_completions", begun, error, b"[DONE]") == Answer(
        200, "One", model=OLD["model"], response_id="cmpl-1", error="server_error"
    )
    for dialect in ("openai_completions", "openai_embeddings"):
        assert whole(dialect, error, 400) == Answer(400, error="server_error", complete=True)


def test_odd_types() -> None:
    """One of them hides nothing else (C-9)."""
    odd = OLD | {"choices": [5, {"text": "One", "index": "x", "finish_reason": ["stop"]}], "usage": []}
    assert stream("openai_completions", odd).text == "One"
    counted = {"model": 5, "usage": {"prompt_tokens": 8}, "data": "none"}
    assert whole("openai_embeddings", counted) == Answer(200, usage=Usage(8), complete=True)


def test_reasons() -> None:
    """The first choice's, if it has one (C-8)."""
    first, second = [{"text": "x", "index": index, "finish_reason": f"r{index}"} for index in (0, 1)]
    for order in ([first, second], [second, first]):
        assert stream("openai_completions", OLD | {"choices": order}).finish == "r0"
        assert whole("openai_completions", OLD | {"choices": order}).finish == "r0"
    assert whole("openai_completions", OLD | {"choices": [second]}).finish == "r1"
    assert stream("openai_completions", OLD | {"choices": [first]}, OLD | {"choices": [{"text": []}]}).finish == "r0"


def test_usage_beside_a_text() -> None:
    """Some servers count in every chunk; the last one is the count (C-8)."""
    chunks = [OLD | {"choices": [{"text": "x", "index": 0}], "usage": {"completion_tokens": n}} for n in (1, 2)]
    assert stream("openai_completions", *chunks).usage == Usage(0, 2)


def test_vectors_are_not_said() -> None:
    """Of an embedding there is only the count (C-8)."""
    answer = whole("openai_embeddings", {"data": [{"embedding": "aGVsbG8="}], "usage": {"prompt_tokens": 3}})
    assert answer == Answer(200, usage=Usage(3), complete=True)
