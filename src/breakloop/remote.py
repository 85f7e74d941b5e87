"""Decisions with a store beyond a connection (SPEC S-2, S-3). Whatever the store does, a decision is made within its
time budget: the state of this process stands in, and the verdict says `degraded`. Nothing here waits or blocks; `then`
is called when it is decided. What a single decision asks of the store is `deciding`'s.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from breakloop.deciding import Deciding
from breakloop.engine import Engine, unavailable
from breakloop.errors import StateError
from breakloop.hearing import Hearer
from breakloop.model.answer import Answer
from breakloop.model.call import Call
from breakloop.model.verdict import Verdict
from breakloop.planning import Plan
from breakloop.shared_chains import Recalling, SharedChains
from breakloop.state.health import PROBE_S, Health
from breakloop.state.ops import Correct, Repeat, Repeated, Settle, Window
from breakloop.state.store import RemoteStore
from breakloop.window_cache import WindowCache

BUDGET_S: Final = 0.05
_LATE_S: Final = 0.005  # so late, and this process was held up
_SOON_S: Final = 0.001

Then = Callable[[Verdict], None]
Fault = Callable[[Exception], Verdict]


class Remote:
    """The shared side of an engine. Its `Keeper`, too: what was decided there is settled there."""

    def __init__(
        self,
        engine: Engine,
        store: RemoteStore,
        health: Health,
        *,
        budget_s: float = BUDGET_S,
        fault: Fault,
        remember: Callable[[Repeat, Repeated, float], None],
        heard_time: Callable[[float], None] | None = None,
    ) -> None:
        self.engine = engine
        self.store = store
        self.health = health
        self.budget_s = budget_s
        self.windows = WindowCache()
        self.fault = fault  # of ours: counts it, and returns what the client gets
        self.remember = remember  # keeps here what the store has found tripped
        self.heard_time = heard_time  # told the store's time with each commit
        self.chains: SharedChains | None = None
        self._hearer = Hearer(store, self.windows, self.failed, fault)
        self.conflicts = 0
        self.degraded = 0  # decisions made without the store
        self._waiting: deque[Deciding | Recalling] = deque()  # nearly in the order of their deadlines
        self._timer: asyncio.TimerHandle | None = None
        self._probing: asyncio.TimerHandle | None = None
        self._closed = False
        self._loop = asyncio.get_running_loop()
        engine.local.windows.read = self._read_here

    # -- decisions ---------------------------------------------------------------------------------------------------

    def decide(self, call: Call, then: Then) -> None:
        """Judge one call; `then` gets the verdict, perhaps before this returns."""
        deadline = self._loop.time() + self.budget_s
        unknown = self.chains.unknown(call) if self.chains is not None and self.health.up else None
        if self.chains is None or unknown is None:
            self._decide(deadline, call, then)
        else:
            recalling = Recalling(deadline, self.failed, lambda: self._decide_late(deadline, call, then))
            self._wait(recalling)
            self.chains.recall(unknown, recalling)

    def _decide_late(self, deadline: float, call: Call, then: Then) -> None:
        try:
            self._decide(deadline, call, then)
        except Exception as error:  # noqa: BLE001 - an outermost edge: the store's answer is read for others, too
            then(self.fault(error))

    def _decide(self, deadline: float, call: Call, then: Then) -> None:
        engine = self.engine
        plan = engine.plan(call)
        if isinstance(plan, Verdict):
            then(engine.counted(call, plan, None))
        elif not plan.ops:
            then(engine.counted(call, Verdict(), plan))
        elif not self.health.up:
            then(self.without(call, plan))
        else:
            deciding = Deciding(self, call, plan, then, deadline)
            self._wait(deciding)
            deciding.start()

    def _wait(self, one: Deciding | Recalling) -> None:
        self._waiting.append(one)
        if self._timer is None:
            self._timer = self._loop.call_at(one.deadline, self._sweep)

    def without(self, call: Call, plan: Plan) -> Verdict:
        """Decide with the state of this process (SPEC S-3)."""
        self.degraded += 1
        denied = unavailable(plan)
        verdict = self.engine.decide_here(call, plan) if denied is None else self.engine.counted(call, denied, plan)
        verdict.degraded = True
        return verdict

    def _read_here(self, key: str, now: float) -> Window:
        """What detectors remember goes on from the last copy when the store is gone."""
        window = self.engine.local.store.read_window(key, now)
        return window if window.version else Window(0, self.windows.get(key).data)

    def _sweep(self, *, again: bool = False) -> None:
        """Time is up for the oldest. Who was held up himself reads first what has come meanwhile: that he is late is
        no fault of the store. Nor is it that several answers together took too long (a window to read, a conflict)."""
        now, waiting = self._loop.time(), self._waiting
        while waiting and (waiting[0].over or waiting[0].deadline <= now):
            if not waiting[0].over and now - waiting[0].deadline > _LATE_S and not again:
                self._timer = self._loop.call_later(_SOON_S, partial(self._sweep, again=True))
                return
            deciding = waiting.popleft()
            if not deciding.over:
                if not deciding.heard:
                    self.failed(f"no answer within {self.budget_s * 1000:g} ms")
                deciding.give_up()
        self._timer = self._loop.call_at(waiting[0].deadline, self._sweep) if waiting else None

    # -- health ------------------------------------------------------------------------------------------------------

    def failed(self, why: str) -> None:
        """The store did not do what it was asked: go on without it, and look when it is back."""
        if self._closed:
            return  # whoever still waits for an answer gets none: that is how it ends
        self.health.failed(why, self._loop.time())
        if self._probing is None:
            self._probing = self._loop.call_later(PROBE_S, self._probe)

    def _probe(self) -> None:
        if self.health.up:
            self._probing = None
            return
        self._probing = self._loop.call_later(PROBE_S, self._probe)
        self.store.probe(partial(self._probed, self._loop.time()))

    def _probed(self, sent: float, error: StateError | None) -> None:
        now = self._loop.time()
        if error is None and now - sent <= self.budget_s:
            self.health.answered(now)
        else:
            self.health.failed("a probe failed", now)

    def close(self) -> None:
        """Stop probing, and decide what is still open without the store."""
        self._closed = True
        for timer in (self._timer, self._probing):
            if timer is not None:
                timer.cancel()
        self._timer = self._probing = None
        while self._waiting:
            self._waiting.popleft().give_up()

    # -- how it ended ------------------------------------------------------------------------------------------------

    def settle(self, _call: Call, ops: Sequence[Settle], *, failed: bool) -> None:
        """End what was in flight, and take back what does not count."""
        if self.health.up:
            self.store.settle(ops, self._settled, failed=failed)

    def _settled(self, taken_back: int | StateError) -> None:
        if isinstance(taken_back, StateError):
            self.failed(str(taken_back))
        else:
            self.engine.tally.forgiven += taken_back

    def correct(self, _call: Call, ops: Sequence[Correct]) -> None:
        """Charge what was really used. Without the store the estimate stays (SPEC L-3)."""
        if self.health.up:
            self.store.correct(ops, self._done)

    def drop(self, dropped: Sequence[str]) -> None:
        """Forget what is remembered under these keys, here and there."""
        self.windows.drop(dropped)
        self.engine.local.store.drop(dropped)
        if self.health.up:
            self.store.drop(dropped, self._done)

    def _done(self, error: StateError | None) -> None:
        if error is not None:
            self.failed(str(error))

    def heard(self, call: Call, answer: Answer) -> None:
        """Let detectors remember the answer."""
        if self.health.up:
            self._hearer.heard(call, answer)
