"""Decisions with a shared store behind a connection.

A decision is always made within its time budget. If the store fails or is late, the state of this process is used
and the verdict is marked `degraded`. Nothing here blocks: `then` is called with the verdict.

`RemoteDecision` drives the decision procedure (`procedure.py`) with the replies of the store; `RemoteCommit` is a
decision without windows. `RemoteWindowCache` has
copies of windows, so that most decisions need a single round trip; a commit fails if a copy is outdated.
`RemoteEngine` handles deadlines, the fallback and probes. `StoreHealth` decides whether the store is used: a single
failure takes it out of use, several successful probes in a row bring it back, and more of them are needed after a
relapse.

`SharedNames` shares the conversations that `previous_response_id` continues, and the places of sessions in trees of
agents, between all instances. This costs one more round trip if another instance handled the previous answer, and for
the first request of a sub-agent on each instance.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from breakloop.engine.decision_state import state_of
from breakloop.engine.engine import Engine, LocalStore, unavailable
from breakloop.engine.plan import Plan
from breakloop.engine.procedure import AnswerUpdate, DecisionProcedure, Procedure, answer_updates
from breakloop.errors import StateError
from breakloop.limits.tree_budget import KEPT_S as TREE_KEPT_S
from breakloop.model.call import Answer, Call
from breakloop.model.verdict import Verdict
from breakloop.policy.identity import SessionNames
from breakloop.policy.trees import Trees
from breakloop.store.keys import chain_key, place_of, tree_key
from breakloop.store.limit_ops import BudgetSpec, ChargeBudget
from breakloop.store.memory import MemoryStore
from breakloop.store.ops import (
    NO_WINDOW,
    AdjustCharge,
    CommitResult,
    CountFingerprint,
    FingerprintCount,
    Op,
    RemoteStore,
    Settle,
    StoredWindow,
    WindowWrite,
)

_WINDOWS_MAX: Final = 10_000  # at most 6 KB each
_UNKNOWN: Final = -1  # version of a copy that may be outdated
_VERSIONS_PER_MS: Final = 2048  # of the first versions, which are times; Redis keeps versions as doubles
_new: Final = tuple.__new__  # builds a named tuple in half the time of calling its class


Then = Callable[[Verdict], None]


class WindowVersions:
    """Gives windows versions that no other process gives them. Decisions that build on a write which then conflicts
    would otherwise expect a version that another process has written in the meantime, and overwrite it.
    """

    __slots__ = ("_offset", "_step")

    def __init__(self) -> None:
        self._offset = secrets.randbelow(_VERSIONS_PER_MS)
        self._step = 1 + secrets.randbelow(_VERSIONS_PER_MS)

    def of(self, writes: Sequence[WindowWrite]) -> list[WindowWrite]:
        offset, step = self._offset, self._step
        return [
            _new(WindowWrite, (key, version, data, ttl_s, first * _VERSIONS_PER_MS + offset, step))
            for key, version, data, ttl_s, first, _ in writes
        ]


class RemoteWindowCache:
    """A least recently used cache of windows.

    Decisions of this process that arrive at the same time build on each other: each one uses the window that the one
    before it is about to write. So a reply of the store may be older than the copy. It replaces a copy only if it is
    newer than the version that the copy was built on.
    """

    __slots__ = ("_max_windows", "_windows")

    def __init__(self, max_windows: int = _WINDOWS_MAX) -> None:
        self._max_windows = max_windows
        # Each with the version that was last read from the store.
        self._windows: OrderedDict[str, tuple[StoredWindow, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._windows)

    def missing(self, keys: Sequence[str]) -> list[str]:
        """Return the keys that have no copy, or only one that may be outdated."""
        windows = self._windows
        return [key for key in keys if (known := windows.get(key)) is None or known[0][0] == _UNKNOWN]

    def get(self, key: str) -> StoredWindow:
        """Return the copy, or an empty window with version 0."""
        known = self._windows.get(key)
        if known is None:
            return NO_WINDOW
        self._windows.move_to_end(key)
        return known[0]

    def put(self, key: str, window: StoredWindow) -> None:
        """Cache a window that was read from the store, unless the copy was built on this version, or on a later one."""
        known = self._windows.get(key)
        if known is None or known[0].version == _UNKNOWN or window.version > known[1]:
            self._put(key, window, window.version)

    def _put(self, key: str, window: StoredWindow, read: int) -> None:
        windows = self._windows
        windows[key] = (window, read)
        windows.move_to_end(key)
        if len(windows) > self._max_windows:
            windows.popitem(last=False)

    def sent(self, writes: Sequence[WindowWrite]) -> None:
        """Cache windows that are being written, as if they had been written."""
        for write in writes:
            if write.data is not None:
                known = self._windows.get(write.key)
                self._put(
                    write.key, StoredWindow(write.becomes, write.data), write.version if known is None else known[1]
                )

    def refused(self, writes: Sequence[WindowWrite], newer: Mapping[str, StoredWindow]) -> None:
        """Handle a conflict: nothing was written. The newer windows are cached; other copies may be outdated."""
        self.lost([write for write in writes if write.key not in newer])
        for key, window in newer.items():
            self.put(key, window)

    def lost(self, writes: Sequence[WindowWrite]) -> None:
        """Mark copies as possibly outdated after a write with an unknown outcome. They are used while the store is
        unavailable, and read again once it is back.
        """
        for write in writes:
            known = self._windows.get(write.key)
            if known is not None:
                self._windows[write.key] = (StoredWindow(_UNKNOWN, known[0].data), known[1])

    def drop(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._windows.pop(key, None)


class _Driver:
    """Drives a procedure with the replies of the store, until `over` is set."""

    __slots__ = ()

    _procedure: Procedure
    _remote: RemoteEngine
    over: bool
    responded: bool  # the store has replied at least once

    def start(self) -> None:
        self._guarded(self._read)

    def _read(self) -> None:
        missing = self._remote.windows.missing(self._procedure.keys)
        if missing:
            self._remote.store.read_windows(missing, partial(self._received, missing))
        else:
            self._evaluate()

    def _received(self, missing: list[str], found: list[StoredWindow] | StateError) -> None:
        if isinstance(found, StateError):
            self._store_failed(found)
            return
        for key, window in zip(missing, found, strict=True):
            self._remote.windows.put(key, window)
        self._resume(self._evaluate)

    def _evaluate(self) -> None:
        procedure, windows = self._procedure, self._remote.windows
        found = [windows.get(key) for key in procedure.keys]
        if not procedure.locate(found):
            self._read()
            return
        if not procedure.evaluate(found):
            self._finished()
            return
        procedure.writes = self._remote.versions.of(procedure.writes)
        windows.sent(procedure.writes)
        self._remote.store.commit(procedure.ops, procedure.writes, self._committed)

    def _committed(self, done: CommitResult | StateError) -> None:
        procedure, windows = self._procedure, self._remote.windows
        if isinstance(done, StateError):
            windows.lost(procedure.writes)
            self._store_failed(done)
            return
        if done.conflict is not None:
            windows.refused(procedure.writes, done.conflict)
        self._resume(lambda: self._finished() if procedure.committed(done) else self._read())

    def _resume(self, step: Callable[[], None]) -> None:
        self.responded = True  # type: ignore[misc]  # a slot of the subclass
        if not self.over:
            self._guarded(step)

    def _guarded(self, step: Callable[[], None]) -> None:
        try:
            step()
        except Exception as error:  # noqa: BLE001 - an outermost edge: the same reply is read for other calls, too
            self._fault(error)

    def _finished(self) -> None:
        """Handle the end of the procedure."""

    def _store_failed(self, error: StateError) -> None:
        self._remote.failed(str(error))

    def _fault(self, error: Exception) -> None:
        self._remote.fault(error)


class RemoteUpdate(_Driver):
    """The update of a window with an answer. Nothing waits for it."""

    __slots__ = ("_procedure", "_remote", "over", "responded")

    def __init__(self, remote: RemoteEngine, procedure: AnswerUpdate) -> None:
        self._remote = remote
        self._procedure = procedure
        self.over = False
        self.responded = False


class RemoteCommit:
    """A decision in progress whose plan needs no windows: a single commit."""

    __slots__ = ("_call", "_plan", "_remote", "_then", "deadline", "over", "responded")

    def __init__(self, remote: RemoteEngine, call: Call, plan: Plan, then: Then, deadline: int) -> None:
        self._remote = remote
        self._call = call
        self._plan = plan
        self._then = then
        self.deadline = deadline
        self.over = False
        self.responded = False

    def start(self) -> None:
        try:
            self._remote.store.commit(self._plan.ops, (), self._committed)
        except Exception as error:  # noqa: BLE001 - an outermost edge: this may run where another reply is read
            self._fault(error)

    def _committed(self, done: CommitResult | StateError) -> None:
        if isinstance(done, StateError):
            self._store_failed(done)
        elif not self.over:
            try:
                self._end(self._remote.fold(self._call, self._plan, self._plan.ops, done))
            except Exception as error:  # noqa: BLE001 - an outermost edge: the same reply is read for other calls, too
                self._fault(error)

    def _store_failed(self, error: StateError) -> None:
        self._remote.failed(str(error))
        self.give_up()

    def _fault(self, error: Exception) -> None:
        self._end(self._remote.fault(error))

    def give_up(self) -> None:
        """Decide without the store."""
        if not self.over:
            try:
                self._end(self._remote.decide_without_store(self._call, self._plan, sent=True))
            except Exception as error:  # noqa: BLE001 - an outermost edge: called for all decisions that are late
                self._fault(error)

    def _end(self, verdict: Verdict) -> None:
        if not self.over:
            self.over = True
            self._then(verdict)


class RemoteDecision(RemoteCommit, _Driver):
    """A decision in progress whose detectors need windows."""

    __slots__ = ("_procedure",)

    _procedure: DecisionProcedure

    def __init__(self, remote: RemoteEngine, call: Call, plan: Plan, then: Then, deadline: int) -> None:
        super().__init__(remote, call, plan, then, deadline)
        self._procedure = DecisionProcedure(call, plan, shared=True)

    start = _Driver.start
    _committed = _Driver._committed  # noqa: SLF001 - of a base class

    def _finished(self) -> None:
        procedure = self._procedure
        if procedure.contended:
            self._remote.engine.tally.conflicts += 1
        self._end(self._remote.fold(self._call, self._plan, procedure.ops, procedure.result))


_NAME_TTL_S: Final = 3600.0

Unknown = tuple[str, Callable[[str], None]]  # a key in the store, and what is done with the text that it has


class Lookup:
    """A call that waits until the store has returned the names that other instances know."""

    __slots__ = ("_decide", "_failed", "_missing", "deadline", "over", "responded")

    def __init__(self, deadline: int, missing: int, failed: Callable[[str], None], decide: Callable[[], None]) -> None:
        self.deadline = deadline
        self.responded = False
        self.over = False
        self._missing = missing
        self._failed = failed
        self._decide = decide

    def answered(self, name: str | StateError) -> None:
        """Decide after the last name, whether the store returned one or not."""
        if self.over:
            return
        if isinstance(name, StateError):
            self._failed(str(name))
        self._missing -= 1
        if not self._missing:
            self.give_up()

    def give_up(self) -> None:
        if not self.over:
            self.over = True
            self._decide()


class StoreProbe:
    """A probe of a store that is out of use."""

    __slots__ = ("_then", "deadline", "over", "responded")

    def __init__(self, deadline: int, then: Callable[[StateError | None], None]) -> None:
        self.deadline = deadline
        self.over = False
        self.responded = True  # no reply means that it failed, and not that the store failed anew
        self._then = then

    def answered(self, error: StateError | None) -> None:
        if not self.over:
            self.over = True
            self._then(error)

    def give_up(self) -> None:
        self.answered(StateError("no response in time"))


class SharedNames:
    """Records response chains and trees of agents in the store, and looks up those that this process does not know."""

    __slots__ = ("_sessions", "_store", "_trees")

    def __init__(self, sessions: SessionNames, trees: Trees, store: RemoteStore) -> None:
        self._sessions = sessions
        self._trees = trees
        self._store = store
        sessions.chains.on_remember = self._share_chain
        trees.seen.on_remember = self._share_place

    def unknown(self, call: Call) -> list[Unknown]:
        """Return what has to be looked up before a call can be decided. In most cases there is nothing."""
        found: list[Unknown] = []
        chain = self._sessions.unknown(call) if call.body else None
        if chain is not None:
            found.append((chain_key(*chain), partial(self._sessions.chains.learn, *chain)))
        parent = self._trees.unknown(call)
        if parent is not None:
            found.append((tree_key(*parent), partial(self._trees.seen.learn, *parent)))
        return found

    def recall(self, unknown: list[Unknown], lookup: Lookup) -> None:
        """Look up names in the store."""
        for key, learn in unknown:
            self._store.recall(key, partial(self._recalled, learn, lookup))

    def _recalled(self, learn: Callable[[str], None], lookup: Lookup, name: str | StateError) -> None:
        if isinstance(name, str) and name:
            learn(name)
        lookup.answered(name)

    def _share_chain(self, caller: str, answer: str, session: str) -> None:
        self._store.note(chain_key(caller, answer), session, _NAME_TTL_S)

    def _share_place(self, caller: str, session: str, place: str) -> None:
        self._store.note(tree_key(caller, session), place, TREE_KEPT_S)


PROBE_S: Final = 0.1  # interval between probes
_FEW: Final = 2  # successful probes in a row that bring the store back
_MANY: Final = 8  # at most; with up to 1 s for a new connection, a store is back in use 2 s after it recovers
_CALM_S: Final = 30.0  # a failure later than this after the store's return is not a relapse


class StoreHealth:
    """Tracks whether the store is used. `on_change(up, why)` is called on each change only."""

    __slots__ = ("_good", "_needed", "_on_change", "_returned_at", "changes", "up")

    def __init__(self, on_change: Callable[[bool, str], None]) -> None:
        self._on_change = on_change
        self.up = True
        self.changes = 0
        self._good = 0
        self._needed = _FEW
        self._returned_at = float("-inf")

    def failed(self, why: str, now: float) -> None:
        """Record a failure: no reply, a late reply, or an error."""
        self._good = 0
        if self.up:
            relapse = now - self._returned_at < _CALM_S
            self._needed = min(2 * self._needed, _MANY) if relapse else _FEW
            self._change(up=False, why=why)

    def answered(self, now: float) -> None:
        if self.up:
            return
        self._good += 1
        if self._good >= self._needed:
            self._returned_at = now
            self._change(up=True, why=f"{self._good} consecutive probes succeeded")

    def _change(self, *, up: bool, why: str) -> None:
        self.up = up
        self.changes += 1
        self._on_change(up, why)


BUDGET_S: Final = 0.05
# A time budget is counted in ticks of a timer. While this process is busy with other work, it reads no replies, and
# the timer ticks once at most: that time is not taken from the budget.
_TICKS: Final = 10

_CHARGED_MAX: Final = 10_000  # accounts whose charges without the store are written back, at about 0.5 KB each
_AT_ONCE: Final = 100

Fault = Callable[[Exception], Verdict]


class _LocalSettlement:
    """Settles calls that were decided without the store."""

    __slots__ = ("_fallback", "_remote", "answered", "settle")

    def __init__(self, remote: RemoteEngine, fallback: LocalStore) -> None:
        self._remote = remote
        self._fallback = fallback
        self.settle = fallback.settle
        self.answered = fallback.answered

    def correct(self, call: Call, ops: Sequence[AdjustCharge]) -> None:
        self._fallback.correct(call, ops)
        accounts = [op for op in ops if isinstance(op.spec, BudgetSpec)]
        if accounts and self._remote.health.up:  # the estimate has been written back
            self._remote.store.correct(accounts, self._remote.confirmed)


class RemoteEngine:
    """Decides calls with a shared store. It is also their `Settlement`: a call that was decided in the store is settled
    there.
    """

    def __init__(
        self,
        engine: Engine,
        store: RemoteStore,
        health: StoreHealth,
        *,
        budget_s: float = BUDGET_S,
        fault: Fault,
        local: MemoryStore,
        on_store_time: Callable[[float, float], None] | None = None,
    ) -> None:
        self.engine = engine
        self.store = store
        self.health = health
        self.budget_s = budget_s
        self.windows = RemoteWindowCache()
        self.versions = WindowVersions()
        self.fault = fault  # handles an exception: counts it and returns the verdict
        self._local = local  # has a copy of what blocks in the store, and of its accounts
        self._charged: dict[str, tuple[ChargeBudget, int]] = {}  # what the store said of accounts used without it
        self._on_store_time = on_store_time  # called after each commit with the store's time and that of the request
        self.names: SharedNames | None = None
        self._fallback = engine.local_store(self._read_window)
        self._local_settlement = _LocalSettlement(self, self._fallback)
        self.degraded = 0  # decisions made without the store
        self._waiting: deque[RemoteCommit | Lookup | StoreProbe] = deque()  # roughly in the order of their deadlines
        self._ticks = 0
        self._timer: asyncio.TimerHandle | None = None
        self._probing: asyncio.TimerHandle | None = None
        self._closed = False
        self._loop = asyncio.get_running_loop()

    # -- decisions ---------------------------------------------------------------------------------------------------

    def decide(self, call: Call, then: Then) -> None:
        """Decide one call. `then` is called with the verdict, possibly before this method returns."""
        deadline = self._deadline()
        names = self.names
        unknown = names.unknown(call) if names is not None and self.health.up else None
        if names is None or not unknown:
            self._decide(deadline, call, then)
        else:
            lookup = Lookup(deadline, len(unknown), self.failed, lambda: self._decide_late(deadline, call, then))
            self._wait(lookup)
            names.recall(unknown, lookup)

    def _decide_late(self, deadline: int, call: Call, then: Then) -> None:
        try:
            self._decide(deadline, call, then)
        except Exception as error:  # noqa: BLE001 - an outermost edge: the store's answer is read for others, too
            then(self.fault(error))

    def _decide(self, deadline: int, call: Call, then: Then) -> None:
        engine = self.engine
        plan = engine.plan(call)
        if isinstance(plan, Verdict):
            then(engine.count(call, plan, None))
        elif not plan.ops and not plan.slots:
            then(engine.count(call, Verdict(), plan))
        elif not self.health.up:
            then(self.decide_without_store(call, plan))
        else:
            decision = (RemoteDecision if plan.slots else RemoteCommit)(self, call, plan, then, deadline)
            self._wait(decision)
            decision.start()

    def _deadline(self) -> int:
        """Return the tick at which the time budget of what begins now has passed."""
        return self._ticks + _TICKS + (self._timer is not None)

    def _wait(self, one: RemoteCommit | Lookup | StoreProbe) -> None:
        self._waiting.append(one)
        if self._timer is None:
            self._timer = self._loop.call_later(self.budget_s / _TICKS, self._tick)

    def fold(self, call: Call, plan: Plan, ops: list[Op], done: CommitResult) -> Verdict:
        """Return the verdict for a call that was committed in the store."""
        engine = self.engine
        state_of(call).settlement = self
        if self._on_store_time is not None:
            self._on_store_time(done.at, plan.now)
        verdict = engine.fold(call, plan, ops, done)
        if done.denied_at >= 0:
            op, result = ops[done.denied_at], done.results[done.denied_at]
            if isinstance(op, CountFingerprint) and isinstance(result, FingerprintCount):
                self._local.remember(op, result, plan.steady)  # keeps the loop blocked if the store fails
        self._remember_accounts(plan, ops, done)
        return engine.count(call, verdict, plan)

    def _remember_accounts(self, plan: Plan, ops: list[Op], done: CommitResult) -> None:
        """Copy the accounts of a commit, so that budgets go on from there if the store fails."""
        for op, used in zip(ops, done.results, strict=True):
            if type(op) is ChargeBudget and type(used) is int:
                if done.denied_at >= 0 or used > op.spec.budget:
                    used -= op.cost  # noqa: PLW2901 - it was not charged
                ends = op.ends - (plan.now - plan.steady) if op.limiter.dated else op.ends
                self._local.remember_account(op, used, ends, plan.steady)

    def decide_without_store(self, call: Call, plan: Plan, *, sent: bool = False) -> Verdict:
        """Decide with the state of this process. `sent`: the store may have charged the call before it failed."""
        self.degraded += 1
        denied = unavailable(plan)
        if denied is not None:
            verdict = self.engine.count(call, denied, plan)
        else:
            state_of(call).settlement = self._local_settlement
            charges = [op for op in plan.ops if type(op) is ChargeBudget]
            for op in charges:
                if op.key not in self._charged and len(self._charged) < _CHARGED_MAX:
                    self._charged[op.key] = op, self._local.account(op.key) or 0
            verdict = self.engine.decide_locally(call, plan, self._fallback)
            for op in charges if sent and verdict.allowed else ():
                if op.key in self._charged:  # counted once, whether the store has charged it or not
                    self._charged[op.key] = op, self._charged[op.key][1] + op.cost
        verdict.degraded = True
        return verdict

    def _read_window(self, key: str, now: float) -> StoredWindow:
        """Return the local window, or else the last copy of the shared one, so that detectors continue from it."""
        window = self.engine.local.store.read_window(key, now)
        return window if window.version else StoredWindow(0, self.windows.get(key).data)

    def _tick(self) -> None:
        """Give up on decisions whose deadline has passed. The store is not at fault if several round trips together
        took too long (reading a window, a conflict).
        """
        self._ticks += 1
        waiting = self._waiting
        while waiting and (waiting[0].over or waiting[0].deadline <= self._ticks):
            decision = waiting.popleft()
            if not decision.over:
                if not decision.responded:
                    self.failed(f"no response within {self.budget_s * 1000:g} ms")
                decision.give_up()
        self._timer = self._loop.call_later(self.budget_s / _TICKS, self._tick) if waiting else None

    # -- health ------------------------------------------------------------------------------------------------------

    def failed(self, why: str) -> None:
        """Record a store failure, continue without the store and start probing it."""
        if self._closed:
            return  # pending requests fail when the connection closes, which is expected
        self.health.failed(why, self._loop.time())
        if self._probing is None:
            self._probing = self._loop.call_later(PROBE_S, self._probe)

    def _probe(self) -> None:
        if self.health.up:
            self._probing = None
            return
        self._probing = self._loop.call_later(PROBE_S, self._probe)
        probe = StoreProbe(self._deadline(), self._probed)
        self._wait(probe)
        self.store.probe(probe.answered)

    def _probed(self, error: StateError | None) -> None:
        if error is None:
            self.health.answered(self._loop.time())
            if self.health.up:
                self._write_back()
        else:
            self.health.failed("a probe failed", self._loop.time())

    def _write_back(self) -> None:
        """Charge what was used without the store. Each instance adds its own part. If the store has lost an account, it
        begins with what it last returned to the first of them.
        """
        charged, self._charged = self._charged, {}
        places: dict[str, list[AdjustCharge]] = {}  # one commit for each place, which is one slot of a cluster
        for key, (op, known) in charged.items():
            used = self._local.account(key)
            if used:
                places.setdefault(place_of(key), []).append(AdjustCharge(op.spec, key, used - known, known, op.ends))
        for ops in places.values():
            for at in range(0, len(ops), _AT_ONCE):
                self.store.correct(ops[at : at + _AT_ONCE], self.confirmed)

    def close(self) -> None:
        """Stop probing, and decide all pending calls without the store."""
        self._closed = True
        for timer in (self._timer, self._probing):
            if timer is not None:
                timer.cancel()
        self._timer = self._probing = None
        while self._waiting:
            self._waiting.popleft().give_up()

    # -- settlement ---------------------------------------------------------------------------------------------------

    def settle(self, _call: Call, ops: Sequence[Settle], *, failed: bool) -> None:
        if self.health.up:
            self.store.settle(ops, self._settled, failed=failed)

    def _settled(self, taken_back: int | StateError) -> None:
        if isinstance(taken_back, StateError):
            self.failed(str(taken_back))
        else:
            self.engine.tally.forgiven += taken_back

    def correct(self, call: Call, ops: Sequence[AdjustCharge]) -> None:
        """Replace estimated charges by the actual use. Without the store, only the copies of its accounts change."""
        accounts = [op for op in ops if isinstance(op.spec, BudgetSpec)]
        if accounts:
            self._fallback.correct(call, accounts)
        if self.health.up:
            self.store.correct(ops, self.confirmed)

    def drop(self, dropped: Sequence[str]) -> None:
        """Delete the state under these keys in this process and in the store."""
        self.windows.drop(dropped)
        self.engine.local.store.drop(dropped)
        if self.health.up:
            self.store.drop(dropped, self.confirmed)

    def confirmed(self, error: StateError | None) -> None:
        if error is not None:
            self.failed(str(error))

    def answered(self, call: Call, answer: Answer) -> None:
        if self.health.up:
            for update in answer_updates(call, answer):
                RemoteUpdate(self, update).start()
