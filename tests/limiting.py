"""For tests of limiters: a rule that has one, and a desk that asks a store and lets the limiter judge, as an engine does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from breakloop.limits.base import NOTHING, Estimate, adjustments
from breakloop.model.call import Call
from breakloop.model.verdict import Verdict
from breakloop.store.limit_ops import BudgetStage, Charge, ChargeBudget
from breakloop.store.memory import MemoryStore
from breakloop.store.ops import ActualUse, Deny, Op, Store
from tests.builders import START, call


@dataclass
class Ruled:
    """A rule, as far as limiters look at it."""

    limiter: Any = None
    policy: str = "p"
    name: str = "r"
    status: int = 429


@dataclass
class Asked:
    """One request: what was planned, what the store said, what the limiter makes of it."""

    ops: tuple[Op, ...]
    results: Sequence[Any]
    verdict: Verdict
    stage: BudgetStage | None = None

    @property
    def left(self) -> int:
        """What the `RateLimit` fields say."""
        assert self.verdict.limit is not None
        return self.verdict.limit.remaining


@dataclass
class Desk:
    """A store, a time, and requests that come one after the other."""

    limiter: Any
    now: float = START
    store: Store = field(default_factory=MemoryStore)

    def ask(self, estimate: Estimate = NOTHING, who: str = "x", asked: Call | None = None) -> Asked:
        """Charge one request, if it passes."""
        keys = [f"{family}:default:p:r:{who}" for family in self.limiter.families]
        ops = self.limiter.charges(asked or call(), keys, Ruled(self.limiter), 0, self.now, estimate)
        done = self.store.commit(ops, self.now)
        verdict = Verdict(allowed=done.denied_at < 0)
        if not verdict.allowed:
            self._deny(ops[done.denied_at], done.results[done.denied_at], verdict)
            return Asked(ops, done.results, verdict)
        verdict.limit = self.limiter.describe_limit("p", ops[0], done.results[0], self.now)
        return Asked(ops, done.results, verdict, _stage(ops[0], done.results[0]))

    def _deny(self, op: Any, result: Any, verdict: Verdict) -> None:
        if isinstance(op, Deny):
            verdict.reason, verdict.never = op.owner.denial_reason, True
            op.owner.describe_denial(call(), verdict)
        else:
            self.limiter.describe_denial(op, result, self.now, verdict)

    def settle(self, asked: Asked, tokens: int = 0, microusd: int = 0) -> None:
        """The answer is there."""
        self.store.correct(
            adjustments([op for op in asked.ops if isinstance(op, Charge)], ActualUse(tokens, microusd)), self.now
        )


def _stage(op: Op, result: Any) -> BudgetStage | None:
    return op.limiter.stage_reached(op, result) if isinstance(op, ChargeBudget) else None
