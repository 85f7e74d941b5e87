"""`max_usd_per_tree` and `max_tokens_per_tree` through the engine: agents that started each other share one budget."""

from __future__ import annotations

from typing import Any

import pytest

from breakloop.engine.operator import Operator, hold_of, hold_value
from breakloop.engine.quarantine import hold_key
from breakloop.limits.tree_budget import KEPT_S
from breakloop.model.call import NO_ANSWER, Answer, Call, ToolCall, Usage
from breakloop.model.verdict import TreeBudgetState, Verdict
from breakloop.pricing.prices import ListedModel, Price, Prices
from breakloop.sdk.core import run_blocking
from breakloop.store.orders import HOLD, FileOrderStore, Order
from tests.builders import Json, SpyStore, World, bundle, call, chat_body, user, world

PRICE = Price(2_000_000, 8_000_000, None, None, None)  # $2 in, $8 out per million tokens
REASON = "tree_budget_exceeded"
TOOL = b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "search", "arguments": {}}}'


def priced(data: Json, unknown: Any = "warn") -> World:
    here = world(data, store=SpyStore())
    prices = Prices(ListedModel({"gpt-x": PRICE}, "a test"), unknown=unknown)
    here.engine.meter._prices = lambda: prices
    return here


def trees(**agents: Json) -> World:
    return priced(bundle(agents=agents))


def everyone(**settings: Any) -> World:
    return priced(bundle(agents={"*": settings}))


def ask(
    session: str = "root",
    parent: str = "",
    *,
    agent: str = "worker",
    key: str = "k",
    model: str = "gpt-x",
    max_tokens: int = 1000,
) -> Call:
    """A call that may cost $0.002 for its prompt of 1,000 tokens, and $0.000008 for each token of its answer: with
    1,000 of them one cent, and 2,000 tokens."""
    headers = {"authorization": f"Bearer {key}", "x-agent-id": agent, "x-agent-session": session}
    if parent:
        headers["x-agent-parent"] = parent
    body = chat_body(user("x" * 4000), model=model, max_tokens=max_tokens)
    made = call("/v1/chat/completions", "POST", headers, body=body)
    made.tracked = True
    return made


def said(here: World, *asked: Call) -> list[str]:
    verdicts = [here.engine.decide(one) for one in asked]
    return ["" if one.allowed else one.reason for one in verdicts]


def answered(here: World, asked: Call, output: int) -> None:
    here.engine.settle(asked, Answer(200, "ok", usage=Usage(1000, output), complete=True))


def left(verdict: Verdict) -> tuple[int | None, int | None]:
    assert isinstance(verdict.tree, TreeBudgetState)
    return verdict.tree.microusd_left, verdict.tree.tokens_left


def test_a_child_gets_what_is_left() -> None:
    """The root and the agents that it started share three cents; another tree has its own (G-6)."""
    here = everyone(max_usd_per_tree=0.03)
    assert said(here, ask(), ask("c1", "root"), ask("c2", "root"), ask("c3", "root"), ask()) == [
        "",
        "",
        "",
        REASON,
        REASON,
    ]
    assert said(here, ask("other")) == [""]


def test_the_whole_tree_is_charged_whatever_the_agents_are_called() -> None:
    """One account for all names; an agent for which no entry sets a limit is charged, but not stopped (G-6)."""
    here = trees(lead={"max_usd_per_tree": 0.03}, helper={})
    asked = [ask(agent="lead"), ask("c1", "root", agent="helper"), ask("c2", "root", agent="unnamed")]
    assert said(here, *asked, ask(agent="lead"), ask("c1", "root", agent="helper")) == ["", "", "", REASON, ""]


def test_each_agent_has_the_limit_of_the_most_specific_entry_that_sets_one() -> None:
    """The total of the tree counts: helpers stop at two cents, and leave one to the agent that started them (G-6)."""
    agents: dict[str, Json] = {
        "*": {"max_usd_per_tree": 0.02},
        "help*": {"active": True},
        "lead": {"max_usd_per_tree": 0.03},
    }
    here = trees(**agents)
    helper = ask("c1", "root", agent="helper")
    assert said(here, helper, helper, helper, ask(agent="lead"), ask(agent="lead")) == ["", "", REASON, "", REASON]


