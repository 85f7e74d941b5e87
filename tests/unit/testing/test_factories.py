"""Factories: what they make is what the product reads."""

from __future__ import annotations

import json
from typing import Any

import pytest

from breakloop.clock import FakeClock
from breakloop.model.call import ToolCall
from breakloop.policy.descriptors import ContextSettings, Descriptors
from breakloop.policy.load import load_text
from breakloop.testing import factories
from breakloop.testing.factories import (
    PATHS,
    bundle,
    chat_request,
    gemini_request,
    limit_policy,
    loop_policy,
    mcp_call,
    messages_request,
    responses_request,
    tool_call,
    tool_result,
)
from tests.builders import SECRET, compiled
from tests.unit.dialects.parsing import read_chat

TALK = ["openai_chat", "openai_responses", "anthropic_messages", "gemini"]
REQUESTS = {
    "openai_chat": chat_request,
    "openai_responses": responses_request,
    "anthropic_messages": messages_request,
    "gemini": gemini_request,
}


def parsed(dialect: str, content: Any) -> Any:
    chat = read_chat("POST", PATHS[dialect], json.dumps(content).encode(), 9)
    assert chat is not None
    assert chat.dialect == dialect
    assert chat.fallback == ""
    return chat


@pytest.mark.parametrize("dialect", TALK)
def test_requests_are_read_as_their_dialect(dialect: str) -> None:
    make: Any = REQUESTS[dialect]
    assert [message.text for message in parsed(dialect, make()).tail] == ["Hello."]
    assert [message.text for message in parsed(dialect, make("one")).tail] == ["one"]
    chat = parsed(dialect, make("one", "two"))
    assert [(message.role, message.text) for message in chat.tail] == [("user", "one"), ("user", "two")]
    assert chat.model == factories.MODEL


@pytest.mark.parametrize("dialect", TALK)
def test_calls_and_results_are_read_as_such(dialect: str) -> None:
    make: Any = REQUESTS[dialect]
    said = "" if dialect == "openai_responses" else "I look."
    call = tool_call("look", {"q": "x"}, text=said, dialect=dialect)
    result = tool_result("found", name="look", dialect=dialect)
    _, called, answered = parsed(dialect, make("task", call, result)).tail
    assert (called.text, called.calls) == (said, (ToolCall("look", '{"q":"x"}'),))
    assert "found" in answered.text


def test_fields_can_be_added() -> None:
    assert chat_request("x", model="m", stream=True) == {
        "model": "m",
        "messages": [{"role": "user", "content": "x"}],
        "stream": True,
    }
    assert messages_request(max_tokens=5, system="s")["max_tokens"] == 5
    assert responses_request({"role": "user", "content": "x"}, previous_response_id="r")["previous_response_id"] == "r"
    assert parsed("mcp", mcp_call("f", {"a": 1})).tail[0].calls == (ToolCall("f", '{"a":1}'),)


def test_failed_results_say_so() -> None:
    assert tool_result("no", failed=True, dialect="anthropic_messages")["content"][0]["is_error"] is True
    assert tool_result("no", failed=True, dialect="gemini")["parts"][0]["functionResponse"]["response"] == {
        "error": "no"
    }


def test_bundles_load_and_compile() -> None:
    made = bundle(
        loop_policy(similarity="tail", max_hits=2),
        loop_policy("watch", mode="shadow"),
        limit_policy(rate=2, burst=3),
        version=7,
    )
    loaded = load_text(json.dumps(made).encode(), "test.json")
    assert [(policy.id, policy.spec.mode) for policy in loaded.bundle.policies] == [
        ("loops", "enforce"),
        ("watch", "shadow"),
        ("limits", "enforce"),
    ]
    assert compiled(made, Descriptors(ContextSettings(secret=SECRET), FakeClock())).version == 7
