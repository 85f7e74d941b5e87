"""Tokens per minute and day by their numbers: what is reserved, what is refused for good, what is settled."""

from __future__ import annotations

from typing import Any

import pytest

from breakloop.limits.base import LARGEST, Estimate, LimitDenial
from breakloop.limits.llm_tokens import LlmTokens, TokenCeilings
from breakloop.model.verdict import LimitState, Verdict
from breakloop.store.limit_ops import ChargeBudget, TakeTokens
from breakloop.store.ops import ActualUse, Deny, Op
from tests.builders import call
from tests.limiting import Ruled

NOW = 1_770_098_400.0  # 2026-02-03T06:00:00Z
DAY_END = 1_770_163_200


def plan(limiter: LlmTokens, prompt: int, most: int | None = None) -> tuple[Op, ...]:
    return limiter.charges(call(), ["tpm:k", "tpd:k"], Ruled(limiter), 0, NOW, Estimate(prompt, most))


def reserved(limiter: LlmTokens, prompt: int, most: int | None = None) -> int:
    return limiter.total(plan(limiter, prompt, most))


def refused(limiter: LlmTokens, prompt: int, most: int | None = None) -> LimitDenial:
    (op,) = plan(limiter, prompt, most)
    assert isinstance(op, Deny)
    assert isinstance(op.owner, LimitDenial)
    return op.owner


def denial(limiter: LlmTokens, op: Op, result: float) -> Verdict:
    verdict = Verdict(allowed=False)
    limiter.describe_denial(op, result, NOW, verdict)  # type: ignore[arg-type]
    return verdict


def test_five_of_six_thousand() -> None:
    """TPM 6000, a prompt of 4,000 characters and max_tokens 4000: 5000 are reserved, 1000 are left (L-3)."""
    limiter = LlmTokens(6000)
    (op,) = plan(limiter, 1000, 4000)
    assert isinstance(op, TakeTokens)
    assert (op.key, op.cost, op.spec.rate, op.spec.burst) == ("tpm:k", 5000, 100, 6000)
    assert limiter.describe_limit("p", op, 1000.0, NOW) == LimitState("p", 6000, 60, 1000, 50)


def test_the_day_has_an_account_of_its_own() -> None:
    """Named by its start, so that a settlement after midnight finds the day that was charged (L-3)."""
    limiter = LlmTokens(6000, burst=8000, per_day=1_000_000)
    minute, day = plan(limiter, 1000, 4000)
    assert isinstance(minute, TakeTokens)
    assert isinstance(day, ChargeBudget)
    assert (minute.cost, minute.spec.burst) == (5000, 8000)
    assert (day.key, day.cost, day.ends, day.spec.budget) == ("tpd:k:1770076800", 5000, DAY_END, 1_000_000)
    assert limiter.describe_limit("p", day, 5000, NOW) == LimitState("p", 1_000_000, 86_400, 995_000, 64_800)
    assert limiter.families == ("tpm", "tpd")
    assert LlmTokens(6000).families == ("tpm",)


@pytest.mark.parametrize(
    ("most", "more", "tokens"),
    [
        (500, {}, 600), (None, {}, 1100), (-1, {}, 1100), (0, {}, 100),
        (None, {"default_completion": 300}, 400), (5000, {"completion": 2000}, 2100),
        (None, {"completion": 700}, 800), (100, {"completion": 700}, 200),
    ],
)  # fmt: skip
def test_what_is_reserved_for_the_answer(most: int | None, more: dict[str, Any], tokens: int) -> None:
    """What the request names, at most `max_completion_tokens`, else `default_max_completion` (L-3)."""
    assert reserved(LlmTokens(6000, ceilings=TokenCeilings(**more)), 100, most) == tokens


def test_a_prompt_that_is_too_long() -> None:
    """max_prompt_tokens 2048 and 12,000 characters: it can never pass, and says so (L-3, L-4)."""
    limiter = LlmTokens(6000, ceilings=TokenCeilings(prompt=2048))
    refusal = refused(limiter, 3000, 10)
    assert refusal.denial_reason == "prompt_tokens_exceeded"
    assert refusal.message == "The prompt has about 3000 tokens, and at most 2048 are allowed: shorten it."
    assert reserved(limiter, 2048, 10) == 2058


def test_a_request_that_is_too_large() -> None:
    """max_tokens_per_request 4096 and 5000 in all (L-3, L-4)."""
    limiter = LlmTokens(6000, ceilings=TokenCeilings(request=4096))
    refusal = refused(limiter, 1000, 4000)
    assert refusal.denial_reason == "max_tokens_per_request_exceeded"
    assert refusal.message == (
        "The request may take 5000 tokens (1000 for the prompt, 4000 for the answer), and at most 4096 are allowed: "
        "lower max_tokens or shorten the prompt."
    )
    assert "1000 for the answer, because max_tokens is not set)" in refused(limiter, 3500).message
    assert "1000 for the answer, because max_tokens is not set)" in refused(limiter, 3500, -1).message
    assert "(5000 for the prompt, 0 for the answer)" in refused(limiter, 5000, 0).message
    assert reserved(limiter, 96, 4000) == 4096
    assert limiter.total(plan(limiter, 1000, 4000)) == 0


