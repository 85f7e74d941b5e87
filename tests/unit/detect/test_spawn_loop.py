"""Conversations that others began."""

from __future__ import annotations

import pytest

from breakloop.detect.counting import DetectorConfig, DetectorIdentity
from breakloop.detect.spawn import RunStart, SpawnDetector
from breakloop.detect.stateful import CallReaders, SeverityActions
from breakloop.detect.steps import StepEvaluation
from breakloop.model.call import Call, Step, ToolCall
from breakloop.store.ops import FingerprintSpec
from tests.builders import call

WHO = DetectorIdentity(lambda _: "caller", lambda _: "agent", lambda _: ())
SPEC = FingerprintSpec(60.0, 1, sliding=True, cooldown_s=30.0, at_once=True)
BEGINS = Step("", (), (), (), ("Find the bug.", "<context>of the harness</context>"), (), 1, 10)


class Spy:
    """Tells what it was asked."""

    def __init__(self) -> None:
        self.asked: list[RunStart] = []

    def judge(self, window: bytes, begin: RunStart, _now: float) -> StepEvaluation:
        self.asked.append(begin)
        return StepEvaluation(window, 1, "spawn", "the same task 4 deep", "ab" * 8, True)


def block(spy: Spy, step: Step | None) -> SpawnDetector:
    def begin(_call: Call, task: str) -> RunStart:
        return RunStart("s", "parent", "", "agent", task)

    config = DetectorConfig("steps", "p", 0, "reject", 429, frozenset(), None)
    ladder = SeverityActions(config, ("warn", "reject", "reject"), SPEC, WHO)
    reads = CallReaders(lambda _: step, lambda _: "c:me", WHO)
    return SpawnDetector(config, ladder, reads, spy, begin=begin)  # type: ignore[arg-type]


def test_a_conversation_that_begins_is_judged_by_its_task() -> None:
    spy = Spy()
    judged = block(spy, BEGINS).evaluate(call(), b"", 7.0)
    assert judged is not None
    assert judged.level == 1
    assert [one.task for one in spy.asked] == ["Find the bug."]


@pytest.mark.parametrize(
    "step",
    [
        None,
        BEGINS._replace(said="I look."),
        BEGINS._replace(calls=(ToolCall("look", "{}"),)),
        BEGINS._replace(users=()),
    ],
)
def test_one_that_is_under_way_is_not(step: Step | None) -> None:
    spy = Spy()
    assert block(spy, step).evaluate(call(), b"", 7.0) is None
    assert spy.asked == []


def test_only_a_beginning_has_an_owner() -> None:
    """Nobody asks where a conversation comes from that is under way (Q-1)."""
    spy = Spy()
    assert block(spy, BEGINS).owner(call()) == "c:me"
    for step in (None, BEGINS._replace(said="I look."), BEGINS._replace(calls=(ToolCall("look", "{}"),))):
        assert block(spy, step).owner(call()) == ""
