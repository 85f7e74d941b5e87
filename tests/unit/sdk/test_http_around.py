"""What integrations do around a call: judged before, stopped or made under its names, settled after."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from breakloop import Guard
from breakloop.model.call import Answer, Call
from breakloop.model.verdict import Decision
from breakloop.sdk.backend import AgentContext, chat_call, current
from breakloop.sdk.http import GuardedCall, acall_guarded, call_guarded
from tests.unit.sdk.doors import DENIED, BrokenDoor, TellingDoor

NAMES = AgentContext("bot", "thread-7")
Make = Callable[[Decision], Any]


def now(guard: Guard, around: GuardedCall, make: Make) -> Any:
    return call_guarded(guard, around, make)


def later(guard: Guard, around: GuardedCall, make: Make) -> Any:
    async def made(decision: Decision) -> Any:
        return make(decision)

    return asyncio.run(acall_guarded(guard, around, made))


both = pytest.mark.parametrize("go", [now, later])


def around(
    call: Call | None = None, answered: Callable[[Any], Answer] = lambda made: Answer(200, text=made)
) -> GuardedCall:
    return GuardedCall(
        call, NAMES, lambda decision: decision.notice, answered, lambda error: Answer(503, text=str(error))
    )


def judged() -> GuardedCall:
    return around(chat_call(b"{}", NAMES))


@both
def test_an_allowed_call_is_made_under_its_names_and_settled(go: Any) -> None:
    """What happens inside belongs to the same agent and session (P-3)."""
    door = TellingDoor()
    assert go(Guard(door=door), judged(), lambda _: "/".join(current())) == "bot/thread-7"
    assert door.answers == [Answer(200, text="bot/thread-7")]
    assert door.named() == ("bot", "thread-7")
    assert current() == AgentContext()


@both
def test_a_denied_call_is_not_made(go: Any) -> None:
    """The framework's own form of a denial stands for its result (P-3)."""
    made: list[Decision] = []
    door = TellingDoor(DENIED)
    said = go(Guard(door=door), judged(), made.append)
    assert (said, made, door.answers) == ("Blocked: the same again. (recursive_loop_detected)", [], [])


@both
def test_a_throttled_call_waits(go: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The delay is slept, and not by blocking the loop (D-4)."""
    waited: list[float] = []
    guard = Guard(door=TellingDoor(Decision(delay_seconds=0.4, request_id="r")))

    async def await_(decision: Decision) -> None:
        waited.append(decision.delay_seconds)

    monkeypatch.setattr(
        guard,
        "wait" if go is now else "await_",
        (lambda one: waited.append(one.delay_seconds)) if go is now else await_,
    )
    assert go(guard, judged(), lambda _: "x") == "x"
    assert waited == [0.4]


@both
def test_a_call_that_fails_is_settled_as_failed(go: Any) -> None:
    """And its error goes on (LD-6)."""
    door = TellingDoor()

    def fails(_: Decision) -> str:
        raise LookupError("busy")

    with pytest.raises(LookupError, match="busy"):
        go(Guard(door=door), judged(), fails)
    assert door.answers == [Answer(503, text="busy")]


@both
def test_nobody_is_asked_about_a_call_that_is_not_judged(go: Any) -> None:
    """It is made, and nothing is settled."""
    door = TellingDoor(DENIED)
    assert go(Guard(door=door), around(), lambda _: "x") == "x"
    assert (door.calls, door.answers) == ([], [])


@both
def test_faults_of_ours_allow(go: Any) -> None:
    """In judging, and in reading the answer (LD-7)."""
    guard = Guard(door=BrokenDoor())
    assert go(guard, judged(), lambda decision: decision.degraded) is True
    assert guard.faults == 1

    def unread(_: Any) -> Answer:
        raise KeyError("canary")

    door = TellingDoor()
    guard = Guard(door=door)
    assert go(guard, around(chat_call(b"{}", NAMES), unread), lambda _: "x") == "x"
    assert (guard.faults, door.answers) == (1, [Answer(200, complete=True)])
