"""Reading steps: nothing that comes can break it (C-9), and what came before the last answer changes nothing (LD-4)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakloop.dialects import text_actions
from breakloop.dialects.base import BodyFields, Dialect
from breakloop.dialects.openai_chat import OpenAIChat
from breakloop.dialects.steps import TEXT_MAX, result_error, without_additions
from breakloop.model.call import Message, Step
from tests.unit.dialects.parsing import newest_step

FIELDS = {
    "openai_chat": "messages",
    "anthropic_messages": "messages",
    "openai_responses": "input",
    "gemini": "contents",
    "openai_completions": "prompt",
    "mcp": "params",
}
EACH = pytest.mark.parametrize("dialect", FIELDS)
NAMES = st.sampled_from(
    [
        *("role", "content", "parts", "type", "text", "tool_calls", "function", "name", "arguments", "id", "tools"),
        *("messages", "input", "contents", "call_id", "output", "status", "error", "is_error", "tool_use_id"),
        *("functionCall", "functionResponse", "response", "args", "source", "data", "image_url", "url", "outcome"),
        *("function_call", "refusal", "functionDeclarations", "mimeType", "inlineData", "stdout", "resource"),
    ]
)
WORDS = st.sampled_from(
    [
        *("assistant", "user", "tool", "model", "system", "function", "message", "function_call", "reasoning"),
        *("function_call_output", "tool_use", "tool_result", "text", "image", "input_text", "mcp_call", "failed"),
        *("```bash\nls\n```", "Action: x\nAction Input: y", '<tool_call>{"name": "f"', "[breakloop] x [/breakloop]"),
        *("\ud83d", "data:image/png;base64,AAAA", "Exit code: 1", '{"a": "\\ud83d"}', "<system-reminder>"),
    ]
)
ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | WORDS | st.text(max_size=5),
    lambda values: st.lists(values, max_size=4) | st.dictionaries(NAMES, values, max_size=6),
    max_leaves=30,
)


def check(step: Step | None) -> None:
    """Every text can be encoded, and is within its bound."""
    if step is None:
        return
    texts = [step.said, *step.call_ids, *step.users, *step.tools]
    texts += [text for call in step.calls for text in call]
    texts += [text for result in step.results for text in (result.text, result.call_id, *result.media)]
    for text in texts:
        text.encode()
        assert len(text) <= TEXT_MAX + 100
    for result in step.results:
        assert isinstance(result.error, bool)
    assert max(len(step.calls), len(step.results), len(step.users), len(step.tools)) <= 2000
    assert not step.call_ids or len(step.call_ids) == len(step.calls)


@EACH
@given(body=st.binary(max_size=80))
def test_noise(dialect: str, body: bytes) -> None:
    """Any bytes are no step, and no error (C-9)."""
    check(newest_step(dialect, body))
    check(newest_step(dialect, b'{"model":"m","' + FIELDS[dialect].encode() + b'":' + body + b"}"))


@EACH
@given(value=ODD, more=st.dictionaries(NAMES, ODD, max_size=3))
def test_odd_values(dialect: str, value: Any, more: Any) -> None:
    """Odd values: any JSON (C-9)."""
    said = {"jsonrpc": "2.0", "method": "tools/call", "model": "m", **more, FIELDS[dialect]: value}
    check(newest_step(dialect, json.dumps(said).encode()))


@EACH
@given(items=st.lists(st.dictionaries(NAMES, ODD, max_size=6), max_size=5))
def test_odd_items(dialect: str, items: Any) -> None:
    """Any objects as messages (C-9)."""
    said = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "model": "m", FIELDS[dialect]: items}
    check(newest_step(dialect, json.dumps(said).encode()))


def answer(dialect: str, number: int, result: str) -> list[Any]:
    """A call and its result as a dialect has them."""
    call: dict[str, Any]
    done: dict[str, Any]
    if dialect == "openai_chat":
        call = {"id": f"c{number}", "function": {"name": "f", "arguments": json.dumps({"n": number})}}
        return [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"c{number}", "content": result},
        ]
    if dialect == "openai_responses":
        call = {"type": "function_call", "call_id": f"c{number}", "name": "f", "arguments": json.dumps({"n": number})}
        return [call, {"type": "function_call_output", "call_id": f"c{number}", "output": result}]
    if dialect == "anthropic_messages":
        call = {"type": "tool_use", "id": f"c{number}", "name": "f", "input": {"n": number}}
        done = {"type": "tool_result", "tool_use_id": f"c{number}", "content": result}
        return [{"role": "assistant", "content": [call]}, {"role": "user", "content": [done]}]
    call = {"functionCall": {"id": f"c{number}", "name": "f", "args": {"n": number}}}
    done = {"functionResponse": {"id": f"c{number}", "name": "f", "response": {"output": result}}}
    return [{"role": "model", "parts": [call]}, {"role": "user", "parts": [done]}]


@pytest.mark.parametrize("dialect", ["openai_chat", "openai_responses", "anthropic_messages", "gemini"])
@given(texts=st.lists(st.text(max_size=30), min_size=1, max_size=5))
def test_the_history_changes_nothing(dialect: str, texts: list[str]) -> None:
    """The newest step is the same, however long the conversation before it; every dialect reads the same one (LD-4)."""
    turns = [item for number, text in enumerate(texts) for item in answer(dialect, number, text)]
    whole, last = (
        newest_step(dialect, json.dumps({"model": "m", FIELDS[dialect]: items}).encode())
        for items in (turns, turns[-2:])
    )
    assert whole is not None
    assert last is not None
    assert whole._replace(size=0, messages=0) == last._replace(size=0, messages=0)
    assert [result.text for result in whole.results] == [without_additions(texts[-1])]
    assert (whole.calls[0].name, whole.calls[0].arguments) == ("f", f'{{"n":{len(texts) - 1}}}')
    assert whole.call_ids == (f"c{len(texts) - 1}",)
    assert whole.messages == len(turns)


PIECES = st.lists(
    st.sampled_from(
        [
            *("```", "bash", "\n", "<tool_call>", "</tool_call>", "{", "}", '"name": "f"', ", ", '"arguments": {}'),
            *("Action:", "Action Input:", "Observation:", "<function=f>", "<parameter=x>", "<code>", "<invoke name="),
            *("Exit code: ", "1", "Error:", "[", "]", "<a_b>", "</a_b>", " ", "<returncode>", '"error": ', "(", ")"),
        ]
    ),
    max_size=30,
).map("".join)


@given(text=PIECES)
def test_any_text_is_read(text: str) -> None:
    """Whatever an answer or a result looks like (LD-4)."""
    action = text_actions.read(text)
    assert action is None or action.name
    assert result_error(text) in (True, False)


class OneByOne(OpenAIChat):
    """Reads each message by itself, and builds each step from its parts."""

    read_step = Dialect.read_step

    def newest_messages(self, parts: BodyFields, tail: int) -> list[Message]:
        found: list[Message] = []
        self._add_messages(found, parts, len(parts.items), tail)
        return found[::-1]


def or_odd(usual: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Mostly what is usual."""
    return st.integers(0, 15).flatmap(lambda number: usual if number else ODD)


