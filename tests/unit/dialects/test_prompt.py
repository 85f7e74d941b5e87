"""How much a request says: all its texts in every dialect, without the JSON around them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from breakloop.dialects import registry
from breakloop.dialects.prompt import RequestPrompt, prompt_of
from breakloop.model.call import PromptSize
from breakloop.testing import PATHS, Conversation, mcp_call
from tests.builders import call, chat, user

TALKS = ["openai_chat", "openai_responses", "anthropic_messages", "gemini"]
TOOL = {"name": "read_file", "description": "Reads.", "parameters": {"type": "object", "properties": {}}}


def prompt(body: Any, dialect: str = "openai_chat") -> RequestPrompt:
    sent = body if isinstance(body, bytes) else json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
    return RequestPrompt(registry.parse("POST", PATHS[dialect], sent), len(sent))


def size(body: Any, dialect: str = "openai_chat") -> PromptSize | None:
    return prompt(body, dialect).size


def said(*messages: Any, **more: Any) -> PromptSize | None:
    return size({"model": "m", "messages": list(messages), **more})


# -- what counts


def test_a_text_counts_by_its_length() -> None:
    """4,000 characters are 4,000; roles, ids and names of fields are none of it (L-3)."""
    assert said(user("x" * 4000)) == (4000, 0, 0)
    assert said({"role": "system", "content": "ab"}, user("c"), {"role": "user", "content": None}) == (3, 0, 0)
    assert said() == (0, 0, 0)


def test_escapes_count_as_what_they_mean() -> None:
    """However it is written (L-3)."""
    assert said(user('\n"\\')) == (3, 0, 0)
    assert said(user("é中😀")) == (1 + 3 + 3, 0, 0)
    assert size(b'{"messages":[{"content":"\\u00e9\\u4e2d\\ud83d\\ude00"}]}') == (7, 0, 0)
    assert said(tools=[{"name": "中"}]) == (len('[{"name":""}]') + 3, 0, 0)


@pytest.mark.parametrize("dialect", TALKS)
@pytest.mark.parametrize("steps", [0, 1, 30])
def test_all_that_is_said_counts(dialect: str, steps: int) -> None:
    """System prompt, texts, calls with their arguments, and results, in all dialects about alike (L-3)."""
    talk = Conversation(dialect=dialect)
    talk.work(steps)
    turns = [turn for turn, _ in talk._turns]
    texts = len(talk.system) + sum(len(turn.text) + len(turn.tool) + len(turn.result) for turn in turns)
    arguments = sum(len(json.dumps(turn.arguments)) for turn in turns if turn.tool)
    found = size(talk.request(), dialect)
    assert found is not None
    # Gemini's calls and results stand as JSON, with names of their fields.
    assert texts + arguments - 60 * steps <= found.chars <= texts + arguments + 100 * steps
    if dialect == "openai_chat":
        assert found.chars == texts + arguments
    assert found[1:] == (0, 0)


@pytest.mark.parametrize("dialect", TALKS)
def test_tools_count_as_they_are_declared(dialect: str) -> None:
    """They are part of every prompt (L-3)."""
    request = Conversation(dialect=dialect).request()
    plain, declared = size(request, dialect), size(request | {"tools": [TOOL]}, dialect)
    assert plain is not None
    assert declared is not None
    assert declared.chars - plain.chars == len(json.dumps([TOOL], separators=(",", ":")))


def test_old_functions_and_refusals() -> None:
    """What came before tools (L-3)."""
    old = {"role": "assistant", "content": None, "function_call": {"name": "ls", "arguments": "{}"}}
    assert said(old, {"role": "assistant", "refusal": "No."}, functions=[]) == (4 + 3 + 2, 0, 0)
    custom = {"role": "assistant", "tool_calls": [{"type": "custom", "custom": {"name": "py", "input": "1+1"}}]}
    assert said(custom) == (5, 0, 0)


def test_parts_of_responses() -> None:
    """Calls and results are items of their own; reasoning is none of the prompt (L-3)."""
    items = [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "abc"}]},
        {
            "type": "reasoning",
            "id": "r",
            "summary": [{"type": "summary_text", "text": "zzzz"}],
            "encrypted_content": "q",
        },
        {"type": "function_call", "call_id": "c-1", "name": "ls", "arguments": '{"a":1}'},
        {"type": "function_call_output", "call_id": "c-1", "output": "file"},
        {"type": "function_call_output", "call_id": "c-2", "output": [{"type": "input_text", "text": "two"}]},
    ]
    body = {"model": "m", "input": items, "instructions": "be"}
    assert size(body, "openai_responses") == (3 + 2 + 7 + 4 + 3 + 2, 0, 0)
    assert size({"model": "m", "input": "hello"}, "openai_responses") == (5, 0, 0)


def test_parts_of_anthropic() -> None:
    """Results with parts of their own; thinking is none of the prompt (L-3)."""
    messages = [
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "zzzz", "signature": "s" * 99}]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "ls", "input": {"a": 1}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "done"}]},
        {"role": "user", "content": [{"type": "tool_result", "content": [{"type": "text", "text": "one"}]}]},
    ]
    body = {"model": "m", "messages": messages, "system": [{"type": "text", "text": "be"}]}
    assert size(body, "anthropic_messages") == (2 + 7 + 4 + 3 + 2, 0, 0)


def test_parts_of_gemini() -> None:
    """Both spellings; thoughts are none of the prompt (L-3)."""
    parts = [
        {"text": "abc"},
        {"text": "zzzz", "thought": True},
        {"functionCall": {"name": "f"}},
        {"function_response": {"a": 1}},
    ]
    body = {"contents": [{"role": "user", "parts": parts}], "system_instruction": {"parts": [{"text": "be"}]}}
    assert size(body, "gemini") == (3 + 12 + 7 + 2, 0, 0)


BIG = "A" * 100_000


@pytest.mark.parametrize(
    ("dialect", "body"),
    [
        ("openai_chat", {"messages": [user([{"type": "image_url", "image_url": {"url": f"data:;base64,{BIG}"}}])]}),
        ("openai_chat", {"messages": [user([{"type": "input_audio", "input_audio": {"data": BIG}}])]}),
        ("openai_responses", {"model": "m", "input": [user([{"type": "input_image", "image_url": BIG}])]}),
        ("anthropic_messages", {"model": "m", "messages": [user([{"type": "image", "source": {"data": BIG}}])]}),
        ("gemini", {"contents": [{"parts": [{"inlineData": {"mimeType": "image/png", "data": BIG}}]}]}),
        ("gemini", {"contents": [{"parts": [{"file_data": {"file_uri": BIG}}]}]}),
        # not as expected, so gone through value by value
        ("openai_chat", {"messages": [user({"type": "image_url", "image_url": BIG})]}),
        ("gemini", {"contents": {"parts": [{"inline_data": {"data": BIG}}]}}),
    ],
)
def test_media_count_as_pieces(dialect: str, body: Any) -> None:
    """A picture is so many tokens, whatever its bytes (L-3)."""
    assert size(body, dialect) == (0, 1, 0)


@pytest.mark.parametrize(
    ("dialect", "body", "expected"),
    [
        ("openai_completions", {"model": "m", "prompt": "abc", "suffix": "de"}, (5, 0, 0)),
        ("openai_completions", {"model": "m", "prompt": ["abc", "de"]}, (5, 0, 0)),
        ("openai_completions", {"model": "m", "prompt": [1, 2, 3]}, (0, 0, 3)),
        ("openai_embeddings", {"model": "m", "input": [[1, 2], [3]]}, (0, 0, 3)),
        ("openai_embeddings", {"model": "m", "input": "abc"}, (3, 0, 0)),
        ("openai_embeddings", {"model": 7, "input": ["abc", 7.5]}, (3, 0, 0)),
    ],
)
def test_prompts_that_are_no_conversation(dialect: str, body: Any, expected: tuple[int, int, int]) -> None:
    """Tokens that are sent as such are counted as such (L-3)."""
    assert size(body, dialect) == expected


# -- what is not as expected


def test_odd_values_are_gone_through() -> None:
    """One strange value hides nothing (L-3, C-9)."""
    odd = {"role": "user", "content": [{"type": "text", "text": "ab"}, "cd", 7, {"type": "x", "text": "ef"}]}
    assert said(odd, user("gh"), tools=[{}], system={"text": "ij"}) == (2 * 5 + 4, 0, 0)
    assert size(b'{"messages":[{"content":"a\\ud800b"}]}') == (2 + 3, 0, 0)


def test_what_cannot_be_read_has_a_body_only() -> None:
    """Plain HTTP, a call of a tool, nesting without end (L-3)."""
    assert prompt(b"no json").size is None
    assert prompt(b"no json").body_bytes == 7
    call_of_tool = json.dumps(mcp_call("ls", {})).encode()
    assert RequestPrompt(registry.parse("POST", "/mcp", call_of_tool), len(call_of_tool)).size is None
    deep = b'{"messages":[{"content":' + b"[" * 400 + b'"x"' + b"]" * 400 + b"}]}"
    assert prompt(deep).texts() in ([], ["x"])


def test_texts_are_what_is_counted() -> None:
    """For those who count real tokens (L-3)."""
    body = {"messages": [user("one"), user([{"type": "text", "text": "two"}])], "tools": [{"a": 1}]}
    found = prompt(body)
    assert found.texts() == ["one", "two", '[{"a":1}]']
    assert found.size == (sum(map(len, found.texts())), 0, 0)
    assert prompt(b"x").texts() == []


# -- of a call


def test_a_call_is_measured_once() -> None:
    """Whoever asks, and however many policies do (L-3)."""
    made = chat(user("abcdef"))
    made.parsed.body = registry.parse(made.method, made.path, made.body)
    first = prompt_of(made)
    assert first is prompt_of(made)
    assert first.size == (6, 0, 0)
    assert first.size is first.size
    assert first.body_bytes == len(made.body)


@pytest.mark.parametrize(("length", "expected"), [("5000", 5000), ("x", 0), ("9" * 30, 0), (None, 0)])
def test_a_body_that_nobody_sees_counts_by_its_length(length: str | None, expected: int) -> None:
    """One that passes in pieces (L-3, D-1)."""
    fields = {} if length is None else {"content-length": length}
    made = call("/v1/chat/completions", "POST", fields, body_unseen=True)
    assert (prompt_of(made).size, prompt_of(made).body_bytes) == (None, expected)
