"""Words on budgets, tokens and breakers; `explain` as a whole is in test_explain_parts."""

from __future__ import annotations

from typing import Any

from breakloop.limits.base import LimitDenial, Period
from breakloop.limits.budget import CostBudget
from breakloop.limits.circuit_breaker import CircuitBreakerLimiter
from breakloop.limits.llm_tokens import LlmTokens
from breakloop.replay import explain
from breakloop.store.limit_ops import BucketSpec, BudgetSpec, ChargeBudget, TakeTokens
from breakloop.store.ops import BreakerResult, Deny


class Ruled:
    """A rule with a limiter."""

    policy, name, status = "p", "r", 429

    def __init__(self, limiter: Any) -> None:
        self.limiter = limiter


def charges(rule: Any, *done: Any) -> tuple[str, str]:
    outcome, text, _ = explain.charges(rule, done)
    return outcome, text


def test_budgets() -> None:
    """Budgets (L-2)."""
    rule = Ruled(CostBudget(5, Period("1d"), ()))
    op = ChargeBudget(BudgetSpec(5000), "cb:k", 2000, 100.0, rule.limiter, rule)
    assert charges(rule, (op, 2000)) == ("pass", "costs 2, 3 of 5 left")
    assert charges(rule, (op, 6000)) == ("deny", "costs 2, only 1 of 5 available")
    assert charges(rule, (op, None)) == ("not asked", "the request was denied before")
    assert charges(rule) == ("skipped", "the store did not respond")


def test_tokens() -> None:
    """Both accounts, or the one that has too little (L-3)."""
    rule = Ruled(LlmTokens(600))
    op = TakeTokens(BucketSpec(10.0, 600.0), "tpm:k", 100.0, rule.limiter, rule)
    assert charges(rule, (op, 500.0)) == ("pass", "reserves 100, 500 of 600 left")
    assert charges(rule, (op, -40.0)) == ("deny", "reserves 100, only 60 of 600 available")
    refused = Deny(LimitDenial(rule, "prompt_tokens_exceeded", "too long"))
    assert charges(rule, (refused, None)) == ("deny", "too long")


def test_breakers() -> None:
    """Breakers (CB-2)."""
    rule: Any = Ruled(CircuitBreakerLimiter(5, 1))
    op = rule.limiter.plan("brk:k", 2000, rule, 0)
    assert explain.breaker(rule, [(op, BreakerResult(False, 2000.0))])[:2] == (
        "pass", "closed: 2 of 5 in the last minute"
    )  # fmt: skip
    assert explain.breaker(rule, [(op, BreakerResult(True, 6000.0, 60.0))])[0] == "deny"
    assert explain.breaker(rule, [(op, None)])[0] == "not asked"
    assert explain.breaker(rule, [])[0] == "skipped"
