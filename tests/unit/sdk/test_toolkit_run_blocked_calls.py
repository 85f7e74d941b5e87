"""Tool calls that a framework makes: checked after each call, and before it if the call is blocked."""

from __future__ import annotations

import asyncio
import time

import pytest

from breakloop import Decision, Guard, Run
from breakloop.clock import FakeClock
from tests.unit.sdk.backends import DENIED, WARNED, ScriptedBackend

CALL = ("search", {"q": "x"})


def test_a_blocked_call_is_not_made_until_a_check_allows_it(clock: FakeClock) -> None:
    """Warned, blocked, denied before it is made again; allowed once the cooldown is over (LD-4)."""
    with Guard(clock=clock).run() as run:
        decisions = [run.after_tool(*CALL, "nothing") for _ in range(5)]
        assert [bool(one.notice) for one in decisions] == [False, False, True, True, True]
        assert [one.allowed for one in decisions] == [True] * 4 + [False]
        assert run.before_tool("search", {"q": "y"}).allowed
        assert not run.before_tool(*CALL).allowed
        clock.advance(3600)
        assert run.before_tool(*CALL).allowed


def test_the_same_on_an_event_loop(clock: FakeClock) -> None:
    """Without blocking it (D-4)."""

    async def work() -> list[bool]:
        run = Guard(clock=clock).run()
        allowed = [(await run.aafter_tool(*CALL, "nothing")).allowed for _ in range(5)]
        return [*allowed, (await run.abefore_tool(*CALL)).allowed, (await run.abefore_tool("other", {})).allowed]

    assert asyncio.run(work()) == [True] * 4 + [False, False, True]


def test_a_call_that_was_not_blocked_is_not_checked_before() -> None:
    """Nothing is known of it that was not known after the last one."""
    backend = ScriptedBackend(DENIED)
    run = Guard(_backend=backend).run()
    assert run.before_tool(*CALL).allowed
    assert backend.calls == []
    assert not run.after_tool(*CALL, "x").allowed
    assert len(backend.calls) == 1


@pytest.mark.parametrize(("result", "checks"), [("x", 2), ("y", 3)])
def test_the_same_result_again_is_not_counted_twice(result: str, checks: int) -> None:
    """The check before the call has counted it; another result is a new step (LD-4)."""
    backend = ScriptedBackend(DENIED, WARNED)
    run = Guard(_backend=backend).run()
    run.after_tool(*CALL, "x")
    assert run.before_tool(*CALL).allowed
    decision = run.after_tool(*CALL, result)
    assert (len(backend.calls), bool(decision.notice)) == (checks, checks == 2)
    assert run.before_tool(*CALL).allowed
    assert len(backend.calls) == checks


def test_a_denied_check_keeps_the_call_blocked() -> None:
    """As often as it is tried."""
    backend = ScriptedBackend(DENIED, DENIED, DENIED)
    run = Guard(_backend=backend).run()
    run.after_tool(*CALL, "x")
    assert [run.before_tool(*CALL).allowed for _ in range(3)] == [False, False, True]


def test_a_throttle_is_waited_for_after_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after one that failed (LD-5)."""
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    run = Guard(_backend=ScriptedBackend(*[Decision(delay_seconds=0.2, request_id="r")] * 2)).run()
    run.after_tool(*CALL, "x")
    run.after_tool(*CALL, ValueError("x"))
    assert slept == [0.2, 0.2]


def test_tokens_of_a_call_that_is_not_counted_again_are_kept() -> None:
    """They are reported with the next step (D-6)."""
    backend = ScriptedBackend(DENIED, WARNED)
    run = Guard(_backend=backend).run()
    run.after_tool(*CALL, "x")
    run.before_tool(*CALL)
    run.after_tool(*CALL, "x", {"input_tokens": 5})
    run.step(text="Done.")
    usage = backend.answers[-1].usage
    assert usage is not None
    assert usage.input_tokens == 5


def test_a_blocked_call_is_known_by_name_and_arguments() -> None:
    """In any order of keys (LD-4)."""
    backend = ScriptedBackend(DENIED, DENIED)
    run = Guard(_backend=backend).run()
    run.after_tool("f", {"a": 1, "b": 2}, "x")
    assert run.before_tool("f", {"a": 1}).allowed
    assert len(backend.calls) == 1
    assert not run.before_tool("f", {"b": 2, "a": 1}).allowed


def test_blocked_calls_are_bounded() -> None:
    """The oldest are dropped (Y-2)."""
    backend = ScriptedBackend(*[DENIED] * 101)
    run = Guard(_backend=backend).run()
    for number in range(100):
        run.after_tool("f", number, "x")
    assert run.before_tool("f", 0).allowed
    assert not run.before_tool("f", 99).allowed


def test_a_run_is_public() -> None:
    assert isinstance(Guard().run(), Run)
