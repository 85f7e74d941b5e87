"""Denials as HTTP answers."""

from __future__ import annotations

import json

import pytest

from breakloop.clock import FakeClock
from breakloop.dialects.denial import VerdictHeaders, field_pairs
from breakloop.gateway.admission import Admission
from breakloop.model.decision import Decision
from breakloop.sdk.guard import Guard
from breakloop.sdk.http import denied_response
from breakloop.sdk.local_backend import MEMORY, LocalBackend
from breakloop.sdk.remote_backend import decision_from_response
from breakloop.sdk.requests import DecisionHandle, request_call
from tests.builders import SECRET, START, Json, bucket, bundle, chat_body, fresh, policy, user, world

TOOL = b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"f","arguments":{}}}'


def loop(path: str, body: bytes) -> Decision:
    guard = Guard(clock=FakeClock())
    decision = Decision()
    for _ in range(6):
        decision = guard._toolkit.decide(request_call("POST", path, {"content-type": "application/json"}, body))
        guard.report(decision)
    assert decision.is_loop
    return decision


def test_a_loop_in_the_words_of_its_dialect() -> None:
    """Status, fields and body as the gateway has them; SDKs do not try again (A-1, A-3)."""
    status, headers, body = denied_response(loop("/v1/chat/completions", chat_body(user("x"))))
    fields = dict(headers)
    assert (status, fields["Retry-After"], fields["x-should-retry"]) == (429, "30", "false")
    assert (fields["X-Breakloop-Reason"], fields["Content-Type"]) == ("loop_detected", "application/json")
    assert fields["Content-Length"] == str(len(body))
    told = json.loads(body)
    assert told["detail"]["error"] == told["error"]["code"] == "recursive_loop_detected"
    anthropic = json.loads(denied_response(loop("/v1/messages", chat_body(user("x"), max_tokens=9))).body)
    assert anthropic["error"]["type"] == "rate_limit_error"


def test_an_mcp_call_is_a_tools_error() -> None:
    """200, so that the model reads it (A-3)."""
    status, _, body = denied_response(loop("/mcp", TOOL))
    told = json.loads(body)
    assert (status, told["id"], told["result"]["isError"]) == (200, 7, True)


def test_other_denials_may_be_tried_again() -> None:
    """Unless waiting does not help (A-2)."""
    again = Decision(allowed=False, reason="budget_exceeded", status=429, message="Spent.", retry_after=9)
    never = Decision(allowed=False, reason="agent_inactive", status=403, message="Off.")
    assert "x-should-retry" not in dict(denied_response(again).headers)
    assert dict(denied_response(never).headers)["x-should-retry"] == "false"
    assert denied_response(never).status == 403
    detail = {"error": "budget_exceeded", "message": "Spent.", "stop_reason": "budget"}
    assert json.loads(denied_response(again).body) == {"detail": detail}


def test_a_services_own_body_is_passed_on() -> None:
    """What it said in the client's dialect (D-3)."""
    said = Decision(
        allowed=False, reason="loop_detected", status=429, retry_after=1, _handle=DecisionHandle(body=b'{"detail":{}}')
    )
    assert denied_response(said).body == b'{"detail":{}}'


def test_a_kill_switch_has_its_wait() -> None:
    """A kill switch has its wait (K-2)."""
    switch = {"scope_key": "agent:id", "scope_value": "a", "reason": "no"}
    guard = Guard(bundle(kill_switches=[switch]), clock=FakeClock())
    made = denied_response(guard._toolkit.decide(request_call("GET", "/x", {"x-agent-id": "a"})))
    assert dict(made.headers)["Retry-After"] == "3600"


TIGHT = bundle(policy("tight", rules=[bucket(rate=0.001, burst=1, keys=["agent:id"])]))
LOOPS = bundle(policy("loops", loop={"similarity": "tail", "max_hits": 1}))
OFF = bundle(agents={"a": {"active": False}})
SWITCH = bundle(kill_switches=[{"scope_key": "agent:id", "scope_value": "a", "reason": "no"}])
CHAT = ("/v1/chat/completions", chat_body(user("x")))
RPC = b'{"jsonrpc":"2.0","id":7,"method":"resources/read","params":{}}'


