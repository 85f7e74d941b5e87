"""The recipe in `breakloop.integrations`: an integration needs one file and three imports of the library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from breakloop import Guard
from breakloop.clock import FakeClock
from breakloop.sdk.context import AgentContext, current_agent
from breakloop.sdk.requests import STEPS_ONLY
from breakloop.sdk.toolkit import steps_guard, toolkit_of
from tests.unit.sdk.backends import FailingBackend


class GuardToyAgent:
    """An integration with a framework that lets you wrap tool calls: `ToyAgent(around_tool=GuardToyAgent())`."""

    def __init__(self, guard: Guard | None = None, *, agent: str = "") -> None:
        self.guard = guard or steps_guard()
        self._toolkit = toolkit_of(self.guard)
        self._own = AgentContext(agent)

    def __call__(self, thread: str, name: str, arguments: Any, call: Callable[[], str]) -> str:
        context = self._own.with_defaults(current_agent()).with_defaults(AgentContext("", thread))
        run = self._toolkit.run_for(context)
        decision = run.before_tool(name, arguments)
        if not decision.allowed:
            return decision.notice
        result = call()
        decision = run.after_tool(name, arguments, result)
        return f"{result}\n{decision.notice}" if decision.notice else result


def test_a_new_integration(clock: FakeClock) -> None:
    """Warns, blocks, does not make a blocked call again, and keeps threads apart (P-3)."""
    made: list[str] = []
    around_tool = GuardToyAgent(Guard(STEPS_ONLY, clock=clock), agent="toy")

    def call() -> str:
        made.append("call")
        return "nothing"

    shown = [around_tool("t-1", "search", {"q": "x"}, call) for _ in range(7)]
    assert shown[:2] == ["nothing"] * 2
    assert shown[2].startswith("nothing\nYou repeat yourself")
    assert shown[6].startswith("Blocked: ")
    assert len(made) == 5
    assert around_tool("t-2", "search", {"q": "x"}, call) == "nothing"


def test_it_fails_open() -> None:
    """The agent goes on when breakloop does not work (LD-7)."""
    around_tool = GuardToyAgent(Guard(_backend=FailingBackend()))
    assert around_tool("t-1", "search", {}, lambda: "found") == "found"
    assert around_tool.guard.faults == 1
