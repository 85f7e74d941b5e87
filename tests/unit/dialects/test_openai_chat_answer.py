"""Chat Completions: answers of OpenAI and of those who speak like it."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest

from breakloop.dialects.openai_chat import ChatAnswer, openai_usage
from breakloop.model.call import ToolCall, Usage
from tests.each import each
from tests.unit.dialects import parsing
from tests.unit.dialects.recorded.openai import CHAT, WHOLE, chunk, delta, tool
from tests.unit.dialects.recorded.reading import read, stream, whole
from tests.unit.dialects.recorded.shape import Recorded, dump

CHATS = pytest.mark.parametrize("recorded", CHAT.values(), ids=CHAT)


@CHATS
def test_recorded(recorded: Recorded) -> None:
    """Text, calls, usage, model, id, reason, error and end of each (C-8)."""
    assert read(recorded) == recorded.answer


def test_as_the_next_request_repeats_it() -> None:
    """What was said is spelled as it is when it comes back as a message of the history (C-8)."""
    message = {"role": "assistant", "content": "Hi", "tool_calls": [tool(None, '{"b": 1, "a": 2.0}', "f", "x")]}
    answer = whole("openai_chat", {"choices": [{"index": 0, "message": message}]})
    chat = parsing.chat("openai_chat", dump({"model": "m", "messages": [message]}), 1)
    assert chat is not None
    assert (answer.text, answer.calls) == (chat.tail[0].text, chat.tail[0].calls)


def test_thinking_is_not_said() -> None:
    """Whatever the field that holds it is called (C-8)."""
    thought: dict[str, Any] = {
        "reasoning_content": "secrets",
        "reasoning": "secrets",
        "reasoning_details": [{"text": "secrets"}],
    }
    assert stream("openai_chat", chunk(delta(content="", **thought)), chunk(delta(content="Hi"))).text == "Hi"
    assert whole("openai_chat", {"choices": [{"message": {"content": "Hi", **thought}}]}).text == "Hi"


def test_audio_is_its_transcript() -> None:
    """Which comes in pieces beside the sound (C-8)."""
    pieces = [chunk(delta(audio={"id": "a", "transcript": one})) for one in ("Hel", "lo")]
    assert stream("openai_chat", *pieces, chunk(delta(audio={"data": "UklGR"}))).text == "Hello"


def test_which_call_a_piece_belongs_to() -> None:
    """By number, whatever the order; ids may come with every piece, or late (C-8)."""
    pieces = [
        [tool(0, "", "f", "a"), tool(1, "", "g", "b")],
        [tool(1, '{"b":'), tool(0, '{"a":')],
        [tool(0, "1}", "f", "a"), tool(1, "2}", "g", "b")],
        [tool(2, "", "h")],
        [tool(2, "{}", "", "c")],
    ]
    made = stream("openai_chat", *[chunk(delta(tool_calls=one)) for one in pieces]).calls
    assert made == (ToolCall("f", '{"a":1}'), ToolCall("g", '{"b":2}'), ToolCall("h", "{}"))


def test_reasons() -> None:
    """The first choice's, if it has one; a chunk that comes after it takes nothing back (C-8)."""
    assert stream("openai_chat", chunk(delta("length", 1))).finish == "length"
    assert (
        stream("openai_chat", chunk(delta("length", 1)), chunk(delta("length", 2)), chunk(delta("stop"))).finish
        == "stop"
    )
    assert stream("openai_chat", chunk(delta("stop")), chunk(delta("length", 1))).finish == "stop"
    assert stream("openai_chat", chunk(delta("stop")), chunk(delta(content=["odd"]))).finish == "stop"


def test_usage_that_grows() -> None:
    """Some servers count in every chunk; the last one is the count (C-8)."""
    counts = [{"prompt_tokens": 5, "completion_tokens": n, "total_tokens": 5 + n} for n in (1, 2, 3)]
    answer = stream("openai_chat", *[chunk(delta(content="x"), usage=count) for count in counts])
    assert answer.usage == Usage(5, 3)


