"""Messages between agents (A2A): what is one, what comes back, and how a denial looks."""

from __future__ import annotations

import itertools
import json
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakloop.dialects import registry
from breakloop.dialects.a2a import A2a, A2aAnswer
from breakloop.model.call import Chat, Message, ToolCall
from breakloop.model.verdict import Verdict
from tests.builders import World, call, world
from tests.unit.dialects import parsing

read = partial(parsing.chat, "a2a")
_IDS = itertools.count(1)
METHODS = ["message/send", "message/stream", "SendMessage", "SendStreamingMessage"]


def sent(
    text: str = "Find refunds.", *, method: str = "message/send", context: str = "", **more: Any
) -> dict[str, Any]:
    """A message as the SDKs of 0.3 and 1.0 send it."""
    part = {"kind": "text", "text": text} if "/" in method else {"text": text}
    message = {"role": "user", "parts": [part], "messageId": f"m-{next(_IDS)}", **more}
    if context:
        message["contextId"] = context
    return {"jsonrpc": "2.0", "id": next(_IDS), "method": method, "params": {"message": message}}


def dumped(value: Any) -> bytes:
    return json.dumps(value).encode()


@pytest.mark.parametrize("method", METHODS)
def test_a_message_is_a_call_of_another_agent(method: str) -> None:
    """By its text; ids of messages are not identity (C-8)."""
    expected = Chat("a2a", "", (Message("message/send", "", (ToolCall("message/send", "Find refunds."),)),), 1)
    for _ in range(2):
        parsed = registry.parse("POST", "/research", dumped(sent(method=method)))
        assert parsed is not None
        assert parsed.dialect.name == "a2a"
        assert parsed.chat(3) == expected


@pytest.mark.parametrize("path", ["/research/v1/message:send", "/message:stream"])
def test_the_binding_to_plain_http(path: str) -> None:
    """The parameters alone, at the path of the method (C-8)."""
    parsed = registry.parse("POST", path, dumped(sent()["params"]))
    assert parsed is not None
    chat = parsed.chat(3)
    assert chat is not None
    assert chat.tail[0].calls == (ToolCall("message/send", "Find refunds."),)


def test_other_parts() -> None:
    """Data and files count by what they hold, whatever the order of their fields (C-8)."""
    parts = [{"kind": "data", "data": {"b": 1, "a": 2}}, {"text": "x", "metadata": {"n": 1}}, {"raw": "AAEC"}]
    chat = read(dumped(sent(parts=parts)), 3)
    assert chat is not None
    assert chat.tail[0].calls[0].arguments == '{"data":{"a":2,"b":1}}\nx\n{"raw":"AAEC"}'


@pytest.mark.parametrize("method", ["tasks/get", "GetTask", "tasks/cancel", "agent/getAuthenticatedExtendedCard"])
def test_other_methods_are_plain_http(method: str) -> None:
    """Asking for the state of a task again and again is waiting (LD-2)."""
    asked = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"id": "task-1"}}
    assert registry.parse("POST", "/research", dumped(asked)) is None


def test_a_tool_of_mcp_may_be_called_like_a_method() -> None:
    asked = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "message/send", "arguments": {}}}
    parsed = registry.parse("POST", "/mcp", dumped(asked))
    assert parsed is not None
    assert parsed.dialect.name == "mcp"


TASK = {
    "kind": "task",
    "id": "t-1",
    "contextId": "c-1",
    "status": {"state": "completed", "message": {"role": "agent", "parts": [{"kind": "text", "text": "Done."}]}},
    "artifacts": [{"artifactId": "a", "parts": [{"kind": "text", "text": "30 days."}]}],
}


@pytest.mark.parametrize(
    ("result", "text", "error"),
    [
        ({"kind": "message", "role": "agent", "parts": [{"kind": "text", "text": "30 days."}]}, "30 days.", ""),
        ({"message": {"role": "ROLE_AGENT", "parts": [{"text": "30 days."}]}}, "30 days.", ""),
        (TASK, "30 days.\nDone.", ""),
        ({"task": {**TASK, "status": {"state": "TASK_STATE_FAILED"}}}, "30 days.", "failed"),
        ({"statusUpdate": {"taskId": "t", "status": {"state": "TASK_STATE_WORKING"}}}, "", ""),
        ({"artifactUpdate": {"taskId": "t", "artifact": {"parts": [{"text": "30 days."}]}}}, "30 days.", ""),
    ],
)
@pytest.mark.parametrize("framed", [True, False])
def test_what_comes_back(result: dict[str, Any], text: str, error: str, *, framed: bool) -> None:
    """A message, a task, or an event of a stream, of both versions and both bindings (C-9)."""
    builder = A2aAnswer()
    assert builder.read_body(dumped({"jsonrpc": "2.0", "id": 1, "result": result} if framed else result))
    answer = builder.build(200, complete=True)
    assert (answer.text, answer.error) == (text, error)


