"""The budgets of trees as operators see them (G-6)."""

from __future__ import annotations

import pytest

from breakloop.engine.tree_budgets import TreeSpending
from breakloop.errors import StateError
from breakloop.sdk.core import run_blocking
from tests.builders import START, FailingStore, bundle, world
from tests.unit.engine.test_engine_trees import REASON, answered, ask, everyone, said, trees


def test_nothing_is_listed_without_such_a_budget() -> None:
    here = trees(worker={"max_usd_per_run": 1.0})
    said(here, ask())
    assert run_blocking(here.tree_budgets.states()) == []


def test_each_tree_once_the_dearest_first() -> None:
    """Dollars and tokens of one tree are one row, with what is reserved; names with separators stay apart."""
    here = everyone(max_usd_per_tree=0.1, max_tokens_per_tree=100_000)
    first = ask("a:b|c")
    said(here, ask("cheap"), first, ask("child", "a:b|c"))
    answered(here, first, 2000)
    here.clock.advance(7)
    said(here, ask("child", "a:b|c"))
    listed = run_blocking(here.tree_budgets.states())
    assert [(one.root, one.microusd, one.tokens) for one in listed] == [
        ("a:b|c", 38_000, 7000),
        ("cheap", 10_000, 2000),
    ]
    assert {(one.project, one.microusd_limit, one.tokens_limit) for one in listed} == {("default", 100_000, 100_000)}
    assert [one.last_at - START for one in listed] == [7, 0]
    assert listed[0].left == (62_000, 93_000)
    assert listed[0].share == pytest.approx(0.38)
    assert listed[0].caller.startswith("key:")


def test_the_highest_limit_is_shown() -> None:
    """An agent without a limit may spend more than any other; then nothing is left."""
    here = trees(lead={"max_usd_per_tree": 0.02}, other={"max_usd_per_tree": 0.01})
    said(here, *[ask("child", "root", agent="free") for _ in range(3)])
    [one] = run_blocking(here.tree_budgets.states())
    assert (one.microusd, one.microusd_limit, one.tokens_limit, one.left) == (30_000, 20_000, None, (0, None))


def test_only_tokens_are_limited() -> None:
    """Then no money is counted, and none is left to tell (G-6)."""
    here = everyone(max_tokens_per_tree=100_000)
    said(here, ask())
    [one] = run_blocking(here.tree_budgets.states())
    assert (one.microusd, one.microusd_limit, one.tokens_limit, one.left[0]) == (0, None, 100_000, None)


def test_a_reset_gives_the_whole_budget_again() -> None:
    here = everyone(max_usd_per_tree=0.01, max_tokens_per_tree=100_000)
    assert said(here, ask(), ask("child", "root"), ask("root2"), ask("root2")) == ["", REASON, "", REASON]
    before = run_blocking(here.tree_budgets.states())[0]
    tree = (before.project, before.caller, before.root)
    assert run_blocking(here.tree_budgets.reset(*tree)) == before
    assert run_blocking(here.tree_budgets.reset(*tree)) is None
    assert said(here, ask("child", before.root), ask()) == ["", REASON]
    assert run_blocking(here.tree_budgets.reset("default", before.caller, "no such")) is None


def test_a_tree_that_has_ended_is_not_listed() -> None:
    here = everyone(max_usd_per_tree=1)
    said(here, ask())
    here.clock.advance(43_199)
    assert len(run_blocking(here.tree_budgets.states())) == 1
    here.clock.advance(1)
    assert run_blocking(here.tree_budgets.states()) == []


def test_a_store_that_fails() -> None:
    here = world(bundle(agents={"*": {"max_usd_per_tree": 1}}), store=FailingStore())
    with pytest.raises(StateError):
        run_blocking(here.tree_budgets.states())


def test_without_a_limit_nothing_is_nearly_used_up() -> None:
    assert TreeSpending("p", "c", "r", 5, None, 7, None, 0.0).share == 0.0
