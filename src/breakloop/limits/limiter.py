"""`Limiter`: what every limiter can do, so that a rule need not know which one it has. It plans charges, and reads what
the store says about them; it has no store and no clock. Charges name their rule (`owner`), which leads back here.

charges     what a call would be charged, before it is decided
denied      the store refused one of them: why, and when to come again
limit       what is left of one, for the `RateLimit` fields
staged      what passes, and is to be warned or slowed
correction  the answer is there: what was charged too much or too little
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple, Protocol

from breakloop.limits.units import Unit
from breakloop.model.call import Call
from breakloop.model.verdict import Limit, Verdict
from breakloop.state.ops import Correct, Op, Owner

DEFAULT_COMPLETION: Final = 1000  # tokens of an answer whose request names no maximum


class Estimate(NamedTuple):
    """What a call may use, as far as its request tells. Of one that is no LLM call: nothing."""

    prompt_tokens: int = 0
    max_completion: int | None = 0  # the most that an answer may have; None: it names no maximum
    microusd: int = 0  # what prompt and answers would cost
    answers: int = 1  # that it asks for at once

    def completion(self, default: int = DEFAULT_COMPLETION) -> int:
        """Tokens of the longest answer, of all of them. Some servers take -1 for no maximum."""
        most = self.max_completion
        return (default if most is None or most < 0 else most) * self.answers

    @property
    def tokens(self) -> int:
        """Tokens of prompt and longest answer."""
        return self.prompt_tokens + self.completion()


NOTHING: Final = Estimate()


class Used(NamedTuple):
    """What a call has used, as its answer tells."""

    tokens: int = 0
    microusd: int = 0


class Stage(NamedTuple):
    """A stage of a budget: from `units` used on, `action` applies."""

    percent: float
    action: str  # "warn", "throttle" or "reject"
    delay_ms: int
    units: int

    @property
    def warning(self) -> str:
        """The word for the client: `budget_warn` or `budget_throttle`."""
        return f"budget_{self.action}"


class Limiter(Protocol):
    """A limiter of a rule. `op` is one of its own charges, and `result` what the store said about it."""

    families: tuple[str, ...]  # what its keys begin with
    unit: Unit  # what `spend` counts
    needs: str  # of an estimate: "" nothing, "tokens", or "microusd"
    renews: bool  # what is left comes back by itself: such limits stand in the `RateLimit` fields

    def charges(
        self, call: Call, keys: Sequence[str], owner: Owner, group: int, now: float, estimate: Estimate
    ) -> tuple[Op, ...]:
        """Return what the call would be charged; `keys` has one key a family. A `Refuse` if it can never pass."""
        ...

    def holds(self, now: float) -> tuple[float, float] | None:
        """Return from when to when a sender's charges stay the same; None where they depend on the call."""
        ...

    def spend(self, ops: Sequence[Op]) -> int:
        """Return what its charges come to, for a circuit breaker; 0 where there are none."""
        ...

    def reason_for(self, op: Any) -> str:
        """Return the reason of a denial by this charge, for records."""
        ...

    def denied(self, op: Any, result: Any, now: float, verdict: Verdict) -> None:
        """Say why: reason, message, when to retry or that it never helps, and the limit's state."""
        ...

    def limit(self, name: str, op: Any, result: Any, now: float) -> Limit:
        """Return the limit's state after the call."""
        ...

    def staged(self, op: Any, result: Any) -> Stage | None:
        """Return the highest stage that was reached, or None."""
        ...

    def correction(self, op: Any, used: Used) -> Correct | None:
        """Return what is to be charged more or given back, or None if the charge was right."""
        ...


class Refusal:
    """Why a call can never pass, known before any state is looked at. It owns its `Refuse` in the rule's place."""

    __slots__ = ("message", "refusal", "rule")

    def __init__(self, rule: Owner, reason: str, message: str) -> None:
        self.rule = rule
        self.refusal = reason
        self.message = message

    @property
    def refusal_at(self) -> tuple[str, str]:
        """Where it comes from, for records: policy and rule."""
        return self.rule.policy, self.rule.name

    def refused(self, _call: Call, verdict: Verdict) -> None:
        """Say it."""
        verdict.status = self.rule.status
        verdict.policy, verdict.rule = self.refusal_at
        verdict.message = self.message


def corrections(charged: Iterable[Any], used: Used) -> tuple[Correct, ...]:
    """Return what settles the charges of one call, whichever limiters they are of."""
    found = [op.owner.limiter.correction(op, used) for op in charged]
    return tuple(one for one in found if one is not None)
