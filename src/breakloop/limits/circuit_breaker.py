"""`circuit_breaker`: denies all requests of a key that spends too fast. This module plans what is counted and describes
denials; the store keeps the sliding minute, the reset and the probe.

1000 a minute, reset after 5 minutes: 900 passes; 100 more open the breaker and are denied, as is everything for the
next 5 minutes; then one probe passes, and closes the breaker if the rate, including the probe, is below 1000
"""

from __future__ import annotations

import math
from typing import Final

from breakloop.limits.base import COST, Unit
from breakloop.model.verdict import LimitState, Verdict
from breakloop.store.limit_ops import BreakerSpec, CheckBreaker
from breakloop.store.ops import BreakerResult, RuleRef

REASON: Final = "circuit_breaker_open"
_MINUTE_S: Final = 60


class CircuitBreakerLimiter:
    """The circuit breaker of one policy. The key identifies whose spending is counted, in `unit`."""

    __slots__ = ("_alert", "spec", "unit")

    reason = REASON
    family = "brk"

    def __init__(self, per_minute: float, reset_minutes: float, *, unit: Unit = COST, alert: bool = False) -> None:
        self.spec = BreakerSpec(float(unit.of(per_minute)), reset_minutes * 60.0)
        self.unit = unit
        self._alert = alert

    def plan(self, key: str, amount: int, rule: RuleRef, group: int) -> CheckBreaker:
        """Return the operation that counts `amount` units: the `total` of the policy's first rule, or its cost in
        money.
        """
        return CheckBreaker(self.spec, key, float(amount), self, rule, group)

    def reason_for(self, _op: CheckBreaker) -> str:
        return self.reason

    def describe_denial(self, op: CheckBreaker, broken: BreakerResult, _now: float, verdict: Verdict) -> None:
        """Set reason and message: the breaker is open, and when it will allow a probe, if it resets by itself."""
        verdict.reason = self.reason
        threshold = f"{self.unit.words(op.spec.threshold)} a minute"
        if broken.changed == "opened":
            found = f"{self.unit.words(broken.rate)} were spent in a minute, and the threshold is {threshold}"
        else:
            found = f"spending reached its threshold of {threshold}"
        if op.spec.reset_s:
            wait_s = verdict.retry_after_s = max(1, math.ceil(broken.wait_s))
            verdict.retry_jitter = True
            quota = int(op.spec.threshold) // self.unit.shown
            verdict.limit = LimitState(op.rule.policy, quota, _MINUTE_S, 0, wait_s)
            verdict.message = f"Circuit breaker open: {found}. It lets a request through again in {wait_s} seconds."
        else:
            verdict.never = True
            verdict.message = f"Circuit breaker open: {found}. Only an operator closes it."

    def explain(self, op: CheckBreaker, broken: BreakerResult) -> str:
        threshold = self.unit.words(op.spec.threshold)
        if broken.open:
            return f"open: its threshold of {threshold} a minute was reached"
        return f"closed: {self.unit.words(broken.rate)} of {threshold} in the last minute"

    def event_data(self, op: CheckBreaker, broken: BreakerResult) -> dict[str, object]:
        return {
            "policy": op.rule.policy,
            "key": op.key,
            "rate": round(broken.rate),
            "threshold": round(op.spec.threshold),
            "unit": self.unit.name,
            "reset_seconds": round(op.spec.reset_s),
            "alert": self._alert,
        }
