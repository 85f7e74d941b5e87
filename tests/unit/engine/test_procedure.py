"""Session windows through the engine: read, judged and written in one commit."""

from __future__ import annotations

from collections.abc import Sequence

from breakloop.engine.decision_state import state_of
from breakloop.model.call import Answer, Call
from breakloop.store.memory import MemoryStore
from breakloop.store.ops import BucketRows, CommitResult, Op, StoredWindow, WindowWrite
from tests.builders import Json, World, bundle, call, chat, policy, user, world

STEPS: Json = {"similarity": "steps"}


def stuck(count: int, *, result: str = "Error: no such file", path: str = "a") -> list[Json]:
    """A conversation in which a tool was called so often, each time with the same result."""
    messages = [user("Fix the bug.")]
    for number in range(count):
        function = {"name": "read", "arguments": f'{{"path":"{path}"}}'}
        called = {"id": f"call_{path}_{number:08}", "type": "function", "function": function}
        messages += [{"role": "assistant", "content": None, "tool_calls": [called]}]
        messages += [{"role": "tool", "tool_call_id": called["id"], "content": result}]
    return messages


def outcomes(here: World, turns: int, **headers: str) -> list[str]:
    """What each turn of a stuck agent gets, three seconds apart."""
    found = []
    for count in range(turns):
        verdict = here.engine.decide(chat(*stuck(count), headers={"authorization": "Bearer k", **headers}))
        found.append("deny" if not verdict.allowed else verdict.warning or "pass")
        here.clock.advance(3)
    return found


def test_a_stuck_agent_is_noticed_and_then_blocked() -> None:
    """The history grows, so no two requests are alike, and still it is one loop (LD-4)."""
    here = world(bundle(policy("p", loop=STEPS)))
    assert outcomes(here, 8) == ["pass", "pass", "loop_detected", "loop_detected", "deny", "deny", "deny", "deny"]
    [first, *_] = here.named("loop.detected")
    assert (first["policy"], first["kind"], first["shadow"]) == ("p", "failure", False)


def test_sessions_callers_and_policies_do_not_mix() -> None:
    """Whoever comes with another key or session starts anew (C-7, LD-6)."""
    here = world(bundle(policy("p", loop=STEPS)))
    assert outcomes(here, 5)[-1] == "deny"
    assert outcomes(here, 2, authorization="Bearer other") == ["pass", "pass"]
    assert outcomes(here, 2, **{"x-agent-session": "s-2"}) == ["pass", "pass"]


def test_a_different_step_passes_at_once() -> None:
    """A block is for the loop and not for the agent (LD-4)."""
    here = world(bundle(policy("p", loop=STEPS)))
    assert outcomes(here, 6)[-1] == "deny"
    onward = [*stuck(6), *stuck(1, result="class Config: pass\nimport os", path="b")[1:]]
    verdict = here.engine.decide(chat(*onward, headers={"authorization": "Bearer k"}))
    assert (verdict.allowed, verdict.warning) == (True, "")


def test_the_same_step_passes_once_after_the_cooldown() -> None:
    """And then it is blocked for twice as long (LD-4)."""
    here = world(bundle(policy("p", loop=STEPS)))
    outcomes(here, 5)
    again = stuck(4)
    waits = []
    for _ in range(3):
        verdict = here.engine.decide(chat(*again, headers={"authorization": "Bearer k"}))
        waits.append(verdict.retry_after_s)
        here.clock.advance(30)
    assert waits == [27, None, 60]


def test_shadow_only_watches() -> None:
    """The client's answer is what it would have been without the policy (E-1)."""
    here = world(bundle(policy("p", loop=STEPS, mode="shadow")))
    assert outcomes(here, 7) == ["pass"] * 7
    assert {event["policy"] for event in here.named("shadow.would_reject")} == {"p"}


def test_actions_of_the_ladder() -> None:
    """A notice may steer, and nothing is denied where nothing denies (LD-5)."""
    ladder = {"notice": "steer", "block": "throttle", "stop": "throttle"}
    here = world(bundle(policy("p", loop={**STEPS, "ladder": ladder})))
    assert outcomes(here, 6) == ["pass", "pass", *["loop_detected"] * 4]
    verdict = here.engine.decide(chat(*stuck(6), headers={"authorization": "Bearer k"}))
    assert verdict.delay_ms == 600  # the sixth time the same


def test_calls_without_a_session_are_not_watched() -> None:
    """A plain request has no steps, and costs no window."""
    here = world(bundle(policy("p", loop=STEPS)))
    assert here.engine.decide(call("/x", "POST", body=b"{}")).allowed
    assert len(here.store) == 0  # type: ignore[arg-type]


def test_answers_are_heard_once_and_bounded() -> None:
    """Settling writes to the same window."""
    here = world(bundle(policy("p", loop=STEPS)))
    asked = chat(*stuck(1), headers={"authorization": "Bearer k", "x-agent-session": "s"})
    here.engine.decide(asked)
    ((key, _),) = state_of(asked).windows or []
    before = here.store.read_window(key, here.clock.now())
    here.engine.settle(asked, Answer(200, text="I look into the second file now.", complete=True))
    after = here.store.read_window(key, here.clock.now())
    assert after.version == before.version + 1
    assert len(after.data) < 6 * 1024


class Contended(MemoryStore):
    """Another instance writes the same window, so many times, just before we do."""

    __slots__ = ("rivals",)

    def __init__(self, rivals: int) -> None:
        super().__init__()
        self.rivals = rivals

    def commit(
        self, ops: Sequence[Op], now: float, windows: Sequence[WindowWrite] = (), rows: BucketRows | None = None
    ) -> CommitResult:
        if windows and self.rivals:
            self.rivals -= 1
            [*_, last] = windows
            current: StoredWindow = self.read_window(last.key, now)
            super().commit((), now, [WindowWrite(last.key, current.version, current.data, last.ttl_s)])
        return super().commit(ops, now, windows, rows)


def test_a_session_that_moves_on_is_judged_again() -> None:
    """At most three times; then the decision is made without writing the window, and counted (S-2)."""
    for rivals, conflicts in ((2, 0), (3, 0), (50, 1)):
        here = world(bundle(policy("p", loop=STEPS)), store=Contended(rivals))
        asked: Call = chat(*stuck(1), headers={"authorization": "Bearer k"})
        assert here.engine.decide(asked).allowed
        assert here.engine.tally.conflicts == conflicts