@each(
    "fields, expected",
    [
        ({"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}, Usage(5, 7)),
        ({"input_tokens": 5, "output_tokens": 7}, Usage(5, 7)),
        ({"total_tokens": 8, "prompt_tokens": 8}, Usage(8)),
        ({"prompt_tokens": 5, "prompt_cache_hit_tokens": 3, "prompt_cache_miss_tokens": 2}, Usage(5, 0, 3)),  # DeepSeek
        ({"prompt_tokens": 5, "cached_tokens": 4}, Usage(5, 0, 4)),  # Moonshot
        ({"completion_tokens": 5, "reasoning_tokens": 4}, Usage(0, 5, 0, 0, 4)),  # Perplexity
        ({"prompt_tokens": 5, "prompt_tokens_details": {"cache_write_tokens": 2}}, Usage(5, 0, 0, 2)),
        ({"prompt_tokens": 5, "cache_creation_input_tokens": 2}, Usage(5, 0, 0, 2)),  # LiteLLM
        ({"prompt_tokens": 5, "prompt_tokens_details": None, "completion_tokens_details": None}, Usage(5)),
        ({"prompt_tokens": None, "completion_tokens": "7"}, Usage()),
        ({}, None),
        ({"cost": 0.5}, None),
    ],
)
def test_counts(fields: dict[str, Any], expected: Usage | None) -> None:
    """By the names that the various servers have for the same (C-8)."""
    assert openai_usage(fields) == expected


def test_reasoning_beside_the_completion() -> None:
    """xAI's completion is without it, OpenAI's with it; the total tells which (C-8)."""
    count = {"prompt_tokens": 32, "completion_tokens": 9, "completion_tokens_details": {"reasoning_tokens": 94}}
    assert openai_usage(count | {"total_tokens": 135}) == Usage(32, 103, 0, 0, 94)
    count["completion_tokens"] = 103
    assert openai_usage(count | {"total_tokens": 135}) == Usage(32, 103, 0, 0, 94)


def test_one_wrong_type_hides_nothing_else() -> None:
    """Neither in a chunk nor in a body (C-9)."""
    odd = chunk(delta(content="Hi"), "no choice") | {"model": 5, "created": [], "usage": "none"}
    answer = stream("openai_chat", odd, chunk(delta("stop", content=" you")))
    assert (answer.text, answer.finish) == ("Hi you", "stop")
    answer = whole("openai_chat", {"choices": [None, {"message": {"content": "Hi", "tool_calls": [7, {"id": 5}]}}]})
    assert (answer.text, answer.calls) == ("Hi", (ToolCall("", ""),))


def test_arguments_that_are_no_text() -> None:
    """Some servers send them as an object (C-9)."""
    calls = [{"index": 0, "id": "a", "function": {"name": "f", "arguments": {"b": 1, "a": 2.0}}}]
    assert stream("openai_chat", chunk(delta(tool_calls=calls))).calls == (ToolCall("f", '{"a":2,"b":1}'),)


def test_an_error_that_is_none() -> None:
    """Null and empty ones stand in ordinary answers (C-9)."""
    nothing: list[Any] = [None, {}, ""]
    for error in nothing:
        assert stream("openai_chat", chunk(delta("stop", content="Hi"), error=error)).error == ""
        assert whole("openai_chat", {"error": error, "choices": []}).error == ""


def test_errors_in_other_shapes() -> None:
    """As a text, or in a choice (C-9)."""
    assert stream("openai_chat", {"error": "it broke"}).error == "error"
    assert whole("openai_chat", {"error": "it broke", "code": "boom"}).error == "boom"
    assert whole("openai_chat", {"choices": [{"message": {}, "error": {"code": 502}}]}).error == "502"


def test_errors_with_a_status_are_complete() -> None:
    """An error page that came to its end did, and whether it is a failure is the status's business (LD-6)."""
    answer = whole("openai_chat", {"error": {"type": "invalid_request_error", "code": None}}, 400)
    assert (answer.error, answer.complete, answer.failed) == ("invalid_request_error", True, False)
    failed = whole("openai_chat", {"error": {"code": 502, "message": "x"}}, 200)  # as OpenRouter does
    assert (failed.error, failed.complete, failed.failed) == ("502", False, True)


def test_deltas_and_whole_say_the_same() -> None:
    """The same answer, streamed or not (C-8)."""
    answer = read(CHAT["chat whole"])
    first, second = [one["message"] for one in json.loads(WHOLE)["choices"]]
    pieces = [chunk(delta(content=one)) for one in first["content"]]
    pieces += [chunk(delta(index=1, content=one)) for one in second["content"]]
    pieces += [chunk(delta(index=1, refusal=one)) for one in second["refusal"]]
    for index, call in enumerate(first["tool_calls"]):
        pieces.append(chunk(delta(tool_calls=[tool(index, "", call["function"]["name"], call["id"])])))
        pieces += [chunk(delta(tool_calls=[tool(index, one)])) for one in call["function"]["arguments"]]
    streamed = stream("openai_chat", *pieces, chunk(delta("tool_calls")))
    assert (streamed.text, streamed.calls, streamed.finish) == (answer.text, answer.calls, answer.finish)


@pytest.mark.parametrize(
    "message",
    [
        {"content": "Hi", "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": {"n": 10**25}}}]},
        {"content": [{"type": "text", "text": "Hi"}]},
        {"content": "Hi", "function_call": {}},
        {"content": "Hi", "refusal": "no", "audio": {"transcript": "la"}},
        {"content": None, "refusal": "no", "tool_calls": None},
        {"content": "x" * 70_000, "refusal": ""},
        {
            "content": "Hi",
            "tool_calls": [{"id": "a" * 250, "function": {"name": "f" * 250, "arguments": '{"n": 1.0}'}}],
        },
        {"content": "Hi", "tool_calls": [{"id": "", "index": 0, "function": {"name": "f", "arguments": ""}}]},
    ],
)
def test_ordinary_and_odd_answers_are_read_alike(message: dict[str, Any]) -> None:
    """What is read in half the time says the same as what had to be read tolerantly (C-9)."""
    fields = {"id": "x", "model": "m", "usage": {"prompt_tokens": 3, "completion_tokens": 4}, "choices": []}
    for choice in ({"message": message, "finish_reason": "stop"}, {"index": 3, "message": message}):
        sent = {**fields, "choices": [choice]}
        tolerant = ChatAnswer()
        tolerant.read_fields(json.loads(json.dumps(sent), parse_int=orjson.loads))
        assert whole("openai_chat", sent) == tolerant.build(200, complete=True)


@each(
    "stated, microusd",
    [
        ({"cost": 0.00123}, 1230),
        ({"cost": 0}, 0),
        ({"cost": 0.001, "is_byok": True, "cost_details": {"upstream_inference_cost": 0.02}}, 21_000),
        ({"cost": 0.001, "is_byok": False, "cost_details": {"upstream_inference_cost": 0.02}}, 1000),
        ({"cost": 0.001, "is_byok": True, "cost_details": {"upstream_inference_cost": None}}, 1000),
        ({"cost": {"total_cost": 1}}, None),
        ({"cost": "0.1"}, None),
        ({"cost": True}, None),
        ({"cost": -1}, None),
        ({"cost": 1e300}, None),
        ({"cost": 10**400}, None),
        ({"cost": float("nan")}, None),
    ],
)
def test_the_cost_that_openrouter_states(stated: dict[str, Any], microusd: int | None) -> None:
    """In dollars; with a key of one's own, also what the provider charges. Other shapes are not read (C-8, L-5)."""
    found = openai_usage({"prompt_tokens": 9, "completion_tokens": 4, **stated})
    assert found == Usage(9, 4, cost_microusd=microusd)
