"""OpenAI's shapes, as its SDK's models want them."""

from __future__ import annotations

import base64
import struct
from typing import Any

from breakloop.model.call import Usage
from breakloop.testing.answer import Failure, call_tool, say
from breakloop.testing.providers import openai
from tests.unit.testing.talking import asked, events, whole

USAGE = Usage(20, 9, 8, 0, 3)
REPORTED = {
    "prompt_tokens": 20,
    "completion_tokens": 9,
    "total_tokens": 29,
    "prompt_tokens_details": {"cached_tokens": 8, "audio_tokens": 0},
    "completion_tokens_details": {
        "reasoning_tokens": 3,
        "audio_tokens": 0,
        "accepted_prediction_tokens": 0,
        "rejected_prediction_tokens": 0,
    },
}


def test_a_chat_completion() -> None:
    rendered = openai.chat(asked(say("Hello there.", usage=USAGE), model="m"))
    assert not rendered.streamed
    assert whole(rendered) == {
        "id": "chatcmpl-00000001",
        "object": "chat.completion",
        "created": 1_800_000_001,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello there.", "refusal": None, "annotations": []},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "service_tier": "default",
        "system_fingerprint": "fp_standin",
        "usage": REPORTED,
    }


def test_tool_calls_of_a_chat_completion() -> None:
    choice = whole(openai.chat(asked(call_tool("look_up", {"q": "x"}).with_tool("add", tool_id="mine"))))["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    assert choice["message"]["tool_calls"] == [
        {"id": "call_00000001_0", "type": "function", "function": {"name": "look_up", "arguments": '{"q":"x"}'}},
        {"id": "mine", "type": "function", "function": {"name": "add", "arguments": "{}"}},
    ]


def test_a_streamed_chat_completion() -> None:
    """A role, the chunks, the end, the mark; every chunk with the same envelope."""
    rendered = openai.chat(asked(say("Hello big world."), stream=True))
    assert rendered.streamed
    assert rendered.content_type == "text/event-stream; charset=utf-8"
    *chunks, last = [data for _, data in events(rendered)]
    assert last == "[DONE]"
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas == [
        {"role": "assistant", "content": "", "refusal": None},
        {"content": "Hello"},
        {"content": " big"},
        {"content": " world."},
        {},
    ]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, None, None, "stop"]
    assert {(chunk["id"], chunk["object"], chunk["created"], chunk["model"]) for chunk in chunks} == {
        ("chatcmpl-00000001", "chat.completion.chunk", 1_800_000_001, "stand-in")
    }
    assert all("usage" not in chunk for chunk in chunks)


def test_usage_in_a_stream_comes_where_it_is_wanted() -> None:
    """`include_usage`: null in every chunk, and one more chunk, without choices."""
    wanted: Any = {"stream": True, "stream_options": {"include_usage": True}}
    *chunks, counted, last = [data for _, data in events(openai.chat(asked(say("a", usage=USAGE), **wanted)))]
    assert last == "[DONE]"
    assert [chunk["usage"] for chunk in chunks] == [None, None, None]
    assert (counted["choices"], counted["usage"]) == ([], REPORTED)


def test_tool_calls_in_a_stream() -> None:
    """Name and id first, then the arguments in parts."""
    answer = call_tool("f", {"a": 1}, text="ok").with_tool("g", {"b": 2})
    chunks = [data for _, data in events(openai.chat(asked(answer, stream=True)))][:-1]
    calls = [call for chunk in chunks for call in chunk["choices"][0]["delta"].get("tool_calls", ())]
    assert [(call["index"], call.get("id"), call["function"].get("name")) for call in calls] == [
        (0, "call_00000001_0", "f"),
        (0, None, None),
        (0, None, None),
        (1, "call_00000001_1", "g"),
        (1, None, None),
        (1, None, None),
    ]
    assert ["".join(call["function"]["arguments"] for call in calls if call["index"] == i) for i in (0, 1)] == [
        '{"a":1}',
        '{"b":2}',
    ]
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_an_error_inside_a_stream() -> None:
    found = [data for _, data in events(openai.chat(asked(say("a b").then_fail(2, "boom"), stream=True)))]
    assert len(found) == 3
    assert found[-1] == {"error": {"message": "boom", "type": "server_error", "param": None, "code": None}}
    found = [data for _, data in events(openai.completions(asked(say("a b").then_fail(1, code="c"), stream=True)))]
    assert [found[0]["choices"][0]["text"], found[1]["error"]["code"], len(found)] == ["a", "c", 2]


def test_errors() -> None:
    """The names that the API uses for each status; given ones come first."""
    assert openai.error(Failure("m"), 429)["error"] == {
        "message": "m",
        "type": "requests",
        "param": None,
        "code": "rate_limit_exceeded",
    }
    assert openai.error(Failure("m"), 503)["error"]["type"] == "server_error"
    assert openai.error(Failure("m", "insufficient_quota", "quota"), 429)["error"]["code"] == "quota"


def test_completions() -> None:
    made = whole(openai.completions(asked(say("abc", finish="length", usage=USAGE), prompt="x")))
    assert made == {
        "id": "cmpl-00000001",
        "object": "text_completion",
        "created": 1_800_000_001,
        "model": "stand-in",
        "choices": [{"index": 0, "text": "abc", "logprobs": None, "finish_reason": "length"}],
        "usage": REPORTED,
    }


def test_streamed_completions() -> None:
    wanted: Any = {"stream": True, "stream_options": {"include_usage": True}}
    found = [data for _, data in events(openai.completions(asked(say("a b", usage=USAGE), **wanted)))]
    assert [one["choices"][0]["text"] for one in found[:-2]] == ["a", " b", ""]
    assert [one["usage"] for one in found[:-1]] == [None, None, None, REPORTED]
    assert found[-1] == "[DONE]"
    plain = [data for _, data in events(openai.completions(asked(say("a"), stream=True)))]
    assert [data if isinstance(data, str) else "usage" in data for data in plain] == [False, False, "[DONE]"]


def test_embeddings() -> None:
    """One a text; one for a list of token numbers; floats, or packed as the SDK asks for by default."""
    made = whole(openai.embeddings(asked(say("x", usage=Usage(7, 0)), input=["a", "b"])))
    assert [one["index"] for one in made["data"]] == [0, 1]
    assert made["data"][1]["embedding"] == [0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    assert made["usage"] == {"prompt_tokens": 7, "total_tokens": 7}
    assert len(whole(openai.embeddings(asked(say("x"), input="a")))["data"]) == 1
    assert len(whole(openai.embeddings(asked(say("x"), input=[1, 2, 3])))["data"]) == 1
    packed = whole(openai.embeddings(asked(say("x"), input="a", encoding_format="base64")))["data"][0]["embedding"]
    assert struct.unpack("<8f", base64.b64decode(packed)) == (1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
