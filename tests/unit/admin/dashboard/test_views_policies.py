"""Policies in words, with what those in shadow mode would have denied (X-2)."""

from __future__ import annotations

from breakloop.admin.dashboard import views
from tests import admin_records
from tests.admin_world import POLICIES

COUNTS = [("support-shadow", "loop", "loop_detected", 4), ("support-shadow", "per-agent", "token_bucket_exceeded", 8), ("x", "y", "z", 1)]  # fmt: skip


def test_shadow_first_with_its_report() -> None:
    """What waits for a decision comes first: 12 would have been blocked, and here they are."""
    found = views.policies(POLICIES, COUNTS, admin_records.events())
    assert [one["id"] for one in found] == ["support-shadow", "builtin-steps", "fair-use", "spend-guard"]
    shadow = found[0]["shadow"]
    assert (found[0]["in_shadow"], found[1]["in_shadow"]) == (True, False)
    assert shadow["total"] == 12
    assert [(rule, reason, times) for rule, reason, _, times in shadow["parts"]] == [
        ("per-agent", "token_bucket_exceeded", 8),
        ("loop", "loop_detected", 4),
    ]
    assert shadow["parts"][0][2].startswith("More requests")
    assert "`" not in shadow["parts"][1][2]
    assert {one.name for one in shadow["events"]} == {"shadow.would_reject"}
    assert len(shadow["events"]) == 12
    assert found[1]["shadow"]["total"] == 0
