"""Agents that call each other, and pass on their place in the tree with the library."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from breakloop import Guard, LoopDetectedError
from breakloop.clock import FakeClock
from breakloop.integrations.asgi import GuardASGIMiddleware, Receive, Scope, Send
from breakloop.integrations.httpx import AsyncGuardTransport, GuardTransport
from breakloop.integrations.mcp import GuardMCPMiddleware
from breakloop.sdk.context import AgentContext, agent, current_agent
from tests.builders import bundle

MESSAGE = {"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": {"message": {"parts": [{"text": "x"}]}}}
STEPS = bundle(defaults={"loop_detection": {"similarity": "steps"}})


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"X-Agent-Session": "lead"}, ("lead", "lead", 2)),
        ({"x-agent-session": "s", "x-agent-root": "r", "x-agent-depth": "3"}, ("s", "r", 4)),
        ({"X-Agent-Session": "s", "X-Agent-Parent": "p"}, ("s", "", 0)),  # others know the place of `s`
        ({"baggage": "a=b, breakloop.root=r%2C1;x=y,breakloop.depth=2"}, ("", "r,1", 3)),
        ({"X-Agent-Session": "s", "X-Agent-Parent": "s", "X-Agent-Root": "r", "X-Agent-Depth": "4"}, ("s", "r", 4)),
        ({"X-Breakloop-Hop": "t", "X-Agent-Root": "r", "X-Agent-Depth": "4"}, ("", "r", 4)),
        ({"X-Agent-Depth": "255", "X-Agent-Root": "r"}, ("", "r", 255)),
        ({"X-Agent-Depth": "many", "User-Agent": "x", "baggage": "a=b"}, ("", "", 0)),
        ({}, ("", "", 0)),
    ],
)
def test_the_place_of_an_agent_follows_from_the_request_that_it_answers(
    fields: dict[str, str], place: tuple[str, str, int]
) -> None:
    """One below the sender, unless a gateway or the sender has written the place of the receiver (C-10)."""
    with agent("me", session="own", received=fields):
        assert current_agent() == AgentContext("me", "own", *place)


def test_an_agent_inside_of_another_one_is_below_it() -> None:
    """If it names it as its parent (C-10)."""
    with agent("lead", session="a"), agent("one", session="b", parent="a"):
        assert current_agent() == AgentContext("one", "b", "a", "a", 2)
        with agent("two", session="c", parent="b"):
            assert current_agent() == AgentContext("two", "c", "b", "a", 3)
            assert current_agent().headers()["X-Agent-Depth"] == "3"
        with agent(session="d"):  # not started by `b`, as far as anybody knows
            assert current_agent() == AgentContext("one", "d")


def test_runs_and_requests_inside_have_the_place() -> None:
    """Those of a session that is named inside, too; a request with a session of its own has none (C-10)."""
    guard = Guard(clock=FakeClock())
    with agent(received={"X-Agent-Session": "lead"}):
        run = guard.run("worker")
        assert run._context[2:] == ("lead", "lead", 2)
        assert guard.run(session="s")._context == AgentContext("", "s", "lead", "lead", 2)
    with agent("w", session="s", received={"X-Agent-Session": "lead"}):
        assert guard.run(session="other")._context == AgentContext("w", "other")


def test_messages_to_agents_and_tools_name_the_sender() -> None:
    """LLM requests go to providers, which do not get the names (C-10)."""
    seen: list[httpx.Request] = []

    def reply(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json={})

    guard = Guard(clock=FakeClock())
    with httpx.Client(transport=GuardTransport(httpx.MockTransport(reply), guard=guard)) as client:
        with agent("lead", session="s", parent="r"):
            client.post("https://agents.example/a2a", json=MESSAGE)
            client.post("https://api.example/v1/chat/completions", json={"model": "m", "messages": []})
        with guard.run("planner", session="run"):
            call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "t", "arguments": {}}}
            client.post("https://tools.example/mcp", json=call, headers={"X-Agent-Id": "mine"})
    names = [{name: value for name, value in one.headers.items() if name.startswith("x-agent-")} for one in seen]
    assert names == [
        {"x-agent-id": "lead", "x-agent-session": "s", "x-agent-parent": "r"},
        {},
        {"x-agent-id": "mine", "x-agent-session": "run"},
    ]


def test_a_tool_that_is_an_agent_is_below_its_client() -> None:
    """With the middleware of MCP servers, by header fields or by `_meta` (C-10)."""

    class Context:
        method = "tools/call"

        def __init__(self, meta: dict[str, str], headers: dict[str, str]) -> None:
            self.params = {"name": "research", "arguments": {"q": headers}, "_meta": meta}
            self.request = type("Request", (), {"headers": headers, "client": None})()

    places: list[tuple[Any, ...]] = []

    async def research(_ctx: Any) -> dict[str, Any]:
        places.append(current_agent()[2:])
        return {"content": [{"type": "text", "text": "x"}]}

    guarded = GuardMCPMiddleware(Guard(clock=FakeClock()))
    asyncio.run(guarded(Context({}, {"x-agent-session": "lead"}), research))
    asyncio.run(guarded(Context({"baggage": "breakloop.root=r,breakloop.depth=4"}, {"mcp-session-id": "m"}), research))
    asyncio.run(guarded(Context({}, {"mcp-session-id": "m"}), research))
    assert places == [("lead", "lead", 2), ("", "r", 5), ("", "", 0)]


def test_four_agents_that_call_each_other_are_one_tree() -> None:
    """Each checks its first LLM request, and sends a message to the next one: the ninth is not started (C-10, LD-12)."""
    guard = Guard(STEPS, clock=FakeClock())
    evidence: list[str] = []
    asked: list[str] = []
    clients: dict[str, httpx.AsyncClient] = {}

    def app(name: str, following: str) -> Any:
        async def serve(_scope: Scope, _receive: Receive, send: Send) -> None:
            with agent(name, session=f"{name}-{len(asked)}"):
                asked.append(name)
                body = {"model": "m", "messages": [{"role": "user", "content": f"Do part {len(asked)} of the plan."}]}
                try:
                    guard.enforce(await guard.acheck(body))
                    await clients[following].post("http://agent/a2a", json=MESSAGE)
                except LoopDetectedError as error:
                    evidence.append(error.decision.evidence)
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": json.dumps({}).encode()})

        return GuardASGIMiddleware(serve, guard=Guard(bundle(policies=[]), clock=FakeClock()))

    async def main() -> None:
        for name, following in zip("abcd", "bcda", strict=True):
            inner = httpx.ASGITransport(app=app(name, following))
            clients[name] = httpx.AsyncClient(transport=AsyncGuardTransport(inner, guard=guard))
        await clients["a"].post("http://agent/a2a", json=MESSAGE)
        for one in clients.values():
            await one.aclose()

    asyncio.run(main())
    assert len(asked) == 9
    assert [one.partition(" (")[0] for one in evidence] == ["agents start agents, 9 deep"]
