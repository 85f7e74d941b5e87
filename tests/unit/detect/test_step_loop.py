"""One block of `steps`: from what was judged to what is done about it."""

from __future__ import annotations

import pytest

from breakloop.detect.allow import AllowList, Identity
from breakloop.detect.loop import LoopTerms
from breakloop.detect.step_loop import Seen, StepLoop, Watch
from breakloop.detect.steps import Judged
from breakloop.model.call import Call
from breakloop.model.step import Step
from breakloop.state.ops import Noted, Repeat, Repeated, RepeatSpec
from tests.builders import call

STEP = Step("", (), (), (), ("hello",), (), 1, 10)
WHO = Identity(lambda _: "caller", lambda _: "agent", lambda _: ())
SPEC = RepeatSpec(60.0, 1, sliding=True, cooldown_s=30.0, at_once=True)


class Spy:
    """Says what it is told to."""

    def __init__(self, judged: Judged) -> None:
        self.judged = judged
        self.windows: list[bytes] = []

    def judge(self, window: bytes, _step: Step, _now: float) -> Judged:
        self.windows.append(window)
        return self.judged

    def answered(self, window: bytes, said: str) -> bytes:
        return window + said.encode()


def block(level: int = 2, *, allow: AllowList | None = None, step: Step | None = STEP) -> StepLoop:
    judged = Judged(b"new", level, "repeat", "`read` returned the same 9 bytes 5 times", "ab" * 8, True)
    terms = LoopTerms("steps", "p", 0, "reject", 429, frozenset(), allow)
    return StepLoop(terms, ("steer", "reject", "kill"), SPEC, Spy(judged), lambda _: step, WHO)  # type: ignore[arg-type]


def looked(made: StepLoop, at: Call | None = None) -> Judged:
    judged = made.look(at or call(), b"old", 7.0)
    assert judged is not None
    return judged


def test_a_watch_stands_for_it_until_the_window_is_read() -> None:
    made = block()
    watch = made.plan(call(), "project", 3, 7.0)
    assert isinstance(watch, Watch)
    assert (watch.detector, watch.group) == (made, 3)


def test_calls_without_a_step_are_not_looked_at() -> None:
    assert block(step=None).look(call(), b"", 7.0) is None


def test_allow_lists_hold() -> None:
    """LD-6: a snoozed agent is left alone until its time."""
    allow = AllowList({}, {"agent": 10.0}, {}, {}, {})
    assert block(allow=allow).look(call(), b"", 7.0) is None
    assert block(allow=allow).look(call(), b"", 10.0) is not None


@pytest.mark.parametrize(("level", "action"), [(1, "steer"), (2, "reject"), (3, "kill")])
def test_the_ladder(level: int, action: str) -> None:
    """LD-5: notice, block and stop have actions of their own; what denies cools down, what does not is noted."""
    made = block(level)
    op = made.operation(looked(made), "project", 0)
    assert op is not None
    assert isinstance(op.owner, Seen)
    assert op.owner.action == action
    if level == 1:
        assert isinstance(op, Noted)
    else:
        assert isinstance(op, Repeat)
        assert (op.key, op.spec) == ("cnt:project:p:0:" + "ab" * 8, SPEC)


def test_nothing_found_is_nothing_to_do() -> None:
    made = block(0)
    assert made.operation(looked(made), "project", 0) is None


def test_shadow_counts_apart() -> None:
    """E-1: under its own name space, and in a section of its own."""
    made = block()
    op = made.operation(looked(made), "project", 2)
    assert isinstance(op, Repeat)
    assert op.key.startswith("shadow:cnt:project:")
    assert made.tags[0] != made.tags[1]
    assert {len(tag) for tag in made.tags} == {8}


def test_what_the_client_is_told() -> None:
    """A-3: short and exact, with how long and what to do."""
    made = block()
    op = made.operation(looked(made), "project", 0)
    assert op is not None
    seen: Seen = op.owner
    loop = seen.found(op, Repeated(3, True, True, 29.2, 60.0))
    assert (loop.kind, loop.fingerprint, loop.cooldown_s, loop.fresh) == ("repeat", "ab" * 8, 30, True)
    assert loop.message.startswith("Blocked: `read` returned the same 9 bytes 5 times. Do something else, or finish")
    assert "stays blocked for 30 seconds; a different step passes at once" in loop.message
    assert seen.note(loop).startswith("You repeat yourself: `read` returned the same 9 bytes 5 times.")
    assert (seen.delay_ms(3), seen.delay_ms(10_000), seen.sender(call())) == (300, 30_000, ("caller", "agent"))


def test_answers_are_heard() -> None:
    assert block().heard(b"window+", "said") == b"window+said"