ARGUMENTS = st.sampled_from(['{"path": "A  b"}', '{"b":1,"a":2.0}', "", "x", "{", f'{{"t":"{"y" * 1100}"}}', "ü"])
CALLED = st.fixed_dictionaries({"name": or_odd(st.just("f")), "arguments": or_odd(ARGUMENTS)})
CALL = st.fixed_dictionaries({"id": or_odd(st.just("c1")), "function": or_odd(CALLED)}, optional={"custom": ODD})
ANSWER = st.fixed_dictionaries(
    {"role": or_odd(st.just("assistant")), "tool_calls": or_odd(st.lists(CALL, min_size=1, max_size=2))},
    optional={"content": or_odd(st.none() | WORDS), "refusal": ODD, "function_call": ODD},
)
RESULT = st.fixed_dictionaries(
    {"role": or_odd(st.just("tool")), "content": or_odd(WORDS)},
    optional={"tool_call_id": or_odd(st.just("c1")), "tool_calls": ODD, "refusal": ODD},
)


@given(items=st.lists(or_odd(ANSWER) | or_odd(RESULT) | ODD, max_size=6), tail=st.integers(1, 6))
def test_turns_are_read_as_their_messages_are(items: list[Any], tail: int) -> None:
    """Calls and their results have a shorter way, which leads to the same (LD-4)."""
    body = json.dumps({"model": "m", "messages": items, "tools": [{"function": {"name": "f"}}]}).encode()
    turns, single = OpenAIChat().parse(body), OneByOne().parse(body)
    assert turns is not None
    assert single is not None
    assert turns.chat(tail) == single.chat(tail)
    assert turns.newest_step() == single.newest_step()