def test_the_prompt_is_looked_at_first() -> None:
    """Of two ceilings, the one that no lower max_tokens would help (L-3)."""
    limiter = LlmTokens(6000, ceilings=TokenCeilings(request=100, prompt=50))
    assert refused(limiter, 60, 4000).denial_reason == "prompt_tokens_exceeded"


def test_too_few_this_minute() -> None:
    """1000 are left, 5000 are wanted at 100 a second: 40 s, and jitter may be added (L-3, A-2)."""
    limiter = LlmTokens(6000)
    (op,) = plan(limiter, 1000, 4000)
    verdict = denial(limiter, op, -4000.0)
    assert (verdict.reason, verdict.retry_after_s, verdict.retry_jitter, verdict.never) == (
        "tpm_exceeded", 40, True, False,
    )  # fmt: skip
    assert verdict.limit == LimitState("p", 6000, 60, 1000, 40)
    assert verdict.message == (
        "Token limit of 6000 a minute reached: this request reserves 5000 for its prompt and longest answer, "
        "and 1000 are left."
    )


def test_a_bucket_below_nothing() -> None:
    """What an answer took beyond its reservation has to flow back first; nothing is shown as left (L-3)."""
    limiter = LlmTokens(6000)
    (op,) = plan(limiter, 0, 500)
    verdict = denial(limiter, op, -1500.0)
    assert verdict.retry_after_s == 15
    assert verdict.limit == LimitState("p", 6000, 60, 0, 15)


def test_too_few_today() -> None:
    """999,000 of a million used and 2000 wanted: until midnight UTC, without jitter; 1000 remain (L-3)."""
    limiter = LlmTokens(6000, per_day=1_000_000)
    day = plan(limiter, 1000, 1000)[1]
    verdict = denial(limiter, day, 1_001_000)
    assert (verdict.reason, verdict.retry_after_s, verdict.retry_jitter, verdict.never) == (
        "tpd_exceeded", 64_800, False, False,
    )  # fmt: skip
    assert verdict.limit == LimitState("p", 1_000_000, 86_400, 1000, 64_800)
    assert verdict.message == (
        "Token limit of 1000000 a day reached: this request reserves 2000 for its prompt and longest answer, "
        "and 1000 are left."
    )


def test_more_than_there_ever_is() -> None:
    """Larger than the bucket, or than the day: no `Retry-After` (L-4)."""
    limiter = LlmTokens(6000, per_day=5500)
    minute, day = plan(limiter, 1000, 6000)
    for op, result, reason, most in (
        (minute, -1000.0, "tpm_exceeded", 6000),
        (day, 7000, "tpd_exceeded", 5500),
    ):
        verdict = denial(limiter, op, result)
        assert (verdict.reason, verdict.retry_after_s, verdict.never) == (reason, None, True)
        assert verdict.message.endswith(
            f"this request reserves 7000 for its prompt and longest answer, and there are never more than {most}. "
            "Lower max_tokens or shorten the prompt."
        )


@pytest.mark.parametrize(
    ("used", "amounts"), [(3000, [-2000, -2000]), (7000, [2000, 2000]), (5000, []), (0, [-5000] * 2)]
)
def test_settlement(used: int, amounts: list[int]) -> None:
    """5000 reserved and 3000 used gives 2000 back, 7000 used charges 2000 more: one signed correction each (L-3)."""
    limiter = LlmTokens(6000, per_day=1_000_000)
    found = [one for op in plan(limiter, 1000, 4000) if (one := limiter.adjust(op, ActualUse(used)))]  # type: ignore[arg-type]
    assert [one.amount for one in found] == amounts
    assert [one.key for one in found] == ["tpm:k", "tpd:k:1770076800"][: len(amounts)]


def test_no_stages() -> None:
    """Tokens pass or not (L-3)."""
    limiter = LlmTokens(6000, per_day=5000)
    _, op = plan(limiter, 1000, 4000)
    assert isinstance(op, ChargeBudget)
    assert limiter.stage_reached(op, 5000) is None
    assert limiter.crossings(op, 5000, 0) == []


def test_a_window_is_a_whole_minute_whatever_the_rate() -> None:
    """60 s, not 61 because 7 a minute is no binary fraction of a second (A-1)."""
    for per_minute in range(1, 2000):
        limiter = LlmTokens(per_minute)
        (op,) = plan(limiter, 0, per_minute)
        limit = limiter.describe_limit("p", op, 0.0, NOW)  # type: ignore[arg-type]
        assert (limit.window_s, limit.reset_s) == (60, 60)


def test_no_client_can_name_a_number_that_a_store_cannot_add() -> None:
    """`max_tokens` is the client's (Y-2)."""
    assert reserved(LlmTokens(6000), 10, 10**30) == LARGEST
