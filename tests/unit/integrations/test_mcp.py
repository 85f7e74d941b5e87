"""The middleware of MCP servers; tests/e2e/test_mcp_middleware.py runs it in real ones."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from breakloop import Guard
from breakloop.clock import FakeClock
from breakloop.integrations.mcp import GuardMCPMiddleware
from breakloop.sdk.requests import STEPS_ONLY
from tests.unit.sdk.backends import DENIED, NOTE, WARNED, FailingBackend, ScriptedBackend

RESULT = {"content": [{"type": "text", "text": "nothing"}], "isError": False}


def ctx(method: str = "tools/call", request: Any = None, **arguments: Any) -> Any:
    return SimpleNamespace(
        method=method, params={"name": "find", "arguments": arguments}, request_id=1, request=request
    )


def http(**headers: str) -> Any:
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    return SimpleNamespace(headers=fields, client=SimpleNamespace(host="10.0.0.1"))


class Server:
    """A handler behind the middleware; `ran` counts."""

    def __init__(self, guard: Guard, answer: Callable[[], Any] = lambda: RESULT) -> None:
        self.middleware = GuardMCPMiddleware(guard)
        self.ran = 0
        self._answer = answer

    async def _handle(self, _: Any) -> Any:
        self.ran += 1
        return self._answer()

    def call(self, asked: Any) -> Any:
        served: Awaitable[Any] = self.middleware(asked, self._handle)

        async def run() -> Any:
            return await served

        return asyncio.run(run())


def test_a_loop_is_warned_then_refused(clock: FakeClock) -> None:
    """A note behind the result; then the tool does not run, and the model reads why (P-3, A-3)."""
    server = Server(Guard(STEPS_ONLY, clock=clock))
    said = [server.call(ctx(q="x")) for _ in range(7)]
    assert said[:2] == [RESULT, RESULT]
    assert [len(one["content"]) for one in said] == [1, 1, 2, 2, 2, 1, 1]
    assert "You repeat yourself: `find`" in said[2]["content"][1]["text"]
    assert [one["isError"] for one in said] == [False] * 5 + [True] * 2
    assert server.ran == 5
    assert server.call(ctx(q="y"))["isError"] is False


def test_a_healthy_call_is_the_same_object() -> None:
    """What a handler returned is what is sent; other messages are not even looked at (P-3)."""
    backend = ScriptedBackend()
    server = Server(Guard(_backend=backend))
    assert server.call(ctx(q="x")) is RESULT
    assert server.call(ctx("tools/list")) is RESULT
    assert len(backend.calls) == 1


def test_results_that_are_objects() -> None:
    """Of the package's own classes, which get a note as they would go over the wire (P-3)."""
    result = SimpleNamespace(model_dump=lambda **_: RESULT)
    server = Server(Guard(_backend=ScriptedBackend(WARNED)), lambda: result)
    assert server.call(ctx())["content"][-1] == {"type": "text", "text": NOTE}
    assert server.call(ctx()) is result


@pytest.mark.parametrize("result", [None, {"resultType": "input_required"}, {"task": {"taskId": "t"}}])
def test_what_is_no_result_yet(result: Any) -> None:
    """It passes, and is no step."""
    backend = ScriptedBackend(DENIED)
    assert Server(Guard(_backend=backend), lambda: result).call(ctx()) is result
    assert backend.calls == []


def test_an_error_of_the_handler_goes_on() -> None:
    """It is a result that failed, and blocked the call is refused the next time (P-3)."""

    def fail() -> Any:
        raise ValueError("out of order")

    backend = ScriptedBackend(DENIED, DENIED)
    server = Server(Guard(_backend=backend), fail)
    with pytest.raises(ValueError, match="out of order"):
        server.call(ctx())
    assert backend.bodies[0]["messages"][-1]["content"] == "Error: ValueError: out of order"
    assert server.call(ctx())["isError"] is True
    assert server.ran == 1


def test_sessions() -> None:
    """Over stdio one; over HTTP by the protocol's session, else our field, else the key, else the address (C-3)."""
    backend = ScriptedBackend()
    server = Server(Guard(_backend=backend))
    requests = [
        None,
        http(mcp_session_id="m-1", authorization="k"),
        http(mcp_session_id="m-2", authorization="k"),
        http(**{"x-agent-session": "s", "x-agent-id": "nightly"}),
        http(authorization="Bearer sk-canary"),
        http(authorization="Bearer sk-other"),
        http(accept="*/*"),
    ]
    for request in requests:
        server.call(ctx(request=request))
    names = [backend.named(number) for number in range(len(requests))]
    assert len({session for _, session in names}) == len(requests)
    assert [agent for agent, _ in names] == ["", "", "", "nightly", "", "", ""]
    assert "canary" not in str(names)


def test_a_fault_of_ours_costs_nothing() -> None:
    """Neither a call nor its result, wherever it happens (S-3)."""
    guard = Guard(_backend=FailingBackend())
    assert Server(guard).call(ctx()) is RESULT
    assert guard.faults == 1
    broken = ctx()
    broken.request = SimpleNamespace(headers={"mcp-session-id": 3})
    assert Server(guard).call(broken) is RESULT
    assert guard.faults == 2
    odd = {"content": RESULT["content"], "isError": False, "_meta": object()}
    assert Server(guard, lambda: odd).call(ctx()) is odd
    worse = SimpleNamespace(model_dump=lambda **_: 1 / 0)
    assert Server(guard, lambda: worse).call(ctx()) is worse
