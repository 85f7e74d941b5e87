"""A door that decides what it is told to, and remembers what it was asked: for tests of integrations."""

from __future__ import annotations

import json
from typing import Any

from breakloop.model.call import Answer, Call
from breakloop.model.verdict import LOOP, Decision

DENIED = Decision(
    allowed=False, reason=LOOP, status=429, message="Blocked: the same again.", kind="repeat", hit_count=5
)
WARNED = Decision(warning=LOOP, hit_count=3, evidence="the same 3 times", request_id="r")
NOTE = "[breakloop] You repeat yourself: the same 3 times. Change course, or finish with what you have. [/breakloop]"


class TellingDoor:
    """Decides what `decisions` says, one after the other; then allows."""

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
        return self.decisions.pop(0) if self.decisions else Decision(request_id="r", call=call)

    def settle(self, decision: Decision, answer: Answer) -> None:
        self.answers.append(answer)

    def close(self) -> None:
        pass


class BrokenDoor(TellingDoor):
    """Fails."""

    def decide(self, call: Call) -> Decision:
        raise RuntimeError("canary")
