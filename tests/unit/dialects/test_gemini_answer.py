"""Gemini: one shape for everything, as events, as an array or whole."""

from __future__ import annotations

import pytest

from breakloop.dialects.answers import ARGUMENTS_MAX_CHARS
from breakloop.model.call import Answer, ToolCall, Usage
from tests.unit.dialects.recorded.gemini import COUNT, GEMINI, PIECES, USAGE, array, call, piece, text
from tests.unit.dialects.recorded.reading import read, stream, whole
from tests.unit.dialects.recorded.shape import JSON, Recorded

DIALECT = "gemini"


@pytest.mark.parametrize("recorded", GEMINI.values(), ids=GEMINI)
def test_recorded(recorded: Recorded) -> None:
    """Text, calls, usage, model, id, reason, error and end of each (C-8)."""
    assert read(recorded) == recorded.answer


def test_an_array_that_breaks_off_anywhere() -> None:
    """The pieces that came whole are read, and it is never complete (D-1)."""
    body = array(*PIECES)
    calls = set()
    for stop in range(1, len(body) - 2):
        answer = read(Recorded(DIALECT, JSON, body[:stop], Answer(200)))
        assert not answer.complete
        assert "Hello, wörld".startswith(answer.text)
        calls.add(len(answer.calls))
    assert calls == {0, 1, 2}


def test_several_candidates() -> None:
    """One text each; the first gives the reason (C-8)."""
    second = {"content": {"parts": [text("zwei")]}, "index": 1, "finishReason": "MAX_TOKENS"}
    both = piece(text("one"), finish="STOP")
    both["candidates"].insert(0, second)
    for answer in (stream(DIALECT, both), whole(DIALECT, both)):
        assert (answer.text, answer.finish) == ("one\nzwei", "STOP")
    both["candidates"].reverse()
    assert stream(DIALECT, both).finish == "STOP"
    assert stream(DIALECT, {"candidates": [second]}).finish == "MAX_TOKENS"
    assert stream(DIALECT, both, piece(text("!"), 5)).finish == "STOP"


def test_counts() -> None:
    """Thoughts are of the output, tools' results of the input, and the last count is the count (C-8)."""
    assert stream(DIALECT, piece(text("a")), piece(usage=COUNT)).usage == USAGE
    assert whole(DIALECT, piece(usage={"trafficType": "ON_DEMAND"})).usage is None
    assert stream(DIALECT, piece(usage={"promptTokenCount": 3, "responseTokenCount": 2})).usage == Usage(3, 2)


def test_odd_types() -> None:
    """One of them hides nothing else (C-9)."""
    odd = [
        piece(text("Hi"), 5, text("secrets", thought=1), {"functionCall": 5}, {"toolCall": []}),
        piece(text("!")) | {"modelVersion": 5, "usageMetadata": []},
        {"candidates": [5, {"content": 5}, {"content": {"parts": {"text": "?"}}, "index": 0}]},
        {"candidates": None, "promptFeedback": 5, "error": {}},
        {"candidates": [{"content": None}, {"content": {"parts": None}}, {}]},
        piece(call("f", "x"), finish="STOP"),
    ]
    answer = stream(DIALECT, *odd)
    assert (answer.text, answer.calls, answer.finish) == ("Hi!?", (ToolCall("f", "x"),), "STOP")
    assert answer.error == ""
    assert [whole(DIALECT, one).text for one in odd] == ["Hi", "!", "?", "", "", ""]


def test_values_by_their_paths() -> None:
    """All of them may come at once, and a value may change its type (C-8)."""
    values = [{"jsonPath": "$.a", "stringValue": "x"}, {"jsonPath": "$.a", "numberValue": 1.0}, 5, {"jsonPath": 5}]
    assert stream(
        DIALECT, piece({"functionCall": {"name": "f", "partialArgs": values}}), piece(call("g", None))
    ).calls == (
        ToolCall("f", '{"":null,"a":1}'),
        ToolCall("g", ""),
    )


def test_values_that_never_end() -> None:
    """A call whose arguments go on and on is kept within the bound (Y-2)."""
    endless = {"jsonPath": "$.a", "stringValue": "x" * 10_000, "willContinue": True}
    go_on = piece({"functionCall": {"partialArgs": [endless], "willContinue": True}})
    (made,) = stream(DIALECT, piece({"functionCall": {"name": "f", "willContinue": True}}), *[go_on] * 50).calls
    assert ARGUMENTS_MAX_CHARS - 20_000 < len(made.arguments) <= ARGUMENTS_MAX_CHARS


def test_errors() -> None:
    """By their status, in an answer of its own or in a stream (C-8)."""
    error = {"error": {"code": 400, "message": "secrets", "status": "INVALID_ARGUMENT"}}
    assert whole(DIALECT, error, 400) == Answer(400, error="INVALID_ARGUMENT", complete=True)
    assert whole(DIALECT, [error], 400) == Answer(400, error="INVALID_ARGUMENT", complete=True)
    assert stream(DIALECT, {"error": {"code": 500}}).error == "500"
    assert stream(DIALECT, {"error": "it broke"}).error == "error"
