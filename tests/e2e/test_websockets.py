"""Websockets through the real gateway, with the clients of the real `openai` package: OpenAI's Responses API, as Codex uses
it, and the Realtime API."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import openai
import pytest
import websockets.sync.client
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.deadlines import DEADLINE_S
from tests.e2e.behind import free_port
from tests.e2e.served import Served, eventually, serving
from tests.e2e.websocket_llm import Output, WebSocketLLM, calls_again, calls_on, says, websocket_llm

pytestmark = pytest.mark.e2e

TOOL: Any = {"type": "function", "name": "search", "parameters": {"type": "object", "properties": {}}, "strict": False}
RESULT = "no results for refunds"
LAND: Any = {
    "bundle_version": 1,
    "policies": [],
    "defaults": {"loop_detection": {"similarity": "steps", "ladder": {"block": "land"}}},
}

Start = Callable[..., tuple[Served, WebSocketLLM]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Return a function that starts a stand-in and the gateway in front of it."""
    with ExitStack() as started:

        def begin(output: Output, policy: Any = None, *more: str, **environment: str) -> tuple[Served, WebSocketLLM]:
            llm = started.enter_context(websocket_llm(output))
            arguments = ["--upstream", f"openai={llm.url}", *more]
            if policy is not None:
                (tmp_path / "policy.json").write_text(json.dumps(policy))
                arguments += ["--policy", "policy.json"]
            return started.enter_context(serving(tmp_path, *arguments, **environment)), llm

        yield begin


@contextmanager
def responses(served: Served, **headers: str) -> Iterator[Any]:
    """The websocket of the Responses API, as the `openai` package opens it."""
    url = f"ws://127.0.0.1:{served.port}/v1"
    with (
        openai.OpenAI(api_key="sk-canary-1", base_url=f"{served.url}/v1", websocket_base_url=url) as client,
        client.responses.connect(extra_headers={n.replace("_", "-"): text for n, text in headers.items()}) as socket,
    ):
        yield socket


def response_of(socket: Any) -> Any:
    """The event that ends a response."""
    for event in socket:
        if event.type in {"response.completed", "error"}:
            return event
    raise AssertionError("the websocket was closed")


def run_agent(socket: Any, turns: int, result: Callable[[int], str]) -> list[Any]:
    """Run as Codex does: each turn sends the results of the calls alone, and names the last response. Returns what ended
    each turn, up to the first error or answer."""
    given: Any = [{"role": "user", "content": "Find our refund policy."}]
    last: dict[str, Any] = {}
    ends: list[Any] = []
    for turn in range(turns):
        socket.response.create(model="m", input=given, tools=[TOOL], **last)
        ends.append(response_of(socket))
        if ends[-1].type == "error" or ends[-1].response.output[0].type == "message":
            break
        call = ends[-1].response.output[0]
        given = [{"type": "function_call_output", "call_id": call.call_id, "output": result(turn)}]
        last = {"previous_response_id": ends[-1].response.id}
    return ends


def test_a_loop_is_stopped_and_the_websocket_lives_on(start: Start) -> None:
    """The denied message does not reach the provider; the client gets the protocol's error event, and another task on
    the same websocket passes (LD-2, D-1)."""
    served, llm = start(calls_again)
    with responses(served) as socket:
        ends = run_agent(socket, 20, lambda _: RESULT)
        assert ends[-1].type == "error"
        assert ends[-1].code == "recursive_loop_detected"
        assert "search" in ends[-1].message
        assert 4 <= len(ends) <= 8
        assert len(llm.seen) == len(ends) - 1
        llm.output = says
        socket.response.create(model="m", input="Write a poem about the sea.")
        assert response_of(socket).type == "response.completed"


def test_a_healthy_agent_is_untouched(start: Start) -> None:
    """Thirty steps with new results, each message byte for byte as the client sent it (D-1)."""
    served, llm = start(calls_on)
    with responses(served) as socket:
        ends = run_agent(socket, 30, lambda turn: f"Chapter {turn}: " + "the story goes on. " * turn)
    assert [end.type for end in ends] == ["response.completed"] * 30
    assert llm.seen[1]["input"][0]["output"] == "Chapter 0: "
    assert "[breakloop]" not in json.dumps(llm.seen)


def test_an_agent_is_landed(start: Start) -> None:
    """Tools are switched off in the message that the provider gets, and the run ends with an answer (LD-10)."""
    served, llm = start(calls_again, LAND)
    with responses(served) as socket:
        ends = run_agent(socket, 20, lambda _: RESULT)
    assert ends[-1].type == "response.completed"
    assert ends[-1].response.output[0].content[0].text == "I finish with what I have."
    assert llm.seen[-1]["tool_choice"] == "none"
    assert llm.seen[-1]["type"] == "response.create"
    assert "[breakloop]" in json.dumps(llm.seen[-1]["input"])


def test_calls_are_settled_by_their_events(start: Start) -> None:
    """Budgets in tokens count what the responses state (C-9)."""
    rule: Any = {"name": "t", "limit_keys": ["header:x-agent-id"], "algorithm": "token_bucket_llm"}
    rule["algorithm_config"] = {"tokens_per_minute": 250, "default_max_completion": 1}
    spec = {"selector": {"pathPrefix": "/"}, "rules": [rule]}
    served, llm = start(says, {"bundle_version": 1, "policies": [{"id": "p", "spec": spec}]})
    kinds = []
    with responses(served, X_Agent_Id="a") as socket:
        for number in range(4):
            socket.response.create(model="m", input=f"Task {number}")
            kinds.append(response_of(socket).type)
    assert kinds == ["response.completed"] * 3 + ["error"]  # of 110 tokens each
    assert len(llm.seen) == 3


