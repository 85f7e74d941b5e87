"""Where the state of a call is kept: in this process (`Local`), or beyond a connection (`remote`). A call is settled
where it was decided, so that a charge is corrected in the store that has it (SPEC L-3, S-3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from breakloop.clock import Clock
from breakloop.errors import StateError
from breakloop.model.answer import Answer
from breakloop.model.call import Call
from breakloop.model.tally import Tally
from breakloop.planning import Plan
from breakloop.state.ops import Committed, Correct, Op, Settle
from breakloop.state.store import Store
from breakloop.windows import Windows

Failed = Callable[[Call, float, StateError], None]


class Keeper(Protocol):
    """Takes note of how a call ended."""

    def settle(self, call: Call, ops: Sequence[Settle], *, failed: bool) -> None:
        """End what was in flight, and take back what does not count."""
        ...

    def correct(self, call: Call, ops: Sequence[Correct]) -> None:
        """Charge what was really used."""
        ...

    def heard(self, call: Call, answer: Answer) -> None:
        """Let detectors remember the answer."""
        ...


class Local:
    """A store in this process: everything is done when a function returns."""

    __slots__ = ("_clock", "_failed", "_tally", "store", "windows")

    def __init__(self, store: Store, clock: Clock, tally: Tally, failed: Failed) -> None:
        self.store = store
        self.windows = Windows(store)
        self._clock = clock
        self._tally = tally
        self._failed = failed

    def commit(self, call: Call, plan: Plan) -> tuple[list[Op], Committed]:
        """Carry out a plan. Raises `StateError`."""
        if plan.watched:
            return self.windows.commit(call, plan.ops, plan.project, plan.now)
        return plan.ops, self.store.commit(plan.ops, plan.now)

    def settle(self, call: Call, ops: Sequence[Settle], *, failed: bool) -> None:
        """End what was in flight, and take back what does not count."""
        now = self._clock.now()
        try:
            self._tally.forgiven += self.store.settle(ops, now, failed=failed)
        except StateError as error:
            self._failed(call, now, error)

    def correct(self, call: Call, ops: Sequence[Correct]) -> None:
        """Charge what was really used."""
        now = self._clock.now()
        try:
            self.store.correct(ops, now)
        except StateError as error:
            self._failed(call, now, error)

    def heard(self, call: Call, answer: Answer) -> None:
        """Let detectors remember the answer."""
        now = self._clock.now()
        try:
            self.windows.heard(call, answer, now)
        except StateError as error:
            self._failed(call, now, error)
