"""Budgets: `cost_based`, with stages, and `max_usd_per_run`.

The cost of a request is charged before the call. For `usage:*` and for runs it is an estimate, which is corrected
once, in the period that was charged, when the answer is known.

100 a day, cost 10, stages 80 warn, 95 throttle, 100 reject:
    requests 1 to 7 pass; 8 and 9 pass with a warning; 10 (exactly 100 %) is throttled; 11 is denied until midnight

A run budget does not renew with time. `policy.rules.RunRule` determines the run of a request.

$1.00 a run: after $0.70, a request that may cost $0.40 is denied, and so are later ones until an operator resets it
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from typing import Final

from breakloop.limits.base import COST, LARGEST, MICROUSD, TOKENS, Estimate, TimeSpan, Unit, read_cost
from breakloop.model.call import Call
from breakloop.model.verdict import LimitState, Verdict
from breakloop.store.limit_ops import BudgetLimiter, BudgetSpec, BudgetStage, ChargeBudget
from breakloop.store.ops import ActualUse, AdjustCharge, Op, RuleRef

REASON = "budget_exceeded"


class CostBudget:
    """One budget rule. The key identifies the owner of the budget; `unit` is TOKENS or MICROUSD for `usage:*`, else
    COST.
    """

    __slots__ = ("_cost", "_cost_of", "_lowest", "_period", "_stages", "needs", "spec", "unit")

    reason = REASON
    families: tuple[str, ...] = ("cb",)
    renews = True
    dated = True

    def __init__(
        self,
        budget: float,
        period: TimeSpan,
        stages: Iterable[tuple[float, str, int]],  # percent, action, delay_ms
        *,
        unit: Unit = COST,
        cost: float = 1.0,  # cost of a request if `cost_of` is None or returns None
        cost_of: Callable[[Call], str | None] | None = None,
    ) -> None:
        self.spec = BudgetSpec(unit.of(budget))
        self.unit = unit
        self.needs = "" if unit is COST else "tokens" if unit is TOKENS else "microusd"
        self._period = period
        self._cost = COST.of(cost)
        self._cost_of = cost_of
        made = [self._stage(*stage) for stage in stages]
        self._stages = tuple(sorted(made, key=lambda stage: stage.units, reverse=True))
        self._lowest = self._stages[-1].units if self._stages else LARGEST + 2

    def _stage(self, percent: float, action: str, delay_ms: int) -> BudgetStage:
        budget = self.spec.budget
        # From the decimal text, because numbers such as 99.9 are not exact in binary.
        share = math.ceil(Fraction(str(percent)) * budget / 100)
        return BudgetStage(
            percent, action, delay_ms, budget + 1 if action == "reject" else share
        )  # exactly 100 % is allowed

    @property
    def tells_model(self) -> bool:
        """Whether a stage changes requests (a note for the model, or tools switched off), or holds their run."""
        return any(stage.action in {"steer", "land", "pause"} for stage in self._stages)

    def cost_of(self, call: Call, estimate: Estimate) -> int:
        """Return the amount that is charged before the call."""
        if self.unit is TOKENS:
            return min(estimate.tokens, LARGEST)  # clients may send any `max_tokens`
        if self.unit is not COST:
            return min(estimate.microusd, LARGEST)
        if self._cost_of is None:
            return self._cost
        text = self._cost_of(call)
        return self._cost if text is None else COST.of(read_cost(text, self._cost / COST.scale))

    def plan(
        self, key: str, cost: int, rule: RuleRef, group: int, now: float, limiter: BudgetLimiter | None = None
    ) -> ChargeBudget:
        """Return a charge. Its key includes the period, so that a correction is applied to the period that was charged.

        `limiter` interprets the result; None means this object.
        """
        start, end = self._period.bounds(now)
        return ChargeBudget(self.spec, f"{key}:{start}", cost, end, limiter or self, rule, group)

    def charges(
        self, call: Call, keys: Sequence[str], rule: RuleRef, group: int, now: float, estimate: Estimate
    ) -> tuple[Op, ...]:
        return (self.plan(keys[0], self.cost_of(call, estimate), rule, group, now),)

    def cacheable_between(self, now: float) -> tuple[float, float] | None:
        """Return the current period if the cost is fixed, else None."""
        return self._period.bounds(now) if self.unit is COST and self._cost_of is None else None

    def total(self, ops: Sequence[Op]) -> int:
        op = ops[0] if ops else None
        return op.cost if type(op) is ChargeBudget else 0

    def reason_for(self, _op: ChargeBudget) -> str:
        return self.reason

    def stage_reached(self, _op: ChargeBudget, used: int) -> BudgetStage | None:
        if used >= self._lowest:
            for stage in self._stages:
                if used >= stage.units:
                    return stage
        return None

    def crossings(self, op: ChargeBudget, used: int, published: int) -> list[dict[str, object]]:
        return [
            {
                "policy": op.rule.policy,
                "rule": op.rule.name,
                "key": op.key,
                "threshold_percent": stage.percent,
                "action": stage.action,
                "used": used,
                "budget": op.spec.budget,
                "unit": self.unit.name,
            }
            for stage in reversed(self._stages)
            if published < stage.units <= used
        ]

    def describe_limit(self, name: str, op: ChargeBudget, used: int, now: float) -> LimitState:
        """Return the state of the budget for the `RateLimit` fields. `reset_s` is the time until the next period."""
        budget, shown = op.spec.budget, self.unit.shown
        left = budget - (used if used <= budget else used - op.cost)  # a denied request is not charged
        window_s = int(op.ends) - self._period.bounds(op.ends - 1)[0]
        return LimitState(name, budget // shown, window_s, max(0, left // shown), self._until_end_s(op, now))

    def describe_denial(self, op: ChargeBudget, used: int, now: float, verdict: Verdict) -> None:
        """Set reason and message: the budget is used up, or too small for this request in any period."""
        self.fill_retry(op, used, now, verdict)
        verdict.reason, wait_s = self.reason, verdict.retry_after_s
        words, may = self.unit.words, "costs" if self.unit is COST else "may cost"
        budget, cost = f"{words(op.spec.budget)} {self._period.words}", words(op.cost)
        if wait_s is None:
            verdict.message = f"This request {may} {cost}, more than the whole budget of {budget}: it can never pass."
            return
        spent = words(used - op.cost)
        verdict.message = (
            f"Budget of {budget} used up: {spent} spent, and this request {may} {cost}. "
            f"The next period begins in {wait_s} seconds."
        )

    def explain(self, op: ChargeBudget, used: int) -> str:
        say, budget = self.unit.words, op.spec.budget
        if used > budget:
            return f"costs {say(op.cost)}, only {say(budget - used + op.cost)} of {say(budget)} available"
        return f"costs {say(op.cost)}, {say(budget - used)} of {say(budget)} left"

    def fill_retry(self, op: ChargeBudget, used: int, now: float, verdict: Verdict) -> None:
        """Set the retry time and the state of the limit, but not the reason."""
        # No jitter: the budget is available at the end of the period, and not before.
        verdict.never = op.cost > op.spec.budget  # in any period
        verdict.retry_after_s = None if verdict.never else self._until_end_s(op, now)
        verdict.limit = self.describe_limit(op.rule.policy, op, used, now)

    def adjust(self, op: ChargeBudget, used: ActualUse) -> AdjustCharge | None:
        """Return the difference between actual and estimated usage. A fixed cost needs no correction."""
        if self.unit is COST:
            return None
        really = used.tokens if self.unit is TOKENS else used.microusd
        return AdjustCharge(op.spec, op.key, really - op.cost) if really != op.cost else None

    def _until_end_s(self, op: ChargeBudget, now: float) -> int:
        return max(1, math.ceil(op.ends - now))


RUN_REASON: Final = "run_limit_exceeded"
SETTING: Final = "max_usd_per_run"
# The account of a run is kept for this long after its last charge: a run that sends a request every ten minutes, all of
# which are denied, is still the same run.
_KEPT_S: Final = 86_400


class _Run(TimeSpan):
    """A run has no fixed end, and its start is part of the key."""

    __slots__ = ()

    words = "a run"


class RunBudget(CostBudget):
    """The maximum cost of a run. Its account holds what the run has spent and what its pending requests may cost."""

    __slots__ = ()

    reason = RUN_REASON
    families = ("run",)
    renews = False
    dated = False  # a charge is made with the time by which windows age

    def __init__(self, usd: float, stages: Iterable[tuple[float, str, int]] = ()) -> None:
        super().__init__(usd, _Run(), stages, unit=MICROUSD)

    def plan(
        self, key: str, cost: int, rule: RuleRef, group: int, now: float, limiter: BudgetLimiter | None = None
    ) -> ChargeBudget:
        """Return a charge. The key includes the run and its start, and each charge extends the life of the account."""
        return ChargeBudget(self.spec, key, cost, now + _KEPT_S, limiter or self, rule, group)

    def describe_denial(self, op: ChargeBudget, used: int, _now: float, verdict: Verdict) -> None:
        """Set reason and message. There is no retry time, because waiting does not help."""
        verdict.reason = self.reason
        verdict.never = True
        ceiling, cost = f"{self.unit.words(op.spec.budget)} ({SETTING})", self.unit.words(op.cost)
        if op.cost > op.spec.budget:
            verdict.message = (
                f"This request may cost {cost}, more than its whole run may: {ceiling}. "
                "Lower max_tokens or shorten the prompt."
            )
            return
        spent = f"{self.unit.words(used - op.cost)} are spent or reserved"
        verdict.message = (
            f"This run has reached its ceiling: {ceiling}. {spent}, and this request may cost {cost} more."
        )


class RunPaid(RunBudget):
    """The actual cost of the answers of a run. It denies nothing; it is used to distinguish a run that has reached its
    maximum from one that only has too many requests in flight.
    """

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(1.0)
        self.spec = BudgetSpec(LARGEST)

    def adjust(self, op: ChargeBudget, used: ActualUse) -> AdjustCharge | None:
        """Return the cost of an answer, none of which was charged before the call."""
        return AdjustCharge(op.spec, op.key, used.microusd) if used.microusd else None