def test_the_handshake(start: Start) -> None:
    """The provider gets the client's fields without an offer of compression, and the client the provider's answer."""
    served, llm = start(says)
    url = f"ws://127.0.0.1:{served.port}/v1/responses?a=b"
    headers = {"Authorization": "Bearer sk-canary-1", "OpenAI-Beta": "responses_websockets=v1"}
    with websockets.sync.client.connect(url, additional_headers=headers) as socket:
        assert socket.response is not None
        assert socket.response.headers["X-Breakloop-Request-Id"]
        socket.ping().wait(DEADLINE_S)
    eventually(lambda: llm.closed == [1000], "the provider sees the close frame")
    (head,) = llm.heads
    assert head["authorization"] == "Bearer sk-canary-1"
    assert head["openai-beta"] == "responses_websockets=v1"
    assert "sec-websocket-extensions" not in head


def test_where_there_is_no_websocket(start: Start) -> None:
    """Other paths are told to use HTTP, and what the provider answers instead of a websocket is passed on (D-1)."""
    served, llm = start(says)
    for path, status in [("/v1/chat/completions", 426), ("/mcp", 426)]:
        with (
            pytest.raises(InvalidStatus) as refused,
            websockets.sync.client.connect(f"ws://127.0.0.1:{served.port}{path}"),
        ):
            pass
        assert refused.value.response.status_code == status
    assert llm.heads == []


def test_a_provider_that_is_gone(tmp_path: Path) -> None:
    """The handshake gets 502, in the format of the API (D-1)."""
    with (
        serving(tmp_path, "--upstream", "openai=http://127.0.0.1:9") as served,
        pytest.raises(InvalidStatus) as refused,
        websockets.sync.client.connect(f"ws://127.0.0.1:{served.port}/v1/responses"),
    ):
        pass
    assert refused.value.response.status_code == 502
    assert json.loads(refused.value.response.body or b"")["error"]["code"] == "upstream_failed"


def test_messages_that_are_too_large(start: Start) -> None:
    """Close the websocket with the protocol's code; nothing of them reaches the provider (Y-2)."""
    served, llm = start(says, BREAKLOOP_LIMITS_BODY_BYTES="65536")
    with websockets.sync.client.connect(f"ws://127.0.0.1:{served.port}/v1/responses") as socket:
        with suppress(ConnectionClosed):  # while it sends
            socket.send("x" * 100_000)
        with pytest.raises(ConnectionClosed):
            socket.recv(DEADLINE_S)
        assert socket.close_code == 1009
    assert llm.seen == []


def test_a_kill_ends_a_response_that_is_under_way(start: Start) -> None:
    """With the error event and a close frame; an idle websocket stays, and its next message is denied (K-4)."""
    token, admin = "an-admin-token-of-at-least-32-characters", free_port()
    served, llm = start(says, None, "--admin-port", str(admin), BREAKLOOP_ADMIN_TOKEN=token)
    llm.hold.set()
    with responses(served, X_Agent_Id="busy") as busy, responses(served, X_Agent_Id="idle") as idle:
        busy.response.create(model="m", input="Go on for ever.")
        assert next(iter(busy)).type == "response.created"
        for agent in ("busy", "idle"):
            data = json.dumps({"reason": "enough"}).encode()
            headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
            url = f"http://127.0.0.1:{admin}/api/v1/agents/{agent}/kill"
            urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=DEADLINE_S).close()
        assert response_of(busy).type == "error"
        idle.response.create(model="m", input="Hello.")
        assert response_of(idle).type == "error"
    assert len(llm.seen) == 1


@contextmanager
def realtime(served: Served) -> Iterator[Any]:
    url = f"ws://127.0.0.1:{served.port}/v1"
    with (
        openai.OpenAI(api_key="sk-canary-1", base_url=f"{served.url}/v1", websocket_base_url=url) as client,
        client.realtime.connect(model="gpt-realtime") as socket,
    ):
        assert socket.recv().type == "session.created"
        yield socket


@pytest.mark.parametrize("loops", [True, False])
def test_realtime(start: Start, loops: bool) -> None:
    """The conversation is at the provider, and items come in messages of their own: a loop is stopped, and thirty steps
    pass (LD-2)."""
    served, llm = start(calls_again if loops else calls_on)
    ended = 0
    with realtime(served) as socket:
        text = [{"type": "input_text", "text": "Find our refund policy."}]
        socket.conversation.item.create(item={"type": "message", "role": "user", "content": text})
        for turn in range(30):
            socket.response.create()
            event = next(event for event in socket if event.type in {"response.done", "error"})
            if event.type == "error":
                assert event.error.code == "recursive_loop_detected"
                break
            ended += 1
            output = RESULT if loops else f"Chapter {turn}: " + "the story goes on. " * turn
            item = {"type": "function_call_output", "call_id": event.response.output[0].call_id, "output": output}
            socket.conversation.item.create(item=item)
    assert ended == 30 if not loops else 3 <= ended <= 8
    assert sum(event["type"] == "response.create" for event in llm.seen) == ended
