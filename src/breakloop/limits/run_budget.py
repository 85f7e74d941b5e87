"""`max_usd_per_run` (SPEC B-1, G-1), as far as it is money: a ceiling that no time renews. What a call may cost is
charged beforehand and corrected by its answer, as with every budget. Which run it is, is for `policy.run_rule` to say.

$1.00 a run:  spent $0.70, and a request that may cost $0.40 is denied: whatever comes after it waits for a person
"""

from __future__ import annotations

from typing import Final

from breakloop.limits.cost_budget import CostBudget
from breakloop.limits.limiter import Used
from breakloop.limits.periods import Span
from breakloop.limits.units import LARGEST, MICROUSD
from breakloop.model.verdict import Verdict
from breakloop.state.ops import Correct, Owner, Spend, SpendSpec

REASON: Final = "run_limit_exceeded"
SETTING: Final = "max_usd_per_run"
# So long after its last charge the account of a run is kept: a run that sends something every ten minutes, all of which
# is denied, is still the same run.
_KEPT_S: Final = 86_400


class _Run(Span):
    """As long as it goes on; its start is in its key."""

    __slots__ = ()

    words = "a run"


class RunBudget(CostBudget):
    """The ceiling. Its account holds what the run has spent, and what it may spend by what is not answered yet."""

    __slots__ = ()

    reason = REASON
    families = ("run",)
    renews = False

    def __init__(self, usd: float) -> None:
        super().__init__(usd, _Run(), (), unit=MICROUSD)

    def plan(self, key: str, cost: int, owner: Owner, group: int, now: float) -> Spend:
        """Return a charge. The key names the run with its start; each charge keeps the account for longer."""
        return Spend(self.spec, key, cost, now + _KEPT_S, owner, group)

    def denied(self, op: Spend, used: int, _now: float, verdict: Verdict) -> None:
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
        self.spec = SpendSpec(LARGEST)

    def correction(self, op: Spend, used: Used) -> Correct | None:
        """Add what an answer has cost: nothing was charged beforehand."""
        return Correct(op.spec, op.key, used.microusd) if used.microusd else None
