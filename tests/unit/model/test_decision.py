"""`Decision`: what it says of itself."""

from __future__ import annotations

import pytest

from breakloop.model.decision import Decision


def test_a_plain_decision_allows_and_says_nothing() -> None:
    """Nothing to do, nothing to tell (D-4)."""
    decision = Decision()
    assert (decision.allowed, decision.is_loop, decision.notice, decision.delay_seconds) == (True, False, "", 0.0)


@pytest.mark.parametrize(
    ("decision", "notice"),
    [
        (Decision(warning="loop_detected", note="Stop that."), "Stop that."),
        (Decision(warning="loop_detected", evidence="`a` 3 times", hit_count=3), "You repeat yourself: `a` 3 times."),
        (Decision(warning="loop_detected", hit_count=4), "You repeat yourself: the same 4 times."),
        (Decision(warning="loop_detected"), "You repeat yourself: the same again."),
        (Decision(warning="budget"), ""),
        (Decision(allowed=False, reason="loop_detected", message="Blocked."), "Blocked. (recursive_loop_detected)"),
        (Decision(allowed=False, reason="kill_switch", message="Stopped."), "Stopped. (kill_switch)"),
    ],
)
def test_the_notice_is_what_a_model_should_read(decision: Decision, notice: str) -> None:
    """The note of a steer, else what was seen; a denial with its code (LD-5)."""
    assert decision.notice.startswith(notice)
    assert bool(decision.notice) == bool(notice)


def test_only_a_denied_loop_is_one() -> None:
    """Other reasons are not, and a warning is not (A-4)."""
    assert Decision(allowed=False, reason="loop_detected").is_loop
    assert not Decision(warning="loop_detected").is_loop
    assert not Decision(allowed=False, reason="budget_exceeded").is_loop


def test_content_is_not_shown() -> None:
    """What was asked about stays out of logs that print a decision (Y-1)."""
    assert "canary" not in repr(Decision(_handle="canary"))
