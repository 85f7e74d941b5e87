"""`token_bucket` (SPEC L-1). Holds `burst`, refills `tokens_per_second`, each request takes its cost.

10 a second, burst 10:  t=0.0  ten requests pass, the eleventh is denied (retry in 1 s)
                        t=0.5  5 tokens are back: one more passes, 4 remain
"""

from __future__ import annotations

import math
from collections.abc import Callable

from breakloop.model.call import Call
from breakloop.model.verdict import Limit
from breakloop.state.ops import Bucket, BucketSpec, Owner

REASON = "token_bucket_exceeded"


class TokenBucket:
    """One bucket rule; the key says whose bucket."""

    __slots__ = ("_cost", "_cost_of", "_default_cost", "_window_s", "spec")

    reason = REASON
    family = "tb"

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
        self._cost_of = cost_of  # None: fixed
        self._window_s = max(1, math.ceil(burst / rate))

    def plan(self, call: Call, key: str, owner: Owner, group: int) -> Bucket:
        """Return the charge of this call."""
        cost = self._cost if self._cost_of is None else self._read_cost(self._cost_of(call))
        return Bucket(self.spec, key, cost, owner, group)

    def limit(self, name: str, op: Bucket, left: float) -> Limit:
        """Return the bucket's state for the `RateLimit` fields: `reset_s` is when it is full again."""
        spec = op.spec
        tokens = left if left >= 0.0 else op.cost + left
        return Limit(name, int(spec.burst), self._window_s, int(tokens), math.ceil((spec.burst - tokens) / spec.rate))

    def retry_after_s(self, op: Bucket, left: float) -> int | None:
        """Return the seconds until the cost is there, or None when it is larger than the bucket."""
        if op.cost > op.spec.burst:
            return None
        return max(1, math.ceil(-left / op.spec.rate))

    def _read_cost(self, text: str | None) -> float:
        """A cost that is missing, not a number or not positive is the default: nobody gets in free by nonsense."""
        if text is None:
            return self._default_cost
        try:
            cost = float(text)
        except ValueError:
            return self._default_cost
        return cost if 0.0 < cost < math.inf else self._default_cost
