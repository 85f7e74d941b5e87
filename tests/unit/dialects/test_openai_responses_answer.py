"""Responses: many kinds of events, of which some say something."""

from __future__ import annotations

from typing import Any

import pytest

from breakloop.dialects import openai_responses
from breakloop.dialects.openai_responses import ResponsesAnswer
from breakloop.model.call import ToolCall
from tests.unit.dialects.recorded.reading import read, started, stream, whole
from tests.unit.dialects.recorded.responses import (
    ARGUED,
    CUSTOM,
    FUNCTION,
    MESSAGE,
    REASONING,
    RESPONSES,
    begun,
    item,
    piece,
    response,
    text_piece,
)
from tests.unit.dialects.recorded.shape import SSE, Recorded, dump, events

DIALECT = "openai_responses"


@pytest.mark.parametrize("recorded", RESPONSES.values(), ids=RESPONSES)
def test_recorded(recorded: Recorded) -> None:
    """Text, calls, usage, model, id, reason, error and end of each (C-8)."""
    assert read(recorded) == recorded.answer


def test_events_that_say_nothing_are_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading costs little where there is nothing to read (D-1)."""

    def decode(_payload: bytes) -> Any:
        raise AssertionError("decoded")

    for name in ("_decode_piece", "_decode_kind"):
        monkeypatch.setattr(openai_responses, name, decode)
    monkeypatch.setattr(ResponsesAnswer, "read_leniently", decode)
    answer = ResponsesAnswer()
    for kind in ("response.in_progress", "response.reasoning_text.delta", "response.output_text.done", "keepalive"):
        answer.read_event(dump({"type": kind, "delta": "secrets", "text": "secrets"}))
    with pytest.raises(AssertionError, match="decoded"):
        answer.read_event(dump(text_piece("x")))


def test_a_message_without_its_pieces() -> None:
    """Some servers send an item as a whole; with its pieces before it, it is not said twice (C-8)."""
    assert stream(DIALECT, item("done", 0, MESSAGE)).text == "Hello, wörld\nNo more."
    pieces = [text_piece("Hello, wörld"), text_piece("No more.", 1)]
    assert stream(DIALECT, *pieces, item("done", 1, MESSAGE)).text == "Hello, wörld\nNo more."


def test_a_call_that_is_cut_short() -> None:
    """What was there of it is read (C-8)."""
    events = [item("added", 0, begun(FUNCTION)), piece(ARGUED, 0, '{"unit": ')]
    assert stream(DIALECT, *events).calls == (ToolCall("get_weather", '{"unit": '),)
    events = [item("added", 0, begun(CUSTOM)), piece("response.custom_tool_call_input.delta", 0, "*** ")]
    assert stream(DIALECT, *events).calls == (ToolCall("patch", "*** "),)


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        ({"type": "mcp_call", "name": "f", "arguments": '{"a": 1}', "output": "x"}, ToolCall("f", '{"a":1}')),
        ({"type": "mcp_approval_request", "name": "f", "arguments": "{}"}, ToolCall("f", "{}")),
        ({"type": "code_interpreter_call", "code": "1+1", "outputs": []}, ToolCall("code_interpreter", "1+1")),
        ({"type": "file_search_call", "queries": ["a"], "results": None}, ToolCall("file_search", '["a"]')),
        (
            {"type": "computer_call", "action": None, "actions": [{"type": "wait"}]},
            ToolCall("computer", '[{"type":"wait"}]'),
        ),
        ({"type": "apply_patch_call", "operation": {"type": "x"}}, ToolCall("apply_patch", '{"type":"x"}')),
        ({"type": "tool_search_call", "arguments": {"q": 1.0}}, ToolCall("tool_search", '{"q":1}')),
        ({"type": "image_generation_call", "result": "iVBORw"}, ToolCall("image_generation", "")),
    ],
)
def test_kinds_of_calls(made: dict[str, Any], expected: ToolCall) -> None:
    """Each kind keeps its arguments in a place of its own (C-8)."""
    assert whole(DIALECT, response("completed", [made])).calls == (expected,)
    assert stream(DIALECT, item("done", 0, made)).calls == (expected,)


def test_thinking_is_not_said() -> None:
    """Neither in an item nor in pieces (C-8)."""
    events = [item("done", 0, REASONING), piece("response.reasoning_text.delta", 0, "secrets")]
    assert stream(DIALECT, *events).text == ""
    assert whole(DIALECT, response("completed", [REASONING])).text == ""


def test_the_beginning_is_no_end() -> None:
    """A stream that closes after its first event is not complete, though that has a status (D-1)."""
    answer = stream(DIALECT, {"type": "response.created", "response": response("in_progress", [])})
    assert (answer.finish, answer.complete, answer.response_id[:5]) == ("", False, "resp_")


def test_failures_without_a_word() -> None:
    """The event alone says that it failed (C-9)."""
    for event in (
        {"type": "response.failed"},
        {"type": "response.failed", "response": {"error": None}},
        {"type": "error"},
    ):
        answer = stream(DIALECT, event)
        assert (answer.error, answer.complete) == ("error", False)
    beside = {"type": "response.failed", "error": {"code": "x"}}
    assert stream(DIALECT, beside).error == "x"


def test_odd_types() -> None:
    """A piece that is no text is counted; all others are read (C-9)."""
    odd = [
        text_piece("Hi") | {"delta": 5},
        text_piece("Hi") | {"output_index": "x"},
        b'{"type": 5}',
        text_piece(" you"),
    ]
    assert stream(DIALECT, *odd).text == "Hi\n you"
    reading = started(DIALECT, SSE)
    reading.feed(events(odd[0], b"noise", b'{"delta": "no type"}'))
    assert reading.unreadable == 2
    call = [item("added", 0, begun(FUNCTION)), piece(ARGUED, 0, "{}") | {"content_index": "x"}, piece(ARGUED, 7, "x")]
    assert stream(DIALECT, *call).calls == (ToolCall("get_weather", "{}"),)
    answer = whole(DIALECT, response("completed", [5, MESSAGE | {"content": "Hi"}, {"type": None}], model=None))
    assert (answer.text, answer.model) == ("Hi", "")


def test_waiting_in_the_background() -> None:
    """An answer that is only a ticket says so (C-8)."""
    answer = whole(DIALECT, response("queued", []))
    assert (answer.finish, answer.complete, answer.error) == ("queued", True, "")
