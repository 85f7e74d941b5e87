"""`token_bucket_llm`: tokens per minute in a bucket, and tokens per UTC day in an account. The prompt and the maximum
answer are reserved before the call; both reservations are corrected when the actual usage is known.

6,000 a minute; prompt of 1,000 tokens, max_tokens 4,000:
    5,000 reserved, 1,000 left; if the call used 3,000, 2,000 are returned; if it used 7,000, 2,000 more are charged
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from breakloop.limits.base import DEFAULT_COMPLETION, LARGEST, TOKENS, Estimate, LimitDenial, Period
from breakloop.limits.budget import CostBudget
from breakloop.limits.token_bucket import TokenBucket
from breakloop.model.call import Call
from breakloop.model.verdict import LimitState, Verdict
from breakloop.store.limit_ops import BudgetStage, Charge, ChargeBudget, TakeTokens
from breakloop.store.ops import ActualUse, AdjustCharge, Deny, Op, RuleRef


class TokenCeilings(NamedTuple):
    """Maximum tokens of one request, regardless of what is left. None: no maximum."""

    request: int | None = None
    prompt: int | None = None
    completion: int | None = None  # no more is reserved, even if the request allows a longer answer
    default_completion: int = DEFAULT_COMPLETION  # reserved if the request sets no maximum


NO_CEILINGS: Final = TokenCeilings()


class LlmTokens:
    """One token rule. The keys identify whose tokens are counted."""

    __slots__ = ("_bucket", "_day", "_per_minute", "ceilings", "families")

    unit = TOKENS
    needs = "tokens"
    renews = True
    dated = True

    def __init__(
        self,
        per_minute: int,
        *,
        burst: int | None = None,
        per_day: int | None = None,
        ceilings: TokenCeilings = NO_CEILINGS,
    ) -> None:
        self._per_minute = per_minute
        self._bucket = TokenBucket(per_minute / 60, per_minute if burst is None else burst)
        # Not charged if the rule has no `tokens_per_day`.
        self._day = CostBudget(0 if per_day is None else per_day, Period("1d"), (), unit=TOKENS)
        self.ceilings = ceilings
        self.families: tuple[str, ...] = ("tpm",) if per_day is None else ("tpm", "tpd")

    def charges(
        self, _call: Call, keys: Sequence[str], rule: RuleRef, group: int, now: float, estimate: Estimate
    ) -> tuple[Op, ...]:
        """Return the reservations, or a `Deny` if the request exceeds a maximum and can never be allowed."""
        prompt, most, ceilings = estimate.prompt_tokens, self.completion(estimate), self.ceilings
        if ceilings.prompt is not None and prompt > ceilings.prompt:
            return (Deny(_long_prompt(prompt, ceilings.prompt, rule), group),)
        tokens = min(prompt + most, LARGEST)
        if ceilings.request is not None and tokens > ceilings.request:
            return (Deny(_large_request(estimate, most, ceilings.request, rule), group),)
        minute = TakeTokens(self._bucket.spec, keys[0], float(tokens), self, rule, group)
        if len(self.families) == 1:
            return (minute,)
        return minute, self._day.plan(keys[1], tokens, rule, group, now, self)

    def cacheable_between(self, _now: float) -> None:
        """Return None: the number of tokens differs by call."""

    def completion(self, estimate: Estimate) -> int:
        """Return the number of tokens to reserve for the answers."""
        most, ceiling = estimate.completion(self.ceilings.default_completion), self.ceilings.completion
        return most if ceiling is None else min(most, ceiling * estimate.answers)

    def total(self, ops: Sequence[Op]) -> int:
        first = ops[0] if ops else None
        return int(first.cost) if type(first) is TakeTokens else 0

    def reason_for(self, op: Charge) -> str:
        return "tpd_exceeded" if isinstance(op, ChargeBudget) else "tpm_exceeded"

    def describe_limit(self, name: str, op: Charge, result: float, now: float) -> LimitState:
        if isinstance(op, ChargeBudget):
            return self._day.describe_limit(name, op, int(result), now)
        return self._bucket.describe_limit(name, op, result)

    def describe_denial(self, op: Charge, result: float, now: float, verdict: Verdict) -> None:
        """Set reason and message for the limit that was exceeded: the minute's or the day's."""
        verdict.reason = self.reason_for(op)
        if isinstance(op, ChargeBudget):
            self._day.fill_retry(op, int(result), now, verdict)
            self._explain(verdict, op.cost, f"{op.spec.budget} a day", op.spec.budget)
        else:
            self._bucket.fill_retry(op, result, verdict)
            self._explain(verdict, int(op.cost), f"{self._per_minute} a minute", int(op.spec.burst))

    def explain(self, op: Charge, result: float) -> str:
        return self._day.explain(op, int(result)) if isinstance(op, ChargeBudget) else self._bucket.explain(op, result)

    def stage_reached(self, op: ChargeBudget, used: int) -> BudgetStage | None:
        return self._day.stage_reached(op, used)

    def crossings(self, op: ChargeBudget, used: int, published: int) -> list[dict[str, object]]:
        return self._day.crossings(op, used, published)

    def adjust(self, op: Charge, used: ActualUse) -> AdjustCharge | None:
        return AdjustCharge(op.spec, op.key, used.tokens - op.cost) if used.tokens != op.cost else None

    def _explain(self, verdict: Verdict, wants: int, limit: str, most: int) -> None:
        reserves = f"this request reserves {wants} for its prompt and longest answer"
        if verdict.never:
            verdict.message = (
                f"Token limit of {limit}: {reserves}, and there are never more than {most}. "
                "Lower max_tokens or shorten the prompt."
            )
        else:
            left = 0 if verdict.limit is None else verdict.limit.remaining
            verdict.message = f"Token limit of {limit} reached: {reserves}, and {left} are left."


def _long_prompt(prompt: int, most: int, rule: RuleRef) -> LimitDenial:
    message = f"The prompt has about {prompt} tokens, and at most {most} are allowed: shorten it."
    return LimitDenial(rule, "prompt_tokens_exceeded", message)


def _large_request(estimate: Estimate, completion: int, most: int, rule: RuleRef) -> LimitDenial:
    named = estimate.max_completion is not None and estimate.max_completion >= 0
    answer = f"{completion} for the answer" if named else f"{completion} for the answer, because max_tokens is not set"
    message = (
        f"The request may take {estimate.prompt_tokens + completion} tokens "
        f"({estimate.prompt_tokens} for the prompt, {answer}), and at most {most} are allowed: "
        "lower max_tokens or shorten the prompt."
    )
    return LimitDenial(rule, "max_tokens_per_request_exceeded", message)
