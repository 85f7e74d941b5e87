"""Conversations that others began."""

from __future__ import annotations

import pytest

from breakloop.detect.counting import Identity, LoopTerms
from breakloop.detect.spawn import Begin, SpawnLoop
from breakloop.detect.stateful import Ladder, Reads
from breakloop.detect.steps import Judged
from breakloop.model.call import Call, Step, ToolCall
from breakloop.store.ops import RepeatSpec
from tests.builders import call

WHO = Identity(lambda _: "caller", lambda _: "agent", lambda _: ())
SPEC = RepeatSpec(60.0, 1, sliding=True, cooldown_s=30.0, at_once=True)
BEGINS = Step("", (), (), (), ("Find the bug.", "<context>of the harness</context>"), (), 1, 10)


class Spy:
    """Tells what it was asked."""

    def __init__(self) -> None:
        self.asked: list[Begin] = []

    def judge(self, window: bytes, begin: Begin, _now: float) -> Judged:
        self.asked.append(begin)
        return Judged(window, 1, "spawn", "the same task 4 deep", "ab" * 8, True)


def block(spy: Spy, step: Step | None) -> SpawnLoop:
    def begin(_call: Call, task: str) -> Begin:
        return Begin("s", "parent", "", "agent", task)

    terms = LoopTerms("steps", "p", 0, "reject", 429, frozenset(), None)
    ladder = Ladder(terms, ("warn", "reject", "reject"), SPEC, WHO)
    reads = Reads(lambda _: step, lambda _: "c:me", WHO)
    return SpawnLoop(terms, ladder, reads, spy, begin=begin)  # type: ignore[arg-type]


def test_a_conversation_that_begins_is_judged_by_its_task() -> None:
    spy = Spy()
    judged = block(spy, BEGINS).look(call(), b"", 7.0)
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
    assert block(spy, step).look(call(), b"", 7.0) is None
    assert spy.asked == []


def test_only_a_beginning_has_an_owner() -> None:
    """Nobody asks where a conversation comes from that is under way (Q-1)."""
    spy = Spy()
    assert block(spy, BEGINS).owner(call()) == "c:me"
    for step in (None, BEGINS._replace(said="I look."), BEGINS._replace(calls=(ToolCall("look", "{}"),))):
        assert block(spy, step).owner(call()) == ""
