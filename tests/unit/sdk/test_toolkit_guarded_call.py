"""What integrations do around a call: judged before, stopped or made under its names, settled after."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from breakloop import Guard
from breakloop.model.call import Answer, Call
from breakloop.model.decision import Decision
from breakloop.sdk.context import AgentContext, current_agent
from breakloop.sdk.requests import chat_call
from breakloop.sdk.toolkit import GuardedCall, toolkit_of
from tests.unit.sdk.backends import DENIED, FailingBackend, ScriptedBackend

CONTEXT = AgentContext("bot", "thread-7")
Make = Callable[[Decision], Any]


def now(guard: Guard, around: GuardedCall, make: Make) -> Any:
    return toolkit_of(guard).call(around, make)


def later(guard: Guard, around: GuardedCall, make: Make) -> Any:
    async def made(decision: Decision) -> Any:
        return make(decision)

    return asyncio.run(toolkit_of(guard).acall(around, made))


both = pytest.mark.parametrize("go", [now, later])


def around(
    call: Call | None = None, answered: Callable[[Any], Answer] = lambda made: Answer(200, text=made)
) -> GuardedCall:
    return GuardedCall(
        call, CONTEXT, lambda decision: decision.notice, answered, lambda error: Answer(503, text=str(error))
    )


def judged() -> GuardedCall:
    return around(chat_call(b"{}", CONTEXT))


@both
def test_an_allowed_call_is_made_under_its_names_and_settled(go: Any) -> None:
    """What happens inside belongs to the same agent and session (P-3)."""
    backend = ScriptedBackend()
    assert go(Guard(_backend=backend), judged(), lambda _: "/".join(current_agent()[:2])) == "bot/thread-7"
    assert backend.answers == [Answer(200, text="bot/thread-7")]
    assert backend.named() == ("bot", "thread-7")
    assert current_agent() == AgentContext()


@both
def test_a_denied_call_is_not_made(go: Any) -> None:
    """The framework's own form of a denial stands for its result (P-3)."""
    made: list[Decision] = []
    backend = ScriptedBackend(DENIED)
    said = go(Guard(_backend=backend), judged(), made.append)
    assert (said, made, backend.answers) == ("Blocked: the same again. (recursive_loop_detected)", [], [])


@both
def test_a_throttled_call_waits(go: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The delay is slept, and not by blocking the loop (D-4)."""
    waited: list[float] = []
    guard = Guard(_backend=ScriptedBackend(Decision(delay_seconds=0.4, request_id="r")))

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    if go is now:
        monkeypatch.setattr(time, "sleep", waited.append)
    else:
        monkeypatch.setattr(asyncio, "sleep", sleep)
    assert go(guard, judged(), lambda _: "x") == "x"
    assert waited == [0.4]


@both
def test_a_call_that_fails_is_settled_as_failed(go: Any) -> None:
    """And its error goes on (LD-6)."""
    backend = ScriptedBackend()

    def fails(_: Decision) -> str:
        raise LookupError("busy")

    with pytest.raises(LookupError, match="busy"):
        go(Guard(_backend=backend), judged(), fails)
    assert backend.answers == [Answer(503, text="busy")]


@both
def test_nobody_is_asked_about_a_call_that_is_not_judged(go: Any) -> None:
    """It is made, and nothing is settled."""
    backend = ScriptedBackend(DENIED)
    assert go(Guard(_backend=backend), around(), lambda _: "x") == "x"
    assert (backend.calls, backend.answers) == ([], [])


@both
def test_faults_of_ours_allow(go: Any) -> None:
    """In judging, and in reading the answer (LD-7)."""
    guard = Guard(_backend=FailingBackend())
    assert go(guard, judged(), lambda decision: decision.degraded) is True
    assert guard.faults == 1

    def unread(_: Any) -> Answer:
        raise KeyError("canary")

    backend = ScriptedBackend()
    guard = Guard(_backend=backend)
    assert go(guard, around(chat_call(b"{}", CONTEXT), unread), lambda _: "x") == "x"
    assert (guard.faults, backend.answers) == (1, [Answer(200, complete=True)])
