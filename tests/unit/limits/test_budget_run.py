"""What a run may cost, as charges and words. Which run it is, is in the engine's tests."""

from __future__ import annotations

from breakloop.limits.base import LARGEST, Estimate
from breakloop.limits.budget import RunBudget, RunPaid
from breakloop.model.verdict import Verdict
from breakloop.store.limit_ops import ChargeBudget
from breakloop.store.ops import ActualUse
from tests.builders import START, call
from tests.stores import NO_RULE

DOLLAR = RunBudget(1.0)


def denied(cost: int, used: int) -> Verdict:
    verdict = Verdict(allowed=False)
    DOLLAR.describe_denial(DOLLAR.plan("run:k", cost, NO_RULE, 0, START), used, START, verdict)
    return verdict


def test_a_charge_names_the_run_and_keeps_its_account() -> None:
    """The key is the run's own, and no calendar is in it (G-1)."""
    op = DOLLAR.plan("run:k:7", 400_000, NO_RULE, 2, START)
    assert (op.key, op.cost, op.group, op.spec.budget) == ("run:k:7", 400_000, 2, 1_000_000)
    assert op.ends >= START + 3600
    assert DOLLAR.cost_of(call(), Estimate(1000, 100, 7_000)) == 7_000
    assert not DOLLAR.renews


def test_no_waiting_helps() -> None:
    """No time to wait for, and the numbers (G-1, L-4)."""
    verdict = denied(400_000, 1_100_000)
    assert (verdict.reason, verdict.never, verdict.retry_after_s) == ("run_limit_exceeded", True, None)
    assert verdict.message == (
        "This run has reached its ceiling: $1.00 (max_usd_per_run). $0.70 are spent or reserved, "
        "and this request may cost $0.40 more."
    )
    assert denied(1_000_000, 1_400_000).message.startswith("This run has reached its ceiling")
    assert denied(2_000_000, 2_000_000).message == (
        "This request may cost $2.00, more than its whole run may: $1.00 (max_usd_per_run). "
        "Lower max_tokens or shorten the prompt."
    )


def corrected(limiter: RunBudget, cost: int, used: int) -> float | None:
    op = limiter.plan("k", cost, NO_RULE, 0, START)
    assert isinstance(op, ChargeBudget)
    found = limiter.adjust(op, ActualUse(5, used))
    return None if found is None else found.amount


def test_an_answer_corrects_both_accounts() -> None:
    """What is charged becomes what was used; what was paid grows by it (L-3)."""
    assert corrected(DOLLAR, 400_000, 123_456) == -276_544
    assert corrected(DOLLAR, 400_000, 400_000) is None
    assert corrected(RunPaid(), 0, 123_456) == 123_456
    assert corrected(RunPaid(), 0, 0) is None
    assert RunPaid().plan("k", 0, NO_RULE, 0, START).spec.budget == LARGEST
