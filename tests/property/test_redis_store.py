"""Redis stores under random operations: against the naive one, and side by side with the memory store, whose results
they have to give to the last bit."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from breakloop.store.limit_ops import BreakerSpec, BucketSpec, BudgetSpec, ChargeBudget, CheckBreaker, TakeTokens
from breakloop.store.memory import MemoryStore
from breakloop.store.ops import (
    JOINED,
    AdjustCharge,
    CommitResult,
    CountFingerprint,
    Deny,
    FingerprintCount,
    FingerprintSpec,
    Observation,
    Op,
    Settle,
    Store,
    WindowWrite,
)
from tests.property import test_money as money
from tests.property import test_store as naive
from tests.redis_store import NewStore
from tests.stores import NO_LIMITER, NO_OWNER, NO_RULE

# A call takes as long as a hundred in memory, and there are three kinds of servers.
few = settings(max_examples=15)


@few
@given(steps=naive.EVERYTHING)
def test_redis_does_what_the_naive_one_does(new_redis_store: NewStore, steps: list[naive.Commit]) -> None:
    """Results, denials, charges and windows, conflicts included (E-4, E-5, LD-1, LD-2, L-1, S-2)."""
    naive.follow(new_redis_store, steps)


@few
@given(steps=naive.MONEY)
def test_redis_keeps_money_as_the_naive_one_does(new_redis_store: NewStore, steps: list[naive.Commit]) -> None:
    """Accounts, breakers and corrections, over minutes (L-2, L-3, CB-1, CB-2, E-4)."""
    naive.follow(new_redis_store, steps)


@few
@given(steps=naive.STARTS)
def test_redis_settles_as_the_naive_one_does(new_redis_store: NewStore, steps: list[naive.Start]) -> None:
    """Who joins, who counts, what is taken back (LD-6)."""
    naive.follow_starts(new_redis_store, steps)


@few
@given(steps=money.STEPS)
def test_in_redis_no_request_passes_a_budget(new_redis_store: NewStore, steps: list[tuple[str, int, int]]) -> None:
    """A ledger of all requests is right in the end (L-2, L-3)."""
    money.follow_ledger(new_redis_store, steps)


# -- side by side ------------------------------------------------------------------------------------------------------

KEYS = st.sampled_from(["a", "b"])
GROUPS = st.sampled_from([0, 0, 0, 1, 2])
SECONDS = st.floats(0.1, 90.0)
AMOUNTS = st.floats(0.0, 20.0) | st.sampled_from([0.0, 0.1, 1.0])
# One key may come with another spec: a new bundle does that.
REPEATS = st.builds(
    FingerprintSpec,
    window_s=SECONDS,
    limit=st.integers(0, 4),
    denies=st.booleans(),
    cooldown_s=st.just(0.0) | SECONDS,
    growth=st.floats(1.0, 3.0),
    cooldown_max_s=st.floats(30.0, 200.0),
    concurrent_free=st.integers(0, 2),
    retry_free=st.integers(0, 2),
    at_once=st.booleans(),
)
BUCKETS = st.builds(BucketSpec, st.floats(0.01, 20.0), st.floats(0.5, 30.0))
BREAKERS = st.builds(BreakerSpec, st.floats(0.5, 40.0), st.just(0.0) | SECONDS)


@st.composite
def repeats(draw: st.DrawFn) -> Op:
    spec, sliding = draw(REPEATS), draw(st.booleans())
    spec = FingerprintSpec(**{name: getattr(spec, name) for name in spec.__slots__} | {"sliding": sliding})
    key = f"ld:{draw(KEYS)}:{sliding}"
    return CountFingerprint(spec, key, NO_OWNER, draw(GROUPS), draw(st.sampled_from([-1, -1, 3])), draw(st.booleans()))


@st.composite
def spends(draw: st.DrawFn) -> Op:
    budget, cost = draw(st.integers(0, 30) | st.just(2**61)), draw(st.integers(0, 15) | st.integers(0, 2**60))
    return ChargeBudget(
        BudgetSpec(budget), f"cb:{draw(KEYS)}", cost, draw(st.floats(900.0, 5000.0)), NO_LIMITER, NO_RULE, draw(GROUPS)
    )


OPS: st.SearchStrategy[Op] = st.one_of(
    repeats(),
    repeats(),
    st.builds(
        lambda spec, key, cost, group: TakeTokens(spec, f"tb:{key}", cost, NO_LIMITER, NO_RULE, group),
        BUCKETS,
        KEYS,
        AMOUNTS,
        GROUPS,
    ),
    spends(),
    st.builds(
        lambda spec, key, n, group: CheckBreaker(spec, f"brk:{key}", n, NO_LIMITER, NO_RULE, group),
        BREAKERS,
        KEYS,
        AMOUNTS,
        GROUPS,
    ),
    st.builds(Deny, st.none(), GROUPS),
    st.builds(Observation, st.none(), GROUPS),
)
CORRECTIONS = st.lists(
    st.one_of(
        st.builds(
            lambda spec, key, amount: AdjustCharge(spec, f"tb:{key}", amount), BUCKETS, KEYS, st.floats(-9.0, 9.0)
        ),
        st.builds(
            lambda key, n: AdjustCharge(BudgetSpec(9), f"cb:{key}", n),
            KEYS,
            st.floats(-9.0, 9.0) | st.integers(-(2**60), 9),
        ),
    ),
    max_size=3,
)
WRITES = st.lists(
    st.tuples(KEYS, st.sampled_from([0, 0, 0, 1, -1]), st.binary(max_size=20) | st.none(), SECONDS),
    max_size=2,
    unique_by=lambda write: write[0],
)
COMMIT = st.tuples(st.lists(OPS, max_size=6, unique_by=lambda op: getattr(op, "key", id(op))), WRITES)
AFTER = st.one_of(
    st.none(),
    st.tuples(st.just("correct"), CORRECTIONS),
    st.tuples(st.just("settle"), st.lists(st.tuples(st.integers(0, 30), st.booleans()), min_size=1, max_size=3)),
    st.tuples(st.just("drop"), st.sampled_from(["ld:a:True", "tb:a", "cb:b", "brk:a", "win:a"])),
)
STEPS = st.lists(
    st.tuples(st.just(0.0) | st.floats(-5.0, 90.0) | st.sampled_from([60.0, 120.0]), COMMIT, AFTER), max_size=25
)


class Both:
    """Two stores that are asked the same."""

    def __init__(self, one: Store, other: Store) -> None:
        self.stores = (one, other)
        self.clock = 1000.0
        self.running: list[Settle] = []

    def commit(self, ops: list[Op], writes: list[tuple[str, int, bytes | None, float]]) -> None:
        windows = [
            WindowWrite(
                f"win:{key}", max(0, self.same("read_window", f"win:{key}", self.clock).version + off), data, ttl_s
            )
            for key, off, data, ttl_s in writes
        ]
        done: CommitResult = self.same("commit", ops, self.clock, windows)
        for op, result in zip(ops, done.results, strict=False):
            if isinstance(op, CountFingerprint) and isinstance(result, FingerprintCount) and result.flight != JOINED:
                self.running.append(Settle(op.spec, op.key, done.at, result.flight))

    def after(self, what: str, how: Any) -> None:
        if what == "correct":
            self.same("correct", how, self.clock)
        elif what == "settle":
            for which, failed in how:
                told = [self.running[which % len(self.running)]] if self.running else []
                self.same("settle", told, self.clock, failed=failed)
        else:
            self.same("drop", [how])

    def same(self, name: str, *arguments: Any, **options: Any) -> Any:
        one, other = (getattr(store, name)(*arguments, **options) for store in self.stores)
        assert exact(one) == exact(other)
        return one


def exact(result: Any) -> Any:
    """With every type, and a commit's time, which it leaves out when it is compared."""
    if isinstance(result, CommitResult):
        shown = [(type(one), exact(one)) for one in result.results]
        return shown, result.denied_at, result.conflict, repr(result.at)
    if isinstance(result, tuple):
        return type(result), [(type(one), one) for one in result]
    return type(result), result


@settings(max_examples=30)
@given(steps=STEPS)
def test_redis_gives_what_memory_gives(new_redis_store: NewStore, steps: list[Any]) -> None:
    """The same results to the last bit, whatever the numbers, also when specs change under way (E-4, E-5, S-2)."""
    both = Both(MemoryStore(), new_redis_store())
    for step_s, (ops, writes), after in steps:
        both.clock += step_s
        both.commit(ops, writes)
        if after is not None:
            both.after(*after)
