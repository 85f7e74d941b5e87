"""`max_steps_per_run`: a ceiling that nothing resets but an operator."""

from __future__ import annotations

import struct
from collections.abc import Iterable

import pytest

from breakloop.detect.counting import DetectorConfig
from breakloop.detect.run_steps import Ceiling, RunStepsLimit
from breakloop.detect.stateful import DetectorSlot, Evaluation
from breakloop.model.call import Answer, Step
from breakloop.model.verdict import Verdict
from breakloop.store.ops import Deny, Observation
from tests.builders import call
from tests.unit.detect.reading import STEP, Reader


def ceiling(
    max_steps: int = 3, *, step: Step | None = STEP, stages: Iterable[tuple[float, str, int]] = ()
) -> RunStepsLimit:
    config = DetectorConfig("run", "agents", 0, ("reject", "reject", "reject"), 429, setting="max_steps_per_run")
    return RunStepsLimit(config, Reader(step), max_steps, stages)


def counted(made: RunStepsLimit, window: bytes, at: float) -> tuple[bytes, bool]:
    looked = made.evaluate(call(), window, at)
    assert looked is not None
    return looked.window, isinstance(made.operation(call(), looked, "p", 0), Deny)


def test_the_one_after_the_last_is_refused() -> None:
    """Every call counts, whatever it says (G-1, C33)."""
    made, window, refused = ceiling(), b"", []
    for at in range(5):
        window, over = counted(made, window, 1000.0 + at)
        refused.append(over)
    assert refused == [False, False, False, True, True]


def test_idle_minutes_begin_a_new_run_but_not_beyond_the_ceiling() -> None:
    """Ten idle minutes end a run; one that is at its ceiling stays there (G-1)."""
    made = ceiling()
    window = counted(made, counted(made, counted(made, b"", 0.0)[0], 1.0)[0], 2.0)[0]
    fresh, refused = window, []
    for at in range(4):
        fresh, over = counted(made, fresh, 602.0 + at)
        refused.append(over)
    assert refused == [False, False, False, True]
    assert counted(made, window, 601.5)[1] is True  # half a second less
    window, over = counted(made, window, 3.0)
    assert over
    assert counted(made, window, 9000.0)[1] is True


def test_a_failed_answer_gives_its_step_back() -> None:
    made = ceiling(1)
    looked = made.evaluate(call(), b"", 0.0)
    assert looked is not None
    assert made.awaits_answer(call(), looked)
    window = looked.window
    assert made.answered(window, Answer(200)) is window
    window = made.answered(window, Answer(503))
    assert counted(made, window, 1.0)[1] is False
    assert made.answered(b"", Answer(503)) == b""


def test_a_foreign_window_counts_as_new() -> None:
    window, over = counted(ceiling(1), b"nonsense", 0.0)
    assert not over
    assert counted(ceiling(1), window, 1.0)[1] is True


@pytest.mark.parametrize(("version", "refused"), [(0, False), (1, True), (2, False)])
def test_a_window_of_another_version_counts_as_new(version: int, refused: bool) -> None:
    """Version 1 is in stores, and stays readable (S-2)."""
    assert counted(ceiling(3), struct.pack("<BId", version, 3, 0.0), 1.0)[1] is refused


def test_the_highest_count() -> None:
    """It stays where it is (Y-2)."""
    window, refused = counted(ceiling(), struct.pack("<BId", 1, 2**32 - 1, 0.0), 1.0)
    assert (refused, struct.unpack("<BId", window)) == (True, (1, 2**32 - 1, 1.0))


def test_stages_before_the_ceiling() -> None:
    """Each begins at its share of the steps, rounded up; the highest that was reached counts (G-1)."""
    made, window, found = ceiling(10, stages=[(75.0, "pause", 0), (50.0, "land", 0)]), b"", []
    for at in range(11):
        looked = made.evaluate(call(), window, 1000.0 + at)
        assert looked is not None
        window = looked.window
        op = made.operation(call(), looked, "p", 3)
        if isinstance(op, Observation):
            assert isinstance(op.owner, Ceiling)
            found.append((at + 1, op.owner.action, op.group, op.ceiling))
        else:
            assert (op is not None) is (at == 10)
    landed = [(at, "land", 3, "50 % of the steps of this run are used.") for at in (5, 6, 7)]
    assert found == [*landed, *[(at, "pause", 3, "75 % of the steps of this run are used.") for at in (8, 9, 10)]]


def test_a_stage_of_many_steps() -> None:
    """Half of 300 is 150 (G-1)."""
    made = ceiling(300, stages=[(50.0, "land", 0)])
    ops = [made.operation(call(), Evaluation(b"", hits=hits), "p", 0) for hits in (149, 150)]
    assert [isinstance(op, Observation) for op in ops] == [False, True]


def test_other_requests_are_not_counted() -> None:
    assert ceiling(step=None).evaluate(call(), b"", 0.0) is None


def test_what_it_says() -> None:
    """The reason is in the closed list, and the words name the setting (A-4)."""
    made, verdict = ceiling(), Verdict(allowed=False)
    made.describe_denial(call(), verdict)
    assert made.denial_reason == "run_limit_exceeded"
    assert (verdict.status, verdict.policy, verdict.rule) == (429, "agents", "max_steps_per_run")
    assert verdict.message == (
        "This run has reached its ceiling: 3 steps (max_steps_per_run). A person has to release it."
    )
    watch = made.plan(call(), "p", 2, 0.0)
    assert isinstance(watch, DetectorSlot)
    assert (made.owner(call()), watch.group) == ("s:me", 2)