@pytest.mark.parametrize(
    ("data", "path", "body"),
    [(TIGHT, *CHAT), (LOOPS, *CHAT), (SWITCH, *CHAT), (OFF, *CHAT), (TIGHT, "/mcp", TOOL), (TIGHT, "/x", RPC)],
)
def test_the_same_answer_as_the_gateways(data: Json, path: str, body: bytes) -> None:
    """The same fields (jitter, RateLimit, x-should-retry) and body, whoever denies (A-1 to A-4)."""
    here = world(data)
    judging = Admission(here.engine, here.descriptors, VerdictHeaders("X-Breakloop-", SECRET), run_id="t-")
    guard = Guard(_backend=LocalBackend(data, MEMORY, FakeClock(START), SECRET))
    headers = {"content-type": "application/json", "x-agent-id": "a", "authorization": "Bearer sk-one"}
    asked = request_call("POST", path, headers, body)
    own = [fresh(asked), fresh(asked)]
    verdict = [here.engine.decide(one) for one in own][-1]
    decision = [guard._toolkit.decide(fresh(asked)) for _ in own][-1]
    assert not decision.allowed
    reply = judging.client_denial(own[-1], verdict)
    status, fields, content = denied_response(decision)
    assert (status, content) == (reply.status, reply.body)
    sent = {**dict(field_pairs(reply.head)), "Content-Length": str(len(content))}
    sent["X-Breakloop-Request-Id"] = decision.request_id
    assert dict(fields) == sent


def test_a_limit_has_its_fields() -> None:
    """Jitter by who waits, and the state of the limit (A-1, A-2)."""
    guard = Guard(_backend=LocalBackend(TIGHT, MEMORY, FakeClock(START), SECRET))
    waits = set()
    for number in range(8):
        headers = {"x-agent-id": f"a{number}", "authorization": f"Bearer sk-{number}"}
        decision = [guard._toolkit.decide(request_call("GET", "/x", headers)) for _ in range(2)][-1]
        fields = dict(denied_response(decision).headers)
        assert fields["RateLimit"].startswith('"tight";r=0;t=')
        assert fields["RateLimit-Remaining"] == "0"
        assert decision.retry_after is not None
        assert decision.retry_after <= int(fields["Retry-After"]) <= decision.retry_after * 1.5
        waits.add(fields["Retry-After"])
    assert len(waits) > 1


def test_a_services_fields_are_passed_on() -> None:
    """Under the prefix of the service, and without what is not for the client (D-3, A-1)."""
    fields = {"x-own-request-id": "0a1b2c3d-1", "x-own-reason": "kill_switch", "retry-after": "3600"}
    told = {**fields, "x-should-retry": "false", "ratelimit": '"p";r=0;t=3', "ratelimit-reset": "3"}
    body = b'{"detail":{"error":"kill_switch","message":"No."}}'
    decision = decision_from_response(
        429, {**told, "date": "today", "x-own-debug-policy": "p", "content-length": "5"}, body
    )
    made = dict(denied_response(decision).headers)
    assert made == {**told, "Content-Type": "application/json", "Content-Length": str(len(body))}


def test_a_services_loop_is_told_in_full_to_an_mcp_client() -> None:
    """What the service has said of it stands in the tool's error (A-3)."""
    call = request_call("POST", "/mcp", {"content-type": "application/json"}, TOOL)
    said = Decision(
        allowed=False,
        reason="loop_detected",
        status=429,
        message="Blocked.",
        kind="repeat",
        hit_count=6,
        _handle=DecisionHandle(call, body=b"{}"),
    )
    told = json.loads(denied_response(said).body)["result"]["_meta"]["breakloop/detail"]
    assert (told["kind"], told["hit_count"], told["error"]) == ("repeat", 6, "recursive_loop_detected")
