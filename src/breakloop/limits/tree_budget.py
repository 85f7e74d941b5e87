"""`max_usd_per_tree` and `max_tokens_per_tree`: what all agents that started each other may use together.

The tree has one account in each unit, which every agent is charged to, whatever its name. A request passes if the
account, with the request, stays within the limit of the agent that sends it. The budget does not renew with time: the
account is forgotten `KEPT_S` after the last request that passed, and an operator may reset it before.

$1.00 a tree: the root has used $0.50, and two agents that it started may cost $0.30 each: the first passes, and leaves
$0.20 to all of them; the second is denied
"""

from __future__ import annotations

from typing import Final

from breakloop.limits.base import LARGEST, MICROUSD, TOKENS, TimeSpan
from breakloop.limits.budget import CostBudget
from breakloop.model.verdict import TreeBudgetState, Verdict
from breakloop.store.limit_ops import BudgetLimiter, BudgetStage, ChargeBudget
from breakloop.store.ops import RuleRef

USD: Final = "max_usd_per_tree"
TOKEN: Final = "max_tokens_per_tree"
REASON: Final = "tree_budget_exceeded"
# Longer than the pauses of a working day, and shorter than the interval of a daily job whose session has a fixed name.
KEPT_S: Final = 43_200
_WARNS_AT: Final = 80.0  # percent; where requests are landed later, the model is told
_BUDGET: Final = "the budget of this tree of agents"


class _Tree(TimeSpan):
    """A tree has no fixed end."""

    __slots__ = ()

    words = "a tree"


class TreeBudget(CostBudget):
    """The budget of a tree in one unit, for the agents of one entry of `agents`. None: the agent is charged, so that
    the others get what is left, but has no limit itself.
    """

    __slots__ = ("setting", "tells")

    reason = REASON
    families = ("tree",)
    renews = False

    def __init__(self, setting: str, most: float | None, *, tells: bool, land_at_percent: float | None) -> None:
        stages = [] if most is None else [(percent, action, 0) for percent, action in _stages(land_at_percent)]
        budget = LARGEST if most is None else most
        super().__init__(budget, _Tree(), stages, unit=MICROUSD if setting == USD else TOKENS)
        self.setting = setting
        self.tells = tells  # the model is told what is left

    def _stage(self, percent: float, action: str, delay_ms: int) -> BudgetStage:
        return super()._stage(percent, action, delay_ms)._replace(budget=_BUDGET)

    @property
    def limited(self) -> bool:
        """Whether requests are denied."""
        return self.spec.budget < LARGEST

    def plan(
        self, key: str, cost: int, rule: RuleRef, group: int, now: float, limiter: BudgetLimiter | None = None
    ) -> ChargeBudget:
        """Return a charge. Each charge that passes moves the end of the account."""
        return ChargeBudget(self.spec, key, cost, now + KEPT_S, limiter or self, rule, group)

    def show(self, op: ChargeBudget, used: int, verdict: Verdict) -> None:
        """Put what is left into the verdict. `used` includes the request if it passes."""
        if not self.limited:
            return
        state = verdict.tree
        if state is None:
            state = verdict.tree = TreeBudgetState()
        left = max(0, op.spec.budget - used)
        if self.unit is MICROUSD:
            state.microusd_left = left
        else:
            state.tokens_left = left
        if self.tells:
            words = self.unit.words(left)
            state.note = f"{state.note} and {words}" if state.note else words

    def describe_denial(self, op: ChargeBudget, used: int, _now: float, verdict: Verdict) -> None:
        """Set reason and message. There is no retry time, because waiting does not help."""
        verdict.reason = self.reason
        verdict.never = True
        words = self.unit.words
        budget, cost = f"{words(op.spec.budget)} ({self.setting})", words(op.cost)
        may = "may cost" if self.unit is MICROUSD else "may use"
        self.show(op, used - op.cost, verdict)
        if op.cost > op.spec.budget:
            verdict.message = (
                f"This request {may} {cost}, more than the budget of its whole tree of agents: {budget}. "
                "Lower max_tokens or shorten the prompt."
            )
            return
        verdict.message = (
            f"The budget of this tree of agents is used up: {budget}. {words(used - op.cost)} are spent or reserved, "
            f"and this request {may} {cost} more. Finish with what you have."
        )

    def explain(self, op: ChargeBudget, used: int) -> str:
        """Describe a charge; without a limit, only what the tree has used."""
        if self.limited:
            return super().explain(op, used)
        return f"costs {self.unit.words(op.cost)}, {self.unit.words(used)} used, and no limit for this agent"


def _stages(land_at_percent: float | None) -> list[tuple[float, str]]:
    """Return the stages before the limit. The highest one that was reached applies, so nothing follows the landing."""
    if land_at_percent is None:
        return [(_WARNS_AT, "warn")]
    lands = (land_at_percent, "land")
    return [(_WARNS_AT, "steer"), lands] if land_at_percent > _WARNS_AT else [lands]
