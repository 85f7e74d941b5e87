"""Anthropic Messages: blocks, and counts that are totals."""

from __future__ import annotations

import pytest

from breakloop.model.call import Answer, ToolCall, Usage
from tests.unit.dialects import parsing
from tests.unit.dialects.recorded.anthropic import MESSAGES, block, delta, end, start
from tests.unit.dialects.recorded.reading import read, stream, whole
from tests.unit.dialects.recorded.shape import Recorded, dump

DIALECT = "anthropic_messages"


@pytest.mark.parametrize("recorded", MESSAGES.values(), ids=MESSAGES)
def test_recorded(recorded: Recorded) -> None:
    """Text, calls, usage, model, id, reason, error and end of each (C-8)."""
    assert read(recorded) == recorded.answer


def test_as_the_next_request_repeats_it() -> None:
    """What was said is spelled as it is when it comes back as a message of the history (C-8)."""
    content = [
        {"type": "thinking", "thinking": "secrets", "signature": "x"},
        {"type": "text", "text": "One"},
        {"type": "text", "text": "two"},
        {"type": "tool_use", "id": "x", "name": "f", "input": {"b": 1, "a": 2.0}},
        {"type": "tool_use", "id": "y", "name": "g", "input": {}},
    ]
    answer = whole(DIALECT, {"type": "message", "content": content})
    body = {"model": "m", "messages": [{"role": "assistant", "content": content}]}
    chat = parsing.chat(DIALECT, dump(body), 1)
    assert chat is not None
    assert (answer.text, answer.calls) == (chat.tail[0].text, chat.tail[0].calls)


def test_counts() -> None:
    """Cached parts are of the prompt though Anthropic keeps them apart; null says nothing new (C-8)."""
    late = end(input_tokens=30, cache_read_input_tokens=None, output_tokens=9)
    assert stream(DIALECT, start(), *late).usage == Usage(2130, 9, 2000, 100)
    assert stream(DIALECT, start()).usage == Usage(2125, 1, 2000, 100)
    for count, expected in (({"input_tokens": 3}, Usage(3)), ({"output_tokens": 3}, Usage(0, 3))):
        odd = count | {"iterations": [5, {"type": "message", "input_tokens": 9}]}
        assert whole(DIALECT, {"type": "message", "usage": odd}).usage == expected
    assert whole(DIALECT, {"type": "message", "content": [], "usage": {"service_tier": "x"}}).usage is None
    assert whole(DIALECT, {"type": "message", "content": [], "usage": None}).usage is None


def test_calls_of_all_kinds() -> None:
    """Of the client's tools, of Anthropic's own, and of MCP servers; arguments may come at once (C-8)."""
    events = [
        block(0, type="tool_use", name="a", input={"x": 1}),
        block(1, type="server_tool_use", name="b", input={}),
        delta(1, "input_json_delta", partial_json='{"y":2}'),
        block(2, type="mcp_tool_use", name="c", input=None, server_name="s"),
        delta(9, "input_json_delta", partial_json="of nothing"),
    ]
    made = (ToolCall("a", '{"x":1}'), ToolCall("b", '{"y":2}'), ToolCall("c", ""))
    assert stream(DIALECT, *events).calls == made


@pytest.mark.parametrize(
    "kind", ["thinking_delta", "signature_delta", "citations_delta", "compaction_delta", "new_delta"]
)
def test_what_is_not_said(kind: str) -> None:
    """Thinking and marks, and kinds of pieces that nobody knows yet (C-8)."""
    event = delta(0, kind, thinking="secrets", signature="secrets", content="secrets", text="secrets")
    assert stream(DIALECT, event, *end(output_tokens=1)).text == ""


def test_odd_types() -> None:
    """One of them hides nothing else (C-9)."""
    odd = [
        start() | {"index": "x"},
        delta(0, "text_delta", text=5),
        delta(1, "text_delta", text="Hi") | {"index": "x"},
        block(2, type="tool_use", name="f", input={}),
        delta(2, "input_json_delta", partial_json={"a": 1.0}),
        delta(2, "new_delta", partial_json=5),
        block(0, type=["text"]),
        {"type": "content_block_start", "index": 0, "content_block": 5},
        {"type": "content_block_delta", "index": 0, "delta": 5},
        {"type": "content_block_delta", "index": 0, "delta": None},
        {"type": "message_delta", "delta": 5, "usage": 5},
        {"type": "message_start", "message": 5},
        {"type": "something_new"},
        [],
        *end(output_tokens=3),
        {"type": "message_delta", "delta": {"stop_reason": None}},
    ]
    answer = stream(DIALECT, *odd)
    assert answer.calls == (ToolCall("f", '{"a":1}'),)
    assert (answer.text, answer.finish, answer.complete) == ("5Hi", "end_turn", True)
    assert answer.usage == Usage(2125, 3, 2000, 100)


def test_errors() -> None:
    """By their type, in a stream or with a status; what the message says is not kept (C-8)."""
    error = {"type": "error", "error": {"type": "invalid_request_error", "message": "secrets"}}
    assert whole(DIALECT, error, 400) == Answer(400, error="invalid_request_error", complete=True)
    assert stream(DIALECT, {"type": "error", "error": "secrets and more"}).error == "error"
    assert whole(DIALECT, {"error": {"type": "gateway_error"}}, 502).error == "gateway_error"
    assert whole(DIALECT, {"error": "it broke", "content": [{"type": "text", "text": "Hi"}]}).text == "Hi"
    assert whole(DIALECT, {"type": "message", "error": {}}).error == ""
