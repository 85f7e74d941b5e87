"""Anthropic's shapes."""

from __future__ import annotations

from breakloop.model.call import Usage
from breakloop.testing.answer import Failure, call_tool, say
from breakloop.testing.providers import anthropic
from tests.unit.testing.talking import asked, events, whole

USAGE = Usage(20, 9, 8, 2)
COUNTED = {"input_tokens": 10, "cache_creation_input_tokens": 2, "cache_read_input_tokens": 8, "output_tokens": 9}
MESSAGES = "/v1/messages"


def test_a_message() -> None:
    """What was read from the cache or written to it is counted apart from the input."""
    assert whole(anthropic.messages(asked(say("Hi.", usage=USAGE), MESSAGES, model="m"))) == {
        "id": "msg_00000001",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [{"type": "text", "text": "Hi."}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": COUNTED | {"service_tier": "standard"},
    }


def test_tools_and_ends() -> None:
    made = whole(anthropic.messages(asked(call_tool("f", {"a": 1}, text="ok").with_tool("g", '{"b": 2}'))))
    assert made["content"] == [
        {"type": "text", "text": "ok"},
        {"type": "tool_use", "id": "toolu_00000001_0", "name": "f", "input": {"a": 1}},
        {"type": "tool_use", "id": "toolu_00000001_1", "name": "g", "input": {"b": 2}},
    ]
    assert made["stop_reason"] == "tool_use"
    assert whole(anthropic.messages(asked(say("x", finish="length"))))["stop_reason"] == "max_tokens"
    assert [block["type"] for block in whole(anthropic.messages(asked(call_tool("f"))))["content"]] == ["tool_use"]


def test_the_sequence_of_events() -> None:
    found = events(anthropic.messages(asked(call_tool("f", {"a": 1}, text="one two").sent(), stream=True)))
    assert [name for name, _ in found] == [
        "message_start",
        "content_block_start",
        "ping",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert all(data["type"] == name for name, data in found)
    assert (found[0][1]["message"]["content"], found[0][1]["message"]["stop_reason"]) == ([], None)
    assert found[3][1] == {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "one"}}
    assert found[6][1]["content_block"] == {"type": "tool_use", "id": "toolu_00000001_0", "name": "f", "input": {}}
    assert "".join(data["delta"]["partial_json"] for _, data in found[7:10]) == '{"a":1}'
    assert {data["index"] for _, data in found[6:11]} == {1}
    assert found[11][1]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}


def test_usage_in_a_stream() -> None:
    """The input is known from the start, the output at the end."""
    found = events(anthropic.messages(asked(say("Hi.", usage=USAGE), stream=True)))
    assert found[0][1]["message"]["usage"] == COUNTED | {"output_tokens": 1, "service_tier": "standard"}
    assert found[-2][1]["usage"] == COUNTED


def test_errors() -> None:
    assert anthropic.error(Failure("m"), 429, "req_1") == {
        "type": "error",
        "error": {"type": "rate_limit_error", "message": "m"},
        "request_id": "req_1",
    }
    assert anthropic.error(Failure("m"), 500, "")["error"]["type"] == "api_error"
    assert anthropic.error(Failure("m", "billing_error"), 400, "")["error"]["type"] == "billing_error"


def test_an_error_inside_a_stream() -> None:
    found = events(anthropic.messages(asked(say("a b").then_fail(3, "busy"), stream=True)))
    assert found[-1] == ("error", anthropic.error(Failure("busy"), 529, "req_00000001"))
    assert len(found) == 4
    assert found[-1][1]["error"]["type"] == "overloaded_error"


def test_counting_tokens() -> None:
    assert whole(anthropic.count_tokens(asked(say("x", usage=USAGE)))) == {"input_tokens": 20}
    assert whole(anthropic.count_tokens(asked(say("x"), model="a" * 16))) == {"input_tokens": 8}
