"""Policies with what they would have denied (X-2)."""

from __future__ import annotations

from tests.admin_client import LOOKS, browser
from tests.admin_records import NOW
from tests.admin_world import empty, full


def test_the_report_and_the_button() -> None:
    text = browser(full())[0].get("/policies").text
    assert ">12</b> requests" in text
    assert "Here they are" in text
    assert text.count("Would have denied</span>") == 12
    assert text.count("/ask/policy.promote?policy=support-shadow") == 2  # the link, and for the dialog
    assert "policy.promote" not in browser(full(), LOOKS)[0].get("/policies").text


def test_rules_in_words() -> None:
    text = browser(full())[0].get("/policies").text
    assert "10 requests a second, 40 at once" in text
    assert "llm tokens, by <code>agent:id</code> and <code>llm:model</code>" in text
    assert "exact: 5 identical requests in 60 s are rejected" in text


def test_overrides_and_refusals_are_said() -> None:
    world = full()
    world.operator.set_override("global_shadow", "roll-out", NOW + 60, "ada")
    world.bundles.current = lambda: {"version": 14, "problems": [{"message": "rules is empty", "line": 3}]}  # type: ignore[method-assign]
    text = browser(world)[0].get("/policies").text
    assert "global_shadow</b> is on: roll-out" in text
    assert "rejected: rules is empty" in text


def test_none() -> None:
    assert "breakloop init" in browser(empty())[0].get("/policies").text
