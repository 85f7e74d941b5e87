"""The core without input and output: requests to calls, verdicts and answers to decisions."""

from __future__ import annotations

import json
from typing import Any

import pytest

from breakloop import Guard
from breakloop.clock import FakeClock
from breakloop.dialects.registry import head_of
from breakloop.model.call import ToolCall, Usage
from breakloop.model.verdict import LoopFinding, Verdict
from breakloop.sdk.context import AgentContext, agent
from breakloop.sdk.local_backend import _decision
from breakloop.sdk.remote_backend import UnreadableAnswerError, decision_from_response
from breakloop.sdk.requests import (
    BODY_MAX_BYTES,
    STEPS_ONLY,
    arguments_text,
    chat_call,
    denial_details,
    handle_of,
    is_readable,
    make_answer,
    request_call,
    tool_call,
)
from tests.builders import call
from tests.each import each

BODY = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'
LOOP = LoopFinding("tail", "ab", 6, 60, 30, "reject", True, "Blocked.", "same")


def test_a_request_becomes_a_call() -> None:
    """Path and host in normal form, fields in one spelling, the agent of the path (D-4, C-1, C-2)."""
    made = request_call(
        "post",
        "/agents/n%69ght/v1//chat/completions?x=1&y",
        [(b"X_Team", b"red"), ("Host", "API.Example.com:443"), ("X-Team", "blue")],
        BODY,
        peer="10.1.1.1",
    )
    assert (made.method, made.path, made.query, made.host) == (
        "POST",
        "/v1/chat/completions",
        "x=1&y",
        "api.example.com",
    )
    assert (made.path_agent, made.headers["x-team"], made.repeated) == ("night", b"red", (("x-team", b"blue"),))
    assert (made.body, made.peer, made.tracked) == (BODY, "10.1.1.1", True)


def test_a_path_with_two_meanings_is_judged_as_it_is() -> None:
    """Refusing it is the receiver's business (D-4)."""
    assert request_call("GET", "/a%2Fb").path == "/a%2Fb"


def test_names_of_the_block_around_are_a_default() -> None:
    """The request's own go before (C-7)."""
    with agent("outer", session="s"):
        made = request_call("GET", "/", {"X-Agent-Id": "own"})
    assert (made.headers["x-agent-id"], made.headers["x-agent-session"]) == (b"own", b"s")


def test_a_step_is_a_chat_request() -> None:
    """In the words that detectors know (D-4)."""
    made = chat_call(BODY, AgentContext("a", "s"))
    chat = head_of(made)
    assert chat is not None
    assert (chat.dialect, chat.model) == ("openai_chat", "m")
    assert (made.headers["x-agent-id"], made.headers["x-agent-session"]) == (b"a", b"s")
    assert head_of(call("/x", "POST", body=b"{}")) is None


@each(
    "kind, length, readable",
    [
        ("application/json", "2", True),
        ("Application/JSON; charset=utf-8", "2", True),
        ("application/vnd.api+json", "2", True),
        ("application/json", "", False),
        ("application/json", "0", False),
        ("application/json", "-1", False),
        ("application/json", "\xb2", False),
        ("application/json", str(BODY_MAX_BYTES + 1), False),
        ("multipart/form-data", "2", False),
        ("", "2", False),
    ],
)
def test_which_bodies_are_read(kind: str, length: str, *, readable: bool) -> None:
    """JSON of a size that is known; uploads and endless streams pass unread (Y-2)."""
    assert is_readable(kind, length) is readable


def test_a_verdict_becomes_a_decision() -> None:
    """A throttle is a delay, a denial has its loop (D-4)."""
    verdict = Verdict()
    verdict.delay_ms, verdict.warning, verdict.note, verdict.loop = 1500, "loop_detected", "Stop.", LOOP
    allowed = _decision(verdict, call())
    assert (allowed.allowed, allowed.delay_seconds, allowed.note, allowed.retry_after) == (True, 1.5, "Stop.", None)
    denied = Verdict(allowed=False, reason="loop_detected", status=429, message="Blocked.", policy="p")
    denied.loop, denied.retry_after_s = LOOP, 30
    decision = _decision(denied, call())
    assert (decision.is_loop, decision.kind, decision.hit_count, decision.fingerprint) == (True, "tail", 6, "ab")
    assert (decision.cooldown_seconds, decision.evidence, decision.retry_after, decision.policy) == (
        30,
        "same",
        30,
        "p",
    )


def test_an_answer_of_the_service_becomes_a_decision() -> None:
    """Allowed, with what its fields say (D-3, A-5)."""
    fields = {
        "x-breakloop-request-id": "r-1",
        "x-breakloop-warning": "loop_detected",
        "x-breakloop-loop-count": "4",
        "x-breakloop-loop-delay": "400",
        "x-breakloop-note": "Stop.",
        "x-breakloop-action": "land",
    }
    decision = decision_from_response(200, fields, b"")
    assert (decision.allowed, decision.request_id, decision.hit_count) == (True, "r-1", 4)
    assert (decision.delay_seconds, decision.note, decision.landed) == (0.4, "Stop.", True)
    del fields["x-breakloop-action"]
    assert not decision_from_response(200, fields, b"").landed


def test_a_denial_of_the_service_becomes_a_decision() -> None:
    """With everything that its body says; nonsense in it is nothing (A-3)."""
    told = {"error": "recursive_loop_detected", "message": "Blocked.", "hit_count": 6, "cooldown_seconds": 30}
    body = json.dumps({"detail": {**told, "kind": "tail", "fingerprint": "ab", "evidence": 7}}).encode()
    fields = {"x-breakloop-reason": "loop_detected", "x-breakloop-request-id": "r", "retry-after": "30"}
    decision = decision_from_response(429, fields, body)
    assert decision.is_loop
    assert (decision.message, decision.hit_count, decision.cooldown_seconds, decision.kind) == (
        "Blocked.",
        6,
        30,
        "tail",
    )
    assert (decision.retry_after, decision.evidence, handle_of(decision).body) == (30, "", body)
    assert decision_from_response(429, fields, b"[" * 10_000).message == "Denied."


