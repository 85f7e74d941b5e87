"""Hooks of the Claude Agent SDK. The package, which brings all of Claude Code, is in an environment of its own: here its
one class that is needed is stood in for, and tests/e2e/test_claude_agent.py runs the real one."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import pytest

from breakloop import Guard
from breakloop.clock import FakeClock
from breakloop.model.decision import Decision
from breakloop.sdk.requests import STEPS_ONLY
from tests.unit.sdk.backends import DENIED, NOTE, WARNED, FailingBackend, ScriptedBackend

STOPPED = Decision(allowed=False, reason="kill_switch", status=403, message="Stopped.")


@dataclass
class HookMatcher:
    matcher: str | None = None
    hooks: list[Any] = field(default_factory=list)


@pytest.fixture(autouse=True)
def _package(monkeypatch: pytest.MonkeyPatch) -> None:
    package = ModuleType("claude_agent_sdk")
    package.__dict__["HookMatcher"] = HookMatcher
    monkeypatch.setitem(sys.modules, "claude_agent_sdk", package)
    monkeypatch.delitem(sys.modules, "breakloop.integrations.claude_agent", raising=False)


class Agent:
    """What Claude Code does with hooks: asks them about each event."""

    def __init__(self, guard: Guard | None = None, **options: Any) -> None:
        from breakloop.integrations.claude_agent import breakloop_hooks

        self.hooks = breakloop_hooks(guard, **options)

    def tell(self, kind: str, **fields: Any) -> dict[str, Any]:
        (matcher,) = self.hooks[kind]
        (callback,) = matcher.hooks
        sent = {"hook_event_name": kind, "session_id": "s", "tool_name": "Bash", "tool_input": {"command": "ls"}}
        answer: dict[str, Any] = asyncio.run(callback({**sent, **fields}, None, {"signal": None}))
        return answer

    def call(self, response: str = "same", **fields: Any) -> dict[str, Any]:
        """Call a tool, unless it is denied."""
        before = self.tell("PreToolUse", **fields)
        return before or self.tell("PostToolUse", tool_response=response, **fields)


def test_a_loop_is_warned_then_denied_then_stopped(clock: FakeClock) -> None:
    """A note behind the result, then the call is refused, then the run ends (P-3, LD-5)."""
    agent = Agent(Guard(STEPS_ONLY, clock=clock))
    said = [agent.call() for _ in range(7)]
    assert said[:2] == [{}, {}]
    assert all("You repeat yourself" in one["hookSpecificOutput"]["additionalContext"] for one in said[2:4])
    assert "Blocked: `Bash` returned" in said[4]["hookSpecificOutput"]["additionalContext"]
    assert [one.get("hookSpecificOutput", {}).get("permissionDecision") for one in said[5:]] == ["deny", "deny"]
    assert [one.get("continue") for one in said] == [None] * 6 + [False]
    assert said[6]["stopReason"].startswith("breakloop stopped this run. Blocked: `Bash`")


def test_a_healthy_agent_is_untouched(clock: FakeClock) -> None:
    """Nothing is answered (P-3)."""
    agent = Agent(Guard(clock=clock))
    assert [agent.call(f"line {n} of a file", tool_input={"n": n}) for n in range(30)] == [{}] * 30


def test_sessions_and_sub_agents_are_told_apart(clock: FakeClock) -> None:
    """Each has steps of its own, and a row of blocks of its own (LD-4)."""
    agent = Agent(Guard(STEPS_ONLY, clock=clock))
    for _ in range(4):
        for who in ({"session_id": "a"}, {"session_id": "b"}, {"session_id": "a", "agent_id": "x"}):
            assert "continue" not in agent.call(**who)
    assert "Blocked" in str(agent.call(session_id="a"))
    assert agent.call("news", session_id="b") == {}


def test_a_step_that_nobody_minds_ends_the_row() -> None:
    """Only blocks in a row stop a run; a warned step is no block, and does not end the row either (P-3)."""
    backend = ScriptedBackend(DENIED, Decision(), DENIED, WARNED, DENIED, DENIED)
    agent = Agent(Guard(_backend=backend))
    told = [agent.tell("PostToolUse", tool_response=str(n)) for n in range(6)]
    assert [one.get("continue") for one in told] == [None] * 5 + [False]
    assert told[3]["hookSpecificOutput"]["additionalContext"] == NOTE


def test_a_person_ends_the_row() -> None:
    """Whoever says something new gives the model another chance (P-3)."""
    backend = ScriptedBackend(DENIED, DENIED, Decision(), DENIED)
    agent = Agent(Guard(_backend=backend))
    agent.tell("PostToolUse", tool_response="1")
    agent.tell("PostToolUse", tool_response="2")
    assert agent.tell("UserPromptSubmit", prompt="Try the other one.") == {}
    assert "continue" not in agent.tell("PostToolUse", tool_response="3")
    assert backend.bodies[2]["messages"][-1]["content"] == "Try the other one."


def test_what_is_no_loop_stops_at_once() -> None:
    """An agent that an operator has stopped (K-2)."""
    agent = Agent(Guard(_backend=ScriptedBackend(STOPPED, STOPPED)), agent="a")
    assert agent.tell("PostToolUse", tool_response="x")["continue"] is False
    assert agent.tell("UserPromptSubmit", prompt="Go on.")["decision"] == "block"


def test_names_and_failures() -> None:
    """The agent as it is named, the session as Claude Code names it; a failed tool is told as one (C-3)."""
    backend = ScriptedBackend()
    agent = Agent(Guard(_backend=backend), agent="reviewer")
    agent.tell("PostToolUseFailure", error="Exit code 1", agent_id="sub")
    assert backend.named() == ("reviewer", "s:sub")
    assert backend.bodies[0]["messages"][-1]["content"] == "Error: ToolFailedError: Exit code 1"


def test_hooks_of_ones_own_come_first() -> None:
    """And stay as they are (P-3)."""
    from breakloop.integrations.claude_agent import breakloop_hooks

    mine: dict[str, list[Any]] = {"PreToolUse": [HookMatcher("Bash", ["mine"])], "Stop": [HookMatcher()]}
    made = breakloop_hooks(Guard(_backend=ScriptedBackend()), hooks=mine)
    assert made["PreToolUse"][0].hooks == ["mine"]
    assert [len(made[event]) for event in ("PreToolUse", "PostToolUse", "Stop")] == [2, 1, 1]
    assert len(mine["PreToolUse"]) == 1


def test_a_fault_of_ours_changes_nothing() -> None:
    """Neither of the backend nor of what is read (S-3)."""
    guard = Guard(_backend=FailingBackend())
    agent = Agent(guard)
    assert agent.call() == {}
    assert guard.faults == 1
    (callback,) = agent.hooks["PreToolUse"][0].hooks
    assert asyncio.run(callback(None, None, None)) == {}
    assert guard.faults == 2
    assert asyncio.run(callback({"hook_event_name": "Stop", "session_id": "s"}, None, None)) == {}


def test_a_run_that_is_landed_makes_no_more_calls() -> None:
    """Whatever they are; each is a block, and a reply of a person ends it (LD-10, P-3)."""
    landed = Decision(warning="loop_detected", note="Tools are off: answer.", landed=True, request_id="r")
    agent = Agent(Guard(_backend=ScriptedBackend(landed)))
    assert agent.call()["hookSpecificOutput"]["additionalContext"] == "[breakloop] Tools are off: answer. [/breakloop]"
    said = [agent.call(tool_input={"n": n}) for n in range(3)]
    assert [one["hookSpecificOutput"]["permissionDecisionReason"] for one in said] == ["Tools are off: answer."] * 3
    assert [one.get("continue") for one in said] == [None, None, False]
    assert agent.call(session_id="other") == {}
    assert agent.tell("UserPromptSubmit", prompt="Go on.") == {}
    assert agent.call() == {}
