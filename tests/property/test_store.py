"""Every store against a naive one: lists of times and exact fractions, under random operations and a jumping clock."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from breakloop.store.limit_ops import (
    BreakerSpec,
    BucketSpec,
    BudgetSpec,
    ChargeBudget,
    CheckBreaker,
    TakeTokens,
    bucket_rows,
)
from breakloop.store.memory import ExpiringTable, MemoryStore
from breakloop.store.ops import (
    JOINED,
    AdjustCharge,
    BreakerResult,
    CountFingerprint,
    Deny,
    FingerprintCount,
    FingerprintSpec,
    Op,
    Settle,
    StoredWindow,
    WindowWrite,
)
from tests.redis_store import NewStore
from tests.stores import NO_LIMITER, NO_OWNER, NO_RULE

TICK = 0.25  # exact in binary, so that floats and fractions agree on every boundary


@dataclass
class Cooldown:
    until: float
    hits: int
    seconds: float
    detected: float
    last: float  # the last sign of life, for forgetting


@dataclass
class Flight:
    began: float
    number: int
    free: int
    hits: int


@dataclass
class Naive:
    """Says what should happen, slowly and plainly."""

    now: float = 0.0
    tokens: dict[str, tuple[Fraction, float]] = field(default_factory=dict)
    times: dict[str, list[float]] = field(default_factory=dict)
    last: dict[str, float] = field(default_factory=dict)  # when the last hit came, even if it was taken back
    flights: dict[str, Flight] = field(default_factory=dict)
    taken: dict[str, list[float]] = field(default_factory=dict)
    cooldowns: dict[str, Cooldown] = field(default_factory=dict)
    windows: dict[str, tuple[int, bytes, float]] = field(default_factory=dict)
    accounts: dict[str, int] = field(default_factory=dict)
    spent: dict[str, list[tuple[float, Fraction]]] = field(default_factory=dict)  # all that a breaker counted
    opened: dict[str, float] = field(default_factory=dict)

    def filled(self, spec: BucketSpec, key: str) -> Fraction:
        tokens, last = self.tokens.get(key, (Fraction(spec.burst), self.now))
        return min(tokens + Fraction(self.now - last) * Fraction(spec.rate), Fraction(spec.burst))

    def left(self, op: TakeTokens) -> Fraction:
        return self.filled(op.spec, op.key) - Fraction(op.cost)

    def correct(self, op: AdjustCharge) -> None:
        if isinstance(op.spec, BucketSpec):
            left = self.filled(op.spec, op.key) - Fraction(op.amount)
            self.tokens[op.key] = (min(left, Fraction(op.spec.burst)), self.now)
        elif op.key in self.accounts:
            self.accounts[op.key] = max(0, self.accounts[op.key] + int(op.amount))

    def rate(self, key: str) -> Fraction:
        minute, into = divmod(Fraction(self.now), 60)
        spent = [(at // 60, amount) for at, amount in self.spent.get(key, [])]
        this = sum((amount for at, amount in spent if at == minute), Fraction(0))
        before = sum((amount for at, amount in spent if at == minute - 1), Fraction(0))
        return this + before * (60 - into) / 60

    def breaker(self, op: CheckBreaker) -> BreakerResult:
        since, reset_s = self.opened.get(op.key), op.spec.reset_s
        if since is not None and (not reset_s or self.now < since + reset_s):
            return BreakerResult(True, float(self.rate(op.key)), since + reset_s - self.now if reset_s else 0.0)
        self.spent.setdefault(op.key, []).append((self.now, Fraction(op.amount)))
        rate = self.rate(op.key)
        if rate >= Fraction(op.spec.threshold):
            self.opened[op.key] = self.now
            return BreakerResult(True, float(rate), reset_s, "opened")
        self.opened.pop(op.key, None)
        return BreakerResult(False, float(rate), 0.0, "" if since is None else "closed")

    def counted(self, op: CountFingerprint) -> tuple[int, int]:
        """The count as the last hit left it, and with this one."""
        spec, now = op.spec, self.now
        before = self.times.get(op.key, [])
        if now >= self.last.get(op.key, -math.inf) + spec.window_s:
            before = []
        kept = [time for time in before if not spec.sliding or time > now - spec.window_s]
        self.times[op.key], self.last[op.key] = [*kept, now], now
        return len(before), len(kept) + 1

    def repeat(self, op: CountFingerprint) -> FingerprintCount:
        spec, now = op.spec, self.now
        before = self.cooldowns.get(op.key)
        if before is not None and now >= max(before.until, before.last) + spec.cooldown_max_s:
            del self.cooldowns[op.key]
            before = None
        if before is not None:
            if now < before.until:
                before.hits += 1
                return FingerprintCount(before.hits, True, False, before.until - now)
            before.last = now
        earlier, count = self.counted(op)
        if count <= op.limit:
            return FingerprintCount(count)
        if not spec.cooldown_s:
            return FingerprintCount(count, True, earlier <= op.limit, spec.window_s)
        seconds = spec.cooldown_s if before is None else min(before.seconds * spec.growth, spec.cooldown_max_s)
        self.cooldowns[op.key] = Cooldown(now + seconds, count, seconds, now, now)
        self.times.pop(op.key, None)
        self.flights.pop(op.key, None)
        return FingerprintCount(count, True, True, seconds)

    def tracked(self, op: CountFingerprint, leads: list[tuple[CountFingerprint, Flight]]) -> FingerprintCount:
        flight = self.flights.get(op.key)
        if flight is not None and self.now >= flight.began + 1.0:
            flight = None
        if flight is not None and flight.free:
            flight.free -= 1
            return FingerprintCount(flight.hits, flight=JOINED)
        found = self.repeat(op)
        if found.tripped or not op.spec.concurrent_free:
            return found
        number = 1 if flight is None else flight.number + 1
        leads.append((op, Flight(self.now, number, op.spec.concurrent_free, found.hits)))
        return found._replace(flight=number)

    def settle(self, told: Settle, *, failed: bool) -> int:
        spec, now = told.spec, self.now
        flight = self.flights.get(told.key)
        if flight is not None and (flight.began, flight.number) == (told.at, told.flight):
            flight.free = 0
        if not failed or told.at not in self.times.get(told.key, []) or now >= told.at + spec.window_s:
            return 0
        taken = [time for time in self.taken.get(told.key, []) if time > now - spec.window_s]
        if len(taken) >= spec.retry_free:
            return 0
        self.taken[told.key] = [*taken, now]
        self.times[told.key].remove(told.at)
        return 1

    def window(self, key: str) -> StoredWindow:
        version, data, expires = self.windows.get(key, (0, b"", 0.0))
        return StoredWindow(version, data) if expires > self.now else StoredWindow(0, b"")

    def do(self, op: Op, leads: list[tuple[CountFingerprint, Flight]]) -> tuple[object, bool]:
        """The result of an operation, and whether it denies."""
        if isinstance(op, CountFingerprint):
            found = self.tracked(op, leads) if op.tracked else self.repeat(op)
            return found, found.tripped and op.spec.denies
        if isinstance(op, CheckBreaker):
            broken = self.breaker(op)
            return broken, broken.open
        if isinstance(op, ChargeBudget):
            used = self.accounts.get(op.key, 0) + op.cost
            return used, used > op.spec.budget
        if isinstance(op, TakeTokens):
            left = self.left(op)
            return left, left < 0
        return None, True

    def charge(self, op: Op, result: object) -> None:
        if isinstance(op, TakeTokens) and isinstance(result, Fraction):
            self.tokens[op.key] = (result, self.now)
        if isinstance(op, ChargeBudget) and isinstance(result, int):
            self.accounts[op.key] = result

    def commit(
        self, ops: Sequence[Op], writes: Sequence[WindowWrite]
    ) -> tuple[list[object], int, dict[str, StoredWindow] | None]:
        now = {write: self.window(write.key) for write in writes}
        newer = {write.key: window for write, window in now.items() if window.version != write.version}
        if newer:
            return [], -1, newer
        results: list[object] = []
        denied: dict[int, int] = {}
        leads: list[tuple[CountFingerprint, Flight]] = []
        for index, op in enumerate(ops):
            result, denies = (
                (None, True) if op.group in denied and not isinstance(op, CountFingerprint) else self.do(op, leads)
            )
            results.append(result)
            if denies:
                denied.setdefault(op.group, index)
        for op, result in zip(ops, results, strict=True):
            if 0 not in denied and op.group not in denied:
                self.charge(op, result)
        for lead, flight in leads:
            if 0 not in denied and lead.group not in denied:
                self.flights[lead.key] = flight
        for write in writes:
            if write.data is not None:
                self.windows[write.key] = (write.version + 1, write.data, self.now + write.ttl_s)
        return results, denied.get(0, -1), None


BUCKETS = {f"tb:{n}": BucketSpec(rate, burst) for n, (rate, burst) in enumerate([(1.0, 1.0), (0.5, 3.0), (4.0, 8.0)])}
REPEATS = {
    "ld:idle": FingerprintSpec(4.0, 2),
    "ld:warn": FingerprintSpec(4.0, 1, denies=False),
    "ld:slide": FingerprintSpec(4.0, 2, sliding=True),
    "cnt:cool": FingerprintSpec(4.0, 1, sliding=True, cooldown_s=2.0, growth=2.0, cooldown_max_s=6.0),
    "cnt:flat": FingerprintSpec(3.0, 2, sliding=True, cooldown_s=1.0, growth=1.0, cooldown_max_s=4.0),
}
FREE = {
    "ld:idle-free": FingerprintSpec(4.0, 2, concurrent_free=1, retry_free=2),
    "ld:slide-free": FingerprintSpec(4.0, 2, sliding=True, denies=False, concurrent_free=2, retry_free=1),
    "cnt:cool-free": FingerprintSpec(
        4.0, 2, sliding=True, cooldown_s=2.0, cooldown_max_s=6.0, concurrent_free=1, retry_free=2
    ),
}
REPEATS |= FREE
GROUPS = st.sampled_from([0, 0, 1, 2])
BUCKET_OPS = st.builds(
    lambda key, cost, group: TakeTokens(BUCKETS[key], key, cost, NO_LIMITER, NO_RULE, group),
    st.sampled_from(sorted(BUCKETS)),
    st.sampled_from([0.25, 1.0, 1.0, 2.5]),
    GROUPS,
)
REPEAT_OPS = st.builds(
    lambda key, group, limit, tracked: CountFingerprint(REPEATS[key], key, NO_OWNER, group, limit, tracked),
    st.sampled_from(sorted(REPEATS)),
    GROUPS,
    st.sampled_from([-1, -1, -1, 4]),
    st.sampled_from([True, True, False]),
)
ACCOUNTS = {"cb:5s": (BudgetSpec(9), 5.0), "cb:30s": (BudgetSpec(20), 30.0)}
SPEND_OPS = st.builds(
    lambda key, cost, group: ChargeBudget(ACCOUNTS[key][0], key, cost, 0.0, NO_LIMITER, NO_RULE, group),
    st.sampled_from(sorted(ACCOUNTS)),
    st.sampled_from([0, 1, 4, 5, 9, 10]),
    GROUPS,
)
BREAKERS = {
    f"brk:{n}": BreakerSpec(threshold, reset_s)
    for n, (threshold, reset_s) in enumerate([(8.0, 10.0), (8.0, 75.0), (20.0, 0.0), (0.3, 2.0)])
}
BREAKER_OPS = st.builds(
    lambda key, amount, group: CheckBreaker(BREAKERS[key], key, amount, NO_LIMITER, NO_RULE, group),
    st.sampled_from(sorted(BREAKERS)),
    st.sampled_from([0.0, 0.1, 0.1, 2.0, 5.0, 7.75]),
    GROUPS,
)
OPS: st.SearchStrategy[Op] = st.one_of(
    BUCKET_OPS, REPEAT_OPS, REPEAT_OPS, SPEND_OPS, BREAKER_OPS, st.builds(Deny, st.none(), GROUPS)
)
CORRECTIONS = st.one_of(
    st.builds(
        lambda key, amount: AdjustCharge(BUCKETS[key], key, amount),
        st.sampled_from(sorted(BUCKETS)),
        st.sampled_from([-2.5, -1.0, 0.0, 0.25, 5.0]),
    ),
    st.builds(
        lambda key, amount: AdjustCharge(ACCOUNTS[key][0], key, amount),
        st.sampled_from(sorted(ACCOUNTS)),
        st.integers(-10, 10),
    ),
)
# Ticks the clock moves before a commit. Most things last for seconds, a breaker's rate for minutes.
TICKS = st.sampled_from([0, 0, 0, 1, 2, 4, 7, 16, 24, 25, 40, 240, -3, -40])
LONG_TICKS = st.sampled_from([0, 0, 1, 8, 20, 40, 41, 111, 160, 240, 300, -3, -40, -300])
Commit = tuple[list[Op], int, dict[str, int], list[tuple[AdjustCharge, int]]]


def commits(ops: st.SearchStrategy[Op], ticks: st.SearchStrategy[int]) -> st.SearchStrategy[list[Commit]]:
    one = st.tuples(
        st.lists(ops, max_size=5, unique_by=lambda op: getattr(op, "key", id(op))),
        ticks,
        st.dictionaries(st.sampled_from(["win:a", "win:b"]), st.sampled_from([0, 0, 0, 1, -1]), max_size=2),
        st.lists(st.tuples(CORRECTIONS, st.integers(0, 1)), max_size=2),  # after it; of this period or the one before
    )
    return st.lists(one, max_size=40)


def dated(op: Op, clock: float) -> Op:
    """A charge to the period that the caller's clock is in, whatever time the store has."""
    if not isinstance(op, ChargeBudget):
        return op
    period = clock // ACCOUNTS[op.key][1]
    ends = (period + 1) * ACCOUNTS[op.key][1]
    return ChargeBudget(op.spec, f"{op.key}:{period:.0f}", op.cost, ends, NO_LIMITER, NO_RULE, op.group)


