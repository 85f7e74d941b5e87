"""`Guard`: requests, runs, throttles, and what a fault of ours does."""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Callable
from typing import Any

import pytest

import breakloop
from breakloop import DeniedError, Guard, LoopDetectedError, SettingsError
from breakloop.clock import FakeClock
from breakloop.model.call import Answer, Call
from breakloop.model.decision import Decision
from breakloop.sdk.context import AgentContext
from breakloop.sdk.toolkit import Run, toolkit_of
from tests.builders import bundle, exact, policy

BODY = {"model": "m", "messages": [{"role": "user", "content": "again"}]}


class Broken:
    """A backend that fails."""

    blocking = False

    def decide(self, call: Call) -> Decision:
        raise RuntimeError("canary")

    def settle(self, decision: Decision, answer: Answer) -> None:
        raise RuntimeError("canary")

    def close(self) -> None:
        pass


def throttling(clock: FakeClock) -> Guard:
    block = exact(2, window=60, action="throttle")
    return Guard(bundle(policy("p", loop=block)), clock=clock)


def run_of(guard: Guard, agent: str = "", session: str = "") -> Run:
    return toolkit_of(guard).run_for(AgentContext(agent, session))


@pytest.mark.parametrize(
    ("blocking", "asynchronous"),
    [
        (Guard.check, Guard.acheck),
        (Guard.report, Guard.areport),
        (Guard.wait, Guard.async_wait),
        (Guard.enforce, Guard.aenforce),
        (Guard.step, Guard.astep),
        (Run.step, Run.astep),
        (Run.before_tool, Run.abefore_tool),
        (Run.after_tool, Run.aafter_tool),
    ],
)
def test_sync_and_async_methods_are_alike(blocking: Callable[..., Any], asynchronous: Callable[..., Any]) -> None:
    """The same parameters, nothing internal among them, and both are documented (P-1)."""
    assert inspect.signature(blocking) == inspect.signature(asynchronous)
    assert "io" not in inspect.signature(blocking).parameters
    assert blocking.__doc__
    assert asynchronous.__doc__
    assert inspect.iscoroutinefunction(asynchronous)
    assert not inspect.iscoroutinefunction(blocking)


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