def test_a_tree_may_have_spent_more_than_one_of_its_agents_is_allowed() -> None:
    """Nothing is left to that agent then; what the whole tree has spent is told as it is (G-6)."""
    here = trees(lead={"max_usd_per_tree": 0.03}, helper={"max_usd_per_tree": 0.02})
    assert said(here, *[ask(agent="lead") for _ in range(3)]) == [""] * 3
    verdict = here.engine.decide(ask("c1", "root", agent="helper"))
    assert (verdict.reason, left(verdict)) == (REASON, (0, None))
    assert "$0.02 (max_usd_per_tree). $0.03 are spent or reserved" in verdict.message


def test_tokens_and_dollars_both_have_to_pass() -> None:
    """What one of them denies is charged to neither (L-1, G-6)."""
    here = everyone(max_usd_per_tree=0.03, max_tokens_per_tree=4000)
    verdicts = [here.engine.decide(ask()) for _ in range(3)]
    assert [one.allowed for one in verdicts] == [True, True, False]
    assert [left(one) for one in verdicts] == [(20_000, 2000), (10_000, 0), (None, 0)]
    assert verdicts[2].message == (
        "The budget of this tree of agents is used up: 4000 tokens (max_tokens_per_tree). 4000 tokens are spent or "
        "reserved, and this request may use 2000 tokens more. Finish with what you have."
    )


def test_estimates_are_corrected_by_answers() -> None:
    """Two requests reserve two cents and use one tenth of it, so there is room for others again (L-3, G-6)."""
    here = everyone(max_usd_per_tree=0.02)
    first, second = ask(), ask("c1", "root")
    assert said(here, first, second, ask()) == ["", "", REASON]
    answered(here, first, 0)
    answered(here, second, 0)
    verdict = here.engine.decide(ask("c2", "root"))
    assert verdict.allowed
    assert left(verdict) == (6_000, None)


def test_an_answer_that_never_came_stays_charged() -> None:
    """Nobody knows what it used (L-3)."""
    here = everyone(max_usd_per_tree=0.01)
    first = ask()
    assert said(here, first) == [""]
    here.engine.settle(first, Answer(NO_ANSWER, ""))
    assert said(here, ask()) == [REASON]


def test_a_denial_names_the_tree_and_does_not_ask_to_wait() -> None:
    here = everyone(max_usd_per_tree=0.015)
    here.engine.decide(ask())
    verdict = here.engine.decide(ask("c1", "root"))
    assert (verdict.reason, verdict.status, verdict.never, verdict.retry_after_s) == (REASON, 429, True, None)
    assert (verdict.policy, verdict.rule, verdict.limit) == ("agents", "*/max_usd_per_tree", None)
    assert left(verdict) == (5_000, None)
    assert verdict.message == (
        "The budget of this tree of agents is used up: $0.015 (max_usd_per_tree). $0.01 are spent or reserved, and "
        "this request may cost $0.01 more. Finish with what you have."
    )
    assert not here.engine.quarantine
    large = here.engine.decide(ask(max_tokens=10_000))
    assert large.message == (
        "This request may cost $0.082, more than the budget of its whole tree of agents: $0.015 (max_usd_per_tree). "
        "Lower max_tokens or shorten the prompt."
    )


def test_from_80_percent_on_it_warns() -> None:
    """Once as an event, with every response as a warning (L-2)."""
    here = everyone(max_usd_per_tree=0.05)
    warnings = [here.engine.decide(ask(session, "root")).warning for session in ("a", "b", "c", "d", "e")]
    assert warnings == ["", "", "", "budget_warn", "budget_warn"]
    [event] = here.named("budget.threshold")
    assert (event["threshold_percent"], event["action"], event["used"], event["budget"]) == (
        80.0,
        "warn",
        40_000,
        50_000,
    )
    assert event["rule"] == "*/max_usd_per_tree"