def dated_correction(op: AdjustCharge, clock: float, ago: int) -> AdjustCharge:
    if isinstance(op.spec, BucketSpec):
        return op
    return AdjustCharge(op.spec, f"{op.key}:{clock // ACCOUNTS[op.key][1] - ago:.0f}", op.amount)


def unnumbered(result: object) -> object:
    return result._replace(flight=min(1, result.flight)) if isinstance(result, FingerprintCount) else result


def close(result: object, expected: object) -> bool:
    if isinstance(expected, BreakerResult):
        exact = isinstance(result, BreakerResult) and result._replace(rate=expected.rate) == expected
        return exact and isinstance(result, BreakerResult) and abs(result.rate - expected.rate) < 1e-9
    if isinstance(expected, int):
        return type(result) is int and result == expected
    if isinstance(expected, Fraction):
        return isinstance(result, float) and abs(Fraction(result) - expected) < Fraction(1, 10**9)
    return result == expected


def follow(new_store: NewStore, steps: list[Commit], *, gives_back: bool = False) -> None:
    """`gives_back`: the store may charge and give back what is denied. Then an account that nobody was charged to may be
    there, so that it is not corrected; and a flight has another number, which only tells it from others."""
    store, naive, clock = new_store(), Naive(), 1000.0
    for number, (undated, ticks, windows, corrections) in enumerate(steps):
        clock += ticks * TICK
        ops = [dated(op, clock) for op in undated]
        naive.now = max(naive.now, clock)  # a clock that stepped back stands still
        writes = [
            WindowWrite(key, max(0, naive.window(key).version + off), b"%d" % number if number % 4 else None, 5.0)
            for key, off in windows.items()
        ]
        results, denied_at, conflict = naive.commit(ops, writes)
        done = store.commit(ops, clock, writes)
        assert (done.denied_at, done.conflict) == (denied_at, conflict)
        assert len(done.results) == len(results)
        found, expected = (
            (map(unnumbered, done.results), map(unnumbered, results)) if gives_back else (done.results, results)
        )
        assert all(map(close, found, expected)), (done.results, results)
        told = [dated_correction(op, clock, ago) for op, ago in corrections]
        if gives_back:
            told = [one for one in told if isinstance(one.spec, BucketSpec) or one.key in naive.accounts]
        store.correct(told, clock)
        for one in told:
            naive.correct(one)


