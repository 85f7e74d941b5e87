"""A landed request: tools declared and switched off, the note at the tail, and nothing else touched.

The rules are those of the providers, as their documentation and their error messages state them:
- OpenAI: `tool_choice` is refused without `tools`, `function_call` without `functions`.
- Anthropic: histories with calls may need declared tools; `none` is allowed with extended thinking, signed blocks must
  not change, results directly follow their calls, and a text may follow them in the same message.
- Gemini: `NONE` takes no allowed names; the setting is refused without functions, and beside cached content.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from anthropic.types.message_create_params import MessageCreateParamsNonStreaming as AnthropicRequest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming as ChatRequest
from openai.types.responses.response_create_params import ResponseCreateParamsNonStreaming as ResponsesRequest
from pydantic import TypeAdapter

from breakloop.dialects import registry
from tests.each import each
from tests.unit.dialects.test_steer import CALLS, FUNCTION_CALL, FUNCTION_OUTPUT, MODEL_CALL, MODEL_RESULT, RESULTS
from tests.unit.dialects.test_steer_rules import EXTRA, conversations

NOTE = "You repeat yourself. For this turn, tools are switched off: give your final answer now."
TEXT = f"[breakloop] {NOTE} [/breakloop]"
PART = {"type": "text", "text": TEXT}
SCHEMA = {"type": "object", "properties": {}}
CHAT_TOOLS = [{"type": "function", "function": {"name": "a", "parameters": SCHEMA}}]
THINKING = {"type": "thinking", "thinking": "Once more.", "signature": "c2lnbmVk"}
USE = {"role": "assistant", "content": [THINKING, {"type": "tool_use", "id": "t1", "name": "a", "input": {}}]}
USED = {"type": "tool_result", "tool_use_id": "t1", "content": "1", "cache_control": {"type": "ephemeral"}}
GO = {"role": "user", "content": "go"}


def landed(dialect: str, body: dict[str, Any]) -> Any:
    raw = json.dumps(body).encode()
    changed = registry.DIALECTS[dialect].land(raw, NOTE)
    return None if changed is None else json.loads(changed)


def chat(**more: Any) -> Any:
    body = {"model": "gpt-5", "messages": [GO, CALLS, *RESULTS], **more}
    found = landed("openai_chat", body)
    TypeAdapter(ChatRequest).validate_python(found)
    assert found.pop("messages") == [GO, CALLS, *RESULTS, {"role": "user", "content": TEXT}]
    return found


def test_chat() -> None:
    """The tools stay, for the prompt cache and for servers that need them beside calls (LD-10)."""
    assert chat(tools=CHAT_TOOLS) == {"model": "gpt-5", "tools": CHAT_TOOLS, "tool_choice": "none"}


@each(
    "choice",
    ["auto", "required", None, {"type": "function", "function": {"name": "a"}}, {"type": "allowed_tools", "x": 1}],
)
def test_chat_with_a_choice_of_its_own(choice: Any) -> None:
    """It is replaced where it stands, also if it demands a call (LD-10)."""
    body = {"model": "m", "tool_choice": choice, "messages": [GO], "tools": CHAT_TOOLS, "parallel_tool_calls": True}
    found = landed("openai_chat", body)
    assert list(found) == list(body)
    assert found["tool_choice"] == "none"
    assert found["parallel_tool_calls"] is True


@each("without", [{}, {"tools": []}, {"tools": None}, {"tools": {}}, {"tools": "a"}])
def test_chat_without_tools(without: dict[str, Any]) -> None:
    """`tool_choice` is only allowed when `tools` are specified (LD-10)."""
    found = landed("openai_chat", {"model": "m", "messages": [GO], **without})
    assert found == {"model": "m", "messages": [{"role": "user", "content": f"go\n\n{TEXT}"}], **without}


def test_chat_with_functions() -> None:
    """The older way to declare tools has its own field (LD-10)."""
    functions = [{"name": "a", "parameters": SCHEMA}]
    assert chat(functions=functions, function_call="auto") == {
        "model": "gpt-5", "functions": functions, "function_call": "none",
    }  # fmt: skip


def test_responses() -> None:
    """Also where OpenAI has the conversation, and the request only the newest results (LD-10)."""
    tools = [{"type": "function", "name": "a", "parameters": SCHEMA, "strict": False}, {"type": "web_search"}]
    note = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": TEXT}]}
    for given_items in ([{"role": "user", "content": "go"}, FUNCTION_CALL, FUNCTION_OUTPUT], [FUNCTION_OUTPUT]):
        body = {"model": "gpt-5", "instructions": "be kind", "input": given_items, "tools": tools}
        found = landed("openai_responses", {**body, "previous_response_id": "resp_1", "max_tool_calls": 3})
        TypeAdapter(ResponsesRequest).validate_python(found)
        assert found.pop("input") == [*given_items, note]
        assert found == {
            "model": "gpt-5", "instructions": "be kind", "tools": tools, "previous_response_id": "resp_1",
            "max_tool_calls": 3, "tool_choice": "none",
        }  # fmt: skip
    assert "tool_choice" not in landed("openai_responses", {"model": "gpt-5", "input": "go"})


@pytest.mark.parametrize("choice", [None, {"type": "auto", "disable_parallel_tool_use": True}, {"type": "any"}])
def test_anthropic(choice: Any) -> None:
    """Signed thinking as it was, the note after the results in their message, and `none`, which has no other fields
    and is allowed with extended thinking (LD-10)."""
    body = {
        "model": "claude-opus-4-5",
        "max_tokens": 4096,
        "thinking": {"type": "enabled", "budget_tokens": 2048},
        "system": [{"type": "text", "text": "be kind", "cache_control": {"type": "ephemeral"}}],
        "tools": [{"name": "a", "input_schema": SCHEMA, "cache_control": {"type": "ephemeral"}}],
        "messages": [GO, USE, {"role": "user", "content": [USED]}],
        **({} if choice is None else {"tool_choice": choice}),
    }
    found = landed("anthropic_messages", body)
    TypeAdapter(AnthropicRequest).validate_python(found)
    assert found == {
        **body,
        "messages": [GO, USE, {"role": "user", "content": [USED, PART]}],
        "tool_choice": {"type": "none"},
    }


def test_anthropic_without_tools() -> None:
    """Nothing to choose from (LD-10)."""
    found = landed("anthropic_messages", {"model": "c", "max_tokens": 9, "messages": [GO]})
    assert set(found) == {"model", "max_tokens", "messages"}


def test_what_cannot_be_landed_passes_as_it_is() -> None:
    """A server-side tool that runs needs its tools, and words to be continued take no note (LD-10)."""
    running = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}}
    tools = [{"type": "web_search_20250305", "name": "web_search"}]
    for last in ({"role": "assistant", "content": [running]}, {"role": "assistant", "content": "The answer is"}):
        body = {"model": "c", "max_tokens": 9, "messages": [GO, last], "tools": tools}
        assert landed("anthropic_messages", body) is None
    assert landed("openai_chat", {"model": "m", "messages": [GO, CALLS], "tools": CHAT_TOOLS}) is None
    assert landed("mcp", {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "a"}}) is None
    assert registry.DIALECTS["openai_chat"].land(b'{"messages":', NOTE) is None


DECLARED = [{"functionDeclarations": [{"name": "a", "description": "A."}]}, {"codeExecution": {}}]
GEMINI = {"contents": [{"role": "user", "parts": [{"text": "go"}]}, MODEL_CALL, MODEL_RESULT]}
NONE = {"functionCallingConfig": {"mode": "NONE"}}


@each(
    "before, after",
    [
        ({}, {"toolConfig": NONE}),
        ({"toolConfig": {}}, {"toolConfig": NONE}),
        ({"toolConfig": None}, {"toolConfig": NONE}),
        (
            {"toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["a"]}}},
            {"toolConfig": NONE},
        ),
        (
            {"toolConfig": {"retrievalConfig": {"languageCode": "de"}}},
            {"toolConfig": {"retrievalConfig": {"languageCode": "de"}, **NONE}},
        ),
        (
            {"tool_config": {"function_calling_config": {"mode": "AUTO"}}},
            {"tool_config": {"function_calling_config": {"mode": "NONE"}}},
        ),
        ({"tool_config": {}}, {"tool_config": {"function_calling_config": {"mode": "NONE"}}}),
    ],
)
def test_gemini(before: dict[str, Any], after: dict[str, Any]) -> None:
    """The mode alone, as the client spells it; its other settings stay (LD-10)."""
    found = landed("gemini", {**GEMINI, "tools": DECLARED, **before})
    note = {"role": "user", "parts": [{"text": TEXT}]}
    assert found == {"contents": [*GEMINI["contents"], note], "tools": DECLARED, **after}


@each(
    "more",
    [
        {},
        {"tools": [{"googleSearch": {}}]},
        {"tools": [{"functionDeclarations": []}]},
        {"cachedContent": "cachedContents/1"},
        {"tools": DECLARED, "cached_content": "cachedContents/1"},
    ],
)
def test_gemini_where_the_setting_is_refused(more: dict[str, Any]) -> None:
    """Without functions, or beside cached content, which has its own; the note is there (LD-10)."""
    found = landed("gemini", {**GEMINI, **more})
    assert TEXT in json.dumps(found.pop("contents")[-1])
    assert found == more


def test_completions_have_no_tools() -> None:
    """The note alone (LD-10)."""
    assert landed("openai_completions", {"model": "m", "prompt": "go"}) == {"model": "m", "prompt": f"go\n\n{TEXT}"}


FIELDS = {"openai_chat": CHAT_TOOLS, "openai_responses": [{"type": "function", "name": "a"}], "gemini": DECLARED}


@given(conversations(), EXTRA, st.sampled_from([{}, {"indent": 2}, {"separators": (" , ", " : ")}]))
def test_a_landed_request_is_a_steered_one_without_tools(
    sent: tuple[str, dict[str, Any]], extra: Any, style: Any
) -> None:
    """One field more than the note, and everything else byte for byte (LD-10)."""
    dialect, body = sent
    body = {**body, **extra, "tools": FIELDS.get(dialect, [{"name": "a", "input_schema": SCHEMA}])}
    raw = json.dumps(body, **style).encode("utf-8", "surrogatepass")
    made = registry.DIALECTS[dialect]
    steered, changed = made.append_note(raw, NOTE), made.land(raw, NOTE)
    assert steered is not None
    assert changed is not None
    field = "toolConfig" if dialect == "gemini" else "tool_choice"
    found = json.loads(changed)
    choice = {"anthropic_messages": {"type": "none"}, "gemini": NONE}.get(dialect, "none")
    assert found.pop(field) == choice
    assert found == json.loads(steered)
    assert changed.startswith(steered.rstrip()[:-1])
