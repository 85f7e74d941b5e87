"""Conversations without a name, judged by caller and agent."""

from __future__ import annotations

from breakloop.detect.counting import AllowList, DetectorConfig, DetectorIdentity
from breakloop.detect.stateful import CallReaders, SeverityActions
from breakloop.detect.unnamed_sessions import LaneEvaluation, UnnamedSessionsDetector
from breakloop.model.call import Answer, Step, ToolCall
from breakloop.store.ops import FingerprintSpec
from tests.builders import call

WHO = DetectorIdentity(lambda _: "caller", lambda _: "agent", lambda _: ())
SPEC = FingerprintSpec(60.0, 1, sliding=True, cooldown_s=30.0, at_once=True)
PLAIN = Step("", (), (), (), ("hello",), (), 1, 10)
ACTS = PLAIN._replace(calls=(ToolCall("look", "{}"),))


class Spy:
    """Tells what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    def judge(self, window: bytes, session: str, lane: str, _step: Step, _now: float) -> LaneEvaluation:
        self.asked.append((session, lane))
        return LaneEvaluation(window, 0, crowded=True)


def block(spy: Spy, step: Step | None = PLAIN, allow: AllowList | None = None) -> UnnamedSessionsDetector:
    config = DetectorConfig("steps", "p", 0, "reject", 429, frozenset(), allow)
    ladder = SeverityActions(config, ("warn", "reject", "reject"), SPEC, WHO)
    reads = CallReaders(lambda _: step, lambda _: "a:me", WHO)
    return UnnamedSessionsDetector(config, ladder, reads, spy, session=lambda _: "s", lane=lambda _: "model and prompt")  # type: ignore[arg-type]


def test_the_call_learns_that_it_is_in_a_crowd() -> None:
    """Two derived sessions overlapped (LD-4)."""
    asked, spy = call(), Spy()
    window = b"memory"
    judged = block(spy).evaluate(asked, window, 7.0)
    assert judged is not None
    assert judged.window is window
    assert asked.decision.crowded
    assert spy.asked == [("s", "model and prompt")]
    assert block(spy).answered(window, Answer(200, "said")) is window


def test_where_tools_are_at_work_the_lane_is_not_read() -> None:
    """Reading a system prompt costs, and a lane is about prompts."""
    spy = Spy()
    block(spy, ACTS).evaluate(call(), b"", 7.0)
    assert spy.asked == [("s", "")]


def test_others_are_left_alone() -> None:
    spy = Spy()
    assert block(spy, None).evaluate(call(), b"", 7.0) is None
    assert block(spy, PLAIN, AllowList({}, {"agent": 10.0}, {}, {}, {})).evaluate(call(), b"", 7.0) is None
    assert spy.asked == []


def test_ids_of_calls_tell_conversations_apart_by_themselves() -> None:
    """Where they are there, no lane is read or written (Q-1)."""
    assert block(Spy(), PLAIN).owner(call()) == "a:me"
    assert block(Spy(), ACTS).owner(call()) == "a:me"
    assert block(Spy(), ACTS._replace(call_ids=("call_1",))).owner(call()) == ""
    assert block(Spy(), None).owner(call()) == ""
