"""Which run a call belongs to, and what is charged to it. The whole of it is in tests/unit/test_engine_runs.py."""

from __future__ import annotations

from breakloop.detect.counting import DetectorConfig
from breakloop.detect.stateful import DetectorSlot
from breakloop.limits.base import NOTHING, Estimate
from breakloop.model.call import Call, CompletionCap
from breakloop.policy.rules import RunRule
from breakloop.pricing.tokens import Estimator, estimator
from breakloop.store.limit_ops import ChargeBudget
from breakloop.store.ops import CommitResult, Deny, Op
from tests.builders import START, call

TERMS = DetectorConfig("run", "agents", 0, ("reject", "reject", "reject"), 429, setting="max_usd_per_run")


class Meter:
    """Knows one answer."""

    def __init__(self, microusd: int = 400_000, *, denying: bool = False, llm: bool = True) -> None:
        self.found = Estimate(1000, 100, microusd) if llm else NOTHING
        self.denying = denying

    def estimate(self, _call: Call, _estimator: Estimator, *, money: bool) -> Estimate:
        assert money
        return self.found

    reserve = estimate

    def cap(self, _call: Call, _cap: CompletionCap) -> None:
        raise AssertionError

    def denies(self, _call: Call) -> bool:
        return self.denying


def rule(usd: float = 1.0) -> RunRule:
    return RunRule("work*", usd, TERMS, owner=lambda _: "s:me", estimator=estimator("simple_word"))


def charges(made: RunRule, window: bytes, now: float, meter: Meter | None = None) -> tuple[list[ChargeBudget], bytes]:
    ops: list[ChargeBudget] = []
    for watch in made.plan(call(), 0, meter or Meter()):
        assert isinstance(watch, DetectorSlot)
        looked = watch.detector.evaluate(call(), window, now)
        assert looked is not None
        op = watch.detector.operation(call(), looked, "default", 0)
        assert isinstance(op, ChargeBudget)
        assert not watch.detector.awaits_answer(call(), looked)
        ops.append(op)
        window = looked.window
    return ops, window


def keys(made: RunRule, window: bytes, now: float) -> tuple[list[str], bytes]:
    ops, window = charges(made, window, now)
    return [op.key for op in ops], window


def test_the_accounts_of_a_run() -> None:
    """One of what was paid, one of what may be spent, both named by when the run began (G-1)."""
    ops, _ = charges(rule(), b"", START)
    stem = f"run:default:agents:work*/max_usd_per_run:s:me:{round(START * 1e6)}"
    assert [(op.key, op.cost) for op in ops] == [(f"{stem}:paid", 0), (stem, 400_000)]
    assert [op.rule.name for op in ops] == ["work*/max_usd_per_run"] * 2


def test_ten_idle_minutes_begin_a_run() -> None:
    """As with `max_steps_per_run`; a clock that steps back begins none (G-1)."""
    made = rule()
    first, window = keys(made, b"", START)
    second, window = keys(made, window, START + 599.9)
    third, window = keys(made, window, START + 300)
    assert first == second == third
    fourth, _ = keys(made, window, START + 900)
    assert fourth != first
    assert keys(made, b"nonsense", START + 1)[0] != first


def test_what_charges_nothing() -> None:
    """No LLM call; a model without a price is refused where it is to be (L-5)."""
    assert rule().plan(call(), 0, Meter(llm=False)) == ()
    (op,) = rule().plan(call(), 3, Meter(denying=True))
    assert isinstance(op, Deny)
    assert (op.owner.denial_reason, op.group) == ("unknown_model", 3)


def reached(paid: int, cost: int) -> str | None:
    made = rule()
    ops, _ = charges(made, b"", START, Meter(cost))
    found = made.reached([*ops], CommitResult([paid, 5_000_000], 1))
    if found is None:
        return None
    assert set(found[1]) == {op.key for op in ops}
    return found[0]


def test_when_a_person_has_to_decide() -> None:
    """Not for what is in flight, and not for a request that no run may pay (G-1)."""
    assert reached(700_000, 300_001) == "$1.00 (max_usd_per_run), of which $0.70 were spent"
    assert reached(700_000, 300_000) is None
    assert reached(0, 1_000_001) is None
    assert reached(1_200_000, 0) == "$1.00 (max_usd_per_run), of which $1.20 were spent"


def test_others_paid_is_not_this_runs() -> None:
    """A shadow group's account says nothing about the enforced one."""
    made = rule()
    ops: list[Op] = []
    for group in (2, 0):
        for watch in made.plan(call(), group, Meter()):
            assert isinstance(watch, DetectorSlot)
            looked = watch.detector.evaluate(call(), b"", START)
            assert looked is not None
            op = watch.detector.operation(call(), looked, "default", group)
            assert op is not None
            ops.append(op)
    assert made.reached(ops, CommitResult([900_000, 0, 0, 1_400_000], 3)) is None
