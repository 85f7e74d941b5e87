"""The last messages of a Chat Completions request, if they are answers with one call and its result, are read in a
shorter way. What is read does not depend on it.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from breakloop.dialects import openai_chat
from breakloop.dialects.base import SMALL_BODY
from breakloop.model.call import Chat, Step

Json = dict[str, Any]
LONG = "x" * SMALL_BODY  # messages of a body with it are decoded one by one


def answer(number: int = 1) -> Json:
    function = {"name": "read_file", "arguments": f'{{"path": "file-{number}.txt", "b": 1}}'}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": f"call_{number}", "type": "function", "function": function}],
    }


def result(number: int = 1) -> Json:
    return {"role": "tool", "tool_call_id": f"call_{number}", "content": f"line {number}  of a file\n"}


def function_of(message: Json) -> Json:
    found: Json = message["tool_calls"][0]["function"]
    return found


ODD_ANSWERS: list[Any] = [
    lambda one: None,
    lambda one: one.pop("content"),
    lambda one: one.update(content="I look."),
    lambda one: one.update(content=""),
    lambda one: one.update(content=[{"type": "text", "text": "I look."}]),
    lambda one: one.update(content="long " * 20_000),
    lambda one: one.update(refusal="No."),
    lambda one: one.update(refusal="", audio=None, annotations=[], name="a", reasoning_content="I think."),
    lambda one: one.update(function_call=None),
    lambda one: one.update(function_call={"name": "old", "arguments": "{}"}),
    lambda one: one.update(role="user"),
    lambda one: one.update(role="ai"),
    lambda one: one.update(role=None),
    lambda one: one.pop("role"),
    lambda one: one.pop("tool_calls"),
    lambda one: one.update(tool_calls=None),
    lambda one: one.update(tool_calls=[]),
    lambda one: one.update(tool_calls=[None]),
    lambda one: one.update(tool_calls={"function": 1}),
    lambda one: one.update(tool_calls=one["tool_calls"] * 2),
    lambda one: one.update(tool_calls=[{"id": "call_1", "custom": {"name": "run", "input": "ls"}}]),
    lambda one: one["tool_calls"][0].pop("id"),
    lambda one: one["tool_calls"][0].update(id=""),
    lambda one: one["tool_calls"][0].update(id=7, index=0),
    lambda one: one["tool_calls"][0].update(function=None),
    lambda one: function_of(one).pop("name"),
    lambda one: function_of(one).update(name=5),
    lambda one: function_of(one).update(name="n" * 2000),
    lambda one: function_of(one).pop("arguments"),
    lambda one: function_of(one).update(arguments={"path": "a"}),
    lambda one: function_of(one).update(arguments="no JSON"),
    lambda one: function_of(one).update(arguments=json.dumps({"text": "y" * 2000, "a": 1})),
    lambda one: function_of(one).update(arguments=json.dumps({"text": "y" * 100_000, "a": 1})),
]
ODD_RESULTS: list[Any] = [
    lambda one: None,
    lambda one: one.pop("content"),
    lambda one: one.update(content=None),
    lambda one: one.update(content=""),
    lambda one: one.update(content="Error: no such file", name="read_file"),
    lambda one: one.update(content="caf\u00e9 \ud83d\ude00"),
    lambda one: one.update(content="\ud800"),
    lambda one: one.update(content=[{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]),
    lambda one: one.update(content={"a": 1}),
    lambda one: one.update(content="long " * 40_000),
    lambda one: one.update(role="function"),
    lambda one: one.update(role="user"),
    lambda one: one.update(role="assistant"),
    lambda one: one.update(role=["tool"]),
    lambda one: one.pop("role"),
    lambda one: one.pop("tool_call_id"),
    lambda one: one.update(tool_call_id=None),
    lambda one: one.update(tool_call_id=5),
    lambda one: one.update(refusal="No."),
    lambda one: one.update(refusal=None, tool_calls=None, function_call=None),
    lambda one: one.update(tool_calls=[]),
    lambda one: one.update(tool_calls=answer()["tool_calls"]),
    lambda one: one.update(nested=[[[{"a": [1.5, None, True]}]]]),
]


def read(body: bytes, tail: int) -> tuple[Chat | None, Step | None]:
    """The last messages, and the step, which is read with what is kept of them."""
    parsed = openai_chat.OpenAIChat().parse(body)
    assert parsed is not None
    return parsed.chat(tail), parsed.newest_step()


@pytest.mark.parametrize("padding", ["", LONG])
@pytest.mark.parametrize("newest", [True, False])
@pytest.mark.parametrize(
    ("change", "place"),
    [*[(change, 0) for change in ODD_ANSWERS], *[(change, 1) for change in ODD_RESULTS]],
)
def test_the_short_way_reads_what_the_long_way_reads(
    change: Any, place: int, newest: bool, padding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In an odd answer or result, in the last turn or in the one before, in a small body and in a larger one."""
    turns = [[answer(0), result(0)], [answer(1), result(1)], [answer(2), result(2)]]
    change(turns[2 if newest else 1][place])
    messages = [{"role": "user", "content": f"Find the harbour. {padding}"}, *[one for turn in turns for one in turn]]
    body = json.dumps({"model": "m", "messages": messages}).encode()
    twice = [(b'"tool"', b'"user", "role": "tool"'), (b'"tool"', b'"tool", "role": "user"')]
    twice += [(b'"assistant"', b'"tool", "role": "assistant"'), (b'"assistant"', b'"assistant", "role": "tool"')]
    bodies = [body, *[body.replace(b'"role": ' + role, b'"role": ' + two) for role, two in twice]]
    found = [read(one, tail) for one in bodies for tail in (1, 2, 3, 4, 9)]
    monkeypatch.setattr(openai_chat, "add_turns", lambda _found, parts, _tail: len(parts.items))
    assert found == [read(one, tail) for one in bodies for tail in (1, 2, 3, 4, 9)]
    if place == 0 and change is ODD_ANSWERS[0]:
        assert found[0][1] is not None


def test_the_last_messages_are_not_decoded_as_values() -> None:
    """The short way is taken: of a larger body, the messages remain undecoded."""
    messages = [{"role": "user", "content": LONG}, answer(0), result(0), answer(1), result(1)]
    parsed = openai_chat.OpenAIChat().parse(json.dumps({"model": "m", "messages": messages}).encode())
    assert parsed is not None
    parsed.chat(4)
    step = parsed.newest_step()
    assert step is not None
    assert step.results[0].call_id == "call_1"
    assert not any(isinstance(item, dict) for item in parsed.parts.items)