BODIES: dict[str, Callable[[str], dict[str, Any]]] = {
    "chat": lambda text: {"model": "m", "messages": user(text)},
    "responses": lambda text: {"model": "m", "input": text},
    "responses items": lambda text: {"model": "m", "input": user(text)},
    "anthropic": lambda text: {"model": "m", "max_tokens": 9, "system": "Be brief.", "messages": user(text)},
    "gemini": lambda text: {"contents": [{"role": "user", "parts": [{"text": text}]}]},
    "cohere": lambda text: {"model": "m", "stream": False, "messages": user(text)},
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_the_api_is_recognised_by_the_body(clock: FakeClock, body: Callable[[str], dict[str, Any]]) -> None:
    """Different requests are not identical, whatever API they are for, and identical ones are (C-8)."""
    guard, allowed = Guard(clock=clock), []
    for number in range(20):
        decision = guard.check(body(f"Question number {number}: why?"), agent="a")
        guard.report(decision)
        assert decision.allowed
    for _ in range(6):
        decision = guard.check(body("Why?"), agent="b")
        guard.report(decision)
        allowed.append(decision.allowed)
    assert allowed == [True] * 5 + [False]


@pytest.mark.parametrize("body", [{"model": "m", "inputs": "x"}, {"model": "m", "messages": [{"role": "user"}]}])
def test_bodies_without_messages_are_not_judged(clock: FakeClock, body: dict[str, Any]) -> None:
    """Nothing would distinguish two of them (LD-4)."""
    guard = Guard(clock=clock)
    assert all(guard.check(body | {"seed": number}).allowed for number in range(30))


def test_conversations_that_the_provider_keeps(clock: FakeClock) -> None:
    """A response that is reported as the SDK returned it has the calls that the next request has results of (LD-4)."""
    guard, allowed = Guard(clock=clock), []
    body: dict[str, Any] = {"model": "m", "input": "Sort the orders."}
    for number in range(8):
        clock.advance(3)
        decision = guard.check(body)
        allowed.append(decision.allowed)
        made = {"type": "function_call", "call_id": f"call_{number:08}", "name": "look", "arguments": "{}"}
        guard.report(decision, response={"id": f"resp_{number}", "object": "response", "output": [made]})
        sent = {"type": "function_call_output", "call_id": made["call_id"], "output": "ok"}
        body = {"model": "m", "input": [sent], "previous_response_id": f"resp_{number}"}
    assert allowed[:6] == [True] * 5 + [False]


def test_a_request_that_comes_again_is_a_loop(clock: FakeClock) -> None:
    """Five pass, the sixth raises with everything that is known; others are not touched (D-4, P-1)."""
    guard = Guard(clock=clock)
    for _ in range(5):
        decision = guard.check(BODY, agent="a")
        assert guard.enforce(decision) == ""
        guard.report(decision, text="hm", usage={"input_tokens": 1})
    with pytest.raises(LoopDetectedError) as caught:
        guard.enforce(guard.check(BODY, agent="a"))
    assert (caught.value.hit_count, caught.value.cooldown_seconds, caught.value.kind) == (6, 30, "tail")
    assert guard.check(BODY, agent="b").allowed
    assert guard.check({**BODY, "model": "other"}, agent="a").allowed


def test_async_is_the_same(clock: FakeClock) -> None:
    """One core for both (D-4)."""
    guard = Guard(clock=clock)

    async def ask() -> None:
        for _ in range(5):
            decision = await guard.acheck(BODY)
            await guard.aenforce(decision)
            await guard.areport(decision)
        with pytest.raises(LoopDetectedError):
            await guard.aenforce(await guard.acheck(BODY))

    asyncio.run(ask())


def test_other_denials(clock: FakeClock) -> None:
    """A kill switch is no loop (P-1)."""
    guard = Guard(
        bundle(kill_switches=[{"scope_key": "agent:id", "scope_value": "bad", "reason": "because"}]), clock=clock
    )
    with pytest.raises(DeniedError, match="because") as caught:
        guard.enforce(guard.check(BODY, agent="bad"))
    assert not isinstance(caught.value, LoopDetectedError)
    assert (caught.value.reason, caught.value.retry_after) == ("kill_switch", 3600)
    with breakloop.agent("bad"):
        assert not guard.check(BODY).allowed
    assert guard.check(BODY, agent="good").allowed


def test_a_throttle_is_a_delay(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Returned, not slept; helpers sleep (D-4, LD-5)."""
    guard = throttling(clock)
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)

    async def asleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", asleep)
    guard.report(guard.check(BODY))
    decision = guard.check(BODY)
    assert (decision.allowed, decision.delay_seconds) == (True, 0.2)
    assert slept == []
    assert guard.enforce(decision).startswith("You repeat yourself")
    asyncio.run(guard.aenforce(decision))
    guard.wait(Decision())
    asyncio.run(guard.async_wait(Decision()))
    assert slept == [0.2, 0.2]


def test_a_note_to_steer(clock: FakeClock) -> None:
    """What the model should be told (LD-5)."""
    guard = Guard(bundle(policy("p", loop=exact(2, action="steer"))), clock=clock)
    guard.report(guard.check(BODY))
    assert guard.check(BODY).note.startswith("You have sent the same request 2 times")


def test_a_fault_of_ours_allows(caplog: pytest.LogCaptureFixture) -> None:
    """Counted each time, logged once, without what it was about (LD-7, Y-1)."""
    caplog.set_level(logging.INFO, "breakloop")
    guard = Guard(_backend=Broken())
    for _ in range(3):
        decision = guard.check(BODY)
        assert (decision.allowed, decision.degraded) == (True, True)
    guard.report(Decision(request_id="r"))
    assert asyncio.run(guard.acheck(BODY)).allowed
    assert guard.step([("f", {})], ["x"]).allowed
    assert guard.faults == 6
    assert caplog.messages == ["guard.fault"]
    assert "canary" not in str(caplog.records[0].__dict__)


def test_a_service_that_is_not_there_is_named(caplog: pytest.LogCaptureFixture, free_port: Callable[[], int]) -> None:
    """Where it asked and why that failed, without a password in the URL; what is no URL is said at once (LD-7)."""
    caplog.set_level(logging.INFO, "breakloop")
    port = free_port()
    with Guard(url=f"http://ada:secret@127.0.0.1:{port}") as guard:
        assert guard.check(BODY).allowed
    told = vars(caplog.records[0])["fields"]
    assert told["url"] == f"http://127.0.0.1:{port}"
    assert told["error"].startswith("ConnectionRefusedError: Connection refused; the request was allowed")
    with pytest.raises(SettingsError, match="http://127"):
        Guard(url="foo")


@pytest.mark.parametrize("calls", ["x", b"x", {"f": {}}, ["f"], [("f",)], [("f", {}, 1)], [(None, {})]])
def test_calls_that_are_none_are_said_so(calls: Any, clock: FakeClock) -> None:
    """The author's mistake, in the author's words (T-1)."""
    with pytest.raises(TypeError, match=r"^calls: must be a list of \(name, arguments\)"):
        Guard(clock=clock).step(calls=calls)


def test_denials_are_not_settled() -> None:
    """Nothing was sent, so nothing was answered (D-6)."""
    guard = Guard(_backend=Broken())
    guard.report(Decision(allowed=False, request_id="r"))
    assert guard.faults == 0


def test_either_a_policy_or_a_service() -> None:
    """A setting that would do nothing is an error (T-1)."""
    with pytest.raises(SettingsError, match="either"):
        Guard({"bundle_version": 1, "policies": []}, url="http://127.0.0.1:1")
    with pytest.raises(SettingsError, match="either"):
        Guard(url="http://127.0.0.1:1", state="redis://x")


def test_steps_belong_to_the_run_around_or_to_a_session(clock: FakeClock) -> None:
    """`guard.step` inside of `with guard.run()`, by a session's name, or by the guard itself (D-4)."""
    guard = Guard(clock=clock)
    assert run_of(guard) is run_of(guard)
    assert run_of(guard, session="s") is run_of(guard, session="s") is not run_of(guard, session="t")
    with guard.run(agent="a") as run:
        assert run_of(guard) is run_of(guard, "a") is run
        assert run_of(guard, session="s") is not run
        with guard.run() as inner:
            assert run_of(guard) is inner
        assert run_of(guard) is run
    assert run_of(guard) is not run
    with breakloop.agent("z", session="zz"):
        assert (run_of(guard).agent, run_of(guard).session) == ("z", "zz")
        assert guard.run().session == "zz"
    assert guard.run().session != guard.run().session


def test_steps_of_two_sessions_do_not_mix(clock: FakeClock) -> None:
    """Each has its own count (LD-6)."""
    guard = Guard(clock=clock)

    def tell(session: str) -> bool:
        return guard.step([("f", {"a": 1})], ["same"], session=session, agent=session).allowed

    assert [tell(name) for name in ("a", "b") * 4] == [True] * 8
    assert [
        asyncio.run(guard.astep([("f", {"a": 1})], ["same"], session=name, agent=name)).allowed for name in "ab"
    ] == [
        False,
        False,
    ]


def test_runs_that_are_kept_are_bounded(clock: FakeClock) -> None:
    """The oldest go (Y-2)."""
    guard = Guard(clock=clock)
    first = run_of(guard, session="0")
    for number in range(1, 1001):
        run_of(guard, session=str(number))
    assert run_of(guard, session="0") is not first


def test_objects_of_an_sdk_among_messages(clock: FakeClock) -> None:
    """What people keep in their list of messages (D-4)."""

    class Message:
        def model_dump(self, **_: Any) -> dict[str, str]:
            return {"role": "assistant", "content": "hm"}

    guard = Guard(clock=clock)
    for _ in range(5):
        guard.report(guard.check({"model": "m", "messages": [*BODY["messages"], Message(), object]}))
    assert guard.faults == 0


def test_runs_that_start_each_other_have_one_budget() -> None:
    """Whatever a run uses is left to none of the others of its tree (G-6)."""
    guard = Guard({"bundle_version": 1, "policies": [], "agents": {"*": {"max_tokens_per_tree": 100_000}}})
    lead = guard.run("lead", task="x" * 4000)
    worker = guard.run("worker", task="x" * 4000, parent=lead.session)
    left = [
        one.step(calls=[("find", {"n": n})], results=["none"]).tree_tokens_left for n, one in enumerate((lead, worker))
    ]
    assert left[0] is not None
    assert left[1] is not None
    assert 0 < left[1] < left[0] < 100_000
    alone = guard.run("worker", task="x" * 4000).step(calls=[("find", {"n": 1})], results=["none"])
    assert alone.tree_tokens_left == left[0]
    large = {"model": "m", "messages": [{"role": "user", "content": "x"}], "max_tokens": left[1] + 1}
    assert [guard.check(large, session="new", parent=one).allowed for one in (lead.session, "")] == [False, True]


def test_a_paused_run() -> None:
    """The existing error, with its own stop reason and when to ask again; without a server, the default applies (K-6)."""
    clock = FakeClock()
    data = bundle(
        policy("p", loop=exact(2, action="pause", concurrent_free=0)),
        pause={"then": "continue", "answer_within_minutes": 1},
    )
    with Guard(data, clock=clock) as guard:
        guard.check(BODY)
        decision = guard.check(BODY)
        assert (decision.reason, decision.stop_reason, decision.retry_after) == ("run_paused", "paused", 60)
        assert not decision.is_loop
        assert decision.evidence
        clock.advance(60)
        assert guard.check(BODY).allowed
