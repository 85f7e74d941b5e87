"""One decision on its way to a store beyond a connection (SPEC S-2): read windows unless there is a copy, judge, one
commit; again where a window has moved on. When it has to be over, and what stands in for the store, is `remote`'s.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from breakloop.engine import Engine
from breakloop.errors import StateError
from breakloop.far_windows import FarWindows, is_far
from breakloop.model.call import Call
from breakloop.model.verdict import Verdict
from breakloop.planning import Plan
from breakloop.state.ops import Committed, Op, Repeat, Repeated, Window, WindowWrite
from breakloop.state.store import RemoteStore
from breakloop.window_cache import WindowCache
from breakloop.windows import TRIES, keys, look


class Side(Protocol):
    """What a decision needs of `remote.Remote`."""

    engine: Engine
    store: RemoteStore
    windows: WindowCache
    fault: Callable[[Exception], Verdict]
    remember: Callable[[Repeat, Repeated, float], None]
    heard_time: Callable[[float], None] | None
    conflicts: int

    def failed(self, why: str) -> None:
        """The store did not do what it was asked."""
        ...

    def without(self, call: Call, plan: Plan) -> Verdict:
        """Decide with the state of this process."""
        ...


class Deciding:
    """One decision on its way."""

    __slots__ = (
        "_call", "_far", "_ops", "_plan", "_planned", "_remote", "_then", "_tries", "_writes",
        "deadline", "heard", "over",
    )  # fmt: skip

    def __init__(self, remote: Side, call: Call, plan: Plan, then: Callable[[Verdict], None], deadline: float) -> None:
        self._remote = remote
        self._call = call
        self._plan = plan
        self._then = then
        self.deadline = deadline
        self.over = False
        self.heard = False  # the store has answered, and was asked something else
        self._tries = 0
        self._planned = plan.ops  # without what is known already of windows that lie elsewhere
        self._far: FarWindows | None = None
        self._ops: list[Op] = plan.ops
        self._writes: list[WindowWrite] = []

    def start(self) -> None:
        """Read what there is no copy of, then judge."""
        plan, remote = self._plan, self._remote
        try:
            if not plan.watched:
                remote.store.commit(self._ops, (), self._committed)
            elif self._call.shard != plan.project and any(is_far(self._call, op) for op in plan.ops):
                self._far = FarWindows(remote, self._call, plan, self._looked_afar, self._go_on)
                self._far.start()
            else:
                self._begin()
        except Exception as error:  # noqa: BLE001 - an outermost edge: this may run where a store's answer came in
            self._end(remote.fault(error))

    def _begin(self) -> None:
        remote = self._remote
        missing = remote.windows.missing(keys(self._call, self._planned, self._plan.project))
        if missing:
            remote.store.read_windows(missing, partial(self._read, missing))
        else:
            self._look()

    def _looked_afar(self, error: StateError | None) -> None:
        if error is not None:
            self._lost(error)
        elif not self.over and self._far is not None:
            self._planned = self._far.ops
            self._begin()

    def _read(self, missing: list[str], windows: list[Window] | StateError) -> None:
        if isinstance(windows, StateError):
            self._lost(windows)
            return
        for key, window in zip(missing, windows, strict=True):
            self._remote.windows.put(key, window)
        self._go_on(self._look)

    def _look(self) -> None:
        plan, remote = self._plan, self._remote
        self._ops, self._writes = look(
            self._call, self._planned, plan.project, plan.now, remote.windows.get, copies=True
        )
        if self._tries > TRIES:
            remote.conflicts += 1
            self._writes = []
        remote.windows.sent(self._writes)
        remote.store.commit(self._ops, self._writes, self._committed)

    def _committed(self, done: Committed | StateError) -> None:
        remote = self._remote
        if isinstance(done, StateError):
            remote.windows.lost(self._writes)
            self._lost(done)
        elif done.conflict is not None:
            remote.windows.refused(self._writes, done.conflict)
            self._tries += 1
            self._go_on(self._look)
        elif not self.over:
            self._guarded(partial(self._judge, done))

    def _judge(self, done: Committed) -> None:
        remote, engine, plan = self._remote, self._remote.engine, self._plan
        self._call.keeper = remote
        if self._far is not None:
            for at, op in enumerate(self._ops):
                if id(op) in self._far.known:
                    self._ops[at], done.results[at] = self._far.known[id(op)]
        if remote.heard_time is not None:
            remote.heard_time(done.at)
        verdict = engine.judged(self._call, plan, self._ops, done)
        if done.denied_at >= 0:
            op, result = self._ops[done.denied_at], done.results[done.denied_at]
            if type(op) is Repeat and type(result) is Repeated:  # what is blocked stays so when the store goes
                remote.remember(op, result, plan.now)
        self._end(engine.counted(self._call, verdict, plan))

    def _lost(self, error: StateError) -> None:
        self._remote.failed(str(error))
        self.give_up()

    def give_up(self) -> None:
        """Decide without the store."""
        if not self.over:
            self._guarded(lambda: self._end(self._remote.without(self._call, self._plan)))

    def _go_on(self, step: Callable[[], None]) -> None:
        self.heard = True
        if not self.over:
            self._guarded(step)

    def _guarded(self, step: Callable[[], None]) -> None:
        try:
            step()
        except Exception as error:  # noqa: BLE001 - an outermost edge: the store's answer is read for others, too
            self._end(self._remote.fault(error))

    def _end(self, verdict: Verdict) -> None:
        if not self.over:
            self.over = True
            self._then(verdict)
