"""Windows that several agents share, where each agent has a place of its own in the store (SPEC E-5, `shard_by`). They
lie in the project's place, so that a decision looks at them first, in a commit of their own; it charges nothing that
would have to be given back. What was found stands among the operations of the commit that follows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from breakloop.detect.stateful import CALLER_OWNER, DetectorSlot
from breakloop.engine.detector_windows import TRIES, RemoteWindowCache, keys, look
from breakloop.engine.plan import Plan
from breakloop.errors import StateError
from breakloop.model.call import Call
from breakloop.store.ops import (
    DENIED_ELSEWHERE,
    CommitResult,
    CountFingerprint,
    Deny,
    FingerprintCount,
    Observation,
    Op,
    RemoteStore,
    Result,
    StoredWindow,
    WindowWrite,
)


class SharedWindowHost(Protocol):
    """What is needed of `remote.Remote`."""

    store: RemoteStore
    windows: RemoteWindowCache
    conflicts: int


def is_far(call: Call, op: Any) -> bool:
    """Tell whether an operation depends on a window in another place than the agent's."""
    return type(op) is DetectorSlot and op.detector.owner(call).startswith(CALLER_OWNER)


class SharedWindowRead:
    """One look at them. `then` gets the error, if there is one; then `ops` and `known` are there.

    Nobody hears the answer to a call in these windows.
    """

    __slots__ = ("_call", "_found", "_go_on", "_plan", "_remote", "_then", "_tries", "_writes", "known", "ops")

    def __init__(
        self,
        remote: SharedWindowHost,
        call: Call,
        plan: Plan,
        then: Callable[[StateError | None], None],
        go_on: Callable[[Callable[[], None]], None],
    ) -> None:
        self._remote = remote
        self._call = call
        self._plan = plan
        self._then = then
        self._go_on = go_on  # takes the next step with each answer, unless it is too late
        self._tries = 0
        self._found: dict[int, Op] = {}  # which of the planned ones found what
        self._writes: list[WindowWrite] = []
        self.ops: list[Any] = plan.ops  # what is left to do
        self.known: dict[int, tuple[Op, Result]] = {}  # what stands for it there, by its id

    def start(self) -> None:
        """Read what there is no copy of, then judge."""
        missing = self._remote.windows.missing(keys(self._call, self._watches(), self._plan.project))
        if missing:
            self._remote.store.read_windows(missing, partial(self._read, missing))
        else:
            self._look()

    def _watches(self) -> list[Any]:
        return [op for op in self._plan.ops if is_far(self._call, op)]

    def _read(self, missing: Sequence[str], windows: list[StoredWindow] | StateError) -> None:
        if isinstance(windows, StateError):
            self._then(windows)
            return
        for key, window in zip(missing, windows, strict=True):
            self._remote.windows.put(key, window)
        self._go_on(self._look)

    def _look(self) -> None:
        plan, remote = self._plan, self._remote
        # Each is led by its number, for not every one of them finds something.
        asked = [one for at, op in enumerate(plan.ops) if is_far(self._call, op) for one in (Observation(at), op)]  # type: ignore[arg-type]
        found, self._writes = look(self._call, asked, plan.project, plan.now, remote.windows.get, copies=True)
        self._found, at = {}, -1
        for op in found:
            owner: Any = op.owner if type(op) is Observation else None
            if type(owner) is int:
                at = owner
            else:
                self._found[at] = op
        if self._tries > TRIES:
            remote.conflicts += 1
            self._writes = []
        remote.windows.sent(self._writes)
        remote.store.commit(list(self._found.values()), self._writes, self._committed)

    def _committed(self, done: CommitResult | StateError) -> None:
        windows = self._remote.windows
        if isinstance(done, StateError):
            windows.lost(self._writes)
            self._then(done)
        elif done.conflict is not None:
            windows.refused(self._writes, done.conflict)
            self._tries += 1
            self._go_on(self._look)
        else:
            self._go_on(partial(self._settled, done))

    def _settled(self, done: CommitResult) -> None:
        results = dict(zip(self._found, done.results, strict=True))
        kept = [(at, op) for at, op in enumerate(self._plan.ops) if at in self._found or not is_far(self._call, op)]
        self.ops = [self._stand_in(self._found[at], results[at]) if at in self._found else op for at, op in kept]
        self._then(None)

    def _stand_in(self, op: Op, result: Result) -> Op:
        """Return what denies or lets pass in the place of a count that was made."""
        if type(op) is not CountFingerprint or type(result) is not FingerprintCount:
            return op
        denied = result.tripped and op.spec.denies
        made: Op = Deny(DENIED_ELSEWHERE, op.group) if denied else Observation(None, op.group)  # type: ignore[arg-type]
        self.known[id(made)] = (op, result)
        return made
