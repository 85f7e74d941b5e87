"""Budgets under concurrency: requests start and end in any order, the clock jumps, and a ledger of them is always right."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from breakloop.store.limit_ops import BucketSpec, BudgetSpec, ChargeBudget, TakeTokens
from breakloop.store.memory import MemoryStore
from breakloop.store.ops import AdjustCharge, Op, Store
from tests.redis_store import NewStore
from tests.stores import NO_LIMITER, NO_RULE

TICK = 0.25  # exact in binary
PERIODS = {"5s": (5.0, BudgetSpec(20)), "1m": (60.0, BudgetSpec(60))}
TOKENS = BucketSpec(2.0, 30.0)


@dataclass
class Request:
    """One that passed: what it charged and where."""

    number: int
    estimate: int
    accounts: list[tuple[BudgetSpec, str]]


@dataclass
class Ledger:
    """What each request has cost so far, by period: the estimate, and once it has ended, the truth."""

    lines: dict[str, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))
    tokens: Fraction = Fraction(30)
    latest: float = 0.0

    def used(self, key: str) -> int:
        return sum(self.lines[key].values())

    def refill(self, clock: float) -> None:
        """Time goes on by the latest clock that anybody showed; the bucket has a brim."""
        passed, self.latest = max(0.0, clock - self.latest), max(self.latest, clock)
        self.tokens = min(self.tokens + Fraction(passed) * Fraction(TOKENS.rate), Fraction(30))


@dataclass
class Callers:
    """Some agents who share their limits."""

    store: Store
    clock: float = 1000.0
    ledger: Ledger = field(default_factory=Ledger)
    running: list[Request] = field(default_factory=list)
    started: int = 0

    def start(self, estimate: int) -> None:
        self.ledger.refill(self.clock)
        spends = [
            ChargeBudget(
                spec,
                f"cb:{name}:{self.clock // long:.0f}",
                estimate,
                (self.clock // long + 1) * long,
                NO_LIMITER,
                NO_RULE,
            )
            for name, (long, spec) in PERIODS.items()
        ]
        ops: list[Op] = [*spends, TakeTokens(TOKENS, "tpm", float(estimate), NO_LIMITER, NO_RULE)]
        fits = all(self.ledger.used(op.key) + estimate <= op.spec.budget for op in spends)
        passes = fits and self.ledger.tokens >= estimate
        assert (self.store.commit(ops, self.clock).denied_at < 0) == passes
        if passes:
            self.started += 1
            self.ledger.tokens -= estimate
            for op in spends:
                self.ledger.lines[op.key][self.started] = estimate
            self.running.append(Request(self.started, estimate, [(op.spec, op.key) for op in spends]))

    def end(self, which: int, used: int) -> None:
        if not self.running:
            return
        request = self.running.pop(which % len(self.running))
        more = used - request.estimate
        told = [AdjustCharge(spec, key, more) for spec, key in request.accounts]
        self.store.correct([*told, AdjustCharge(TOKENS, "tpm", more)], self.clock)
        self.ledger.refill(self.clock)
        self.ledger.tokens = min(self.ledger.tokens - more, Fraction(30))
        for _, key in request.accounts:
            self.ledger.lines[key][request.number] = used

    def check(self) -> None:
        """Every account there ever was agrees, and so does the bucket; asking costs nothing and changes nothing."""
        for key in list(self.ledger.lines):
            _, name, period = key.split(":")
            long, spec = PERIODS[name]
            ends = (float(period) + 1) * long
            (used,) = self.store.commit([ChargeBudget(spec, key, 0, ends, NO_LIMITER, NO_RULE)], self.clock).results
            assert used == self.ledger.used(key)
        self.ledger.refill(self.clock)
        (left,) = self.store.commit([TakeTokens(TOKENS, "tpm", 0.0, NO_LIMITER, NO_RULE)], self.clock).results
        assert left == self.ledger.tokens


STARTS = st.tuples(st.just("start"), st.integers(0, 12), st.just(0))
ENDS = st.tuples(st.just("end"), st.integers(0, 20), st.integers(0, 25))  # which of them, and what it really used
TICKS = st.tuples(st.just("tick"), st.sampled_from([1, 2, 3, 9, 20, 21, 60, 240, -1, -20, -70]), st.just(0))


STEPS = st.lists(st.one_of(STARTS, STARTS, ENDS, TICKS), max_size=60)


def follow_ledger(new_store: NewStore, steps: list[tuple[str, int, int]]) -> None:
    callers = Callers(new_store())
    for what, number, used in steps:
        if what == "start":
            callers.start(number)
        elif what == "end":
            callers.end(number, used)
        else:
            callers.clock += number * TICK
    callers.check()
    while callers.running:
        callers.end(0, 1)
    callers.check()


@given(steps=STEPS)
def test_no_request_passes_a_budget_and_nothing_is_lost(steps: list[tuple[str, int, int]]) -> None:
    """A request is admitted if and only if its estimate fits every limit; what it used beyond goes to the periods that
    it charged, whichever is current; nothing is lost or counted twice; a clock that steps back, also over the end of a
    period, does no harm (L-2, L-3, E-4, S-2)."""
    follow_ledger(MemoryStore, steps)
