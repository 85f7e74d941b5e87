"""What limits that count more than a bucket's tokens have charged, explained: budgets, LLM tokens, circuit breakers.
A part of `explain_parts`, which knows which rule applies and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from breakloop.limits.limiter import Refusal
from breakloop.policy.compiled import RunCharges
from breakloop.policy.rules import BreakerRule, Rule
from breakloop.state.ops import Broken, Bucket, Op, Result, Spend

Done = Sequence[tuple[Op, Result]]


def charges(rule: Rule | RunCharges, done: Done) -> tuple[str, str, Op | None]:
    """Return outcome and words on the charges of a rule, and the operation that decided."""
    own = [(op, result) for op, result in done if _rule_of(op) is rule]
    if not own:
        return "skipped", "the store did not answer", None
    words: list[str] = []
    for op, result in own:
        if isinstance(op.owner, Refusal):
            return "deny", op.owner.message, op
        if result is None:
            return "not asked", "the request was denied before", op
        outcome, text = _charge(op, result)
        if outcome == "deny":
            return outcome, text, op
        words.append(text)
    return "pass", "; ".join(words), own[0][0]


def run(rule: RunCharges, done: Done) -> tuple[str, str, Op | None]:
    """Return outcome and words on what a run has cost, and the operation that decided."""
    if not any(_rule_of(op) is rule for op, _ in done):
        return "skipped", "no LLM request of a session, so nothing is charged", None
    outcome, text, op = charges(rule, done)
    return outcome, text if outcome == "not asked" else f"{text} for this run", op


def breaker(rule: BreakerRule, done: Done) -> tuple[str, str, Op | None]:
    """Return outcome and words on the circuit breaker of a policy."""
    for op, result in done:
        if op.owner is rule:
            if not isinstance(result, Broken):
                return "not asked", "the request was denied before", op
            say = rule.limiter.unit.words
            threshold = say(rule.limiter.spec.threshold)
            if result.open:
                return "deny", f"open: its threshold of {threshold} a minute was reached", op
            return "pass", f"closed: {say(result.rate)} of {threshold} in the last minute", op
    return "skipped", "the first rule charges nothing, so nothing is counted", None


def _rule_of(op: Op) -> Any:
    return op.owner.rule if isinstance(op.owner, Refusal) else op.owner


def _charge(op: Op, result: Any) -> tuple[str, str]:
    say = op.owner.limiter.unit.words
    if isinstance(op, Spend):
        budget = op.spec.budget
        if result > budget:
            return "deny", f"costs {say(op.cost)}, only {say(budget - result + op.cost)} of {say(budget)} there"
        return "pass", f"costs {say(op.cost)}, {say(budget - result)} of {say(budget)} left"
    if isinstance(op, Bucket) and result < 0:
        return "deny", f"reserves {op.cost:g}, only {result + op.cost:.0f} of {op.spec.burst:g} there"
    left = f"{result:.0f} of {op.spec.burst:g} left" if isinstance(op, Bucket) else ""
    return "pass", f"reserves {getattr(op, 'cost', 0):g}, {left}"
