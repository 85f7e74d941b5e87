"""Budgets by their numbers: stages, the whole of it, what is left and when it begins anew."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakloop.limits.base import COST, LARGEST, MICROUSD, TOKENS, Estimate, Period, Unit
from breakloop.limits.budget import CostBudget
from breakloop.model.call import Call
from breakloop.model.verdict import LimitState, Verdict
from breakloop.store.limit_ops import BudgetStage, ChargeBudget
from breakloop.store.ops import ActualUse
from tests.builders import call
from tests.limiting import Ruled
from tests.stores import NO_RULE

STAGES = [(100, "reject", 0), (80, "warn", 0), (95, "throttle", 200)]
NOON = 1_770_098_400.0  # 2026-02-03T06:00:00Z
MIDNIGHT = 1_770_163_200


class Account:
    """The smallest store: one account."""

    def __init__(self, limiter: CostBudget, used: int = 0) -> None:
        self.limiter, self.used = limiter, used

    def ask(self, cost: float, now: float = NOON) -> tuple[ChargeBudget, int, BudgetStage | None]:
        op = self.limiter.plan("cb:k", round(cost * self.limiter.unit.scale), Ruled(self.limiter), 0, now)
        used = self.used + op.cost
        if used <= op.spec.budget:
            self.used = used
        return op, used, self.limiter.stage_reached(op, used)

    def actions(self, *costs: float) -> list[str]:
        return [stage.action if (stage := self.ask(cost)[2]) else "" for cost in costs]


def budget(size: float = 100, period: str = "1d", unit: Unit = COST, **more: Any) -> CostBudget:
    return CostBudget(size, Period(period), STAGES, unit=unit, **more)


def denial(limiter: CostBudget, op: ChargeBudget, used: int, now: float = NOON) -> Verdict:
    verdict = Verdict(allowed=False)
    limiter.describe_denial(op, used, now, verdict)
    return verdict


def test_ten_tens() -> None:
    """Budget 100, cost 10: ten pass, the last with exactly 100 %; the 11th is rejected (L-2)."""
    account = Account(budget())
    assert account.actions(*[10] * 11) == [""] * 7 + ["warn"] * 2 + ["throttle", "reject"]
    assert account.used == 100_000


def test_stages() -> None:
    """79, 1, 15, 6 of 100: nothing, warn at 80, throttle at 95, reject; what is rejected is not charged (L-2)."""
    account = Account(budget())
    assert account.actions(79, 1, 15, 6) == ["", "warn", "throttle", "reject"]
    assert account.used == 95_000
    stage = budget().stage_reached(account.ask(1)[0], 95_000)
    assert stage is not None
    assert (stage.percent, stage.delay_ms, stage.units) == (95, 200, 95_000)


@pytest.mark.parametrize(
    ("used", "cost", "action"), [(790, 10, "warn"), (940, 10, "throttle"), (960, 1, "throttle"), (999, 1, "throttle")]
)
def test_stages_of_a_thousand(used: int, cost: int, action: str) -> None:
    """The highest stage that is reached applies (L-2)."""
    assert Account(budget(1000), used * 1000).actions(cost) == [action]


def test_a_stage_begins_exactly_at_its_share() -> None:
    """99.9 % of a thousand is 999, although 99.9 is no binary fraction; 0 % is everybody (L-2)."""
    limiter = CostBudget(1000, Period("1d"), [(99.9, "warn", 0), (100, "reject", 0)])
    op = limiter.plan("k", 1, Ruled(limiter), 0, NOON)
    assert limiter.stage_reached(op, 998_999) is None
    assert limiter.stage_reached(op, 999_000) is not None
    always = CostBudget(1000, Period("1d"), [(0, "warn", 0), (100, "reject", 0)])
    assert always.stage_reached(op, 0) is not None


@given(size=st.integers(1, 10**12), percent=st.integers(1, 9999), data=st.data())
def test_a_stage_is_reached_by_its_share_and_not_before(size: int, percent: int, data: st.DataObject) -> None:
    """In whole numbers, whatever the sizes (L-2)."""
    limiter = CostBudget(size, Period("1d"), [(percent / 100, "warn", 0), (100, "reject", 0)], unit=TOKENS)
    used = data.draw(st.integers(0, size))
    stage = limiter.stage_reached(limiter.plan("k", 0, Ruled(limiter), 0, NOON), used)
    assert (stage is not None) == (used * 10_000 >= percent * size)


def test_the_key_tells_the_period() -> None:
    """A correction has to find the account that was charged (L-2)."""
    op = budget().plan("cb:k", 7, NO_RULE, 2, NOON)
    assert (op.key, op.cost, op.ends, op.rule, op.group) == ("cb:k:1770076800", 7, MIDNIGHT, NO_RULE, 2)
    assert budget().plan("cb:k", 7, NO_RULE, 0, MIDNIGHT).key == f"cb:k:{MIDNIGHT}"
    assert budget(period="5m").plan("cb:k", 7, NO_RULE, 0, NOON).ends == NOON + 300


def test_a_denial_says_when_the_next_period_begins() -> None:
    """Up to the period's end, without jitter; the day that began at 00:00 ends in 64,800 s at 06:00 (L-2, A-2)."""
    limiter = budget()
    op, used, _ = Account(limiter, 95_500).ask(10)
    verdict = denial(limiter, op, used)
    assert (verdict.reason, verdict.retry_after_s, verdict.retry_jitter, verdict.never) == (
        "budget_exceeded", 64_800, False, False,
    )  # fmt: skip
    assert verdict.limit == LimitState("p", 100, 86_400, 4, 64_800)
    assert verdict.message == (
        "Budget of 100 a day used up: 95.5 spent, and this request costs 10. The next period begins in 64800 seconds."
    )