def test_all_levels_must_pass() -> None:
    """What a run, a tree, an agent or a caller denies is charged to none of them (L-1, G-6)."""
    agents = {
        "*": {"max_usd_per_tree": 0.04},
        "day": {"budget_usd_per_day": 0.01},
        "run": {"max_usd_per_run": 0.01},
    }
    here = trees(**agents)
    assert said(here, ask("c1", "root", agent="day"), ask("c1", "root", agent="day")) == ["", "agent_budget_exceeded"]
    assert said(here, ask("c2", "root", agent="run"), ask("c2", "root", agent="run")) == ["", "run_limit_exceeded"]
    assert said(here, ask(), ask(), ask()) == ["", "", REASON]
    here.clock.advance(86_400)
    assert said(here, ask("c1", "other", agent="day")) == [""]


def test_a_tree_belongs_to_its_caller() -> None:
    """Nobody can spend the budget of others by naming their tree (G-6)."""
    here = everyone(max_usd_per_tree=0.01)
    assert said(here, ask(), ask(key="another"), ask()) == ["", "", REASON]


def test_a_tree_ends_twelve_hours_after_its_last_request_that_passed() -> None:
    here = everyone(max_usd_per_tree=0.02)
    assert said(here, ask()) == [""]
    here.clock.advance(KEPT_S - 1)
    assert said(here, ask(), ask()) == ["", REASON]
    here.clock.advance(KEPT_S - 1)
    assert said(here, ask()) == [REASON]
    here.clock.advance(1)
    assert said(here, ask()) == [""]


def test_the_time_of_day_may_be_set() -> None:
    """A clock that is set back or forward neither ends a tree nor prolongs it (G-6)."""
    here = everyone(max_usd_per_tree=0.01)
    assert said(here, ask()) == [""]
    here.clock.step(10 * KEPT_S)
    assert said(here, ask()) == [REASON]


def test_in_global_shadow_nothing_is_denied_or_shown() -> None:
    until = "2099-01-01T00:00:00Z"
    shadow = {"enabled": True, "reason": "a test", "expires_at": until}
    here = priced(bundle(agents={"*": {"max_usd_per_tree": 0.01}}, global_shadow=shadow))
    first, second = here.engine.decide(ask()), here.engine.decide(ask())
    assert first.allowed
    assert second.allowed
    assert [(one.rule, one.reason, one.action) for one in second.shadow] == [("*/max_usd_per_tree", REASON, "deny")]
    assert first.tree is None


def test_the_model_is_told_on_request() -> None:
    """A sentence with what is left, where the setting asks for it (G-6)."""
    here = everyone(max_usd_per_tree=0.03, max_tokens_per_tree=10_000, tell_tree_budget=True)
    verdict = here.engine.decide(ask("c1", "root"))
    assert verdict.note == (
        "Budget: $0.02 and 8000 tokens left, for you and all agents that work on this task together."
    )
    assert not verdict.warning
    quiet = everyone(max_usd_per_tree=0.03)
    assert not quiet.engine.decide(ask()).note


def test_unknown_prices_deny_only_agents_with_a_limit_in_dollars() -> None:
    agents = {"lead": {"max_usd_per_tree": 1.0}, "helper": {"max_tokens_per_tree": 10_000}}
    here = priced(bundle(agents=agents), unknown="deny")
    denied = said(here, ask(agent="lead", model="new"), ask(agent="helper", model="new"), ask(agent="lead"))
    assert denied == ["unknown_model", "", ""]


def test_other_calls_cost_nothing() -> None:
    here = everyone(max_usd_per_tree=0.01)
    verdict = here.engine.decide(call("/anything", "GET", {"x-agent-session": "root"}))
    assert verdict.allowed
    assert verdict.tree is None