EVERYTHING = commits(OPS, TICKS)
MONEY = commits(st.one_of(BREAKER_OPS, BREAKER_OPS, SPEND_OPS, BUCKET_OPS), LONG_TICKS)


@given(steps=EVERYTHING)
def test_a_store_does_what_the_naive_one_does(steps: list[Commit]) -> None:
    """Results, denials, charges and windows, also when the clock steps back (E-4, E-5, LD-1, LD-2, L-1, S-2)."""
    follow(MemoryStore, steps)


@given(steps=MONEY)
def test_a_store_keeps_money_as_the_naive_one_does(steps: list[Commit]) -> None:
    """Accounts, breakers and corrections by themselves, over minutes (L-2, L-3, CB-1, CB-2, E-4, S-2)."""
    follow(MemoryStore, steps)


Start = tuple[str, bool, int, tuple[int, bool] | None]
_START = st.tuples(
    st.sampled_from(sorted(FREE)),
    st.booleans(),
    st.sampled_from([0, 0, 0, 1, 2, 4, 7, 16, -3]),
    st.none() | st.tuples(st.integers(0, 20), st.booleans()),  # and then one that is open ends, well or not
)


STARTS = st.lists(_START, max_size=60)


def follow_starts(new_store: NewStore, steps: list[Start]) -> None:
    store, naive, clock = new_store(), Naive(), 1000.0
    running: list[Settle] = []
    for key, tracked, ticks, ends in steps:
        clock += ticks * TICK
        naive.now = max(naive.now, clock)
        op = CountFingerprint(FREE[key], key, NO_OWNER, tracked=tracked)
        (expected,), _, _ = naive.commit([op], ())
        done = store.commit([op], clock)
        assert done.results == [expected]
        assert done.at == naive.now
        if isinstance(expected, FingerprintCount) and expected.flight != JOINED:
            running.append(Settle(op.spec, key, done.at, expected.flight))
        if ends is not None and running:
            index, failed = ends
            told = running.pop(index % len(running))
            assert store.settle([told], clock, failed=failed) == naive.settle(told, failed=failed)


