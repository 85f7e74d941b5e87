"""Limiters over a real store: the scenarios with numbers, and money under concurrent callers."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from breakloop.clock import FakeClock
from breakloop.limits.base import COST, MICROUSD, TOKENS, Estimate, Period
from breakloop.limits.budget import CostBudget
from breakloop.limits.circuit_breaker import CircuitBreakerLimiter
from breakloop.limits.llm_tokens import LlmTokens
from breakloop.limits.token_bucket import TokenBucket
from breakloop.model.verdict import LimitState, Verdict
from breakloop.store.limit_ops import ChargeBudget, TakeTokens
from breakloop.store.memory import MemoryStore
from breakloop.store.ops import BreakerResult
from tests.builders import START
from tests.limiting import Asked, Desk, Ruled
from tests.stores import NO_RULE

STAGES = [(80, "warn", 0), (95, "throttle", 200), (100, "reject", 0)]
DAY = 1_770_076_800.0  # 2026-02-03T00:00:00Z, a Tuesday
WEEK_END = 1_770_595_200.0  # Monday after it
LARGE = Estimate(1000, 4000)


def test_bucket_of_ten() -> None:
    """10 a second, burst 10: ten pass, the next has to wait 1 s; half a second later one passes and 4 remain (L-1)."""
    desk = Desk(TokenBucket(10, 10))
    assert [desk.ask().left for _ in range(10)] == list(range(9, -1, -1))
    denied = desk.ask().verdict
    assert (denied.allowed, denied.reason, denied.retry_after_s) == (False, "token_bucket_exceeded", 1)
    desk.now += 0.5
    assert desk.ask().left == 4


def test_budget_of_a_hundred() -> None:
    """Cost 10: ten pass (the 8th warned, the 10th slowed by 200 ms), the 11th waits for midnight (L-2)."""
    desk = Desk(CostBudget(100, Period("1d"), STAGES, cost=10), DAY + 1000)
    passed = [desk.ask() for _ in range(10)]
    assert [one.left for one in passed] == list(range(90, -1, -10))
    assert [one.stage.action if one.stage else "" for one in passed] == [""] * 7 + ["warn"] * 2 + ["throttle"]
    assert passed[-1].stage is not None
    assert passed[-1].stage.delay_ms == 200
    denied = desk.ask().verdict
    assert (denied.allowed, denied.reason, denied.retry_after_s) == (False, "budget_exceeded", 85_400)
    assert denied.limit == LimitState("p", 100, 86_400, 0, 85_400)
    assert desk.ask(who="y").left == 90
    desk.now += 85_400
    assert desk.ask().left == 90


def test_a_denial_is_not_charged() -> None:
    """95 used and 10 more are too many; 5 still pass, exactly 100 % (L-2, E-4)."""
    budget = CostBudget(100, Period("1d"), STAGES, unit=TOKENS)
    desk = Desk(budget, DAY)
    assert desk.ask(Estimate(95)).left == 5
    assert not desk.ask(Estimate(10)).verdict.allowed
    assert desk.ask(Estimate(5)).left == 0


def test_a_week_begins_on_monday() -> None:
    """The second before Monday 00:00 UTC belongs to the old budget (L-2)."""
    desk = Desk(CostBudget(1, Period("7d"), STAGES), DAY)
    assert desk.ask().left == 0
    desk.now = WEEK_END - 1
    assert desk.ask().verdict.retry_after_s == 1
    desk.now = WEEK_END
    assert desk.ask().verdict.allowed


def test_tokens_of_a_minute() -> None:
    """5000 of 6000 reserved, 1000 left; a second one waits 40 s, and then passes (L-3)."""
    desk = Desk(LlmTokens(6000))
    assert desk.ask(LARGE).left == 1000
    denied = desk.ask(LARGE).verdict
    assert (denied.reason, denied.retry_after_s) == ("tpm_exceeded", 40)
    desk.now += 40
    assert desk.ask(LARGE).left == 0


def test_tokens_over_a_minute() -> None:
    """The timeline of the docs: reserved, denied, settled with less, reserved, settled with more, owed (L-3)."""
    desk = Desk(LlmTokens(6000))
    first = desk.ask(LARGE)
    assert desk.ask(LARGE).verdict.retry_after_s == 40
    desk.now += 10
    desk.settle(first, 3000)
    assert desk.ask().left == 4000
    desk.now += 10
    second = desk.ask(LARGE)
    assert second.left == 0
    desk.now += 10
    desk.settle(second, 7000)
    assert desk.ask().verdict.retry_after_s == 10
    desk.now += 10
    assert (desk.ask().verdict.allowed, desk.ask().left) == (True, 0)


def test_a_denial_by_the_day_leaves_the_minute() -> None:
    """All or none: TPD 999,000 of a million used, 2000 wanted; the bucket is as full as before (L-3)."""
    desk = Desk(LlmTokens(6000, per_day=1_000_000), DAY)
    day = CostBudget(1_000_000, Period("1d"), (), unit=TOKENS).plan("tpd:default:p:r:x", 999_000, NO_RULE, 0, DAY)
    desk.store.commit([day], DAY)
    denied = desk.ask(Estimate(1000, 1000)).verdict
    assert (denied.reason, denied.retry_after_s) == ("tpd_exceeded", 86_400)
    assert denied.limit == LimitState("p", 1_000_000, 86_400, 1000, 86_400)
    assert desk.ask(Estimate(0, 1000)).left == 5000
    desk.now += 86_400
    assert desk.ask(Estimate(1000, 1000)).left == 4000


@pytest.mark.parametrize(("used", "left"), [(3000, 3000), (7000, -1000), (5000, 1000)])
def test_settlement(used: int, left: int) -> None:
    """5000 reserved: 3000 used gives 2000 back, 7000 used takes 2000 more, which is owed (L-3)."""
    desk = Desk(LlmTokens(6000, per_day=100_000), DAY)
    desk.settle(desk.ask(LARGE), used)
    next_one = desk.ask(Estimate(0, 0))
    if left < 0:
        assert (next_one.verdict.allowed, next_one.left) == (False, 0)
        assert next_one.verdict.retry_after_s == 10
        desk.now += 10
        next_one = desk.ask(Estimate(0, 0))
    assert next_one.left == max(0, left)
    assert next_one.results[1] == used


def test_a_settlement_after_midnight_goes_to_the_day_that_was_charged() -> None:
    """Neither day loses or wins (L-3)."""
    desk = Desk(LlmTokens(60_000, per_day=100_000), DAY - 1)
    late = desk.ask(LARGE)
    desk.now = DAY + 1
    desk.settle(late, 7000)
    assert desk.ask(LARGE).results[1] == 5000
    desk.now = DAY - 1  # a clock that steps back: the old day is still known
    assert desk.ask(Estimate()).results[1] == 7000


def test_money_settles_to_the_micro_dollar() -> None:
    """An estimate of $0.40 that came to $0.1234 frees the rest of a budget of $1 (L-2, L-5)."""
    desk = Desk(CostBudget(1, Period("1h"), STAGES, unit=MICROUSD), DAY)
    one, other = desk.ask(Estimate(microusd=400_000)), desk.ask(Estimate(microusd=400_000))
    assert not desk.ask(Estimate(microusd=400_000)).verdict.allowed
    desk.settle(other, microusd=123_400)
    assert desk.ask(Estimate(microusd=400_000)).left == 76_600
    desk.settle(one, microusd=600_000)
    over = desk.ask(Estimate(microusd=1)).verdict
    assert (over.allowed, over.limit and over.limit.remaining) == (False, 0)
    assert over.message.startswith("Budget of $1.00 an hour used up: $1.12 spent")


@dataclass
class Switch:
    """A breaker, a store and a clock."""

    breaker: CircuitBreakerLimiter
    store: MemoryStore
    clock: FakeClock

    def spend(self, amount: float, who: str = "x") -> tuple[Verdict, BreakerResult]:
        op = self.breaker.plan(f"brk:{who}", COST.of(amount), Ruled(self.breaker), 0)
        done = self.store.commit([op], self.clock.now())
        broken = done.results[0]
        assert isinstance(broken, BreakerResult)
        verdict = Verdict(allowed=done.denied_at < 0)
        if broken.open:
            self.breaker.describe_denial(op, broken, self.clock.now(), verdict)
        return verdict, broken


def switch(per_minute: float = 1000, reset_minutes: float = 5) -> Switch:
    return Switch(CircuitBreakerLimiter(per_minute, reset_minutes), MemoryStore(), FakeClock(DAY))


def test_breaker_of_a_thousand() -> None:
    """900 passes, 100 more open it and are denied; others stay closed; after 5 minutes one probe closes
    (CB-1, CB-2)."""
    here = switch()
    assert here.spend(900)[0].allowed
    verdict, broken = here.spend(100)
    assert (verdict.allowed, verdict.reason, verdict.retry_after_s) == (False, "circuit_breaker_open", 300)
    assert (broken.rate, broken.changed) == (1_000_000, "opened")
    assert here.spend(1, "y")[0].allowed
    here.clock.advance(299.5)
    verdict, broken = here.spend(1)
    assert (verdict.allowed, verdict.retry_after_s, broken.changed) == (False, 1, "")
    here.clock.advance(0.5)
    verdict, broken = here.spend(1)
    assert (verdict.allowed, broken.rate, broken.changed) == (True, 1000, "closed")


def test_a_breaker_over_five_minutes() -> None:
    """The timeline of the docs: what comes while it is open is denied, not counted, and does not keep it open
    (CB-2)."""
    here = switch()
    here.clock.advance(10)
    here.spend(900)
    here.clock.advance(10)
    here.spend(100)
    here.clock.advance(160)
    verdict, _ = here.spend(1)
    assert (verdict.allowed, verdict.retry_after_s) == (False, 140)
    here.clock.advance(140)
    verdict, broken = here.spend(1)
    assert (verdict.allowed, broken.rate) == (True, 1000)


def test_a_probe_that_spends_too_much_opens_it_again() -> None:
    """For another 5 minutes (CB-2)."""
    here = switch()
    here.spend(1000)
    here.clock.advance(300)
    verdict, broken = here.spend(1000)
    assert (verdict.allowed, verdict.retry_after_s, broken.changed) == (False, 300, "opened")


def test_only_an_operator_closes_it() -> None:
    """An hour changes nothing (CB-2)."""
    here = switch(reset_minutes=0)
    here.spend(1000)
    here.clock.advance(3600)
    verdict, _ = here.spend(1)
    assert (verdict.allowed, verdict.retry_after_s, verdict.never) == (False, None, True)
    here.store.drop(["brk:x"])
    assert here.spend(1)[0].allowed


def test_tenths_add_up() -> None:
    """Ten times 0.1 reach a threshold of 1 (CB-1)."""
    here = switch(1)
    assert [here.spend(0.1)[0].allowed for _ in range(10)] == [True] * 9 + [False]


def test_breaker_of_a_hundred() -> None:
    """90 and 11 more open it; 90 and 1 do not (CB-1)."""
    here = switch(100)
    assert all(here.spend(10)[0].allowed for _ in range(9))
    assert all(here.spend(10, "y")[0].allowed for _ in range(9))
    assert not here.spend(11)[0].allowed
    assert here.spend(1, "y")[0].allowed


@given(
    per_minute=st.integers(1, 100_000),
    more=st.integers(0, 1000),
    asked=st.lists(st.integers(0, 100_000), min_size=1, max_size=20),
    start=st.integers(0, 9),
)
def test_whoever_waits_as_told_passes(per_minute: int, more: int, asked: list[int], start: int) -> None:
    """`Retry-After` is the truth, or says that waiting does not help (A-2)."""
    desk = Desk(LlmTokens(per_minute, burst=per_minute + more), START + start / 7)
    for tokens in asked:
        verdict = desk.ask(Estimate(tokens)).verdict
        if verdict.allowed:
            continue
        assert verdict.never == (tokens > per_minute + more)
        if verdict.retry_after_s is not None:
            desk.now += verdict.retry_after_s
            assert desk.ask(Estimate(tokens)).verdict.allowed


STEPS = st.lists(
    st.tuples(st.sampled_from(["ask", "settle", "ahead", "back"]), st.integers(0, 3000), st.integers(0, 100)),
    min_size=1,
    max_size=60,
)


@settings(max_examples=200)
@given(steps=STEPS, size=st.integers(1, 10_000))
def test_a_budget_under_concurrent_callers(steps: list[tuple[str, int, int]], size: int) -> None:
    """No charge passes the budget, answers settle in any order to the period that was charged, nothing is lost or
    counted twice, and a clock that steps back does no harm (L-2, L-3)."""
    desk = Desk(CostBudget(size / 1_000_000, Period("5m"), STAGES, unit=MICROUSD), DAY + 290)
    running: list[Asked] = []
    books: dict[str, int] = {}
    for what, amount, which in steps:
        if what == "ask":
            asked = desk.ask(Estimate(microusd=amount))
            (op,) = asked.ops
            assert isinstance(op, ChargeBudget)
            before = books.get(op.key, 0)
            assert asked.results[0] == before + amount
            assert asked.verdict.allowed == (before + amount <= size)
            assert asked.left == max(0, size - before - (amount if asked.verdict.allowed else 0))
            if asked.verdict.allowed:
                books[op.key] = before + amount
                running.append(asked)
        elif what == "settle" and running:
            asked = running.pop(which % len(running))
            (op,) = asked.ops
            assert isinstance(op, ChargeBudget)
            desk.settle(asked, microusd=amount)
            books[op.key] += amount - op.cost
        elif what == "ahead":
            desk.now += which
        elif what == "back":
            desk.now = max(DAY, desk.now - which)


@given(reserved=st.lists(st.integers(1, 500), min_size=1, max_size=20), data=st.data())
def test_a_bucket_is_settled_in_any_order(reserved: list[int], data: st.DataObject) -> None:
    """What is left is what was really used, whoever was answered first (L-3)."""
    used = data.draw(st.lists(st.integers(0, 1000), min_size=len(reserved), max_size=len(reserved)))
    desk = Desk(LlmTokens(100_000, per_day=10**9), DAY)
    asked = [desk.ask(Estimate(one)) for one in reserved]
    for index in data.draw(st.permutations(range(len(reserved)))):
        desk.settle(asked[index], used[index])
    last = desk.ask()
    assert isinstance(last.ops[0], TakeTokens)
    assert last.results == [100_000 - sum(used), sum(used)]