def test_answers_of_a_server_with_another_prefix() -> None:
    """A client has no setting for it, and needs none (A-1)."""
    fields = {"cf-request-id": "1f", "x-own-request-id": "0a1b2c3d-7", "x-own-warning": "loop_detected"}
    allowed = decision_from_response(200, {**fields, "x-own-loop-count": "4", "x-own-note": "Stop."}, b"")
    assert (allowed.request_id, allowed.warning, allowed.hit_count) == ("0a1b2c3d-7", "loop_detected", 4)
    assert allowed.note == "Stop."
    for reason, error in (("kill_switch", "kill_switch"), ("loop_detected", "recursive_loop_detected")):
        body = json.dumps({"detail": {"error": error, "message": "No."}}).encode()
        denied = decision_from_response(429, {"x-own-request-id": "0a1b2c3d-7", "x-own-reason": reason}, body)
        assert (denied.allowed, denied.reason, denied.request_id) == (False, reason, "0a1b2c3d-7")


@pytest.mark.parametrize(
    ("status", "fields", "body"),
    [
        (200, {"x-request-id": "1f", "x-amzn-request-id": "6e2f0f4c-9a51-4c0e-8f57-0d2e4f9b7a11"}, b""),
        (200, {"x-own-request-id": "0a1b2c3d-7"}, b"<html>"),
        (429, {"x-own-request-id": "0a1b2c3d-7", "x-own-reason": "quota"}, b'{"error":{"code":"quota"}}'),
        (429, {"x-ratelimit-reason": "kill_switch"}, b'{"detail":{"error":"kill_switch"}}'),
    ],
)
def test_answers_of_other_servers_are_no_decisions(status: int, fields: dict[str, str], body: bytes) -> None:
    """Fields that only look like ours are not taken for them (D-4)."""
    with pytest.raises(UnreadableAnswerError):
        decision_from_response(status, fields, body)


@pytest.mark.parametrize(("status", "fields"), [(200, {}), (502, {"x-breakloop-request-id": "r"}), (404, {})])
def test_what_is_no_decision_is_refused(status: int, fields: dict[str, str]) -> None:
    """Somebody else answers at that address; the guard allows then (D-4)."""
    with pytest.raises(UnreadableAnswerError):
        decision_from_response(status, fields, b"")


class Odd:
    """An object that cannot be looked at."""

    def __repr__(self) -> str:
        raise RuntimeError


def test_arguments_of_any_kind() -> None:
    """What cannot be written as JSON is still told apart, and nothing is raised (D-4)."""
    ring: list[Any] = []
    ring.append(ring)
    assert arguments_text({"b": 1, "a": 2}) == arguments_text({"a": 2, "b": 1}) == '{"a":2,"b":1}'
    assert arguments_text("{}") == "{}"
    assert arguments_text({1: 2, "a": 3}) == "{1: 2, 'a': 3}"
    assert arguments_text(ring) == "[[...]]"
    assert arguments_text(Odd()) == "<Odd>"


def test_answers_in_plain_values() -> None:
    """Text, calls, tokens; names that are none of ours are left out (D-6)."""
    answer = make_answer(200, "hi", [("f", {"b": 1, "a": 2}), ("g", "raw")], {"input_tokens": 3, "odd": 1})
    assert answer.calls == (ToolCall("f", '{"a":2,"b":1}'), ToolCall("g", "raw"))
    assert (answer.text, answer.usage, answer.complete) == ("hi", Usage(input_tokens=3), True)
    assert make_answer(0).failed


def test_a_tool_call_is_judged_as_an_mcp_clients() -> None:
    """By name and arguments, in a session beside the conversation's (K-2, C-8)."""
    made = tool_call("search", {"query": "x"}, AgentContext("bot", "s"))
    chat = head_of(made)
    assert chat is not None
    assert (made.path, chat.dialect) == ("/mcp", "mcp")
    assert json.loads(made.body)["params"] == {"name": "search", "arguments": {"query": "x"}}
    assert (made.headers["x-agent-id"], made.headers["x-agent-session"]) == (b"bot", b"s/tools")
    assert "x-agent-session" not in tool_call("search", "{}", AgentContext("bot")).headers


def test_the_facts_of_a_denial() -> None:
    """Plain values, and none of what was asked about (P-1)."""
    verdict = Verdict(allowed=False, reason="loop_detected", status=429, message="Blocked.")
    verdict.loop = LOOP
    told = denial_details(_decision(verdict, call(body=BODY)))
    assert (told["error"], told["kind"], told["hit_count"], told["cooldown_seconds"]) == (
        "recursive_loop_detected",
        "tail",
        6,
        30,
    )
    assert json.loads(json.dumps(told)) == told
    assert "message" not in told


def test_judged_by_steps_alone(clock: FakeClock) -> None:
    """Many people may say the same; the step that comes again is still a loop (LD-2, B-6)."""
    guard = Guard(STEPS_ONLY, clock=clock)
    for number in range(8):
        decision = guard.check(json.loads(BODY), session=f"s-{number}")
        assert decision.allowed
        guard.report(decision, text="Hello!")
        clock.advance(2)
    with guard.run() as run:
        assert [run.step([("search", {})], ["none"]).allowed for _ in range(5)] == [True] * 4 + [False]
