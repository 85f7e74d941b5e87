"""Runs: steps of an agent, judged one after the other."""

from __future__ import annotations

import asyncio
import json

from breakloop.clock import FakeClock
from breakloop.model.call import Answer, Call
from breakloop.model.decision import Decision
from breakloop.sdk.guard import Guard
from breakloop.sdk.requests import DecisionHandle

SAME = ([("search", {"q": "x"})], ["nothing found"])


class Recorder:
    """A backend that allows, and records."""

    blocking = False

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.settled: list[tuple[str, Answer]] = []

    def decide(self, call: Call) -> Decision:
        self.calls.append(call)
        return Decision(request_id=str(len(self.calls)), _handle=DecisionHandle(call))

    def settle(self, decision: Decision, answer: Answer) -> None:
        self.settled.append((decision.request_id, answer))

    def close(self) -> None:
        pass


def warned_then_stopped(steps: list[Decision]) -> bool:
    return [one.allowed for one in steps] == [True] * 4 + [False] and [bool(one.warning) for one in steps] == [
        False, False, True, True, False,
    ]  # fmt: skip


def test_the_same_step_is_warned_then_stopped(clock: FakeClock) -> None:
    """Repeat 3 / 5; another step passes at once (D-4, LD-4)."""
    with Guard(clock=clock).run(agent="a") as run:
        assert warned_then_stopped([run.step(*SAME) for _ in range(5)])
        assert run.step([("search", {"q": "y"})], ["found it"]).allowed


def test_async_steps_are_the_same(clock: FakeClock) -> None:
    """Sync and async over one core (D-4)."""

    async def steps() -> list[Decision]:
        async with Guard(clock=clock).run(agent="a") as run:
            return [await run.astep(*SAME) for _ in range(5)]

    assert warned_then_stopped(asyncio.run(steps()))


def test_a_healthy_run_is_left_alone(clock: FakeClock) -> None:
    """Reading, editing and testing, whatever the number of steps (LD-4)."""
    with Guard(clock=clock).run() as run:
        for number in range(60):
            kind = ("read", "edit", "test")[number % 3]
            results = {"read": f"line {number} of file {number}", "edit": "ok", "test": f"{number} passed, 2 failed"}
            decision = run.step(
                [(kind, {"n": number if kind != "test" else 0})], [results[kind]], text=f"Now {number}."
            )
            clock.advance(5)
            assert decision.allowed, number
            assert not decision.warning, (number, decision)


def test_text_without_calls_counts_too(clock: FakeClock) -> None:
    """Text without calls counts too: a monologue (LD-4)."""
    with Guard(clock=clock).run() as run:
        assert warned_then_stopped([run.step(text="I shall try it again now, as before.") for _ in range(5)])


def test_the_next_step_settles_the_last(clock: FakeClock) -> None:
    """What the model did was the answer to what went before; the end settles what is left (D-6)."""
    backend = Recorder()
    with Guard(_backend=backend).run(agent="a", session="s", model="m") as run:
        run.step([("f", {})], ["x"], text="one", usage={"output_tokens": 9})
        assert backend.settled == []
        run.step([("g", {})], ["y"], text="two", usage={"output_tokens": 4})
    (first, answer), (second, last) = backend.settled
    assert (first, answer.text, answer.calls[0].name) == ("1", "two", "g")
    assert answer.usage is not None
    assert answer.usage.output_tokens == 9
    assert (second, last.status, last.failed) == ("2", 200, False)
    assert last.usage is not None
    assert last.usage.output_tokens == 4
    assert (backend.calls[0].headers["x-agent-id"], backend.calls[0].headers["x-agent-session"]) == (b"a", b"s")


def test_async_runs_settle_their_end() -> None:
    """Async runs settle their end (D-6)."""
    backend = Recorder()

    async def one() -> None:
        async with Guard(_backend=backend).run() as run:
            await run.astep(*SAME)

    asyncio.run(one())
    assert [number for number, _ in backend.settled] == ["1"]


def test_steps_alone_by_a_policy(clock: FakeClock) -> None:
    """An edit, and the same two checks, ten times in a minute: `tail` stops it, steps see the edits (LD-4)."""

    def rounds(guard: Guard) -> int:
        with guard.run() as run:
            for number in range(10):
                done = [("edit", {"path": "a.py", "new": f"x = {number}"}, "ok")]
                for name, arguments, result in [*done, ("lint", {}, "clean"), ("pytest", {}, "1 failed")]:
                    if not run.step([(name, arguments)], [result]).allowed:
                        return number
                    clock.advance(1.9)
        return 10

    steps = {"bundle_version": 1, "policies": [], "defaults": {"loop_detection": {"similarity": "steps"}}}
    assert rounds(Guard(clock=clock)) == 5
    assert rounds(Guard(steps, clock=clock)) == 10


def test_a_run_is_judged_before_the_model_has_done_anything() -> None:
    """By what it opens with; what the model says then is the answer to it (D-4)."""
    backend = Recorder()
    run = Guard(_backend=backend).run(agent="a", model="m", task="Do it.")
    run.begin()
    assert json.loads(backend.calls[0].body) == {"model": "m", "messages": [{"role": "user", "content": "Do it."}]}
    run.step(*SAME)
    assert [(name, [made.name for made in answer.calls]) for name, answer in backend.settled] == [("1", ["search"])]


def test_an_answer_may_be_told_by_itself() -> None:
    """The last one has no step after it. Its tokens are added to those of the step before; told twice, it counts once
    (D-6)."""
    backend = Recorder()
    run = Guard(_backend=backend).run(agent="a")
    run.add_answer("too early")
    run.step(*SAME, usage={"input_tokens": 5})
    run.add_answer("Done.", usage={"input_tokens": 7, "output_tokens": 2})
    run.add_answer("Done.")
    assert [(name, answer.text) for name, answer in backend.settled] == [("1", "Done.")]
    usage = backend.settled[0][1].usage
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens) == (12, 2)