def test_an_error_comes_back() -> None:
    builder = A2aAnswer()
    builder.read_body(dumped({"jsonrpc": "2.0", "id": 1, "error": {"code": -32001, "message": "Task not found"}}))
    assert builder.build(200, complete=True).error == "-32001"


def denial(path: str, body: bytes) -> tuple[int, Any]:
    verdict = Verdict(allowed=False, reason="loop_detected", status=429, message="Blocked: enough.")
    status, raw = A2a().denial(verdict, call(path, "POST", body=body))
    return status, json.loads(raw)


def test_a_denial_over_json_rpc() -> None:
    """Is an error of JSON-RPC with the id of the request, so that SDKs raise it (A-2)."""
    asked = sent()
    status, said = denial("/research", dumped(asked))
    assert (status, said["id"], said["error"]["code"]) == (200, asked["id"], -32000)
    assert said["error"]["message"].startswith("Blocked: enough.")
    assert said["error"]["data"]["error"]


def test_a_denial_over_plain_http() -> None:
    """Has the status, and the fields that the binding has for errors (A-2)."""
    status, said = denial("/message:send", dumped(sent()["params"]))
    assert (status, said["error"]["code"], said["error"]["status"]) == (429, 429, "RESOURCE_EXHAUSTED")
    assert said["error"]["message"].startswith("Blocked: enough.")


def play(here: World, texts: list[str], answers: list[str]) -> list[bool]:
    """Send messages to an agent that answers; return which of them passed."""
    passed = []
    for text, said in zip(texts, answers, strict=True):
        asked = call("/research", "POST", {"authorization": "Bearer k"}, body=dumped(sent(text, context="c-1")))
        asked.tracked = True
        passed.append(here.engine.decide(asked).allowed)
        if not passed[-1]:
            break
        builder = A2aAnswer()
        builder.read_body(dumped({"id": 1, "result": {"role": "agent", "parts": [{"text": said}]}}))
        here.engine.settle(asked, builder.build(200, complete=True))
        here.clock.advance(5)
    return passed


def test_an_agent_that_asks_another_the_same_again_is_stopped() -> None:
    """By the built-in protection, as with a tool (LD-2)."""
    passed = play(world(), ["Find refunds."] * 20, ["I found nothing about refunds."] * 20)
    assert not passed[-1]
    assert len(passed) <= 8


def test_agents_that_work_together_are_untouched() -> None:
    """Thirty messages with answers of their own (LD-2)."""
    texts = [f"Translate chapter {number}, please." for number in range(30)]
    answers = [f"Chapter {number}: " + "and so it goes on, " * number for number in range(30)]
    assert all(play(world(), texts, answers))


@given(st.binary(max_size=300))
def test_any_bytes(data: bytes) -> None:
    """Are read, or are plain HTTP (Y-2)."""
    registry.parse("POST", "/message:send", data)
    A2aAnswer().read_body(data)


@given(
    st.recursive(
        st.none() | st.text(max_size=5) | st.integers(),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "message",
                        "parts",
                        "text",
                        "status",
                        "state",
                        "artifacts",
                        "task",
                        "result",
                        "error",
                        "contextId",
                        "messageId",
                    ]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=20,
    )
)
def test_any_shape(value: Any) -> None:
    """Of a request and of a response (Y-2)."""
    for shaped in (
        value,
        {"message": value},
        {"jsonrpc": "2.0", "method": "message/send", "params": {"message": value}},
    ):
        parsed = registry.parse("POST", "/message:send", dumped(shaped))
        if parsed is not None:
            parsed.chat(3)
            parsed.dialect.newest_step(parsed)
            parsed.dialect.session_ids(parsed)
        A2aAnswer().read_body(dumped(shaped))
