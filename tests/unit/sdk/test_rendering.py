"""Denials as HTTP answers."""

from __future__ import annotations

import json

from breakloop.clock import FakeClock
from breakloop.model.decision import Decision
from breakloop.sdk.core import request_call
from breakloop.sdk.guard import Guard
from breakloop.sdk.rendering import denied
from tests.builders import bundle, chat_body, user

TOOL = b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"f","arguments":{}}}'


def loop(path: str, body: bytes) -> Decision:
    guard = Guard(clock=FakeClock())
    decision = Decision()
    for _ in range(6):
        decision = guard.judge(request_call("POST", path, {"content-type": "application/json"}, body))
        guard.settle(decision)
    assert decision.is_loop
    return decision


def test_a_loop_in_the_words_of_its_dialect() -> None:
    """Status, fields and body as the gateway has them; SDKs do not try again (A-1, A-3)."""
    status, headers, body = denied(loop("/v1/chat/completions", chat_body(user("x"))))
    fields = dict(headers)
    assert (status, fields["Retry-After"], fields["x-should-retry"]) == (429, "30", "false")
    assert (fields["X-Breakloop-Reason"], fields["Content-Type"]) == ("loop_detected", "application/json")
    assert fields["Content-Length"] == str(len(body))
    told = json.loads(body)
    assert told["detail"]["error"] == told["error"]["code"] == "recursive_loop_detected"
    anthropic = json.loads(denied(loop("/v1/messages", chat_body(user("x"), max_tokens=1))).body)
    assert anthropic["error"]["type"] == "rate_limit_error"


def test_an_mcp_call_is_a_tools_error() -> None:
    """200, so that the model reads it (A-3)."""
    status, _, body = denied(loop("/mcp", TOOL))
    told = json.loads(body)
    assert (status, told["id"], told["result"]["isError"]) == (200, 7, True)


def test_other_denials_may_be_tried_again() -> None:
    """Unless waiting does not help (A-2)."""
    again = Decision(allowed=False, reason="budget_exceeded", status=429, message="Spent.", retry_after=9)
    never = Decision(allowed=False, reason="agent_inactive", status=403, message="Off.")
    assert "x-should-retry" not in dict(denied(again).headers)
    assert dict(denied(never).headers)["x-should-retry"] == "false"
    assert denied(never).status == 403
    assert json.loads(denied(again).body) == {"detail": {"error": "budget_exceeded", "message": "Spent."}}


def test_a_services_own_body_is_passed_on() -> None:
    """What it said in the client's dialect (D-3)."""
    said = Decision(allowed=False, reason="loop_detected", status=429, body=b'{"detail":{}}', retry_after=1)
    assert denied(said).body == b'{"detail":{}}'


def test_a_kill_switch_has_its_wait() -> None:
    """A kill switch has its wait (K-2)."""
    switch = {"scope_key": "agent:id", "scope_value": "a", "reason": "no"}
    guard = Guard(bundle(kill_switches=[switch]), clock=FakeClock())
    made = denied(guard.judge(request_call("GET", "/x", {"x-agent-id": "a"})))
    assert dict(made.headers)["Retry-After"] == "3600"