@pytest.mark.parametrize(
    ("period", "now", "wait_s", "window_s", "words"),
    [
        ("5m", 1_770_129_010, 290, 300, "in 5 minutes"),
        ("5m", 1_770_129_299.5, 1, 300, "in 5 minutes"),
        ("1h", 1_770_129_000, 1800, 3600, "an hour"),
        ("1d", 1_770_077_800, 85_400, 86_400, "a day"),
        ("7d", 1_770_595_199, 1, 604_800, "a week"),
        ("30d", 1_770_129_000, 2_194_200, 28 * 86_400, "a month"),
    ],
)
def test_every_period(period: str, now: float, wait_s: int, window_s: int, words: str) -> None:
    """Waits, windows and words (L-2)."""
    limiter = budget(period=period)
    op, used, _ = Account(limiter, 100_000).ask(1, now)
    verdict = denial(limiter, op, used, now)
    assert verdict.retry_after_s == wait_s
    assert verdict.limit == LimitState("p", 100, window_s, 0, wait_s)
    assert verdict.message.startswith(f"Budget of 100 {words} used up: 100 spent, and this request costs 1. ")


def test_what_is_left() -> None:
    """True values, rounded down to whole ones; dollars in micro-dollars; never less than nothing (A-1)."""
    limiter = budget(period="1h")
    op = limiter.plan("k", 10_500, Ruled(limiter), 0, NOON + 60)
    assert limiter.describe_limit("p", op, 10_500, NOON + 60) == LimitState("p", 100, 3600, 89, 3540)
    assert limiter.describe_limit("p", op, 100_000, NOON + 60).remaining == 0
    assert limiter.describe_limit("p", op, 104_000, NOON + 60).remaining == 6
    assert limiter.describe_limit("p", op, 190_000, NOON + 60).remaining == 0
    money = budget(2.5, unit=MICROUSD)
    op = money.plan("k", 1_000, Ruled(money), 0, NOON)
    assert money.describe_limit("p", op, 500_000, NOON) == LimitState("p", 2_500_000, 86_400, 2_000_000, 64_800)


def test_what_explain_shows() -> None:
    """What the request costs, and what is left with it, or would be without it (L-2)."""
    limiter = budget()
    op = limiter.plan("k", 10_000, Ruled(limiter), 0, NOON)
    assert limiter.explain(op, 70_000) == "costs 10, 30 of 100 left"
    assert limiter.explain(op, 100_000) == "costs 10, 0 of 100 left"
    assert limiter.explain(op, 104_000) == "costs 10, only 6 of 100 available"


def test_a_denial_never_says_to_come_back_at_once() -> None:
    """The answer of a store may take until the period is over (L-4)."""
    limiter = budget(period="1h")
    op = limiter.plan("k", 10_000, Ruled(limiter), 0, NOON)
    assert denial(limiter, op, 101_000, op.ends + 0.1).retry_after_s == 1


