"""`max_steps_per_run`: a ceiling that nothing resets but an operator."""

from __future__ import annotations

from breakloop.detect.counting import DetectorConfig
from breakloop.detect.run_steps import RunStepsLimit
from breakloop.detect.stateful import DetectorSlot
from breakloop.model.call import Answer, Step
from breakloop.model.verdict import Verdict
from breakloop.store.ops import Deny
from tests.builders import call
from tests.unit.detect.reading import STEP, Reader


def ceiling(max_steps: int = 3, *, step: Step | None = STEP) -> RunStepsLimit:
    config = DetectorConfig("run", "agents", 0, ("reject", "reject", "reject"), 429, setting="max_steps_per_run")
    return RunStepsLimit(config, Reader(step), max_steps)


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
    fresh, over = counted(made, window, 602.0)
    assert not over
    assert counted(made, fresh, 603.0)[1] is False
    window, over = counted(made, window, 3.0)
    assert over
    assert counted(made, window, 9000.0)[1] is True


def test_a_failed_answer_gives_its_step_back() -> None:
    made = ceiling(1)
    window, _ = counted(made, b"", 0.0)
    assert made.answered(window, Answer(200)) is window
    window = made.answered(window, Answer(503))
    assert counted(made, window, 1.0)[1] is False
    assert made.answered(b"", Answer(503)) == b""


def test_a_foreign_window_counts_as_new() -> None:
    assert counted(ceiling(1), b"nonsense", 0.0)[1] is False


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
