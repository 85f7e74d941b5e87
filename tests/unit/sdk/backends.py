"""Backends for tests of the library and of integrations: one is scripted and records calls and answers, one fails."""

from __future__ import annotations

import json
from typing import Any

from breakloop.model.call import Answer, Call
from breakloop.model.decision import LOOP, Decision
from breakloop.sdk.requests import DecisionHandle

DENIED = Decision(
    allowed=False, reason=LOOP, status=429, message="Blocked: the same again.", kind="repeat", hit_count=5
)
WARNED = Decision(warning=LOOP, hit_count=3, evidence="the same 3 times", request_id="r")
NOTE = "[breakloop] You repeat yourself: the same 3 times. Change course, or finish with what you have. [/breakloop]"


class ScriptedBackend:
    """Returns `decisions` one after the other, and then allows."""

    def __init__(self, *decisions: Decision, blocking: bool = False) -> None:
        self.blocking = blocking
        self.decisions = list(decisions)
        self.calls: list[Call] = []
        self.answers: list[Answer] = []

    @property
    def bodies(self) -> list[Any]:
        return [json.loads(call.body) for call in self.calls]

    def named(self, number: int = -1) -> tuple[str, str]:
        """Agent and session of a call."""
        headers = self.calls[number].headers
        return headers.get("x-agent-id", b"").decode(), headers.get("x-agent-session", b"").decode()

    def decide(self, call: Call) -> Decision:
        self.calls.append(call)
        return self.decisions.pop(0) if self.decisions else Decision(request_id="r", _handle=DecisionHandle(call))

    def settle(self, decision: Decision, answer: Answer) -> None:
        self.answers.append(answer)

    def close(self) -> None:
        pass


class FailingBackend(ScriptedBackend):
    def decide(self, call: Call) -> Decision:
        raise RuntimeError("canary")
