"""`max_usd_per_run` (SPEC B-1, G-1): which run a call belongs to, and what is charged to it. A run is a session, until
ten minutes without a request; the session's window remembers when it began, and that start names its accounts, so that
a late answer corrects the run that was charged. What the charges come to is `limits.run_budget`'s to say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct
from typing import Final, NamedTuple

from breakloop.detect.loop import LoopTerms
from breakloop.detect.steps.judge import RUN_IDLE_S
from breakloop.detect.watch import Watch, tags
from breakloop.limits.limiter import NOTHING
from breakloop.limits.run_budget import SETTING, RunBudget, RunPaid
from breakloop.model.answer import Answer
from breakloop.model.call import Call
from breakloop.policy.rules import Metering, unpriced
from breakloop.pricing.estimate import Estimator
from breakloop.state.keys import part
from breakloop.state.ops import Committed, Op, Spend

_SECTION: Final = Struct("<Bdd")
_VERSION: Final = 1


class Begun(NamedTuple):
    """The run that a call belongs to."""

    window: bytes
    start: float
    now: float


class Paid:
    """Owns the account of what a run has really cost."""

    __slots__ = ("limiter", "name", "policy", "status")

    def __init__(self, rule: RunRule) -> None:
        self.limiter = RunPaid()
        self.name, self.policy, self.status = rule.name, rule.policy, rule.status


class RunRule:
    """The ceiling of one agent, or of all that a pattern names: each run has its own."""

    __slots__ = ("_estimator", "_prefix", "limiter", "name", "owner", "paid", "policy", "status", "tags", "terms")

    def __init__(
        self, pattern: str, usd: float, terms: LoopTerms, *, owner: Callable[[Call], str], estimator: Estimator
    ) -> None:
        self.policy, self.status = terms.policy, terms.status
        self.name = f"{pattern}/{SETTING}"
        self.limiter = RunBudget(usd)
        self.paid = Paid(self)
        self.terms = terms
        self.tags = tags(terms, "run:usd:")
        self.owner = owner
        self._estimator = estimator
        self._prefix = f":{part(self.policy)}:{part(self.name)}:"

    def plan(self, call: Call, group: int, meter: Metering) -> tuple[Watch | Op, ...]:
        """Return what stands for the charges until the run is known; nothing for what is no LLM call."""
        if meter.denies(call):
            return (unpriced(self, group),)
        estimate = meter.estimate(call, self._estimator, money=True)
        if estimate is NOTHING:
            return ()
        call.prompt_tokens, call.estimator = estimate.prompt_tokens, self._estimator.name
        cost = self.limiter.cost_of(call, estimate)
        # What was paid comes first: it is told even where the ceiling denies.
        return Watch(_Charge(self, self.paid, 0), group), Watch(_Charge(self, self, cost), group)

    def key(self, project: str, owner: str, start: float, group: int) -> str:
        """Return the key of a run's account."""
        return f"{'shadow:' if group else ''}run:{project}{self._prefix}{owner}:{round(start * 1e6)}"

    def reached(self, ops: Sequence[Op], done: Committed) -> tuple[str, tuple[str, ...]] | None:
        """Return why a run that was denied is to be held, and the keys of its accounts.

        None where a person has nothing to decide: the request alone costs more than any run may, or it would pass if
        what is in flight were answered and cost nothing.
        """
        op = ops[done.denied_at]
        own = [(one, result) for one, result in zip(ops, done.results, strict=True) if one.owner is self.paid]
        paid = sum([int(result) for one, result in own if one.group == op.group and isinstance(result, int)])
        if not isinstance(op, Spend) or not op.spec.budget - paid < op.cost <= op.spec.budget:
            return None
        words = self.limiter.unit.words
        why = f"{words(op.spec.budget)} ({SETTING}), of which {words(paid)} were spent"
        return why, (op.key, *[one.key for one, _ in own if isinstance(one, Spend)])


class _Charge:
    """One charge of one call, while the window is read that says which run it is."""

    __slots__ = ("_cost", "_payer", "_rule", "tags", "terms")

    def __init__(self, rule: RunRule, payer: RunRule | Paid, cost: int) -> None:
        self._rule = rule
        self._payer = payer
        self._cost = cost
        self.tags = rule.tags
        self.terms = rule.terms

    def owner(self, call: Call) -> str:
        """Return the session, which is the run; "" where a call has none, and then nothing is charged."""
        return self._rule.owner(call)

    def look(self, _call: Call, window: bytes, now: float) -> Begun:
        """Go on with the run, or begin one."""
        start, last = _read(window)
        if not start or now - last >= RUN_IDLE_S:
            start = now
        elif last == now:
            return Begun(window, start, now)
        return Begun(_SECTION.pack(_VERSION, start, now), start, now)

    def operation(self, call: Call, looked: Begun, project: str, group: int) -> Op:
        """Return the charge."""
        payer = self._payer
        key = self._rule.key(project, self.owner(call), looked.start, group)
        if payer is not self._rule:
            key += ":paid"
        return payer.limiter.plan(key, self._cost, payer, group, looked.now)

    def hears(self, _call: Call, _looked: Begun) -> bool:
        """Return False: answers correct the accounts."""
        return False

    def heard(self, window: bytes, _answer: Answer) -> bytes:
        """Return what was there."""
        return window


def _read(window: bytes) -> tuple[float, float]:
    if len(window) != _SECTION.size or window[0] != _VERSION:
        return 0.0, 0.0
    _, start, last = _SECTION.unpack(window)
    return start, last
