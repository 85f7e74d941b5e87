"""The public errors: what they carry, and that they travel."""

from __future__ import annotations

import copy

import openai
import pytest

from breakloop.errors import BreakloopError
from breakloop.exceptions import DeniedError, LoopDetectedError, error_for
from breakloop.model.decision import Decision

LOOP = Decision(
    allowed=False,
    reason="loop_detected",
    status=429,
    message="Blocked: the same 6 times.",
    retry_after=30,
    kind="tail",
    hit_count=6,
    cooldown_seconds=30,
    fingerprint="ab" * 16,
    evidence="same last messages",
    _handle=object(),
)


def test_a_loop_carries_what_is_known() -> None:
    """Each field by its public name (P-1)."""
    error = error_for(LOOP)
    assert isinstance(error, LoopDetectedError)
    assert isinstance(error, BreakloopError)
    assert (error.hit_count, error.cooldown_seconds, error.fingerprint) == (6, 30, "ab" * 16)
    assert (error.kind, error.evidence, error.message) == ("tail", "same last messages", "Blocked: the same 6 times.")
    assert error.decision is LOOP
    assert str(error) == "Blocked: the same 6 times. (recursive_loop_detected)"


def test_other_denials_are_no_loops() -> None:
    """`DeniedError`, which catches both (P-1)."""
    error = error_for(Decision(allowed=False, reason="budget_exceeded", message="Spent.", retry_after=60))
    assert type(error) is DeniedError
    assert (error.reason, error.retry_after, str(error)) == ("budget_exceeded", 60, "Spent. (budget_exceeded)")
    assert issubclass(LoopDetectedError, DeniedError)


@pytest.mark.parametrize("decision", [LOOP, Decision(allowed=False, reason="kill_switch", message="No.")])
def test_errors_travel_between_processes(decision: Decision) -> None:
    """Without the request that is behind them (P-1)."""
    error = error_for(decision)
    arrived = copy.copy(error)  # by the same way as when it is pickled
    assert type(arrived) is type(error)
    assert str(arrived) == str(error)
    assert arrived.decision == decision
    assert arrived.decision._handle is None


def test_the_plain_error_is_not_an_sdks() -> None:
    """Only what the drop-in clients raise is (P-2)."""
    assert not issubclass(LoopDetectedError, openai.RateLimitError)
