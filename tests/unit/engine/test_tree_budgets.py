"""The budgets of trees as operators see them (G-6)."""

from __future__ import annotations

import pytest

from breakloop.engine.breakers import LocalLimits
from breakloop.engine.tree_budgets import TreeBudgets, TreeSpending
from breakloop.errors import StateError
from breakloop.sdk.core import run_blocking
from tests.builders import START, FailingStore, Json, bundle, world
from tests.unit.engine.test_engine_trees import REASON, answered, ask, everyone, priced, said, trees


def spending(microusd: int, microusd_limit: int | None, tokens: int, tokens_limit: int | None) -> TreeSpending:
    return TreeSpending("p", "c", "r", microusd, microusd_limit, tokens, tokens_limit, last_at=0.0, shadow=False)


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
    assert spending(5, None, 7, None).share == 0.0


def test_the_limit_that_is_nearer_counts() -> None:
    """Of dollars and tokens, the one of which the larger share is spent; the other may have no limit (G-6)."""
    spent = [(50, 100, 20, 100), (20, 100, 50, 100), (50, 100, 90, None), (90, None, 50, 100), (101, 100, 50, 100)]
    assert [spending(*one).share for one in spent] == [0.5, 0.5, 0.5, 0.5, 1.01]


def test_what_is_left_of_a_limit() -> None:
    """Nothing once it is reached, and no less than that (G-6)."""
    assert [spending(0, 10, used, 10).left for used in (0, 9, 10, 11)] == [(10, 10), (10, 1), (10, 0), (10, 0)]


def test_trees_that_have_spent_the_same_are_listed_by_their_root() -> None:
    """So that the list of a dashboard does not change from one look to the next (G-6)."""
    here = everyone(max_usd_per_tree=0.1)
    said(here, ask("c"), ask("a"), ask("b"))
    assert [one.root for one in run_blocking(here.tree_budgets.states())] == ["a", "b", "c"]


def test_trees_of_global_shadow_are_listed_last() -> None:
    """They are not enforced, so the others matter more, however little they have spent (G-6, K-1)."""
    shadow = {"enabled": True, "reason": "a test", "expires_at": "2099-01-01T00:00:00Z"}
    agents: Json = {"*": {"max_usd_per_tree": 0.1}}
    here = priced(bundle(agents=agents, global_shadow=shadow))
    said(here, ask("quiet"), ask("quiet"))
    here.use(bundle(agents=agents))
    said(here, ask("strict"))
    listed = run_blocking(here.tree_budgets.states())
    assert [(one.root, one.shadow, one.microusd) for one in listed] == [
        ("strict", False, 10_000),
        ("quiet", True, 20_000),
    ]
    # A reset is for what is enforced.
    quiet = listed[1]
    assert run_blocking(here.tree_budgets.reset(quiet.project, quiet.caller, quiet.root)) is None
    assert run_blocking(here.tree_budgets.states()) == listed


def test_so_many_trees_are_listed_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """Enforced ones and those of global shadow together (G-6)."""
    monkeypatch.setattr("breakloop.engine.tree_budgets.LISTED_MAX", 2)
    here = everyone(max_tokens_per_tree=100_000)
    said(here, ask("a"), ask("b"))
    assert len(run_blocking(here.tree_budgets.states())) == 2
    shadow = {"enabled": True, "reason": "a test", "expires_at": "2099-01-01T00:00:00Z"}
    here.use(bundle(agents={"*": {"max_tokens_per_tree": 100_000}}, global_shadow=shadow))
    said(here, ask("c"))
    assert [one.root for one in run_blocking(here.tree_budgets.states())] == ["a", "b"]


def test_a_budget_that_is_no_longer_set() -> None:
    """Nothing is listed. What a tree has spent can be reset, so that it does not count if the budget is set again."""
    here = everyone(max_usd_per_tree=0.01)
    said(here, ask())
    [before] = run_blocking(here.tree_budgets.states())
    here.use(bundle())
    assert run_blocking(here.tree_budgets.states()) == []
    found = run_blocking(here.tree_budgets.reset(before.project, before.caller, before.root))
    assert found is not None
    assert (found.microusd, found.microusd_limit, found.share) == (10_000, None, 0.0)
    here.use(bundle(agents={"*": {"max_usd_per_tree": 0.01}}))
    assert said(here, ask()) == [""]


def test_without_a_bundle_there_are_no_budgets() -> None:
    """Before the first one is loaded (G-6)."""
    here = everyone(max_usd_per_tree=0.01)
    said(here, ask())
    [before] = run_blocking(here.tree_budgets.states())
    unset = TreeBudgets(LocalLimits(here.store, here.clock), lambda: None)
    assert run_blocking(unset.states()) == []
    found = run_blocking(unset.reset(before.project, before.caller, before.root))
    assert found is not None
    assert (found.microusd, found.microusd_limit) == (10_000, None)