def test_the_timeline_of_the_docs() -> None:
    """Docs/explanation/limits.md, with cents for tenths of a dollar, of $0.10 (G-6)."""
    here = everyone(max_usd_per_tree=0.1)
    root, first, second = ask(max_tokens=4750), ask("a", "root", max_tokens=3500), ask("b", "root", max_tokens=3500)
    verdict = here.engine.decide(root)
    assert left(verdict) == (60_000, None)
    answered(here, root, 3500)
    assert [here.engine.decide(one).warning for one in (first, second)] == ["", "budget_warn"]
    third = ask("c", "a", max_tokens=2250)
    assert said(here, third) == [REASON]
    for one in (first, second):
        answered(here, one, 1000)
    assert said(here, ask("c", "a", max_tokens=2250)) == [""]
    [tree] = run_blocking(here.tree_budgets.states())
    assert (tree.root, tree.microusd) == ("root", 70_000)


def test_an_operator_asks_a_part_of_a_tree_to_finish() -> None:
    """Two more LLM requests of each agent pass without tools; further ones, new agents and calls of tools do not. The
    order survives a restart (G-6, LD-10)."""
    here = everyone(max_usd_per_tree=1)
    said(here, ask(), ask("a", "root"), ask("b", "a"))
    caller = here.descriptors.caller(ask())
    book = FileOrderStore(None, print)
    operator = Operator(here.engine, book, here.clock, here.events.append)
    held = operator.kill_runs("default", caller, {"a": "worker", "b": "worker"}, "enough for today", "ann", lands=True)
    names = {"authorization": "Bearer k", "x-agent-session": "a", "x-agent-parent": "root"}
    assert said(here, call("/mcp", "POST", names, body=TOOL)) == ["agent_quarantined"]
    verdicts = [here.engine.decide(ask("a", "root")) for _ in range(3)]
    assert [(one.allowed, one.landed, one.warning) for one in verdicts] == [
        (True, True, "operator_land"),
        (True, True, "operator_land"),
        (False, False, ""),
    ]
    assert verdicts[0].note == (
        "An operator asks you to finish: enough for today. For this turn, tools are switched off: give your final answer "
        "now, with what you have. Say what is missing."
    )
    assert verdicts[2].message == (
        "This agent was asked to finish with its tree: enough for today. A person has to release it."
    )
    assert said(here, ask("new", "a"), ask("b", "a"), ask(), ask("c", "root")) == ["agent_quarantined", "", "", ""]
    kept = [Order(HOLD, hold_key(one), hold_value(one), one.until, one.since) for one in held]
    assert [hold_of(one, here.clock.now()) for one in kept] == held
    for hold in held:
        operator.release("default", caller=caller, run=hold.run, by="ann")
    assert [here.engine.decide(ask("a", "root")).landed for _ in range(2)] == [False] * 2


def test_the_evidence_names_what_the_tree_has_cost() -> None:
    """Tokens and dollars of all agents below the root, by their answers (LD-12)."""
    loops = {"similarity": "steps", "max_agents_per_tree": 4}
    here = priced(bundle(defaults={"loop_detection": loops}))
    for name in ("a", "b", "c"):
        asked = ask(name, "root")
        assert said(here, asked) == [""]
        here.engine.settle(asked, Answer(200, calls=(ToolCall("t", "{}"),), usage=Usage(1000, 500), complete=True))
    verdict = here.engine.decide(ask("d", "root"))
    assert verdict.loop is not None
    assert verdict.loop.evidence == (
        "5 agents of one tree are at work (1 > 4 by depth, 5 in total; 4,500 tokens, $0.02)"
    )


def test_an_operator_stops_a_part_of_a_tree() -> None:
    """The sessions that are named, and what they start from then on; the others go on, until they are released (G-1)."""
    here = everyone(max_usd_per_tree=1)
    said(here, ask(), ask("a", "root"), ask("b", "a"), ask("c", "root"))
    caller = here.descriptors.caller(ask())
    operator = Operator(here.engine, FileOrderStore(None, print), here.clock, here.events.append)
    held = operator.kill_runs("default", caller, {"a": "worker", "b": "worker"}, "too many", "ann")
    assert len(held) == 2
    stopped = [ask("a", "root"), ask("b", "a"), ask("new", "a"), ask("deep", "b")]
    assert said(here, *stopped) == ["agent_quarantined"] * 4
    assert said(here, ask(), ask("c", "root"), ask("d", "c"), ask("a", key="another")) == [""] * 4
    verdict = here.engine.decide(ask("new", "a"))
    assert verdict.message == "This agent was stopped with its tree: too many. A person has to release it."
    for hold in held:
        operator.release("default", caller=caller, run=hold.run, by="ann")
    assert said(here, *stopped) == [""] * 4
    operator.kill_runs("default", caller, {"root": "worker"}, "all of them", "ann")
    assert said(here, ask("c", "root"), ask("d", "c")) == ["agent_quarantined"] * 2


