"""One block of `steps`: what it looks at, and what it does in a crowd."""

from __future__ import annotations

from typing import Any

import pytest

from breakloop.detect.counting import AllowList, DetectorConfig, DetectorIdentity
from breakloop.detect.stateful import CallReaders, Detection, SeverityActions
from breakloop.detect.steps import RequestContext, StepEvaluation
from breakloop.detect.steps.block import CROWDED, CUTS, MIXED, ONLY_TELLS, StepsBlock
from breakloop.detect.steps.window import SessionWindow
from breakloop.model.call import Answer, Step
from breakloop.store.ops import CountFingerprint, FingerprintSpec, Observation
from tests.builders import call

STEP = Step("", (), (), (), ("hello",), (), 1, 10)
WHO = DetectorIdentity(lambda _: "caller", lambda _: "agent", lambda _: ())
SPEC = FingerprintSpec(60.0, 1, sliding=True, cooldown_s=30.0, at_once=True)


class Spy:
    """Says what it is told to."""

    def __init__(self, level: int) -> None:
        self.level = level
        self.views: list[RequestContext] = []

    def judge(self, window: bytes, _step: Step, now: float, view: RequestContext) -> StepEvaluation:
        self.views.append(view)
        return StepEvaluation(b"%b at %d" % (window, now), self.level, "repeat", "the same 5 times", "ab" * 8, True)

    def answered(self, window: bytes, answer: Answer) -> bytes:
        return window + answer.text.encode()


def block(level: int = 2, *, step: Step | None = STEP, guards: bool = False) -> StepsBlock:
    config = DetectorConfig("steps", "p", 0, "reject", 429, frozenset(), None)
    ladder = SeverityActions(config, ("steer", "reject", "kill"), SPEC, WHO)
    reads = CallReaders(lambda _: step, lambda _: "s:me", WHO)
    spy: Any = Spy(level)
    return StepsBlock(config, ladder, reads, spy, unnamed=lambda _: True, voice=lambda _: "m", guards_stream=guards)


def test_it_judges_the_newest_step_with_what_the_session_remembers() -> None:
    judged = block().evaluate(call(), b"old", 7.0)
    assert judged is not None
    assert judged.window == b"old at 7"
    assert block(step=None).evaluate(call(), b"old", 7.0) is None


@pytest.mark.parametrize(
    ("unnamed", "owed", "waits", "hears"), [(1, 0, 0, 0), (1, 1, 0, 1), (1, 0, 1, 1), (0, 0, 0, 1)]
)
def test_answers_matter_where_others_may_copy_them(unnamed: int, owed: int, waits: int, hears: int) -> None:
    """Or where a repeat waits to be counted; else nothing is read and written for them (Q-1)."""
    window = SessionWindow()
    window.owed, window.waits = owed, waits
    made = block()
    made._unnamed = lambda _: bool(unnamed)
    assert made.awaits_answer(call(), StepEvaluation(window.dump(), 0)) is bool(hears)


def test_answers_are_heard() -> None:
    assert block().answered(b"window+", Answer(200, "said")) == b"window+said"


def test_in_a_crowd_of_unnamed_conversations_a_block_is_only_noted() -> None:
    """Two derived sessions of one caller overlap; then notice, and the client learns why (C-7)."""
    asked, made = call(), block(2)
    judged = made.evaluate(asked, b"", 7.0)
    assert judged is not None
    assert isinstance(made.operation(asked, judged, "project", 0), CountFingerprint)
    asked.decision.crowded = True
    op = made.operation(asked, judged, "project", 0)
    assert isinstance(op, Observation)
    assert isinstance(op.owner, Detection)
    assert op.owner.action == "steer"
    assert op.owner.evidence == f"the same 5 times; {CROWDED}"
    shown = block(2, step=STEP._replace(call_ids=("call_1",)))
    assert isinstance(shown.operation(asked, judged, "project", 0), CountFingerprint)  # ids tell conversations apart


