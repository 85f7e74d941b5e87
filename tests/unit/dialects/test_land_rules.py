"""What the providers refuse in a request, for landed requests of any shape.

Each rule is stated by the provider: in its documentation, in the types of its SDK (which check every body here), or in
its error messages. A body that keeps the rules is drawn, landed, and must keep them again. Gemini's SDK is not installed
here, so its rules are written out alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from anthropic.types.message_create_params import MessageCreateParamsNonStreaming as AnthropicRequest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming as ChatRequest
from openai.types.responses.response_create_params import ResponseCreateParamsNonStreaming as ResponsesRequest
from pydantic import TypeAdapter

from breakloop.dialects import registry
from tests.unit.dialects import test_steer_rules as steer

NOTE = "You repeat yourself. For this turn, tools are switched off: give your final answer now."
TEXT = f"[breakloop] {NOTE} [/breakloop]"
SCHEMA = {"type": "object", "properties": {}}
EPHEMERAL = {"cache_control": {"type": "ephemeral"}}
BREAKPOINTS_MAX = 4  # of Anthropic's prompt cache
Body = dict[str, Any]


@cache
def of_sdk(kind: Any) -> TypeAdapter[Any]:
    """A validator of the types of an SDK, which takes long to build."""
    return TypeAdapter(kind)


def maybe(**choices: list[Any]) -> st.SearchStrategy[Body]:
    """Fields that may be missing, with one of their values."""
    return st.fixed_dictionaries({}, optional={name: st.sampled_from(values) for name, values in choices.items()})


def landed(dialect: str, body: Body) -> Any:
    """Land a body; returns what is sent. All but the choice and the last message is the same byte for byte."""
    changed = registry.DIALECTS[dialect].land(json.dumps(body).encode(), NOTE)
    assert changed is not None
    field = {"gemini": "contents", "openai_responses": "input"}.get(dialect, "messages")
    for name, value in body.items():
        if name == field:
            assert f'"{name}": {json.dumps(value[:-1])[:-1]}'.encode() in changed
        elif name not in {"tool_choice", "function_call", "toolConfig"}:
            assert f'"{name}": {json.dumps(value)}'.encode() in changed
    return json.loads(changed)


# -- Anthropic


@st.composite
def anthropic_requests(draw: st.DrawFn) -> Body:
    """With extended thinking, signed blocks begin each answer with calls; breakpoints of the cache are anywhere."""
    thinks = draw(st.booleans())
    messages: list[Any] = steer.words("anthropic_messages", "go", None, first=True)
    for turn in range(draw(st.integers(0, 3))):
        calls, done = steer.results("anthropic_messages", draw(st.integers(1, 3)), str(turn), "nothing")
        signed = {"type": "thinking", "thinking": f"Once more, {turn}.", "signature": f"c2lnbmVk{turn}"}
        hidden = {"type": "redacted_thinking", "data": "aGlkZGVu"}
        for block in [*calls["content"], *done["content"]]:
            if draw(st.integers(0, 9)) == 0:
                block.update(EPHEMERAL)
        thought = draw(st.sampled_from([[signed], [hidden], [signed, hidden]])) if thinks else []
        messages += [{**calls, "content": thought + calls["content"]}, done]
    client: Body = {"name": "f", "input_schema": SCHEMA, **draw(st.sampled_from([{}, EPHEMERAL]))}
    server: Body = {"type": "web_search_20250305", "name": "web_search"}
    tools = draw(st.sampled_from([[client], [client, server], [server]] if len(messages) > 1 else [None, [], [server]]))
    forced: list[Any] = [] if thinks else [{"type": "any"}, {"type": "tool", "name": "f"}]
    auto = [{"type": "auto"}, {"type": "auto", "disable_parallel_tool_use": True}, {"type": "none"}]
    return {
        "model": "claude",
        "max_tokens": 4096,
        **draw(maybe(system=["be kind", [{"type": "text", "text": "be kind", **EPHEMERAL}]])),
        **({"thinking": {"type": "enabled", "budget_tokens": 2048}} if thinks else {}),
        **({} if tools is None else {"tools": tools}),
        **(draw(maybe(tool_choice=[*auto, *forced])) if tools else {}),
        "messages": messages,
    }


def anthropic_accepts(body: Body) -> None:
    of_sdk(AnthropicRequest).validate_python(body)
    steer.anthropic_rules(body)
    choice, tools = body.get("tool_choice"), body.get("tools")
    assert choice is None or tools, "a choice needs tools"
    thinks = body.get("thinking", {}).get("type") == "enabled"
    assert not thinks or choice is None or choice["type"] in {"auto", "none"}, "thinking may not be forced into a call"
    assert choice is None or choice["type"] != "none" or set(choice) == {"type"}, "`none` has no other fields"
    history = json.dumps(body["messages"])
    assert '"tool_use"' not in history or tools, "calls in the history need declared tools"
    assert json.dumps(body).count("cache_control") <= BREAKPOINTS_MAX
    for message in body["messages"]:
        blocks = message["content"] if isinstance(message["content"], list) else []
        kinds = [block["type"] for block in blocks]
        calls = [at for at, kind in enumerate(kinds) if kind == "tool_use"]
        assert not thinks or not calls or kinds[0].endswith("thinking"), "an answer with calls begins with its thinking"


@given(anthropic_requests().filter(lambda body: json.dumps(body).count("cache_control") <= BREAKPOINTS_MAX))
def test_anthropic(body: Body) -> None:
    """Tools declared as they were, no forced call beside thinking, signed blocks and breakpoints as they were, results
    directly after their calls and before the note (LD-10)."""
    anthropic_accepts(body)
    found = landed("anthropic_messages", body)
    anthropic_accepts(found)
    assert found.get("tools") == body.get("tools")
    assert found.get("tool_choice") == ({"type": "none"} if body.get("tools") else None)
    assert thoughts(found) == thoughts(body)
    assert json.dumps(found).count("cache_control") == json.dumps(body).count("cache_control")


def thoughts(body: Body) -> list[Any]:
    blocks = [one for message in body["messages"] if isinstance(message["content"], list) for one in message["content"]]
    return [block for block in blocks if block["type"].endswith("thinking")]


def test_anthropic_while_a_program_runs() -> None:
    """Its results come alone, also in the answers after the one that began it: such a request passes as it is
    (LD-10)."""
    program = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "code_execution", "input": {"code": "f()"}}
    caller = {"type": "code_execution_20260120", "tool_id": "srvtoolu_1"}
    messages: list[Any] = [{"role": "user", "content": "go"}]
    tools = [{"type": "code_execution_20260120", "name": "code_execution"}, {"name": "f", "input_schema": SCHEMA}]
    body = {"model": "claude", "max_tokens": 99, "container": "c1", "tools": tools, "messages": messages}
    for number, begun in enumerate(([program], [])):
        call = {"type": "tool_use", "id": f"toolu_{number}", "name": "f", "input": {}, "caller": caller}
        done = {"type": "tool_result", "tool_use_id": f"toolu_{number}", "content": "nothing"}
        messages += [{"role": "assistant", "content": [*begun, call]}, {"role": "user", "content": [done]}]
        assert registry.DIALECTS["anthropic_messages"].land(json.dumps(body).encode(), NOTE) is None
    messages[-2]["content"][0]["caller"] = {"type": "direct"}
    assert landed("anthropic_messages", body)["tool_choice"] == {"type": "none"}


# -- OpenAI


@st.composite
def chat_requests(draw: st.DrawFn) -> Body:
    messages: list[Any] = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "go"}]
    for turn in range(draw(st.integers(0, 3))):
        messages += steer.results("openai_chat", draw(st.integers(1, 3)), str(turn), "nothing")
    tools = [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}]
    named = {"type": "function", "function": {"name": "f"}}
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [named]}}
    with_tools = maybe(tool_choice=["auto", "required", "none", named, allowed], parallel_tool_calls=[True, False])
    with_functions = maybe(function_call=["auto", "none", {"name": "f"}])
    functions = [{"name": "f", "parameters": SCHEMA}]
    declared: Body = draw(
        st.sampled_from([{}, {"tools": []}])
        | with_tools.map(lambda more: {"tools": tools, **more})
        | with_functions.map(lambda more: {"functions": functions, **more})
    )
    return {"model": "gpt-5", **draw(maybe(stream=[False], reasoning_effort=["low"])), **declared, "messages": messages}


def chat_accepts(body: Body) -> None:
    checked = {name: value for name, value in body.items() if name != "stream"}
    of_sdk(ChatRequest).validate_python(checked)
    conversation = body["messages"]
    steer.chat_rules(
        {"messages": conversation if conversation[-1]["role"] == "user" else [*conversation, steer.user("")]}
    )
    assert body.get("tools") or not {"tool_choice", "parallel_tool_calls"} & set(body), "both need tools"
    assert body.get("functions") or "function_call" not in body, "it needs functions"


@given(chat_requests())
def test_chat(body: Body) -> None:
    """A choice only beside what there is to choose from, and the note after all results (LD-10)."""
    chat_accepts(body)
    found = landed("openai_chat", body)
    chat_accepts(found)
    for declared, choice in (("tools", "tool_choice"), ("functions", "function_call")):
        assert found.get(declared) == body.get(declared)
        assert found.get(choice) == ("none" if body.get(declared) else None)
    assert found.get("parallel_tool_calls") == body.get("parallel_tool_calls")


@st.composite
def responses_requests(draw: st.DrawFn) -> Body:
    """Reasoning items precede what they led to; built-in tools stand beside functions."""
    items: list[Any] = [{"role": "user", "content": "go"}]
    for turn in range(draw(st.integers(0, 3))):
        thought = {"type": "reasoning", "id": f"rs_{turn}", "summary": [], "encrypted_content": "aGlkZGVu"}
        items += [thought] if draw(st.booleans()) else []
        items += steer.results("openai_responses", draw(st.integers(1, 3)), str(turn), "nothing")
    function = {"type": "function", "name": "f", "parameters": SCHEMA, "strict": False}
    built_in = [{"type": "web_search"}, {"type": "code_interpreter", "container": {"type": "auto"}}]
    tools = draw(st.sampled_from([None, [], [function], [function, *built_in], built_in]))
    named = {"type": "function", "name": "f"}
    choices = ["auto", "required", "none", named, {"type": "allowed_tools", "mode": "auto", "tools": [named]}]
    return {
        "model": "gpt-5",
        **draw(maybe(store=[False], previous_response_id=["resp_1"], include=[["reasoning.encrypted_content"]])),
        **({} if tools is None else {"tools": tools}),
        **(draw(maybe(tool_choice=choices, parallel_tool_calls=[False], max_tool_calls=[3])) if tools else {}),
        "input": items,
    }


def responses_accepts(body: Body) -> None:
    of_sdk(ResponsesRequest).validate_python(body)
    items = body["input"]
    calls = [item["call_id"] for item in items if item.get("type") == "function_call"]
    assert calls == [item["call_id"] for item in items if item.get("type") == "function_call_output"]
    for item, following in zip(items, [*items[1:], {}], strict=True):
        if item.get("type") == "reasoning":
            assert following.get("type") in {"function_call", "message"}, "reasoning without the item that it led to"
            assert following.get("role") != "user"
    assert body.get("tools") or "tool_choice" not in body


@given(responses_requests())
def test_responses(body: Body) -> None:
    """Reasoning stays before its call, and each call has its result (LD-10)."""
    responses_accepts(body)
    found = landed("openai_responses", body)
    responses_accepts(found)
    assert found.get("tools") == body.get("tools")
    assert found.get("tool_choice") == ("none" if body.get("tools") else None)
    rest = {"input", "tool_choice"}
    assert {name: found[name] for name in found.keys() - rest} == {name: body[name] for name in body.keys() - rest}


# -- Gemini


@st.composite
def gemini_requests(draw: st.DrawFn) -> Body:
    contents: list[Any] = steer.words("gemini", "go", None, first=True)
    for turn in range(draw(st.integers(0, 3))):
        calls, done = steer.results("gemini", draw(st.integers(1, 3)), str(turn), "nothing")
        calls["parts"][0]["thoughtSignature"] = f"c2lnbmVk{turn}"
        contents += [calls, done]
    functions = {"functionDeclarations": [{"name": "f", "description": "F."}]}
    configs: list[Body] = [
        {"mode": "AUTO"},
        {"mode": "ANY", "allowedFunctionNames": ["f"]},
        {"mode": "VALIDATED"},
        {"mode": "NONE"},
    ]
    alone: list[Body] = [{}, {"tools": [{"googleSearch": {}}]}, {"cachedContent": "cachedContents/1"}]
    with_functions = maybe(toolConfig=[{"functionCallingConfig": config} for config in configs])
    declared = draw(st.sampled_from(alone) | with_functions.map(lambda more: {"tools": [functions], **more}))
    return {**draw(maybe(generationConfig=[{"temperature": 0}])), **declared, "contents": contents}


def gemini_accepts(body: Body) -> None:
    steer.gemini_rules(body)
    calling = body.get("toolConfig", {}).get("functionCallingConfig", {})
    declares = any(tool.get("functionDeclarations") for tool in body.get("tools", ()))
    assert not calling or declares, "a mode needs functions"
    assert "allowedFunctionNames" not in calling or calling["mode"] in {"ANY", "VALIDATED"}
    assert "cachedContent" not in body or not {"tools", "toolConfig", "systemInstruction"} & set(body)


@given(gemini_requests())
def test_gemini(body: Body) -> None:
    """No mode without functions, no names beside `NONE`, nothing of the cache set again, signatures as they were
    (LD-10)."""
    gemini_accepts(body)
    found = landed("gemini", body)
    gemini_accepts(found)
    declares = any(tool.get("functionDeclarations") for tool in body.get("tools", ()))
    assert found.get("toolConfig") == ({"functionCallingConfig": {"mode": "NONE"}} if declares else None)
    signed = [part for content in body["contents"] for part in content["parts"] if "thoughtSignature" in part]
    assert [part for content in found["contents"] for part in content["parts"] if "thoughtSignature" in part] == signed


REFUSED: dict[str, tuple[Callable[[Body], None], Body]] = {
    "a choice without tools": (chat_accepts, {"tool_choice": "none", "messages": [steer.user("go")]}),
    "thinking and a forced call": (
        anthropic_accepts,
        {
            "max_tokens": 9,
            "thinking": {"type": "enabled", "budget_tokens": 5},
            "tools": [{"name": "f", "input_schema": SCHEMA}],
            "tool_choice": {"type": "any"},
            "messages": [steer.user("go")],
        },
    ),
    "reasoning alone": (
        responses_accepts,
        {"input": [{"type": "reasoning", "id": "r", "summary": []}, steer.user("go")]},
    ),
    "a cache with tools": (
        gemini_accepts,
        {"cachedContent": "c", "tools": [], "contents": steer.words("gemini", "go", None, first=True)},
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_the_rules_refuse_what_the_providers_do(name: str) -> None:
    """So that they do not hold for every body."""
    accepts, body = REFUSED[name]
    with pytest.raises(AssertionError):
        accepts({"model": "m", **body})
