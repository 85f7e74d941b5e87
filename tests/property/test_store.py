"""Every store against a naive one: lists of times and exact fractions, under random operations and a jumping clock."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakloop.state.memory import MemoryStore
from breakloop.state.ops import (
    JOINED,
    Bucket,
    BucketSpec,
    Op,
    Refuse,
    Repeat,
    Repeated,
    RepeatSpec,
    Settle,
    Window,
    WindowWrite,
)
from tests.contract.test_store import FACTORIES

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

    def left(self, op: Bucket) -> Fraction:
        tokens, last = self.tokens.get(op.key, (Fraction(op.spec.burst), self.now))
        refilled = tokens + Fraction(self.now - last) * Fraction(op.spec.rate)
        return min(refilled, Fraction(op.spec.burst)) - Fraction(op.cost)

    def counted(self, op: Repeat) -> tuple[int, int]:
        """The count as the last hit left it, and with this one."""
        spec, now = op.spec, self.now
        before = self.times.get(op.key, [])
        if now >= self.last.get(op.key, -math.inf) + spec.window_s:
            before = []
        kept = [time for time in before if not spec.sliding or time > now - spec.window_s]
        self.times[op.key], self.last[op.key] = [*kept, now], now
        return len(before), len(kept) + 1

    def repeat(self, op: Repeat) -> Repeated:
        spec, now = op.spec, self.now
        before = self.cooldowns.get(op.key)
        if before is not None and now >= max(before.until, before.last) + spec.cooldown_max_s:
            del self.cooldowns[op.key]
            before = None
        if before is not None:
            if now < before.until:
                before.hits += 1
                return Repeated(before.hits, True, False, before.until - now, spec.window_s + now - before.detected)
            before.last = now
        earlier, count = self.counted(op)
        if count <= op.limit:
            return Repeated(count)
        if not spec.cooldown_s:
            return Repeated(count, True, earlier <= op.limit, spec.window_s, spec.window_s)
        seconds = spec.cooldown_s if before is None else min(before.seconds * spec.growth, spec.cooldown_max_s)
        self.cooldowns[op.key] = Cooldown(now + seconds, count, seconds, now, now)
        self.times.pop(op.key, None)
        self.flights.pop(op.key, None)
        return Repeated(count, True, True, seconds, spec.window_s)

    def tracked(self, op: Repeat, leads: list[tuple[Repeat, Flight]]) -> Repeated:
        flight = self.flights.get(op.key)
        if flight is not None and self.now >= flight.began + 1.0:
            flight = None
        if flight is not None and flight.free:
            flight.free -= 1
            return Repeated(flight.hits, flight=JOINED)
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

    def window(self, key: str) -> Window:
        version, data, expires = self.windows.get(key, (0, b"", 0.0))
        return Window(version, data) if expires > self.now else Window(0, b"")

    def commit(self, ops: Sequence[Op], writes: Sequence[WindowWrite]) -> tuple[list[object], int, Window | None]:
        newer = [self.window(write.key) for write in writes if self.window(write.key).version != write.version]
        if newer:
            return [], -1, newer[0]
        results: list[object] = []
        denied: dict[int, int] = {}
        charges: list[tuple[Bucket, Fraction]] = []
        leads: list[tuple[Repeat, Flight]] = []
        for index, op in enumerate(ops):
            if isinstance(op, Repeat):
                found = self.tracked(op, leads) if op.tracked else self.repeat(op)
                results.append(found)
                if found.tripped and op.spec.denies:
                    denied.setdefault(op.group, index)
            elif not isinstance(op, Bucket) or op.group in denied:
                results.append(None)
                denied.setdefault(op.group, index)
            else:
                left = self.left(op)
                results.append(left)
                charges.append((op, left))
                if left < 0:
                    denied[op.group] = index
        for op, left in charges:
            if 0 not in denied and op.group not in denied:
                self.tokens[op.key] = (left, self.now)
        for lead, flight in leads:
            if 0 not in denied and lead.group not in denied:
                self.flights[lead.key] = flight
        for write in writes:
            self.windows[write.key] = (write.version + 1, write.data, self.now + write.ttl_s)
        return results, denied.get(0, -1), None


BUCKETS = {f"tb:{n}": BucketSpec(rate, burst) for n, (rate, burst) in enumerate([(1.0, 1.0), (0.5, 3.0), (4.0, 8.0)])}
REPEATS = {
    "ld:idle": RepeatSpec(4.0, 2),
    "ld:warn": RepeatSpec(4.0, 1, denies=False),
    "ld:slide": RepeatSpec(4.0, 2, sliding=True),
    "cnt:cool": RepeatSpec(4.0, 1, sliding=True, cooldown_s=2.0, growth=2.0, cooldown_max_s=6.0),
    "cnt:flat": RepeatSpec(3.0, 2, sliding=True, cooldown_s=1.0, growth=1.0, cooldown_max_s=4.0),
}
FREE = {
    "ld:idle-free": RepeatSpec(4.0, 2, concurrent_free=1, retry_free=2),
    "ld:slide-free": RepeatSpec(4.0, 2, sliding=True, denies=False, concurrent_free=2, retry_free=1),
    "cnt:cool-free": RepeatSpec(
        4.0, 2, sliding=True, cooldown_s=2.0, cooldown_max_s=6.0, concurrent_free=1, retry_free=2
    ),
}
REPEATS |= FREE
GROUPS = st.sampled_from([0, 0, 1, 2])
BUCKET_OPS = st.builds(
    lambda key, cost, group: Bucket(BUCKETS[key], key, cost, None, group),
    st.sampled_from(sorted(BUCKETS)),
    st.sampled_from([0.25, 1.0, 1.0, 2.5]),
    GROUPS,
)
REPEAT_OPS = st.builds(
    lambda key, group, limit, tracked: Repeat(REPEATS[key], key, None, group, limit, tracked),
    st.sampled_from(sorted(REPEATS)),
    GROUPS,
    st.sampled_from([-1, -1, -1, 4]),
    st.sampled_from([True, True, False]),
)
OPS: st.SearchStrategy[Op] = st.one_of(BUCKET_OPS, REPEAT_OPS, REPEAT_OPS, st.builds(Refuse, st.none(), GROUPS))
COMMITS = st.tuples(
    st.lists(OPS, max_size=5, unique_by=lambda op: getattr(op, "key", id(op))),
    st.sampled_from([0, 0, 0, 1, 2, 4, 7, 16, 24, 25, 40, -3, -40]),  # ticks the clock moves before it
    st.dictionaries(st.sampled_from(["win:a", "win:b"]), st.sampled_from([0, 0, 0, 1, -1]), max_size=2),
)


def close(result: object, expected: object) -> bool:
    if isinstance(expected, Fraction):
        return isinstance(result, float) and abs(Fraction(result) - expected) < Fraction(1, 10**9)
    return result == expected


@pytest.mark.parametrize("kind", FACTORIES)
@given(commits=st.lists(COMMITS, max_size=40))
def test_a_store_does_what_the_naive_one_does(kind: str, commits: list[tuple[list[Op], int, dict[str, int]]]) -> None:
    """E-4, E-5, LD-1, LD-2, L-1, S-2: results, denials, charges and windows, also when the clock steps back."""
    store, naive, clock = FACTORIES[kind](), Naive(), 1000.0
    for number, (ops, ticks, windows) in enumerate(commits):
        clock += ticks * TICK
        naive.now = max(naive.now, clock)  # a clock that stepped back stands still
        writes = [
            WindowWrite(key, max(0, naive.window(key).version + off), b"%d" % number, 5.0)
            for key, off in windows.items()
        ]
        results, denied_at, conflict = naive.commit(ops, writes)
        done = store.commit(ops, clock, writes)
        assert (done.denied_at, done.conflict) == (denied_at, conflict)
        assert len(done.results) == len(results)
        assert all(map(close, done.results, results)), (done.results, results)


Starts = st.tuples(
    st.sampled_from(sorted(FREE)),
    st.booleans(),
    st.sampled_from([0, 0, 0, 1, 2, 4, 7, 16, -3]),
    st.none() | st.tuples(st.integers(0, 20), st.booleans()),  # and then one that is open ends, well or not
)


@pytest.mark.parametrize("kind", FACTORIES)
@given(steps=st.lists(Starts, max_size=60))
def test_a_store_settles_as_the_naive_one_does(
    kind: str, steps: list[tuple[str, bool, int, tuple[int, bool] | None]]
) -> None:
    """LD-6: who joins, who counts, what is taken back, in any order of starts and ends."""
    store, naive, clock = FACTORIES[kind](), Naive(), 1000.0
    running: list[Settle] = []
    for key, tracked, ticks, ends in steps:
        clock += ticks * TICK
        naive.now = max(naive.now, clock)
        op = Repeat(FREE[key], key, None, tracked=tracked)
        (expected,), _, _ = naive.commit([op], ())
        done = store.commit([op], clock)
        assert done.results == [expected]
        assert done.at == naive.now
        if isinstance(expected, Repeated) and expected.flight != JOINED:
            running.append(Settle(op.spec, key, done.at, expected.flight))
        if ends is not None and running:
            index, failed = ends
            told = running.pop(index % len(running))
            assert store.settle([told], clock, failed=failed) == naive.settle(told, failed=failed)


@given(
    keys=st.lists(st.integers(0, 30), max_size=120),
    steps=st.lists(st.sampled_from([0.0, 0.5, 3.0]), min_size=120, max_size=120),
    most=st.integers(1, 12),
)
def test_the_memory_store_is_bounded(keys: list[int], steps: list[float], most: int) -> None:
    """Y-2, S-1: whatever comes, no table holds more than its bound."""
    store, now = MemoryStore(most), 1000.0
    for key, step in zip(keys, steps, strict=False):
        now += step
        ops: list[Op] = [
            Bucket(BUCKETS["tb:1"], f"tb:{key}", 1.0, None),
            Repeat(REPEATS["ld:warn"], f"ld:{key}", None),
            Repeat(REPEATS["cnt:cool"], f"cnt:{key}", None, 1),
            Repeat(FREE["ld:idle-free"], f"free:{key}", None, 2, tracked=True),
        ]
        version = store.read_window(f"win:{key}", now).version
        store.commit(ops, now, [WindowWrite(f"win:{key}", version, b"", 4.0)])
        store.settle([Settle(FREE["ld:idle-free"], f"free:{key}", now)], now, failed=True)
        tables = (store._counts, store._cooldowns, store._buckets)
        assert all(len(table) <= most for table in tables)
        assert len(store) <= 3 * most + 3 * max(1, most // 10)
