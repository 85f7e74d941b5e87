"""Redis stores whose keys are in two slots (`shard_by: agent`), under random operations: they decide as one store does,
and whoever comes in between, no budget is overspent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from breakloop.store.limit_ops import BreakerSpec, BucketSpec, BudgetSpec, ChargeBudget, CheckBreaker, TakeTokens
from breakloop.store.memory import MemoryStore
from breakloop.store.ops import (
    BreakerResult,
    CommitResult,
    CountFingerprint,
    Deny,
    FingerprintCount,
    FingerprintSpec,
    Observation,
    Op,
)
from breakloop.store.redis.store import ShardedCommit
from tests.property import test_money as money
from tests.property import test_store as naive
from tests.redis_store import NewStore
from tests.stores import NO_LIMITER, NO_OWNER, NO_RULE

few = settings(max_examples=15)
START, LATER = 1_800_000_000.0, 1_900_000_000.0
PLACES = ("p|a", "p|b", "p")  # two agents, and what they share


@few
@given(steps=naive.EVERYTHING)
def test_two_slots_do_what_the_naive_one_does(new_sharded_store: NewStore, steps: list[naive.Commit]) -> None:
    """Results, denials, charges and windows. Only an account that was charged and given back is there (E-4, E-5)."""
    naive.follow(new_sharded_store, steps, gives_back=True)


@few
@given(steps=naive.MONEY)
def test_two_slots_keep_money_as_the_naive_one_does(new_sharded_store: NewStore, steps: list[naive.Commit]) -> None:
    """Accounts, breakers and corrections, over minutes (L-2, L-3, CB-1, E-4)."""
    naive.follow(new_sharded_store, steps, gives_back=True)


@few
@given(steps=naive.STARTS)
def test_two_slots_settle_as_the_naive_one_does(new_sharded_store: NewStore, steps: list[naive.Start]) -> None:
    """Who joins, who counts, what is taken back (LD-6)."""
    naive.follow_starts(new_sharded_store, steps)


@few
@given(steps=money.STEPS)
def test_in_two_slots_no_request_passes_a_budget(
    new_sharded_store: NewStore, steps: list[tuple[str, int, int]]
) -> None:
    """A ledger of all requests is right in the end (L-2, L-3)."""
    money.follow_ledger(new_sharded_store, steps)


# -- the row of commits itself, with a memory store for each slot ------------------------------------------------------

GROUPS = st.sampled_from([0, 0, 0, 1, 2])
LOOPS = [
    FingerprintSpec(30.0, 2),
    FingerprintSpec(30.0, 1, sliding=True, denies=False),
    FingerprintSpec(30.0, 1, sliding=True, cooldown_s=8.0, growth=2.0, cooldown_max_s=30.0),
    FingerprintSpec(30.0, 4, concurrent_free=2, retry_free=1),
]
BREAKERS = [BreakerSpec(6.0, 10.0), BreakerSpec(30.0, 0.0)]


@st.composite
def operations(draw: st.DrawFn) -> Op:
    """Of the first agent or of what all share; one specification a key, as in a bundle."""
    where, number, group = draw(st.sampled_from(PLACES[::2])), draw(st.integers(0, 1)), draw(GROUPS)
    kind, cost = draw(st.sampled_from("rrbbssknf")), draw(st.integers(0, 6))
    if kind == "r":
        spec = draw(st.integers(0, len(LOOPS) - 1))
        return CountFingerprint(LOOPS[spec], f"ld:{where}:{spec}", NO_OWNER, group, -1, draw(st.booleans()))
    if kind == "b":
        return TakeTokens(BucketSpec(0.25, 8.0 + number), f"tb:{where}:{number}", cost, NO_LIMITER, NO_RULE, group)
    if kind == "s":
        return ChargeBudget(BudgetSpec(20 + number), f"cb:{where}:{number}", cost, LATER, NO_LIMITER, NO_RULE, group)
    if kind == "k":
        return CheckBreaker(BREAKERS[number], f"brk:{where}:{number}", cost, NO_LIMITER, NO_RULE, group)
    return Observation(NO_OWNER, group) if kind == "n" else Deny(NO_OWNER, group)


COMMITS = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.0, 0.25, 2.0, 9.0, 60.0]),
        st.lists(operations(), max_size=8, unique_by=lambda op: getattr(op, "key", id(op))),
    ),
    max_size=30,
)


class Slots:
    """A memory store for each place. `between` is done before each of a decision's commits but the first."""

    def __init__(self) -> None:
        self.stores = {place: MemoryStore() for place in PLACES}
        self.charged: dict[str, float] = {}  # what passed, by key

    def begin(self, ops: Sequence[Op]) -> Deciding:
        return Deciding(self, ops)

    def commit(self, ops: Sequence[Op], now: float) -> CommitResult:
        deciding = self.begin(ops)
        while not deciding.step(now):
            pass
        assert deciding.done is not None
        return deciding.done


