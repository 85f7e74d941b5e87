"""Policies in words, with what those in shadow mode would have denied (X-2)."""

from __future__ import annotations

from breakloop.admin.dashboard import views
from tests import admin_records
from tests.admin_world import POLICIES

COUNTS = [("support-shadow", "loop", "loop_detected", 4), ("support-shadow", "per-agent", "token_bucket_exceeded", 8), ("x", "y", "z", 1)]  # fmt: skip


def test_shadow_first_with_its_report() -> None:
    """What waits for a decision comes first: 12 would have been blocked, and here they are."""
    found = views.policies(POLICIES, COUNTS, admin_records.events())
    assert [one.id for one in found] == ["support-shadow", "builtin-steps", "fair-use", "spend-guard"]
    shadow = found[0].shadow
    assert (found[0].in_shadow, found[1].in_shadow) == (True, False)
    assert shadow.total == 12
    assert [(rule, reason, times) for rule, reason, _, times in shadow.parts] == [
        ("per-agent", "token_bucket_exceeded", 8),
        ("loop", "loop_detected", 4),
    ]
    assert shadow.parts[0][2].startswith("More requests")
    assert "`" not in shadow.parts[1][2]
    assert {one.name for one in shadow.events} == {"shadow.would_reject"}
    assert len(shadow.events) == 12
    assert found[1].shadow.total == 0


def test_rules_in_words() -> None:
    rules = views.policies(POLICIES, (), ())[2].rules
    assert rules[0].said == "10 requests a second, 40 at once"
    assert (rules[1].algorithm, rules[1].keys) == ("llm tokens", ("agent:id", "llm:model"))


def test_other_forms_are_shown_rather_than_left_out() -> None:
    """A bundle of another version may say things in another form."""
    given = {"id": "a", "selector": {"path_prefix": "/v1", "methods": ["GET", "POST"]}, "rules": [{"name": "r", "burst": 3}, "odd"], "loop_detection": [{"kind": "exact", "on": True}, ""]}  # fmt: skip
    one = views.policies([given], (), ())[0]
    assert one.selector == "path prefix /v1, methods GET, POST"
    assert one.rules[0].said == "burst 3"
    assert one.rules[1].name == "odd"
    assert one.loops == ("kind exact, on yes",)
    assert views.policies([{}], (), ())[0].selector == "everything"