def test_more_than_the_whole_budget_can_never_pass() -> None:
    """No `Retry-After`, and it says so; the account is full all the same (L-4)."""
    limiter = budget(cost_of=lambda _: "101")
    op, used, _ = Account(limiter).ask(101)
    verdict = denial(limiter, op, used)
    assert (verdict.retry_after_s, verdict.never) == (None, True)
    assert verdict.message == "This request costs 101, more than the whole budget of 100 a day: it can never pass."
    assert verdict.limit == LimitState("p", 100, 86_400, 100, 64_800)
    assert Account(limiter).actions(100) == ["throttle"]


def test_money_in_words() -> None:
    """Dollars; what a call of a model costs is not known before (L-2)."""
    limiter = budget(12.34, unit=MICROUSD)
    op, used, _ = Account(limiter, 12_300_000).ask(0.105)
    assert denial(limiter, op, used).message.startswith(
        "Budget of $12.34 a day used up: $12.30 spent, and this request may cost $0.105. "
    )
    op, used, _ = Account(limiter).ask(199.5)
    assert denial(limiter, op, used).message == (
        "This request may cost $199.50, more than the whole budget of $12.34 a day: it can never pass."
    )


@pytest.mark.parametrize(
    ("text", "cost"),
    [("4", 4000), ("2.5", 2500), ("0.5", 500), (None, 1500), ("abc", 1500), ("-1", 1500), ("1e306", LARGEST)],
)
def test_cost_of_a_request(text: str | None, cost: int) -> None:
    """From a header or query field, else the default (L-2)."""

    def header(asked: Call) -> str | None:
        return asked.header("x-cost")

    limiter = budget(cost=1.5, cost_of=header)
    asked = call(headers={} if text is None else {"x-cost": text})
    (op,) = limiter.charges(asked, ["cb:k"], NO_RULE, 0, NOON, Estimate())
    assert isinstance(op, ChargeBudget)
    assert op.cost == cost == limiter.total([op])


def test_costs_of_usage() -> None:
    """`usage:*` charges the estimate, and settles by what was used; a fixed cost is what it is (L-2)."""
    estimate = Estimate(1000, 500, microusd=7_000)
    plain, tokens, money = budget(cost=10), budget(unit=TOKENS), budget(unit=MICROUSD)
    costs = [limiter.cost_of(call(), estimate) for limiter in (plain, tokens, money)]
    assert costs == [10_000, 1500, 7_000]
    assert [limiter.cost_of(call(), Estimate()) for limiter in (plain, tokens, money)] == [10_000, 0, 0]  # no LLM call
    assert [limiter.needs for limiter in (plain, tokens, money)] == ["", "tokens", "microusd"]
    amounts = []
    for limiter, cost in zip((plain, tokens, money), costs, strict=True):
        op = limiter.plan("k", cost, NO_RULE, 0, NOON)
        found = limiter.adjust(op, ActualUse(1200, 9_500))
        amounts.append(None if found is None else (found.key, found.amount))
    assert amounts == [None, ("k:1770076800", -300), ("k:1770076800", 2_500)]
    assert money.adjust(money.plan("k", 7_000, NO_RULE, 0, NOON), ActualUse(0, 7_000)) is None


def test_no_client_can_name_a_number_that_a_store_cannot_add() -> None:
    """`max_tokens` is the client's (Y-2)."""
    assert budget(unit=TOKENS).cost_of(call(), Estimate(10, 10**30)) == LARGEST
    assert budget(unit=MICROUSD).cost_of(call(), Estimate(10, 10, 10**30)) == LARGEST


def test_what_is_told_of_a_stage() -> None:
    """`budget.threshold` for every stage that was reached, above those told before (G-2)."""
    limiter = budget()
    account = Account(limiter, 75_000)
    op, used, stage = account.ask(10)
    assert stage is not None
    assert limiter.crossings(op, used, 0) == [{
        "policy": "p", "rule": "r", "key": "cb:k:1770076800", "threshold_percent": 80, "action": "warn",
        "used": 85_000, "budget": 100_000, "unit": "cost",
    }]  # fmt: skip
    assert limiter.crossings(op, used, stage.units) == []
    assert [one["threshold_percent"] for one in limiter.crossings(op, 99_000, 0)] == [80, 95]
    assert [one["threshold_percent"] for one in limiter.crossings(op, 99_000, stage.units)] == [95]
