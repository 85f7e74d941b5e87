"""An engine that remembers its last decision: what it planned, what the store answered, what it said. The decision is
the engine's own; reading meaning into the record is `explain`'s work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from breakloop.clock import Clock
from breakloop.engine import Engine
from breakloop.model.call import Call
from breakloop.model.verdict import Verdict
from breakloop.planning import Plan
from breakloop.policy.descriptors import Descriptors
from breakloop.pricing.prices import Prices
from breakloop.state.ops import BreakerKept, Committed, Correct, Op, Result, Settle, Window, WindowWrite
from breakloop.state.store import Store


@dataclass(frozen=True, slots=True)
class Record:
    """One decision as it happened. `plan` is None when nothing had to be planned (no bundle, a kill switch)."""

    call: Call
    at: float
    plan: Plan | None
    done: tuple[tuple[Op, Result], ...]
    verdict: Verdict


class RecordingEngine(Engine):
    """The engine, with a memory of one decision."""

    __slots__ = ("_plan", "_recorder", "record")

    def __init__(
        self, store: Store, clock: Clock, descriptors: Descriptors, prices: Callable[[], Prices] | None = None
    ) -> None:
        self._recorder = _RecordingStore(store)
        self._plan: Plan | None = None
        self.record: Record | None = None
        super().__init__(self._recorder, clock, descriptors, prices=prices)

    def plan(self, call: Call) -> Plan | Verdict:
        """Plan as the engine does, and keep it."""
        planned = super().plan(call)
        self._plan = planned if isinstance(planned, Plan) else None
        return planned

    def decide(self, call: Call) -> Verdict:
        """Decide as the engine does, and keep how."""
        self._plan, self._recorder.done = None, ()
        verdict = super().decide(call)
        self.record = Record(call, self._clock.now(), self._plan, self._recorder.done, verdict)
        return verdict


class _RecordingStore:
    """Passes everything on to the real store."""

    __slots__ = ("_store", "done")

    def __init__(self, store: Store) -> None:
        self._store = store
        self.done: tuple[tuple[Op, Result], ...] = ()

    def commit(self, ops: Sequence[Op], now: float, windows: Sequence[WindowWrite] = ()) -> Committed:
        committed = self._store.commit(ops, now, windows)
        self.done = tuple(zip(ops, committed.results, strict=False))
        return committed

    def settle(self, ops: Sequence[Settle], now: float, *, failed: bool) -> int:
        return self._store.settle(ops, now, failed=failed)

    def correct(self, ops: Sequence[Correct], now: float) -> None:
        self._store.correct(ops, now)

    def read_window(self, key: str, now: float) -> Window:
        return self._store.read_window(key, now)

    def breakers(self, prefix: str, now: float, most: int) -> list[BreakerKept]:
        return self._store.breakers(prefix, now, most)

    def drop(self, keys: Sequence[str]) -> None:
        self._store.drop(keys)

    def forget(self, prefix: str) -> int:
        return self._store.forget(prefix)
