"""What all limiters share: one protocol, estimates, refusals."""

from __future__ import annotations

from typing import Any

import pytest

from breakloop.limits.base import TOKENS, Estimate, LimitDenial, Limiter, Period, adjustments
from breakloop.limits.budget import CostBudget
from breakloop.limits.llm_tokens import LlmTokens
from breakloop.limits.token_bucket import TokenBucket
from breakloop.model.verdict import REASONS, LimitState, Verdict
from breakloop.store.limit_ops import BudgetStage, Charge, TakeTokens
from breakloop.store.ops import ActualUse
from tests.builders import START, call
from tests.limiting import Ruled

LIMITERS: list[Limiter] = [
    TokenBucket(10, 100, fixed_cost=2.5),
    CostBudget(100, Period("1d"), [(100, "reject", 0)], cost=2.5),
    CostBudget(5000, Period("1d"), [(100, "reject", 0)], unit=TOKENS),
    LlmTokens(6000),
    LlmTokens(6000, per_day=10_000),
]


@pytest.mark.parametrize("limiter", LIMITERS)
def test_one_protocol(limiter: Limiter) -> None:
    """A rule asks each in the same way, one key a family, and its charges lead back to it (L-1 to L-3)."""
    rule = Ruled(limiter)
    keys = [f"{family}:k" for family in limiter.families]
    ops = limiter.charges(call(), keys, rule, 3, START, Estimate(500, 1500))
    assert len(ops) == len(keys)
    assert all(isinstance(op, Charge) and op.rule is rule and op.group == 3 for op in ops)
    assert limiter.total(ops) == (2000 if limiter.needs == "tokens" else 2500)
    assert limiter.total(()) == 0
    reader: Any = limiter
    assert isinstance(reader.describe_limit("p", ops[0], 10, START), LimitState)
    for op in ops:
        verdict = Verdict(allowed=False)
        reader.describe_denial(op, -1.0 if isinstance(op, TakeTokens) else 10**9, START, verdict)
        assert verdict.reason == reader.reason_for(op)
        assert verdict.reason in REASONS
        assert verdict.message.endswith(".")
        assert verdict.limit is not None


def test_the_longest_answer() -> None:
    """What the request names, else 1000; -1 names nothing; what is no LLM call uses nothing (L-3)."""
    assert Estimate(10, 50).tokens == 60
    assert Estimate(10, None).tokens == 1010
    assert Estimate(10, -1).tokens == 1010
    assert Estimate(10, 0).tokens == 10
    assert Estimate().tokens == 0
    assert Estimate(10, None).completion(200) == 200


def test_a_refusal_speaks_for_its_rule() -> None:
    """It has the rule's status, and is recorded under its name (L-4)."""
    refusal = LimitDenial(Ruled(status=403), "prompt_tokens_exceeded", "Too long.")
    assert (refusal.denial_reason, refusal.denied_by) == ("prompt_tokens_exceeded", ("p", "r"))
    verdict = Verdict(allowed=False)
    refusal.describe_denial(call(), verdict)
    assert (verdict.status, verdict.policy, verdict.rule, verdict.message) == (403, "p", "r", "Too long.")


def test_corrections_of_several_limiters() -> None:
    """Each charge by its own limiter; what was right is left out (L-3)."""
    charged: list[Charge] = []
    for number, limiter in enumerate(LIMITERS):
        keys = [f"{family}:{number}" for family in limiter.families]
        made = limiter.charges(call(), keys, Ruled(limiter), 0, START, Estimate(500, 1500))
        charged += [op for op in made if isinstance(op, Charge)]
    found = adjustments(charged, ActualUse(tokens=1200))
    assert [one.amount for one in found] == [-800, -800, -800, -800]
    assert [one.key.split(":")[:2] for one in found] == [["cb", "2"], ["tpm", "3"], ["tpm", "4"], ["tpd", "4"]]
    assert adjustments(charged, ActualUse(tokens=2000)) == []


def test_warnings_of_stages() -> None:
    """The words of the warning field (L-2)."""
    assert BudgetStage(80, "warn", 0, 8).warning == "budget_warn"
    assert BudgetStage(95, "throttle", 200, 9).warning == "budget_throttle"
