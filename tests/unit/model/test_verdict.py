"""The verdict's defaults: whatever is not said changes nothing for the client."""

from __future__ import annotations

from dataclasses import replace

import pytest

from breakloop.model.verdict import LimitState, LoopFinding, ShadowFinding, Verdict


def test_a_plain_verdict_allows() -> None:
    """And asks for no header at all (A-5)."""
    verdict = Verdict()
    assert (verdict.allowed, verdict.status, verdict.reason) == (True, 200, "all_rules_passed")
    assert (verdict.retry_after_s, verdict.retry_jitter, verdict.never, verdict.delay_ms) == (None, False, False, 0)
    assert (verdict.limit, verdict.loop, verdict.warning, verdict.note, verdict.shadow) == (None, None, "", "", ())
    assert not verdict.degraded


def test_it_has_no_room_for_more() -> None:
    """A field that nobody knows cannot be slipped in (E-7)."""
    with pytest.raises(AttributeError):
        Verdict().colour = "red"  # type: ignore[attr-defined]


def test_what_it_carries_cannot_be_changed() -> None:
    """Findings are values (E-7)."""
    loop = LoopFinding("tail", "f", 6, 60, 30, "reject", fresh=True, message="", evidence="")
    with pytest.raises(AttributeError):
        loop.hit_count = 1  # type: ignore[misc]
    with pytest.raises(AttributeError):
        ShadowFinding("p", "r", "kill_switch", "deny").policy = "q"  # type: ignore[misc]
    assert replace(LimitState("p", 10, 1, 9, 1), reset_s=5) == LimitState("p", 10, 1, 9, 5)
