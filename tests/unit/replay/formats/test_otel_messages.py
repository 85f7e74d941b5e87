"""What spans say, in three spellings."""

from __future__ import annotations

import json
from typing import Any

from breakloop.model.call import ToolCall
from breakloop.replay.formats.otel import exchange

CALL = {"type": "tool_call", "id": "c1", "name": "look", "arguments": {"b": 1, "a": 2}}
WIRED = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"a":2,"b":1}'}}
HISTORY = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Where?"},
    {"role": "assistant", "content": "", "tool_calls": [WIRED]},
    {"role": "tool", "tool_call_id": "c1", "content": "nowhere"},
]


def test_the_conventions_of_today() -> None:
    """Parts, calls, results (under either name), instructions; thinking is not said (X-5)."""
    said = {
        "gen_ai.system_instructions": [{"type": "text", "content": "Be brief."}],
        "gen_ai.input.messages": [
            {"role": "user", "parts": [{"type": "text", "content": "Where?"}]},
            {"role": "assistant", "parts": [{"type": "reasoning", "content": "hm"}, CALL]},
            {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c1", "result": "nowhere"}]},
        ],
        "gen_ai.output.messages": json.dumps([{"role": "assistant", "parts": [CALL], "finish_reason": "tool_call"}]),
    }
    found = exchange(said, ())
    assert found is not None
    assert found[0] == HISTORY
    assert found[1].calls == (ToolCall("look", '{"a":2,"b":1}'),)
    details = exchange({}, [("gen_ai.client.inference.operation.details", said)])
    assert details == found


def test_several_results_are_several_messages() -> None:
    """As chat has it (X-5)."""
    parts = [{"type": "tool_call_response", "id": name, "response": {"r": name}} for name in ("c1", "c2")]
    found = exchange({"gen_ai.input.messages": [{"role": "user", "parts": [*parts, "Go on."]}]}, ())
    assert found is not None
    assert [message["role"] for message in found[0]] == ["tool", "tool", "user"]
    assert found[0][1] == {"role": "tool", "tool_call_id": "c2", "content": '{"r":"c2"}'}
    assert found[1].failed


def test_one_event_a_message() -> None:
    """The conventions before (X-5)."""
    body = {"role": "assistant", "tool_calls": [{"id": "c1", "type": "function", "function": CALL}]}
    events: list[tuple[str, dict[str, Any]]] = [
        ("gen_ai.system.message", {"content": "Be brief."}),
        ("gen_ai.user.message", {"gen_ai.event.content": '{"content": "Where?"}'}),
        ("gen_ai.assistant.message", {"body": body}),
        ("gen_ai.tool.message", {"id": "c1", "content": "nowhere"}),
        ("gen_ai.choice", {"index": 0, "message": {"role": "assistant", "content": "Here."}}),
    ]
    found = exchange({}, events)
    assert found is not None
    assert found[0] == HISTORY
    assert (found[1].text, found[1].status) == ("Here.", 200)


def test_numbered_attributes() -> None:
    """As OpenLLMetry writes them (X-5)."""
    said = {
        "gen_ai.prompt.10.role": "tool",
        "gen_ai.prompt.10.content": "nowhere",
        "gen_ai.prompt.10.tool_call_id": "c1",
        "gen_ai.prompt.0.role": "system",
        "gen_ai.prompt.0.content": "Be brief.",
        "gen_ai.prompt.1.role": "user",
        "gen_ai.prompt.1.content": "Where?",
        "gen_ai.prompt.2.role": "assistant",
        "gen_ai.prompt.2.tool_calls.0.id": "c1",
        "gen_ai.prompt.2.tool_calls.0.name": "look",
        "gen_ai.prompt.2.tool_calls.0.arguments": '{"b": 1, "a": 2}',
        "gen_ai.completion.0.role": "assistant",
        "gen_ai.completion.0.content": "Here.",
        "gen_ai.prompt_tokens": 7,
    }
    found = exchange(said, ())
    assert found is not None
    assert found[0] == HISTORY
    assert found[1].text == "Here."


def test_spans_without_messages_say_nothing() -> None:
    """By default instrumentations leave them out (X-5)."""
    assert exchange({"gen_ai.operation.name": "chat", "gen_ai.request.model": "m"}, [("other", {})]) is None
