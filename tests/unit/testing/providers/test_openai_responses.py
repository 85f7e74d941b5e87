"""The Responses API's shapes."""

from __future__ import annotations

from breakloop.model.call import Usage
from breakloop.testing.answer import call_tool, say
from breakloop.testing.providers.openai import responses
from tests.unit.testing.talking import asked, events, whole

USAGE = Usage(20, 9, 8, 2, 3)
REPORTED = {
    "input_tokens": 20,
    "input_tokens_details": {"cached_tokens": 8, "cache_write_tokens": 2},
    "output_tokens": 9,
    "output_tokens_details": {"reasoning_tokens": 3},
    "total_tokens": 29,
}


def test_a_response() -> None:
    made = whole(responses(asked(say("Hi.", usage=USAGE), model="m", input="x", previous_response_id="resp_0")))
    assert (made["id"], made["object"], made["status"], made["model"]) == (
        "resp_00000001",
        "response",
        "completed",
        "m",
    )
    assert made["output"] == [
        {
            "id": "msg_00000001",
            "type": "message",
            "status": "completed",
            "content": [{"type": "output_text", "annotations": [], "logprobs": [], "text": "Hi."}],
            "role": "assistant",
        }
    ]
    assert made["previous_response_id"] == "resp_0"
    assert (made["tools"], made["tool_choice"], made["parallel_tool_calls"]) == ([], "auto", True)
    assert made["usage"] == REPORTED


def test_an_incomplete_response() -> None:
    made = whole(responses(asked(say("Hi.", finish="length"))))
    assert (made["status"], made["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert events(responses(asked(say("Hi.", finish="filter"), stream=True)))[-1][0] == "response.incomplete"


def test_a_call_has_no_message_beside_it_unless_something_is_said() -> None:
    made = whole(responses(asked(call_tool("f", {"a": 1}, tool_id="mine"))))
    assert made["output"] == [
        {
            "id": "fc_00000001_0",
            "type": "function_call",
            "status": "completed",
            "arguments": '{"a":1}',
            "call_id": "mine",
            "name": "f",
        }
    ]


def test_the_sequence_of_events() -> None:
    """Named, numbered without a gap, each item opened and closed in its place."""
    found = events(responses(asked(call_tool("f", {"a": 1}, text="one two").with_tool("g"), stream=True)))
    assert [name for name, _ in found] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert all(data["type"] == name for name, data in found)
    assert [data["sequence_number"] for _, data in found] == list(range(20))
    assert [data["output_index"] for _, data in found[2:-1]] == [0] * 7 + [1] * 5 + [2] * 5
    assert found[0][1]["response"]["status"] == "in_progress"
    assert [found[4][1]["delta"], found[5][1]["delta"]] == ["one", " two"]
    assert found[6][1]["text"] == "one two"
    assert found[9][1]["item"] == found[13][1]["item"] | {"status": "in_progress", "arguments": ""}
    assert found[12][1]["arguments"] == found[13][1]["item"]["arguments"] == '{"a":1}'
    ended = found[-1][1]["response"]
    assert [item["type"] for item in ended["output"]] == ["message", "function_call", "function_call"]
    assert ended["usage"]["total_tokens"] > 0


def test_a_response_that_fails_midway() -> None:
    found = events(responses(asked(say("a b c").then_fail(5, "boom", code="server_is_overloaded"), stream=True)))
    name, data = found[-1]
    assert (name, data["sequence_number"], len(found)) == ("response.failed", 5, 6)
    assert data["response"]["status"] == "failed"
    assert data["response"]["error"] == {"code": "server_is_overloaded", "message": "boom"}
