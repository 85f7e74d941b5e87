"""What blocks with a memory have in common."""

from __future__ import annotations

import pytest

from breakloop.detect.counting import AllowList, DetectorConfig, DetectorIdentity
from breakloop.detect.stateful import CallReaders, DetectorSlot, SeverityActions, StatefulDetector, section_tags
from breakloop.model.call import Answer, Step
from breakloop.store.ops import CountFingerprint
from tests.builders import call
from tests.unit.detect.test_stateful_seen import SPEC, Found

STEP = Step("", (), (), (), ("hello",), (), 1, 10)
WHO = DetectorIdentity(lambda _: "caller", lambda _: "agent", lambda _: ())


def block(*, allow: AllowList | None = None, step: Step | None = STEP) -> StatefulDetector:
    config = DetectorConfig("steps", "p", 0, "reject", 429, frozenset(), allow)
    ladder = SeverityActions(config, ("warn", "reject", "reject"), SPEC, WHO)
    return StatefulDetector(config, ladder, CallReaders(lambda _: step, lambda _: "s:me", WHO), "part:")


def test_a_watch_stands_for_it_until_the_window_is_read() -> None:
    made = block()
    watch = made.plan(call(), "project", 3, 7.0)
    assert isinstance(watch, DetectorSlot)
    assert (watch.detector, watch.group) == (made, 3)
    assert made.owner(call()) == "s:me"
    assert made.tags == section_tags(made.config, "part:")


def test_calls_without_a_step_are_not_looked_at() -> None:
    assert block(step=None).newest(call(), 7.0) is None
    assert block().newest(call(), 7.0) is STEP


def test_allow_lists_hold() -> None:
    """A snoozed agent is left alone until its time (LD-6)."""
    allow = AllowList({}, {"agent": 10.0}, {}, {}, {})
    assert block(allow=allow).newest(call(), 7.0) is None
    assert block(allow=allow).newest(call(), 10.0) is STEP


def test_what_it_found_goes_up_the_ladder() -> None:
    op = block().operation(call(), Found(level=2), "project", 0)
    assert isinstance(op, CountFingerprint)
    assert block().operation(call(), Found(level=0), "project", 0) is None


def test_answers_change_nothing_by_themselves() -> None:
    window = b"memory"
    assert block().answered(window, Answer(200)) is window
    assert not block().awaits_answer(call(), None)


def test_looking_is_for_those_who_inherit() -> None:
    with pytest.raises(NotImplementedError):
        block().evaluate(call(), b"", 7.0)


def test_nobody_cools_down_for_somebody_elses_loop() -> None:
    """Whose loop it is stands in the key of its cooldown (LD-6)."""
    op = block().operation(call(), Found(), "project", 0)
    assert isinstance(op, CountFingerprint)
    assert op.key == "cnt:project:s:me:p:0:" + "ab" * 8
