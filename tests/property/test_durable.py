"""A store that was saved and loaded into another life goes on as if nothing had been."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from breakloop.clock import FakeClock
from breakloop.store.limit_ops import BreakerSpec, BucketSpec, BudgetSpec, ChargeBudget, CheckBreaker, TakeTokens
from breakloop.store.memory import MemoryStore
from breakloop.store.ops import AdjustCharge, CountFingerprint, FingerprintSpec, Settle, WindowWrite
from tests.durable_state import Life, at_once
from tests.stores import NO_LIMITER, NO_OWNER, NO_RULE

REPEATS = (
    FingerprintSpec(60.0, 3, retry_free=2),
    FingerprintSpec(60.0, 3, sliding=True, retry_free=2),
    FingerprintSpec(60.0, 2, sliding=True, cooldown_s=30.0, growth=2.0, cooldown_max_s=100.0),
)
BUCKETS = (BucketSpec(0.5, 4.0), BucketSpec(10.0, 20.0))
SPEND = BudgetSpec(20)
BREAKERS = (BreakerSpec(8.0, 0.0), BreakerSpec(8.0, 45.0))

numbers = st.integers(0, 3)
steps = st.one_of(
    st.tuples(st.just("repeat"), st.integers(0, 2), numbers),
    st.tuples(st.just("bucket"), st.integers(0, 1), numbers, st.integers(1, 5)),
    st.tuples(st.just("spend"), numbers, st.integers(1, 9)),
    st.tuples(st.just("breaker"), st.integers(0, 1), numbers, st.integers(1, 9)),
    st.tuples(st.just("window"), numbers, st.binary(max_size=5)),
    st.tuples(st.just("correct"), numbers, st.integers(-5, 5)),
    st.tuples(st.just("settle"), st.integers(0, 1), numbers),
    st.tuples(st.just("drop"), numbers),
    st.tuples(st.just("wait"), st.sampled_from([0.25, 1.0, 20.0, 61.0, -3.0, 4000.0])),
    st.tuples(st.just("save")),
)


def do(store: MemoryStore, step: tuple[Any, ...], now: float) -> object:
    """Carry out one step; return all that can be seen of it."""
    what, *rest = step
    if what == "repeat":
        return store.commit([CountFingerprint(REPEATS[rest[0]], f"ld:{rest[0]}:{rest[1]}", NO_OWNER)], now)
    if what == "bucket":
        return store.commit(
            [TakeTokens(BUCKETS[rest[0]], f"tb:{rest[0]}:{rest[1]}", rest[2], NO_LIMITER, NO_RULE)], now
        )
    if what == "spend":
        ends = (now // 3600.0 + 1.0) * 3600.0
        return store.commit([ChargeBudget(SPEND, f"tpd:{rest[0]}", rest[1], ends, NO_LIMITER, NO_RULE)], now)
    if what == "breaker":
        return store.commit(
            [CheckBreaker(BREAKERS[rest[0]], f"cb:{rest[0]}:{rest[1]}", rest[2], NO_LIMITER, NO_RULE)], now
        )
    if what == "window":
        version = store.read_window(f"win:{rest[0]}", now).version
        return store.commit([], now, [WindowWrite(f"win:{rest[0]}", version, rest[1], 50.0)]), version
    if what == "correct":
        store.correct(
            [AdjustCharge(BUCKETS[0], f"tb:0:{rest[0]}", rest[1]), AdjustCharge(SPEND, f"tpd:{rest[0]}", rest[1])], now
        )
    elif what == "drop":
        store.drop([f"{kind}:{rest[0]}" for kind in ("tpd", "win", "ld:1", "cb:0", "tb:0", "cb:1")])
    return None


@settings(max_examples=60)
@given(
    st.lists(steps, max_size=60),
    st.lists(steps.filter(lambda step: step[0] not in {"settle", "save"}), max_size=30),
    st.booleans(),
    st.sampled_from([3, 1000]),
)
def test_another_life_goes_on(
    before: list[tuple[Any, ...]], after: list[tuple[Any, ...]], killed: bool, max_entries: int
) -> None:
    """Random operations, saved now and then, loaded: the same further operations have the same results (S-1)."""
    with tempfile.TemporaryDirectory() as name:
        clock = FakeClock()
        life = Life(Path(name), clock, max_entries)
        for step in before:
            if step[0] == "save":
                life.save()
            elif step[0] == "wait":
                clock.advance(step[1])
            elif step[0] == "settle":
                key = f"ld:{step[1]}:{step[2]}"
                life.store.settle([Settle(REPEATS[step[1]], key, life.store.latest)], clock.now(), failed=True)
            else:
                do(life.store, step, clock.now())
        if killed:
            asyncio.run(life.durable.save(at_once))
            life.kill()
        else:
            life.end()
        again = Life(Path(name), clock, 1000)
        assert again.store.latest == life.store.latest or killed
        again.store.resume(life.store.latest)  # what changes nothing is no reason to save, though time goes on
        for table, loaded in zip(life.store.kept().values(), again.store.kept().values(), strict=True):
            live = {key: entry for key, entry in table.items() if entry[0] > max(clock.now(), life.store.latest)}
            assert {key: loaded[key] for key in loaded if key in live} == live
            table.max_entries = 1000
        for step in after:
            if step[0] == "wait":
                clock.advance(step[1])
            else:
                assert do(again.store, step, clock.now()) == do(life.store, step, clock.now())
        assert again.told == [] or clock.now() < life.store.latest
        again.end()
