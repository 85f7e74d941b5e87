"""Decisions with a store beyond a connection (SPEC S-2, S-3). Whatever the store does, a decision is made within its
time budget: the state of this process stands in, and the verdict says `degraded`. Nothing here waits or blocks; `then`
is called when it is decided. What a single decision asks of the store is `deciding`'s.

One decision on its way to a store beyond a connection (SPEC S-2): read windows unless there is a copy, judge, one
commit; again where a window has moved on. When it has to be over, and what stands in for the store, is `remote`'s.

Answers, as detectors remember them in windows of a store beyond a connection (SPEC S-2). Nobody waits for it: where
it cannot be written, the answer is not remembered, and the next request is judged by what is known without it.

Chains of answers (`previous_response_id`, SPEC C-7) that instances share: which conversation goes on is known
wherever its next request arrives. One more round trip where the answer before passed elsewhere.

Whether a shared store can be used now (SPEC S-3): one failure is enough to go on without it, some good answers in a
row bring it back, and after a relapse it takes more of them, so that a store that flutters is not followed. Who
probes, and what happens without the store, is `remote`'s.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

from breakloop.detect.stateful import DetectorSlot
from breakloop.engine.decision_state import Settlement, state_of
from breakloop.engine.detector_windows import TRIES, RemoteWindowCache, hear, keys, look
from breakloop.engine.engine import Engine, unavailable
from breakloop.engine.plan import Plan
from breakloop.engine.sharded_windows import SharedWindowRead, is_far
from breakloop.errors import StateError
from breakloop.model.call import Answer, Call
from breakloop.model.verdict import Verdict
from breakloop.policy.identity import SessionNames
from breakloop.store.ops import (
    AdjustCharge,
    CommitResult,
    CountFingerprint,
    FingerprintCount,
    Op,
    RemoteStore,
    Settle,
    StoredWindow,
    WindowWrite,
    part,
)


class RemoteHost(Settlement, Protocol):
    """What a decision needs of `remote.Remote`."""

    engine: Engine
    store: RemoteStore
    windows: RemoteWindowCache
    fault: Callable[[Exception], Verdict]
    remember: Callable[[CountFingerprint, FingerprintCount, float], None]
    heard_time: Callable[[float], None] | None
    conflicts: int

    def failed(self, why: str) -> None:
        """The store did not do what it was asked."""
        ...

    def without(self, call: Call, plan: Plan) -> Verdict:
        """Decide with the state of this process."""
        ...


class RemoteDecision:
    """One decision on its way."""

    __slots__ = (
        "_call", "_far", "_ops", "_plan", "_planned", "_remote", "_then", "_tries", "_writes",
        "deadline", "heard", "over",
    )  # fmt: skip

    def __init__(
        self, remote: RemoteHost, call: Call, plan: Plan, then: Callable[[Verdict], None], deadline: float
    ) -> None:
        self._remote = remote
        self._call = call
        self._plan = plan
        self._then = then
        self.deadline = deadline
        self.over = False
        self.heard = False  # the store has answered, and was asked something else
        self._tries = 0
        self._planned = plan.ops  # without what is known already of windows that lie elsewhere
        self._far: SharedWindowRead | None = None
        self._ops: list[Op] = plan.ops
        self._writes: list[WindowWrite] = []

    def start(self) -> None:
        """Read what there is no copy of, then judge."""
        plan, remote = self._plan, self._remote
        try:
            if not plan.watched:
                remote.store.commit(self._ops, (), self._committed)
            elif self._call.identity.shard != plan.project and any(is_far(self._call, op) for op in plan.ops):
                self._far = SharedWindowRead(remote, self._call, plan, self._looked_afar, self._go_on)
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

    def _read(self, missing: list[str], windows: list[StoredWindow] | StateError) -> None:
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

    def _committed(self, done: CommitResult | StateError) -> None:
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

    def _judge(self, done: CommitResult) -> None:
        remote, engine, plan = self._remote, self._remote.engine, self._plan
        state_of(self._call).settlement = remote
        if self._far is not None:
            for at, op in enumerate(self._ops):
                if id(op) in self._far.known:
                    self._ops[at], done.results[at] = self._far.known[id(op)]
        if remote.heard_time is not None:
            remote.heard_time(done.at)
        verdict = engine.judged(self._call, plan, self._ops, done)
        if done.denied_at >= 0:
            op, result = self._ops[done.denied_at], done.results[done.denied_at]
            if (
                type(op) is CountFingerprint and type(result) is FingerprintCount
            ):  # what is blocked stays so when the store goes
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


class RemoteFeedback:
    """Writes answers into windows."""

    __slots__ = ("failed", "fault", "store", "windows")

    def __init__(
        self,
        store: RemoteStore,
        windows: RemoteWindowCache,
        failed: Callable[[str], None],
        fault: Callable[[Exception], object],
    ) -> None:
        self.store = store
        self.windows = windows
        self.failed = failed  # of the store
        self.fault = fault  # of ours

    def heard(self, call: Call, answer: Answer) -> None:
        """Let every detector that wants it remember how a call was answered."""
        for key, watches in state_of(call).windows or ():
            _FeedbackWrite(self, key, watches, answer).start()


class _FeedbackWrite:
    """One answer on its way into one window."""

    __slots__ = ("_answer", "_key", "_owner", "_tries", "_watches", "_write")

    def __init__(self, owner: RemoteFeedback, key: str, watches: Sequence[DetectorSlot], answer: Answer) -> None:
        self._owner = owner
        self._key = key
        self._watches = watches
        self._answer = answer
        self._tries = 0
        self._write: WindowWrite | None = None

    def start(self) -> None:
        """Take note in the copy that there is, else in what the store has."""
        windows = self._owner.windows
        if windows.missing((self._key,)):
            self._owner.store.read_windows((self._key,), self._read)
        else:
            self._commit()

    def _read(self, windows: list[StoredWindow] | StateError) -> None:
        if isinstance(windows, StateError):
            self._owner.failed(str(windows))
            return
        self._owner.windows.put(self._key, windows[0])
        self._commit()

    def _commit(self) -> None:
        owner = self._owner
        try:
            self._write = hear(self._key, owner.windows.get(self._key), self._watches, self._answer)
        except Exception as error:  # noqa: BLE001 - an outermost edge, as in `_Deciding`
            owner.fault(error)
            return
        if self._write is not None:
            owner.windows.sent((self._write,))
            owner.store.commit((), (self._write,), self._committed)

    def _committed(self, done: CommitResult | StateError) -> None:
        owner, write = self._owner, self._write
        if write is None:
            return
        if isinstance(done, StateError):
            owner.windows.lost((write,))
            owner.failed(str(done))
        elif done.conflict is not None:
            owner.windows.refused((write,), done.conflict)
            self._tries += 1
            if self._tries < TRIES:
                self._commit()


TTL_S: Final = 3600.0

Unknown = tuple[str, str]  # caller, and the answer that a call goes on from


class ChainLookup:
    """One call that waits for it. Stands among those that a store keeps waiting."""

    __slots__ = ("_decide", "_failed", "deadline", "heard", "over")

    def __init__(self, deadline: float, failed: Callable[[str], None], decide: Callable[[], None]) -> None:
        self.deadline = deadline
        self.heard = False
        self.over = False
        self._failed = failed
        self._decide = decide

    def answered(self, session: str | StateError) -> None:
        """Go on with what was noted, or without."""
        if self.over:
            return
        if isinstance(session, StateError):
            self._failed(str(session))
        self.give_up()

    def give_up(self) -> None:
        """Decide with what is known."""
        if not self.over:
            self.over = True
            self._decide()


class SharedResponseChains:
    """Notes chains in the store, and looks there for those that are not known here."""

    __slots__ = ("_sessions", "_store")

    def __init__(self, sessions: SessionNames, store: RemoteStore) -> None:
        self._sessions = sessions
        self._store = store
        sessions.chains.told = self._told

    def unknown(self, call: Call) -> Unknown | None:
        """Return what has to be asked for before a call can be judged; nearly always nothing."""
        return self._sessions.unknown(call) if call.body else None

    def recall(self, unknown: Unknown, recalling: ChainLookup) -> None:
        """Ask the store."""

        def answered(session: str | StateError) -> None:
            if isinstance(session, str) and session:
                self._sessions.chains.learn(*unknown, session)
            recalling.answered(session)

        self._store.recall(_key(unknown), answered)

    def _told(self, caller: str, answer: str, session: str) -> None:
        self._store.note(_key((caller, answer)), session, TTL_S)


def _key(unknown: Unknown) -> str:
    """Return where it is noted, whose session an answer belonged to."""
    caller, answer = unknown
    return f"chain:{part(caller)}:{part(answer)}"


PROBE_S: Final = 0.1  # from one probe to the next
_FEW: Final = 2  # good probes in a row that bring it back
_MANY: Final = 8  # at the most: with the second that a new connection may take, a store is used 2 s after it is well
_CALM_S: Final = 30.0  # so long after its return a failure is no relapse


class StoreHealth:
    """Up or down. `told(up, why)` hears of each change, and of nothing else."""

    __slots__ = ("_good", "_needed", "_returned_at", "_told", "changes", "up")

    def __init__(self, told: Callable[[bool, str], None]) -> None:
        self._told = told
        self.up = True
        self.changes = 0
        self._good = 0
        self._needed = _FEW
        self._returned_at = float("-inf")

    def failed(self, why: str, now: float) -> None:
        """It did not answer, not in time, or with an error of its own."""
        self._good = 0
        if self.up:
            relapse = now - self._returned_at < _CALM_S
            self._needed = min(2 * self._needed, _MANY) if relapse else _FEW
            self._change(up=False, why=why)

    def answered(self, now: float) -> None:
        """A probe was answered as it should be."""
        if self.up:
            return
        self._good += 1
        if self._good >= self._needed:
            self._returned_at = now
            self._change(up=True, why=f"{self._good} probes in a row were answered")

    def _change(self, *, up: bool, why: str) -> None:
        self.up = up
        self.changes += 1
        self._told(up, why)


BUDGET_S: Final = 0.05
_LATE_S: Final = 0.005  # so late, and this process was held up
_SOON_S: Final = 0.001

Then = Callable[[Verdict], None]
Fault = Callable[[Exception], Verdict]


class RemoteEngine:
    """The shared side of an engine. Its `Keeper`, too: what was decided there is settled there."""

    def __init__(
        self,
        engine: Engine,
        store: RemoteStore,
        health: StoreHealth,
        *,
        budget_s: float = BUDGET_S,
        fault: Fault,
        remember: Callable[[CountFingerprint, FingerprintCount, float], None],
        heard_time: Callable[[float], None] | None = None,
    ) -> None:
        self.engine = engine
        self.store = store
        self.health = health
        self.budget_s = budget_s
        self.windows = RemoteWindowCache()
        self.fault = fault  # of ours: counts it, and returns what the client gets
        self.remember = remember  # keeps here what the store has found tripped
        self.heard_time = heard_time  # told the store's time with each commit
        self.chains: SharedResponseChains | None = None
        self._hearer = RemoteFeedback(store, self.windows, self.failed, fault)
        self.conflicts = 0
        self.degraded = 0  # decisions made without the store
        self._waiting: deque[RemoteDecision | ChainLookup] = deque()  # nearly in the order of their deadlines
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
            recalling = ChainLookup(deadline, self.failed, lambda: self._decide_late(deadline, call, then))
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
            deciding = RemoteDecision(self, call, plan, then, deadline)
            self._wait(deciding)
            deciding.start()

    def _wait(self, one: RemoteDecision | ChainLookup) -> None:
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

    def _read_here(self, key: str, now: float) -> StoredWindow:
        """What detectors remember goes on from the last copy when the store is gone."""
        window = self.engine.local.store.read_window(key, now)
        return window if window.version else StoredWindow(0, self.windows.get(key).data)

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

    def correct(self, _call: Call, ops: Sequence[AdjustCharge]) -> None:
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
