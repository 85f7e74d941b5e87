"""The detector of a `steps` block: what it evaluates, and what it does where unnamed conversations overlap."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from msgspec.structs import replace as changed

from breakloop.detect.stateful import Detection, Evaluation
from breakloop.detect.steps.detector import (
    AMBIGUOUS,
    COPIED,
    CUT_STREAM,
    OVERLAP,
    REPORT_STREAM,
    RETRY_STREAM,
    RequestContext,
    StepsDetector,
)
from breakloop.detect.steps.window import load
from breakloop.model.call import Answer, Chat, Step
from breakloop.store.ops import CountFingerprint, Observation
from tests.builders import call
from tests.unit.detect.reading import CONFIG, STEP, Reader, allowing

BLOCK = replace(CONFIG, actions=("steer", "reject", "kill"))


class Spy:
    """Returns the level that it was made with."""

    def __init__(self, level: int) -> None:
        self.level = level
        self.views: list[RequestContext] = []

    def evaluate(self, window: bytes, _step: Step, now: float, view: RequestContext) -> Evaluation:
        self.views.append(view)
        return Evaluation(b"%b at %d" % (window, now), self.level, "repeat", "the same 5 times", "ab" * 8, True)

    def answered(self, window: bytes, answer: Answer) -> bytes:
        return window + answer.text.encode()


def block(level: int = 2, *, step: Step | None = STEP, guards: bool = False, unnamed: bool = True) -> StepsDetector:
    spy: Any = Spy(level)
    return StepsDetector(BLOCK, Reader(step, unnamed=unnamed, system="m"), spy, guards_stream=guards)


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
    window = load(b"")
    window.pending_repeats, window.awaits_result = owed, waits
    made = block(unnamed=bool(unnamed))
    assert made.awaits_answer(call(), Evaluation(window.dump(), 0)) is bool(hears)


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
    assert op.owner.action == "steer"
    assert isinstance(op.owner, Detection)
    assert op.owner.evidence == f"the same 5 times; {OVERLAP}"
    shown = block(2, step=STEP._replace(call_ids=("call_1",)))
    assert isinstance(shown.operation(asked, judged, "project", 0), CountFingerprint)  # ids tell conversations apart


def test_where_two_conversations_were_taken_for_one_a_block_is_only_noted() -> None:
    """Two unnamed ones that open alike; a loop that goes on and on is stopped all the same (C-7)."""
    judged = Evaluation(b"", 2, "repeat", "the same 5 times", "ab" * 8, True, ambiguous=True)
    op = block().operation(call(), judged, "project", 0)
    assert isinstance(op, Observation)
    assert isinstance(op.owner, Detection)
    assert op.owner.evidence == f"the same 5 times; {AMBIGUOUS}"
    assert isinstance(block().operation(call(), changed(judged, level=3), "project", 0), CountFingerprint)


def test_answers_to_those_who_are_left_alone_are_not_watched() -> None:
    """An allow list holds for the stream guard too (LD-6, LD-8)."""
    made = StepsDetector(allowing(BLOCK), Reader(), Spy(0), guards_stream=True)  # type: ignore[arg-type]
    for now, said in ((7.0, 0), (10.0, CUT_STREAM)):
        asked = call(body=b"{}")
        made.plan(asked, "project", 0, now)
        assert asked.decision.guards_stream == said


def test_the_detector_learns_what_else_is_known() -> None:
    """Whether its answer will be told, whether its session has a name, and who speaks (LD-4)."""
    asked = call(body=b"{}")
    asked.tracked = True
    spy = Spy(0)
    made = block()
    made._evaluator = spy  # type: ignore[assignment]
    made.evaluate(asked, b"", 7.0)
    [view] = spy.views
    assert (view.tracked, view.unnamed, view.body, view.system()) == (True, True, b"{}", "m")


def test_a_crowd_does_not_matter_to_a_conversation_that_is_known() -> None:
    """Its answers show that nobody else shares its session (LD-4)."""
    asked, made = call(), block(2)
    asked.decision.crowded = asked.decision.alone = True
    judged = made.evaluate(asked, b"", 7.0)
    assert judged is not None
    assert isinstance(made.operation(asked, judged, "project", 0), CountFingerprint)


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
    [
        (False, (0,), 0),
        (True, (0,), CUT_STREAM),
        (True, (3,), REPORT_STREAM),
        (True, (3, 0), CUT_STREAM),
        (True, (0, 3), CUT_STREAM),
    ],
    ids=["off", "enforced", "shadow", "both", "both, enforced first"],
)
def test_the_answer_is_watched_too(guards: bool, groups: tuple[int, ...], said: int) -> None:
    """Cut where a block is enforced, only told where all are in shadow (LD-8)."""
    asked, made = call(body=b"{}"), block(guards=guards)
    for group in groups:
        made.plan(asked, "project", group, 7.0)
    assert asked.decision.guards_stream == said


def test_announced_repeats_are_no_loop() -> None:
    """Up to the number that a caller whom the policy names has announced (LD-6)."""
    judged = Evaluation(b"", 2, "repeat", "the same 5 times", "ab" * 8, True, hits=5.0)
    config = replace(BLOCK, expect_repeats=frozenset({"caller"}))
    for caller, number, denied in (("caller", b"5", False), ("caller", b"4", True), ("other", b"5", True)):
        made = StepsDetector(config, Reader(caller_id=caller), Spy(2))  # type: ignore[arg-type]
        asked = call(headers={"x-breakloop-expect-repeats": number})
        assert (made.operation(asked, judged, "project", 0) is not None) is denied


@pytest.mark.parametrize(("max_tokens", "body", "opens", "judged"), [
    (1, 1024, True, False), (1, 1025, True, True), (2, 10, True, True), (None, 10, True, True), (1, 10, False, True),
])  # fmt: skip
def test_a_ping_is_not_evaluated(max_tokens: int | None, body: int, opens: bool, judged: bool) -> None:
    """A small request that opens a conversation and asks for one token (LD-4)."""
    asked = call(body=b" " * body)
    asked.parsed.chat = Chat("openai_chat", "m", (), 1, max_tokens=max_tokens)
    step = STEP if opens else STEP._replace(said="Yes?")
    assert (block(step=step).evaluate(asked, b"", 7.0) is not None) is judged


def test_what_a_named_session_tells() -> None:
    """Its name and whether others came in between; its body is not searched for ids (LD-4)."""
    spy, made = Spy(0), block(unnamed=False)
    made._evaluator = spy  # type: ignore[assignment]
    for session, interrupted in ((None, False), ("mine", True)):
        asked = call(body=b"{}")
        asked.identity.session, asked.decision.interrupted = session, interrupted
        made.evaluate(asked, b"", 7.0)
    views = [(view.tracked, view.unnamed, view.session, view.body, view.interrupted) for view in spy.views]
    assert views == [(False, False, "", b"", False), (False, False, "mine", b"", True)]


def test_a_call_without_a_session_has_no_window() -> None:
    """Others have one by the name of the session (LD-4)."""
    config: Any = Spy(0)
    assert StepsDetector(BLOCK, Reader(session_id=""), config).owner(call()) == ""
    assert StepsDetector(BLOCK, Reader(session_id="me"), config).owner(call()) == "s:me"


@pytest.mark.parametrize("guards", [CUT_STREAM, RETRY_STREAM], ids=["cut", "retry"])
def test_what_is_done_with_a_stream_that_repeats_itself(guards: int) -> None:
    """It is cut or retried where a block is enforced and there is a body; without `stream_guard`, nothing (LD-8)."""
    spy: Any = Spy(0)
    for made, body, said in (
        (StepsDetector(BLOCK, Reader(), spy, guards_stream=guards), b"{}", guards),
        (StepsDetector(BLOCK, Reader(), spy, guards_stream=guards), b"", 0),
        (StepsDetector(BLOCK, Reader(), spy), b"{}", 0),
    ):
        asked = call(body=body)
        made.plan(asked, "project", 0, 7.0)
        assert asked.decision.guards_stream == said
    assert len({0, CUT_STREAM, REPORT_STREAM, RETRY_STREAM}) == 4


@pytest.mark.parametrize(
    ("kind", "copied", "denied"),
    [("rejected", True, False), ("continue", True, False), ("nested", True, False), ("rejected", False, True),
     ("repeat", True, True)],
)  # fmt: skip
def test_a_text_that_is_the_answer_of_another_agent(kind: str, copied: bool, denied: bool) -> None:
    """Its repeats are only reported: whoever sends it on did not write it (C-7)."""
    asked = call()
    asked.decision.copied = copied
    op = block().operation(asked, Evaluation(b"", 2, kind, "the same 5 times", "ab" * 8, True), "project", 0)
    assert isinstance(op, CountFingerprint if denied else Observation)
    assert isinstance(op.owner, Detection)
    assert (COPIED in op.owner.evidence) is not denied


@pytest.mark.parametrize(("level", "ambiguous", "crowded"), [(0, True, True), (1, True, False), (1, False, True)])
def test_a_notice_stays_a_notice(level: int, ambiguous: bool, crowded: bool) -> None:
    """It needs no remark that it is only reported; nothing found is no operation (C-7)."""
    asked = call()
    asked.decision.crowded = crowded
    judged = Evaluation(b"", level, "repeat", "the same 3 times", "ab" * 8, True, hits=3.0, ambiguous=ambiguous)
    op = block().operation(asked, judged, "project", 0)
    assert (op is None) is (not level)
    if op is not None:
        assert isinstance(op, Observation)
        assert isinstance(op.owner, Detection)
        assert op.owner.evidence == "the same 3 times"
