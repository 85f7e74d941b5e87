"""`cost_based` (SPEC L-2): a budget per calendar period, with stages. What a request costs is charged beforehand; for
`usage:*` that is an estimate, and one correction follows, to the period that was charged.

100 a day, cost 10, stages 80 warn, 95 throttle, 100 reject:
    requests 1 to 7 pass; 8 and 9 pass with a warning; 10 passes (exactly 100 %) slowed; 11 is denied until midnight

`max_usd_per_run` (SPEC B-1, G-1), as far as it is money: a ceiling that no time renews. What a call may cost is
charged beforehand and corrected by its answer, as with every budget. Which run it is, is for `policy.run_rule` to say.

$1.00 a run:  spent $0.70, and a request that may cost $0.40 is denied: whatever comes after it waits for a person
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from typing import Final

from breakloop.limits.base import (
    COST,
    LARGEST,
    MICROUSD,
    TOKENS,
    Estimate,
    TimeSpan,
    Unit,
    read_cost,
)
from breakloop.model.call import Call
from breakloop.model.verdict import LimitState, Verdict
from breakloop.store.ops import (
    ActualUse,
    AdjustCharge,
    BudgetLimiter,
    BudgetSpec,
    BudgetStage,
    ChargeBudget,
    Op,
    RuleRef,
)

REASON = "budget_exceeded"


class CostBudget:
    """One budget rule; the key says whose budget. `unit` is COST, or TOKENS and MICROUSD for `usage:*`."""

    __slots__ = ("_cost", "_cost_of", "_lowest", "_period", "_stages", "needs", "spec", "unit")

    reason = REASON
    families: tuple[str, ...] = ("cb",)
    renews = True

    def __init__(
        self,
        budget: float,
        period: TimeSpan,
        stages: Iterable[tuple[float, str, int]],  # percent, action, delay_ms
        *,
        unit: Unit = COST,
        cost: float = 1.0,  # what every request costs, or those where `cost_of` tells nothing
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
        # By the number as it is written: 99.9 is not a binary fraction.
        share = math.ceil(Fraction(str(percent)) * budget / 100)
        return BudgetStage(
            percent, action, delay_ms, budget + 1 if action == "reject" else share
        )  # exactly 100 % passes

    def cost_of(self, call: Call, estimate: Estimate) -> int:
        """Return what a call is charged beforehand."""
        if self.unit is TOKENS:
            return min(estimate.tokens, LARGEST)  # whatever `max_tokens` a client thinks up
        if self.unit is not COST:
            return min(estimate.microusd, LARGEST)
        if self._cost_of is None:
            return self._cost
        text = self._cost_of(call)
        return self._cost if text is None else COST.of(read_cost(text, self._cost / COST.scale))

    def plan(
        self, key: str, cost: int, rule: RuleRef, group: int, now: float, limiter: BudgetLimiter | None = None
    ) -> ChargeBudget:
        """Return a charge. Its key names the period, so that an adjustment finds the account that was charged.

        `limiter` interprets the result; None for this one.
        """
        start, end = self._period.bounds(now)
        return ChargeBudget(self.spec, f"{key}:{start}", cost, end, limiter or self, rule, group)

    def charges(
        self, call: Call, keys: Sequence[str], rule: RuleRef, group: int, now: float, estimate: Estimate
    ) -> tuple[Op, ...]:
        """Return the charge of this call."""
        return (self.plan(keys[0], self.cost_of(call, estimate), rule, group, now),)

    def cacheable_between(self, now: float) -> tuple[float, float] | None:
        """Return the period, for a fixed cost."""
        return self._period.bounds(now) if self.unit is COST and self._cost_of is None else None

    def total(self, ops: Sequence[Op]) -> int:
        """Return the cost, for a circuit breaker."""
        op = ops[0] if ops else None
        return op.cost if type(op) is ChargeBudget else 0

    def reason_for(self, _op: ChargeBudget) -> str:
        """Return the reason of a denial."""
        return self.reason

    def stage_reached(self, _op: ChargeBudget, used: int) -> BudgetStage | None:
        """Return the highest stage that the charge has reached."""
        if used >= self._lowest:
            for stage in self._stages:
                if used >= stage.units:
                    return stage
        return None

    def crossings(self, op: ChargeBudget, used: int, published: int) -> list[dict[str, object]]:
        """Return the data of `budget.threshold` for each stage that was reached, above those told before."""
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
        """Return the budget's state for the `RateLimit` fields: `reset_s` is when the next period begins."""
        budget, shown = op.spec.budget, self.unit.shown
        left = budget - (used if used <= budget else used - op.cost)  # what was refused was not charged
        window_s = int(op.ends) - self._period.start(op.ends - 1)
        return LimitState(name, budget // shown, window_s, max(0, left // shown), self._until_end_s(op, now))

    def retry_after_s(self, op: ChargeBudget, now: float) -> int | None:
        """Return the seconds until the next period, or None for what costs more than a whole one's budget."""
        return None if op.cost > op.spec.budget else self._until_end_s(op, now)

    def describe_denial(self, op: ChargeBudget, used: int, now: float, verdict: Verdict) -> None:
        """Say that the budget is used up, or too small for this request at any time."""
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

    def fill_retry(self, op: ChargeBudget, used: int, now: float, verdict: Verdict) -> None:
        """Say when to retry, and the budget's state; not why."""
        # No jitter: later than the period's end would be waiting for nothing, and sooner is too early (SPEC A-2).
        wait_s = verdict.retry_after_s = self.retry_after_s(op, now)
        verdict.never = wait_s is None
        verdict.limit = self.describe_limit(op.rule.policy, op, used, now)

    def adjust(self, op: ChargeBudget, used: ActualUse) -> AdjustCharge | None:
        """Return what the answer makes of the estimate; a plain cost stays."""
        if self.unit is COST:
            return None
        really = used.tokens if self.unit is TOKENS else used.microusd
        return AdjustCharge(op.spec, op.key, really - op.cost) if really != op.cost else None

    def _until_end_s(self, op: ChargeBudget, now: float) -> int:
        return max(1, math.ceil(op.ends - now))


RUN_REASON: Final = "run_limit_exceeded"
SETTING: Final = "max_usd_per_run"
# So long after its last charge the account of a run is kept: a run that sends something every ten minutes, all of which
# is denied, is still the same run.
_KEPT_S: Final = 86_400


class _Run(TimeSpan):
    """As long as it goes on; its start is in its key."""

    __slots__ = ()

    words = "a run"


class RunBudget(CostBudget):
    """The ceiling. Its account holds what the run has spent, and what it may spend by what is not answered yet."""

    __slots__ = ()

    reason = RUN_REASON
    families = ("run",)
    renews = False

    def __init__(self, usd: float) -> None:
        super().__init__(usd, _Run(), (), unit=MICROUSD)

    def plan(
        self, key: str, cost: int, rule: RuleRef, group: int, now: float, limiter: BudgetLimiter | None = None
    ) -> ChargeBudget:
        """Return a charge. The key names the run and its start; each charge keeps the account for longer."""
        return ChargeBudget(self.spec, key, cost, now + _KEPT_S, limiter or self, rule, group)

    def describe_denial(self, op: ChargeBudget, used: int, _now: float, verdict: Verdict) -> None:
        """Say that it does not fit. No waiting helps, so no time is told."""
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
    """What the answers of a run have really cost. It denies nothing: it tells whether a run is at its ceiling, or only
    has too much in flight."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(1.0)
        self.spec = BudgetSpec(LARGEST)

    def adjust(self, op: ChargeBudget, used: ActualUse) -> AdjustCharge | None:
        """Add what an answer has cost: nothing was charged beforehand."""
        return AdjustCharge(op.spec, op.key, used.microusd) if used.microusd else None
