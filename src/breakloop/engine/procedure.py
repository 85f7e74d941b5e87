"""The decision procedure, without I/O: read windows, detect, commit.

`Decision.steps` and `record_answer` are generators. They yield requests to the store (`ReadWindows`, `Commit`), and the
driver puts the reply into the request before it resumes them. `LocalStore` in `engine.py` drives them in a loop,
`RemoteEngine` in `remote.py` from the callbacks of a connection. Both therefore share one order of steps:

    plan           `Planner.plan`: the operations of the call, and the detectors that need a window
    read windows   `ReadWindows`
    detect         `evaluate`: each detector evaluates the call with its section of a window
    commit         `Commit`: the operations, findings and windows, in a single commit
    fold           `Engine.fold`: the results become a verdict

A plan without windows has nothing to read, and the engine commits it directly.

The procedure starts over if another decision has written one of the windows in the meantime. After `TRIES` further
attempts it commits without writing windows, so that limits and counts still apply.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, final

from breakloop.detect.counting import is_snoozed
from breakloop.detect.stateful import (
    CALLER_OWNER,
    DetectorSlot,
    pack_sections,
    unpack_sections,
    window_shard,
)
from breakloop.engine.decision_state import state_of
from breakloop.engine.plan import Plan
from breakloop.model.call import Answer, Call
from breakloop.store.keys import window_key
from breakloop.store.ops import (
    DENIED_ELSEWHERE,
    ENFORCED,
    CommitResult,
    CountFingerprint,
    Deny,
    Op,
    Result,
    StoredWindow,
    WindowWrite,
    denies,
)

TTL_S: Final = 3600.0
TRIES: Final = 3  # attempts after the first, when a window has changed in the meantime

_new: Final = tuple.__new__  # builds a named tuple in half the time of calling its class


# -- requests to the store ---------------------------------------------------------------------------------------------


@final
class ReadWindows:
    """A request to read windows. The driver sets `windows`, in the order of `keys`."""

    __slots__ = ("keys", "windows")

    def __init__(self, keys: Sequence[str]) -> None:
        self.keys = keys
        self.windows: Sequence[StoredWindow] = ()


@final
class Commit:
    """A request to commit operations and windows. The driver sets `result`."""

    __slots__ = ("ops", "result", "writes")

    def __init__(self, ops: list[Op], writes: Sequence[WindowWrite]) -> None:
        self.ops = ops
        self.writes = writes
        self.result = _NOT_COMMITTED


_NOT_COMMITTED: Final = CommitResult([])

StoreRequest = ReadWindows | Commit
# The generators return None: returning a value costs 1 us more per decision, because it travels in an exception.
Steps = Iterator[StoreRequest]


# -- the procedure -----------------------------------------------------------------------------------------------------


class Decision:
    """One decision. After `steps` is exhausted, `ops` and `result` hold what was committed."""

    __slots__ = ("_call", "_findings", "_plan", "_shared", "contended", "ops", "result")

    def __init__(self, call: Call, plan: Plan, *, shared: bool = False) -> None:
        self._call = call
        self._plan = plan
        self._shared = shared  # other processes write to the same store
        self._findings: dict[int, Op] = {}  # findings of the detectors, by slot number
        self.ops = plan.ops
        self.result = _NOT_COMMITTED
        self.contended = False  # the windows changed too often and were not written

    def steps(self) -> Steps:
        """Read windows, run the detectors and commit."""
        call, plan = self._call, self._plan
        targets = find_windows(call, plan)
        if self._shared and call.identity.shard != plan.project and any(target.of_caller for target in targets):
            return self._sharded(targets)
        return self._attempt(plan.ops, targets, {})

    def _attempt(self, ops: list[Op], targets: Sequence[WindowTarget], known: Mapping[int, Op]) -> Steps:
        """Read windows, run the detectors and commit; repeat if a window has changed. `known` holds findings from other
        windows.
        """
        call, plan = self._call, self._plan
        state = state_of(call)
        keys = [targets[0].key] if len(targets) == 1 else list(dict.fromkeys([target.key for target in targets]))
        read = ReadWindows(keys)
        attempts = 0
        while True:
            if keys:
                yield read
            found, writes, state.windows = evaluate(call, targets, read, plan.now, self._shared)
            findings = {**known, **found} if known else found
            contended = attempts > TRIES
            commit = Commit(insert(ops, plan.slots, findings) if findings else ops, () if contended else writes)
            yield commit
            if commit.result.conflict is None:
                break
            attempts += 1
        self._findings, self.ops, self.result = findings, commit.ops, commit.result
        self.contended = self.contended or contended

    def _sharded(self, targets: Sequence[WindowTarget]) -> Steps:
        """Decide in two commits. With `shard_by: agent`, a window shared by several agents is in a different shard than
        the agent's own state, so it is evaluated first, in a separate commit that charges nothing.
        """
        plan = self._plan
        yield from self._attempt([], [target for target in targets if target.of_caller], {})
        first, counted = self._findings, self.result
        here = [target for target in targets if not target.of_caller]
        yield from self._attempt(plan.ops, here, _carry_over(first, counted))
        self.ops, self.result = _join(plan, first, counted, self._findings, self.ops, self.result)


def record_answer(key: str, slots: Sequence[DetectorSlot], answer: Answer) -> Steps:
    """Let detectors update a window with the answer to a call that they evaluated. Gives up after `TRIES` attempts."""
    for _ in range(TRIES):
        read = ReadWindows((key,))
        yield read
        write = apply_answer(key, read.windows[0], slots, answer)
        if write is None:
            return
        commit = Commit([], (write,))
        yield commit
        if commit.result.conflict is None:
            return


def _carry_over(findings: Mapping[int, Op], result: CommitResult) -> dict[int, Op]:
    """Return the findings of the first commit that the second one repeats, which are denials. Nothing may be counted
    twice, so a count that tripped is replaced by a `Deny` in its position.
    """
    carried: dict[int, Op] = {}
    for (number, op), found in zip(findings.items(), result.results, strict=True):
        if not isinstance(op, CountFingerprint):
            carried[number] = op
        elif denies(op, found):
            carried[number] = Deny(DENIED_ELSEWHERE, op.group)
    return carried


def _join(
    plan: Plan,
    first: Mapping[int, Op],
    counted: CommitResult,
    second: Mapping[int, Op],
    ops: list[Op],
    result: CommitResult,
) -> tuple[list[Op], CommitResult]:
    """Return both commits as if they were one, with each count in its position."""
    results: dict[Op, Result] = dict(zip(ops, result.results, strict=True))
    results.update(zip(first.values(), counted.results, strict=True))
    findings = {**second, **first}
    joined = insert(plan.ops, plan.slots, findings)
    denied_at = result.denied_at
    if denied_at >= 0:
        denied = ops[denied_at]
        number = next((number for number, op in second.items() if op is denied), -1)
        denied_at = joined.index(findings[number] if number >= 0 else denied)
    return joined, CommitResult([results[op] for op in joined], denied_at, None, result.at)


# -- windows and detectors ---------------------------------------------------------------------------------------------


class WindowTarget(NamedTuple):
    """A detector and the window it needs for one call."""

    number: int  # number of its slot in the plan
    slot: DetectorSlot
    key: str
    place: str  # the project, or the agent's shard of it, as used in keys
    owner: str

    @property
    def of_caller(self) -> bool:
        """Whether several agents may share the window."""
        return self.owner.startswith(CALLER_OWNER)


def find_windows(call: Call, plan: Plan) -> list[WindowTarget]:
    """Return the windows that the detectors of a plan need."""
    project = plan.project
    shard = call.identity.shard or project
    found: list[WindowTarget] = []
    for number, (_, slot) in enumerate(plan.slots):
        owner = slot.detector.owner(call)
        if owner:
            place = window_shard(owner, shard, project)
            key = window_key(f"{place}:{owner}")
            found.append(_new(WindowTarget, (number, slot, key, place, owner)))
    return found


def window_keys(call: Call, plan: Plan) -> list[str]:
    """Return the keys of the windows that a plan needs, without duplicates."""
    return list(dict.fromkeys([target.key for target in find_windows(call, plan)]))


Awaiting = list[tuple[str, list[DetectorSlot]]]  # detectors that need the answer to a call, by window key


def evaluate(
    call: Call,
    targets: Iterable[WindowTarget],
    read: ReadWindows,
    now: float,
    shared: bool,  # noqa: FBT001 - called for each request: names cost
) -> tuple[dict[int, Op], list[WindowWrite], Awaiting | None]:
    """Run each detector on the call and its section of a window.

    Returns the findings by slot number, the windows to write, and the detectors that need the answer.

    With a shared store, a decision may be based on a cached copy of a window. Windows that did not change are then
    part of the commit as well, so that it fails if a copy is outdated.
    """
    opened = {key: _OpenWindow(key, stored[0], stored[1]) for key, stored in zip(read.keys, read.windows, strict=True)}
    awaiting: dict[str, list[DetectorSlot]] = {}
    findings: dict[int, Op] = {}
    snoozed = call.decision.snoozed
    for number, slot, key, place, _ in targets:
        window, detector = opened[key], slot.detector
        tag = detector.tags[slot.group != ENFORCED]
        before = window.sections.get(tag, b"")
        found = detector.evaluate(call, before, now)
        if found is None:
            continue
        if found.window is not before:
            window.put(tag, found.window)
        if detector.awaits_answer(call, found):
            awaiting.setdefault(key, []).append(slot)
        op = detector.operation(call, found, place, slot.group)
        if op is not None and (snoozed is None or not is_snoozed(op, snoozed, now)):
            findings[number] = op
    if shared:
        # The first version of a window is a timestamp, so that a window that was dropped and created again cannot
        # have the version of a copy that another process still caches.
        first = int(now * 1000)
        writes = [window.write(first) for window in opened.values()]
    else:
        writes = [window.write() for window in opened.values() if window.changed]
    return findings, writes, list(awaiting.items()) or None


def insert(ops: Sequence[Op], slots: Sequence[tuple[int, DetectorSlot]], findings: Mapping[int, Op]) -> list[Op]:
    """Return the operations with each finding inserted at the position of its slot."""
    merged: list[Op] = []
    done = 0
    for number, op in sorted(findings.items()) if len(findings) > 1 else findings.items():
        position = slots[number][0]
        if position > done:
            merged += ops[done:position]
            done = position
        merged.append(op)
    merged += ops[done:]
    return merged


def apply_answer(key: str, stored: StoredWindow, slots: Sequence[DetectorSlot], answer: Answer) -> WindowWrite | None:
    """Return the window after the answer to a call, or None if nothing changes."""
    window = _OpenWindow(key, stored.version, stored.data)
    for slot in slots:
        tag = slot.detector.tags[slot.group != ENFORCED]
        section = window.sections.get(tag)
        if section is not None:
            after = slot.detector.answered(section, answer)
            if after is not section:
                window.put(tag, after)
    return window.write() if window.changed else None


class _OpenWindow:
    """A window during one decision, as sections by detector tag."""

    __slots__ = ("changed", "key", "sections", "version")

    def __init__(self, key: str, version: int, data: bytes) -> None:
        self.key = key
        self.version = version
        self.sections = unpack_sections(data)
        self.changed = False

    def put(self, tag: bytes, section: bytes) -> None:
        self.sections[tag] = section
        self.changed = True

    def write(self, first: int = 1) -> WindowWrite:
        data = pack_sections(self.sections) if self.changed else None
        return _new(WindowWrite, (self.key, self.version, data, TTL_S, first))
