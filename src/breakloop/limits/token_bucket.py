"""`token_bucket`: a bucket of `burst` tokens, refilled at `tokens_per_second`. Each request takes its cost.

10 a second, burst 10:  t=0.0  ten requests pass, the eleventh is denied (retry in 1 s)
                        t=0.5  5 tokens are back: one more passes, 4 remain
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from breakloop.limits.base import COST, Estimate, read_cost
from breakloop.model.call import Call
from breakloop.model.verdict import LimitState, Verdict
from breakloop.store.limit_ops import BucketSpec, TakeTokens
from breakloop.store.ops import ActualUse, Op, RuleRef

REASON = "token_bucket_exceeded"
_DUST_S = 1e-6  # tolerance for rounding errors in divisions that yield whole seconds


class TokenBucket:
    """One token bucket rule. The key identifies the bucket."""

    __slots__ = ("_cost", "_cost_of", "_default_cost", "_last", "_quota", "_window_s", "spec")

    reason = REASON
    family = "tb"
    families: tuple[str, ...] = (family,)
    unit = COST
    needs = ""
    renews = True

    def __init__(
        self,
        rate: float,
        burst: float,
        *,
        fixed_cost: float = 1.0,
        default_cost: float = 1.0,
        cost_of: Callable[[Call], str | None] | None = None,
    ) -> None:
        self.spec = BucketSpec(float(rate), float(burst))
        self._cost = float(fixed_cost)
        self._default_cost = float(default_cost)
        self._cost_of = cost_of  # None: the cost is fixed
        self._window_s = max(1, math.ceil(burst / rate - _DUST_S))
        self._quota = int(burst)
        self._last: tuple[float, str, LimitState] | None = None

    def plan(self, call: Call, key: str, rule: RuleRef, group: int) -> TakeTokens:
        cost = self._cost if self._cost_of is None else read_cost(self._cost_of(call), self._default_cost)
        return TakeTokens(self.spec, key, cost, self, rule, group)

    def charges(
        self, call: Call, keys: Sequence[str], rule: RuleRef, group: int, _now: float, _estimate: Estimate
    ) -> tuple[Op, ...]:
        return (self.plan(call, keys[0], rule, group),)

    def cacheable_between(self, _now: float) -> tuple[float, float]:
        """Return an unlimited interval. Policies only call this if the cost depends on nothing but the sender."""
        return -math.inf, math.inf

    def total(self, ops: Sequence[Op]) -> int:
        op = ops[0] if ops else None
        return COST.of(op.cost) if type(op) is TakeTokens else 0

    def reason_for(self, _op: TakeTokens) -> str:
        return self.reason

    def describe_limit(self, name: str, op: TakeTokens, left: float, _now: float = 0.0) -> LimitState:
        """Return the state of the bucket for the `RateLimit` fields. `reset_s` is the time until it is full.

        Most buckets are full before each request, so the last state is kept.
        """
        last = self._last
        if last is not None and last[0] == left and last[1] == name:
            return last[2]
        spec = op.spec
        tokens = left if left >= 0.0 else op.cost + left
        left_whole = int(tokens) if tokens > 0.0 else 0  # a correction can make the bucket negative
        full_s = math.ceil((spec.burst - tokens) / spec.rate - _DUST_S)
        state = LimitState(name, self._quota, self._window_s, left_whole, full_s)
        if left >= 0.0:  # that of a denial depends on the cost
            self._last = (left, name, state)
        return state

    def retry_after_s(self, op: TakeTokens, left: float) -> int | None:
        """Return the seconds until the bucket holds the cost, or None if the cost exceeds its capacity."""
        if op.cost > op.spec.burst:
            return None
        return max(1, math.ceil(-left / op.spec.rate))

    def describe_denial(self, op: TakeTokens, left: float, _now: float, verdict: Verdict) -> None:
        self.fill_retry(op, left, verdict)
        verdict.reason = self.reason
        if verdict.never:
            verdict.message = f"This request costs {op.cost:g}, more than the bucket holds ({op.spec.burst:g})."
        else:
            verdict.message = f"Rate limit exceeded: {op.spec.rate:g} a second, burst {op.spec.burst:g}."

    def explain(self, op: TakeTokens, left: float) -> str:
        if left < 0:
            return f"reserves {op.cost:g}, only {left + op.cost:.0f} of {op.spec.burst:g} available"
        return f"reserves {op.cost:g}, {left:.0f} of {op.spec.burst:g} left"

    def fill_retry(self, op: TakeTokens, left: float, verdict: Verdict) -> None:
        """Set the retry time and the state of the limit, but not the reason."""
        limit = self.describe_limit(op.rule.policy, op, left)
        wait_s = verdict.retry_after_s = self.retry_after_s(op, left)
        verdict.retry_jitter = True
        verdict.never = wait_s is None
        if wait_s is not None:  # for a denied request: when it would be allowed, not when the bucket is full
            limit = replace(limit, reset_s=wait_s)
        verdict.limit = limit

    def adjust(self, _op: TakeTokens, _used: ActualUse) -> None:
        """Return None: the cost was known before the call."""