def test_where_two_conversations_were_taken_for_one_a_block_is_only_noted() -> None:
    """Two unnamed ones that open alike; a loop that goes on and on is stopped all the same (C-7)."""
    judged = StepEvaluation(b"", 2, "repeat", "the same 5 times", "ab" * 8, True, mixed=True)
    op = block().operation(call(), judged, "project", 0)
    assert isinstance(op, Observation)
    assert isinstance(op.owner, Detection)
    assert op.owner.evidence == f"the same 5 times; {MIXED}"
    assert isinstance(block().operation(call(), judged._replace(level=3), "project", 0), CountFingerprint)


def test_answers_to_those_who_are_left_alone_are_not_watched() -> None:
    """An allow list holds for the stream guard too (LD-6, LD-8)."""
    allow = AllowList({}, {"agent": 10.0}, {}, {}, {})
    config = DetectorConfig("steps", "p", 0, "reject", 429, frozenset(), allow)
    ladder = SeverityActions(config, ("steer", "reject", "kill"), SPEC, WHO)
    reads = CallReaders(lambda _: STEP, lambda _: "s:me", WHO)
    options: Any = {"unnamed": lambda _: True, "voice": lambda _: "m", "guards_stream": True}
    made = StepsBlock(config, ladder, reads, Spy(0), **options)  # type: ignore[arg-type]
    for now, said in ((7.0, 0), (10.0, CUTS)):
        asked = call()
        made.plan(asked, "project", 0, now)
        assert asked.decision.guards_stream == said


def test_the_detector_learns_what_else_is_known() -> None:
    """Whether its answer will be told, whether its session has a name, and who speaks (LD-4)."""
    asked = call(body=b"{}")
    asked.tracked = True
    spy = Spy(0)
    made = block()
    made._detector = spy  # type: ignore[assignment]
    made.evaluate(asked, b"", 7.0)
    [view] = spy.views
    assert (view.tracked, view.unnamed, view.body, view.voice()) == (True, True, b"{}", "m")


def test_a_crowd_does_not_hide_a_loop_that_goes_on() -> None:
    """Rather a block than a night of burning money (LD-4)."""
    asked, made = call(), block(3)
    asked.decision.crowded = True
    judged = made.evaluate(asked, b"", 7.0)
    assert judged is not None
    op = made.operation(asked, judged, "project", 0)
    assert isinstance(op, CountFingerprint)
    assert isinstance(op.owner, Detection)
    assert op.owner.action == "kill"


@pytest.mark.parametrize(
    ("guards", "groups", "said"),
    [(False, (0,), 0), (True, (0,), CUTS), (True, (3,), ONLY_TELLS), (True, (3, 0), CUTS), (True, (0, 3), CUTS)],
)
def test_the_answer_is_watched_too(guards: bool, groups: tuple[int, ...], said: int) -> None:
    """Cut where a block is enforced, only told where all are in shadow (LD-8)."""
    asked, made = call(), block(guards=guards)
    for group in groups:
        made.plan(asked, "project", group, 7.0)
    assert asked.decision.guards_stream == said


def test_announced_repeats_are_no_loop() -> None:
    """Up to the number that a caller whom the policy names has announced (LD-6)."""
    judged = StepEvaluation(b"", 2, "repeat", "the same 5 times", "ab" * 8, True, hits=5.0)
    config = DetectorConfig("steps", "p", 0, "reject", 429, frozenset({"caller"}), None)
    ladder = SeverityActions(config, ("steer", "reject", "kill"), SPEC, WHO)
    other = DetectorIdentity(lambda _: "other", lambda _: "agent", lambda _: ())
    for who, number, denied in ((WHO, b"5", False), (WHO, b"4", True), (other, b"5", True)):
        reads = CallReaders(lambda _: STEP, lambda _: "s:me", who)
        made = StepsBlock(config, ladder, reads, Spy(2), unnamed=lambda _: True, voice=lambda _: "m")  # type: ignore[arg-type]
        asked = call(headers={"x-breakloop-expect-repeats": number})
        assert (made.operation(asked, judged, "project", 0) is not None) is denied
