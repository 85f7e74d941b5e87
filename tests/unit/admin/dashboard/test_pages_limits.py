"""Breakers, kill switches, overrides and counters on one page (CB-2, K-3)."""

from __future__ import annotations

from breakloop.errors import StateError
from tests.admin_client import browser
from tests.admin_world import empty, full


def test_what_there_is() -> None:
    text = browser(full())[0].get("/limits").text
    for said in ("header:x-team=blue", "$7", "in 3 min", "drops tables", "/ask/switch.lift?id=", "/ask/breaker.reset?policy=spend-guard", "global_shadow"):  # fmt: skip
        assert said in text, said
    assert text.count("/ask/breaker.reset") == 2  # the open one: the link, and for the dialog


def test_counters_by_prefix() -> None:
    made, _ = browser(full())
    text = made.get("/limits?prefix=budget:").text
    assert "$802.00 of $1,000.00" in text
    assert "fair-use:per-agent" not in text
    assert "No counters with such keys" in made.get("/limits?prefix=zzz").text


def test_a_store_that_is_away() -> None:
    """It is said, and the rest of the page is there."""
    world = full()

    async def away() -> list[object]:
        raise StateError("no connection")

    world.services.breakers = away  # type: ignore[assignment]
    answer = browser(world)[0].get("/limits?prefix=b")
    assert answer.status_code == 200
    assert "The store is unavailable: no connection" in answer.text
    assert "drops tables" in answer.text


def test_budgets_of_trees() -> None:
    """What each tree has spent, what is left, and an operator can reset it (G-6)."""
    text = browser(full())[0].get("/limits").text
    for said in ("nightly-refactor", "$19.40", "$0.60", "nearly used up", "4.81M", "/ask/tree_budget.reset?project="):
        assert said in text, said
    assert "Budgets of trees" not in browser(empty())[0].get("/limits").text