@given(steps=STARTS)
def test_a_store_settles_as_the_naive_one_does(steps: list[Start]) -> None:
    """Who joins, who counts, what is taken back, in any order of starts and ends (LD-6)."""
    follow_starts(MemoryStore, steps)


@given(
    keys=st.lists(st.integers(0, 30), max_size=120),
    steps=st.lists(st.sampled_from([0.0, 0.5, 3.0]), min_size=120, max_size=120),
    most=st.integers(1, 12),
)
def test_the_memory_store_is_bounded(keys: list[int], steps: list[float], most: int) -> None:
    """Whatever comes, no table holds more than its bound (Y-2, S-1)."""
    store, now = MemoryStore(most), 1000.0
    for key, step in zip(keys, steps, strict=False):
        now += step
        ops: list[Op] = [
            TakeTokens(BUCKETS["tb:1"], f"tb:{key}", 1.0, NO_LIMITER, NO_RULE),
            CountFingerprint(REPEATS["ld:warn"], f"ld:{key}", NO_OWNER),
            CountFingerprint(REPEATS["cnt:cool"], f"cnt:{key}", NO_OWNER, 1),
            CountFingerprint(FREE["ld:idle-free"], f"free:{key}", NO_OWNER, 2, tracked=True),
            ChargeBudget(BudgetSpec(9), f"cb:{key}", 1, now + 4.0, NO_LIMITER, NO_RULE, 3),
            CheckBreaker(BREAKERS["brk:0"], f"brk:{key}", float(key), NO_LIMITER, NO_RULE, 4),
        ]
        version = store.read_window(f"win:{key}", now).version
        store.commit(ops, now, [WindowWrite(f"win:{key}", version, b"", 4.0)])
        store.settle([Settle(FREE["ld:idle-free"], f"free:{key}", now)], now, failed=True)
        store.correct(
            [AdjustCharge(BUCKETS["tb:1"], f"tb:late:{key}", 1.0), AdjustCharge(BudgetSpec(9), f"cb:{key}", 5)], now
        )
        assert all(len(table) <= table.max_entries for table in store._tables())
        assert len(store) <= 5 * most + 4 * max(1, most // 10)


def tables_of(store: MemoryStore) -> list[ExpiringTable]:
    return [*store.kept().values(), store._repeats.flights]


# Few keys, so that counts trip while the buckets still hold enough.
ENFORCED_BUCKETS = st.builds(
    lambda key, cost: TakeTokens(BUCKETS[key], key, cost, NO_LIMITER, NO_RULE),
    st.sampled_from(sorted(BUCKETS)),
    st.sampled_from([0.25, 0.25, 1.0, 2.5]),
)
FEW_COUNTS = st.builds(
    lambda key, group, tracked: CountFingerprint(REPEATS[key], key, NO_OWNER, group, -1, tracked),
    st.sampled_from(["ld:idle", "ld:warn", "cnt:cool-free"]),
    st.sampled_from([0, 0, 0, 1]),
    st.booleans(),
)


@given(
    st.lists(
        st.tuples(
            st.lists(FEW_COUNTS, max_size=2, unique_by=lambda op: op.key),
            st.lists(ENFORCED_BUCKETS, min_size=1, max_size=3, unique_by=lambda op: op.key),
            TICKS,
        ),
        max_size=30,
    )
)
def test_counts_and_buckets_have_the_same_results_with_rows(
    steps: list[tuple[list[CountFingerprint], list[TakeTokens], int]],
) -> None:
    """And the same state, in the same order of use, to be saved."""
    plain, quick, clock = MemoryStore(), MemoryStore(), 1000.0
    for counts, buckets, ticks in steps:
        clock += ticks * TICK
        for table in (*tables_of(plain), *tables_of(quick)):
            table.dirty = {}
        ops: list[Op] = [*counts, *buckets]
        expected, done = plain.commit(ops, clock), quick.commit(ops, clock, (), bucket_rows(buckets))
        assert (done, done.at) == (expected, expected.at)
        assert [[*table.items()] for table in tables_of(quick)] == [[*table.items()] for table in tables_of(plain)]
        assert [table.dirty for table in tables_of(quick)] == [table.dirty for table in tables_of(plain)]
        if done.tightest >= 0:
            assert not any(isinstance(one, FingerprintCount) and one.tripped for one in done.results)
            lefts = [left for left in done.results if isinstance(left, float)]
            shares = [left / op.spec.burst for op, left in zip(buckets, lefts, strict=True)]
            assert done.tightest == len(counts) + shares.index(min(shares))


def test_rows_are_of_enforced_buckets_that_can_hold_the_cost() -> None:
    small, large = BucketSpec(1.0, 2.0), BucketSpec(2.0, 8.0)
    first, second = (TakeTokens(spec, f"tb:{spec.burst}", 2.0, NO_LIMITER, NO_RULE) for spec in (small, large))
    found = bucket_rows([first, second])
    assert found is not None
    assert found.keys == ("tb:2.0", "tb:8.0") == tuple(found.unsaved)
    assert found.buckets == ((1.0, 2.0, 2.0), (2.0, 8.0, 2.0))
    assert found.full == (("tb:2.0", 0.0, 2.0), ("tb:8.0", 6.0, 1.0))
    assert (found.lefts, found.tightest) == ((0.0, 6.0), 0)
    assert bucket_rows([first, TakeTokens(large, "tb:s", 2.0, NO_LIMITER, NO_RULE, 1)]) is None
    assert bucket_rows([first, TakeTokens(large, "tb:c", 9.0, NO_LIMITER, NO_RULE)]) is None
    assert bucket_rows([CountFingerprint(REPEATS["ld:idle"], "ld:idle", NO_OWNER), first]) is None
    assert bucket_rows([]) is None
