"""All that a request says, text by text. How long that is, is in test_prompt."""

from __future__ import annotations

from typing import Any

import pytest

from breakloop.dialects import registry
from breakloop.dialects.base import ParsedBody
from breakloop.dialects.prompt import PromptTexts, texts_of
from breakloop.testing import PATHS, Conversation
from tests.unit.dialects.recorded.shape import dump


def found(body: Any, dialect: str) -> PromptTexts:
    taken = registry.parse("POST", PATHS[dialect], body if isinstance(body, bytes) else dump(body))
    assert isinstance(taken, ParsedBody)
    texts = texts_of(taken)
    assert texts is not None
    return texts


def said(texts: PromptTexts) -> list[str]:
    return sorted([*texts.texts, *[bytes(raw).decode() for raw in texts.raws]])


CALL = {"function": {"name": "ls", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("dialect", "body", "expected"),
    [
        ("openai_chat", {"messages": [{"content": "a"}, {"content": [{"type": "text", "text": "b"}]}]}, ["a", "b"]),
        ("openai_chat", {"messages": [{"content": None, "tool_calls": [CALL, CALL]}]}, ["ls", "ls", "{}", "{}"]),
        ("openai_chat", {"messages": [], "tools": [1], "functions": [2]}, ["[1]", "[2]"]),
        (
            "anthropic_messages",
            {
                "model": "m",
                "system": "s",
                "messages": [{"content": [{"type": "tool_use", "name": "ls", "input": {"a": 1}}]}],
            },
            ["ls", "s", '{"a":1}'],
        ),
        ("openai_responses", {"model": "m", "input": "a", "instructions": "b"}, ["a", "b"]),
        (
            "openai_responses",
            {"model": "m", "input": [{"type": "custom_tool_call", "name": "py", "input": "1"}, {"content": "x"}]},
            ["1", "py", "x"],
        ),
        ("openai_completions", {"model": "m", "prompt": ["a", "b"], "suffix": "c"}, ["a", "b", "c"]),
    ],
)
def test_what_is_found(dialect: str, body: dict[str, Any], expected: list[str]) -> None:
    """Every text once, calls and declarations too (L-3)."""
    assert said(found(body, dialect)) == expected


@pytest.mark.parametrize("snake", [False, True])
def test_both_spellings_of_gemini(snake: bool) -> None:
    """Protobuf's JSON takes both; media are counted, thoughts are none of it (L-3)."""
    names = ["functionCall", "functionResponse", "inlineData", "fileData", "systemInstruction"]
    if snake:
        names = ["function_call", "function_response", "inline_data", "file_data", "system_instruction"]
    parts = [{"text": "a"}, {"text": "hm", "thought": True}, {names[0]: {"name": "f"}}, {names[1]: {"x": 1}}]
    body = {
        "contents": [{"parts": parts}, {"parts": [{names[2]: {}}, {names[3]: {}}]}, {"role": "user"}],
        names[4]: {"parts": [{"text": "s"}]},
        "tools": [{}],
    }
    texts = found(body, "gemini")
    assert said(texts) == ["[{}]", "a", "s", '{"name":"f"}', '{"x":1}']
    assert texts.media == 2


@pytest.mark.parametrize("dialect", ["openai_chat", "openai_responses", "anthropic_messages", "gemini"])
def test_an_odd_body_says_about_the_same(dialect: str) -> None:
    """What had to be gone through value by value (L-3)."""
    talk = Conversation(dialect=dialect)
    talk.work(5)
    request = talk.request()
    plain = sum(map(len, said(found(request, dialect))))
    name = "contents" if dialect == "gemini" else "input" if dialect == "openai_responses" else "messages"
    odd = found(request | {name: [*request[name], 7]}, dialect)
    assert 0.7 * plain <= sum(map(len, said(odd))) <= 1.3 * plain