@pytest.mark.parametrize("setting", [{"max_usd_per_tree": 0.2}, {"max_tokens_per_tree": 40_000}])
def test_a_tree_is_told_then_landed_then_denied(setting: Json) -> None:
    """Whichever of its agents asks: at 80 %, at 95 % and beyond 100 % (G-6, LD-10)."""
    here = everyone(**setting, land_at_percent=95)
    verdicts = [here.engine.decide(ask(f"c{number}", "root")) for number in range(21)]
    assert [one.warning for one in verdicts] == [""] * 15 + ["budget_steer"] * 3 + ["budget_land"] * 2 + [""]
    assert [one.landed for one in verdicts] == [False] * 18 + [True] * 2 + [False]
    assert [one.allowed for one in verdicts] == [True] * 20 + [False]
    told, landed = verdicts[15].note, verdicts[18].note
    assert told.startswith("80 % of the budget of this tree of agents is used. Take only the steps")
    assert landed.startswith(
        "95 % of the budget of this tree of agents is used. For this turn, tools are switched off:"
    )


def test_an_early_landing_is_not_followed_by_a_hint() -> None:
    """The note of 80 % would switch tools on again (LD-10)."""
    here = everyone(max_usd_per_tree=0.1, land_at_percent=50)
    verdicts = [here.engine.decide(ask(f"c{number}", "root")) for number in range(10)]
    assert [one.landed for one in verdicts] == [False] * 4 + [True] * 6


def test_the_entry_of_an_agent_says_when_it_lands() -> None:
    """The longest pattern that sets it, as for the limit itself; other agents of the tree go on (LD-10)."""
    early: Json = {"land_at_percent": 50, "max_usd_per_run": 9}
    everybody: Json = {"max_usd_per_tree": 0.1, "land_at_percent": 90}
    here = trees(**{"*": everybody, "helper": early})
    asked = [ask(agent="helper" if number % 2 else "lead") for number in range(8)]
    assert [here.engine.decide(one).landed for one in asked] == [False] * 5 + [True, False, True]


@pytest.mark.parametrize(
    ("percent", "warnings"),
    [
        (79, ["", "", "", "budget_land", "budget_land"]),
        (80, ["", "", "", "budget_land", "budget_land"]),
        (81, ["", "", "", "budget_steer", "budget_land"]),
    ],
)
def test_a_landing_about_where_the_model_is_told(percent: int, warnings: list[str]) -> None:
    """At 80 % and below there is no hint before it, which would switch tools on again (LD-10)."""
    here = everyone(max_usd_per_tree=0.05, land_at_percent=percent)
    verdicts = [here.engine.decide(ask()) for _ in range(5)]
    assert [one.warning for one in verdicts] == warnings
    assert {one.delay_ms for one in verdicts} == {0}


def test_no_stage_of_a_tree_delays_requests() -> None:
    """Whether they are told, landed or warned (G-6)."""
    for more in ({}, {"land_at_percent": 90}):
        here = everyone(max_usd_per_tree=0.05, **more)
        assert [here.engine.decide(ask()).delay_ms for _ in range(6)] == [0] * 6


def test_all_of_a_budget_may_be_spent() -> None:
    """Exactly the limit passes, one token more does not; a request as large as the whole budget is not too large."""
    here = everyone(max_tokens_per_tree=2000)
    one_more = here.engine.decide(ask(max_tokens=1001))
    assert one_more.message.startswith("This request may use 2001 tokens, more than the budget of its whole tree")
    assert said(here, ask()) == [""]
    again = here.engine.decide(ask())
    assert again.message.startswith("The budget of this tree of agents is used up: 2000 tokens (max_tokens_per_tree).")