class Deciding:
    """One decision, commit by commit."""

    def __init__(self, slots: Slots, ops: Sequence[Op]) -> None:
        self.slots = slots
        self.ops = ops
        own = [key for key in map(_place, ops) if "|" in key]
        self.first = own[0] if own else PLACES[0]
        self.spread = ShardedCommit(ops, self.first)
        self.done: CommitResult | None = None

    def step(self, now: float) -> bool:
        """Make its next commit; tell whether that was the last."""
        part = self.spread.next()
        if part is None:
            charges, flights = self.spread.give_back()
            for charge in charges:
                self.slots.stores[_place(charge)].correct([charge], now)
            for flight in flights:
                self.slots.stores[_place(flight)].settle([flight], now, failed=False)
            self.done = self.spread.committed()
            if self.done.denied_at < 0:
                for op in self.ops:
                    if isinstance(op, TakeTokens | ChargeBudget) and op.group == 0:
                        self.slots.charged[op.key] = self.slots.charged.get(op.key, 0) + op.cost
            return True
        places = {_place(op) for op in part} - {""} or {self.first}
        assert len(places) == 1, "a commit is in one slot"
        self.spread.took(self.slots.stores[places.pop()].commit(part, now))
        return False


def _place(op: Any) -> str:
    return str(op.key).split(":")[1] if hasattr(op, "key") else ""


def plain(done: CommitResult) -> Any:
    """What is decided. The number of a flight only tells it from others."""
    shown = [
        one._replace(flight=min(1, one.flight)) if isinstance(one, FingerprintCount) else one for one in done.results
    ]
    rounded = [one._replace(rate=round(one.rate, 6)) if isinstance(one, BreakerResult) else one for one in shown]
    return rounded, done.denied_at


@given(steps=COMMITS)
def test_a_row_of_commits_decides_as_one(steps: list[tuple[float, list[Op]]]) -> None:
    """Whatever stands in which order in which slot, shadow policies and breakers included (E-4, E-5)."""
    one, slots, now = MemoryStore(), Slots(), START
    for seconds, ops in steps:
        now += seconds
        assert plain(slots.commit(ops, now)) == plain(one.commit(ops, now))


@given(
    calls=st.lists(
        st.tuples(st.integers(0, 1), st.integers(1, 9), st.integers(1, 9), st.booleans()), min_size=1, max_size=12
    ),
    order=st.lists(st.integers(0, 11), max_size=60),
)
def test_in_any_order_of_scripts_nothing_is_overspent(
    calls: list[tuple[int, int, int, bool]], order: list[int]
) -> None:
    """Calls of two agents, whose scripts come in any order: no budget, an agent's or all agents', is passed, and in the
    end exactly what passed is charged (L-2, E-5)."""
    slots = Slots()
    waiting = [
        slots.begin(_limits(f"p|{'ab'[agent]}", own, shared, shared_first=shared_first))
        for agent, own, shared, shared_first in calls
    ]
    for number in order:
        if waiting and waiting[number % len(waiting)].step(START):
            waiting.pop(number % len(waiting))
    for deciding in waiting:
        while not deciding.step(START):
            pass
    for place in PLACES:
        used = slots.stores[place].commit(_limits(place, 0, 0)[: 1 if place == "p" else 2], START).results
        assert used[0] == slots.charged.get(f"cb:{place}:0", 0) <= 20
        if place != "p":
            assert used[1] == 10.0 - slots.charged.get(f"tb:{place}:0", 0) >= 0


def _limits(place: str, own: int, shared: int, *, shared_first: bool = False) -> list[Op]:
    if place == "p":
        return [ChargeBudget(BudgetSpec(20), "cb:p:0", shared, LATER, NO_LIMITER, NO_RULE)]
    mine: list[Op] = [
        ChargeBudget(BudgetSpec(20), f"cb:{place}:0", own, LATER, NO_LIMITER, NO_RULE),
        TakeTokens(BucketSpec(1e-9, 10.0), f"tb:{place}:0", own, NO_LIMITER, NO_RULE),
    ]
    both = ChargeBudget(BudgetSpec(20), "cb:p:0", shared, LATER, NO_LIMITER, NO_RULE)
    if not own:
        return mine
    return [both, *mine] if shared_first else [*mine, both]
