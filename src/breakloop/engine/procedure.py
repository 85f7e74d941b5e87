"""The decision procedure, without I/O: read windows, detect, commit.

`DecisionProcedure` and `AnswerUpdate` state what to read and what to commit, and a driver does it: `LocalStore` in
`engine.py` in a loop, `RemoteEngine` in `remote.py` from the callbacks of a connection. Both therefore share one
order of steps:

    plan           `Planner.plan`: the operations of the call, and the detectors that need a window
    read windows   the driver reads the windows in `keys`
    detect         `evaluate`: each detector evaluates the call with its section of a window
    commit         the driver commits `ops` and `writes` at once, and passes the result to `committed`
    fold           `Engine.fold`: the results become a verdict

A plan without windows has nothing to read and is committed directly.

The procedure starts over if another decision has written one of the windows in the meantime. After `TRIES` further
attempts it commits without writing windows, so that limits and counts still apply.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

import msgspec

from breakloop.detect.counting import is_snoozed
from breakloop.detect.rerun import RerunDetector
from breakloop.detect.stateful import CALLER_OWNER, DetectorSlot, pack_sections, unpack_sections, window_shard
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

WINDOW_TTL_S: Final = 3600.0
# Attempts after the first, when a window has changed in the meantime. Of many agents that start at once on several
# instances, some lose several times, and one that gives up is not counted in its tree. The time budget is a bound, too.
TRIES: Final = 8

_new: Final = tuple.__new__  # builds a named tuple in half the time of calling its class
_NO_FINDINGS: Final[Mapping[int, Op]] = {}


# -- the procedure -----------------------------------------------------------------------------------------------------


class DecisionProcedure:
    """One decision. Once `committed` has returned True, `ops` and `result` hold what was committed."""

    __slots__ = (
        "_advisory", "_attempts", "_call", "_findings", "_first", "_known", "_located", "_locators", "_plan", "_shared",
        "_targets", "contended", "keys", "ops", "result", "writes",
    )  # fmt: skip

    def __init__(self, call: Call, plan: Plan, *, shared: bool = False) -> None:
        self._call = call
        self._plan = plan
        self._shared = shared  # other processes write to the same store
        self._known: Mapping[int, Op] = _NO_FINDINGS  # findings of an earlier commit, which this one repeats
        self.contended = False  # the windows changed too often and were not written
        self._first: _FirstCommit | None = None
        self._attempts = 0
        targets = find_windows(call, plan)
        keys: list[str] = []  # as `unique_keys`, without the call
        self._locators: tuple[WindowTarget, ...] = ()
        self._advisory: Collection[str] = ()
        for target in targets:
            if target.slot.detector.locates:
                self._locators += (target,)
            if target.key not in keys:
                keys.append(target.key)
        self._located: list[bytes] = []
        if shared:
            self._advisory = {target.key for target in targets if target.slot.detector.is_advisory(call)}
        if shared and call.identity.shard != plan.project and any(target.of_caller for target in targets):
            # With `shard_by: agent`, a window shared by several agents is in a different shard than the agent's own
            # state, so it is evaluated first, in a separate commit that charges nothing.
            self._first = _FirstCommit([target for target in targets if not target.of_caller])
            targets = [target for target in targets if target.of_caller]
            keys = unique_keys(targets)
        self._targets: Sequence[WindowTarget] = targets
        self.keys = keys

    def locate(self, windows: Sequence[StoredWindow]) -> bool:
        """Find the windows that depend on the content of others. Returns False if `keys` has changed, so that there is
        more to read.
        """
        locators = self._locators
        if not locators or (self._first is not None and self._first.result is None):
            return True
        keys = self.keys
        if len(locators) == 1:  # without a list comprehension, which is a call of its own
            found = [windows[keys.index(locators[0].key)][1]]
        else:
            found = [windows[keys.index(target.key)][1] for target in locators]
        if found == self._located:
            return True
        self._located = found
        at = self._plan.now if self._shared else self._plan.steady
        changed = False
        for target, data in zip(locators, found):  # noqa: B905 - as many; a keyword takes time
            slot = target.slot
            section = unpack_sections(data).get(slot.detector.tags[slot.group != ENFORCED], b"") if data else b""
            changed = slot.detector.locate(self._call, section, at) or changed
        if not changed:
            return True
        targets = find_windows(self._call, self._plan)
        if self._first is not None:
            targets = [target for target in targets if not target.of_caller]
        self.keys, self._targets = unique_keys(targets), targets
        return self.keys == keys

    def evaluate(self, windows: Sequence[StoredWindow]) -> bool:
        """Run each detector on the call and its section of a window; set `ops` and `writes`. There is always something
        to commit, so this returns True.
        """
        call, plan = self._call, self._plan
        at = plan.now if self._shared else plan.steady  # instances that share windows agree on the store's time
        keys = self.keys
        opened: dict[str, OpenWindow] = {}
        if self._shared:  # all are part of the commit
            for key, (version, data) in zip(keys, windows, strict=True):
                opened[key] = OpenWindow(key, version, unpack_sections(data))
        awaiting: dict[str, list[DetectorSlot]] = {}
        found: dict[int, Op] = {}
        snoozed = plan.bundle.snoozed
        for target in self._targets:
            slot, key = target.slot, target.key
            detector, group = slot.detector, slot.group
            if detector.locates:  # it has done its part, and keeps the answer
                awaiting.setdefault(key, []).append(slot)
                continue
            window = opened.get(key)
            if window is None:
                version, data = windows[keys.index(key)][:]
                window = opened[key] = OpenWindow(key, version, unpack_sections(data))
            tag = detector.tags[group != ENFORCED]
            before = window.sections.get(tag, b"")
            evaluation = detector.evaluate(call, before, at)
            if evaluation is None:
                continue
            if evaluation.window is not before:
                window.sections[tag] = evaluation.window
                window.changed = True
            if detector.awaits_answer(call, evaluation):
                awaiting.setdefault(key, []).append(slot)
            op = detector.operation(call, evaluation, target.place, group)
            if op is not None and not (snoozed and is_snoozed(op, snoozed, plan.now)):
                found[target.number] = op
        state_of(call).windows = awaiting.items() if awaiting else None
        self.writes = self._changes(opened) if self._attempts <= TRIES else []
        ops = plan.ops
        if self._first is not None:
            ops = [] if self._first.result is None else ops
            found = {**self._known, **found}
        self._findings = found
        self.ops = insert(ops, plan.slots, found) if found else ops
        return True

    def _changes(self, opened: Mapping[str, OpenWindow]) -> list[WindowWrite]:
        """Return the windows to write. With a shared store, a decision may be based on a cached copy of a window.
        Windows that did not change are then part of the commit as well, so that it fails if a copy is outdated.
        """
        if not self._shared:
            written: list[WindowWrite] = []
            for window in opened.values():
                if window.changed:
                    written.append(window.write())  # noqa: PERF401 - one window: a comprehension is a call of its own
            return written
        # The first version of a window is a timestamp, so that a window that was dropped and created again cannot
        # have the version of a copy that another process still caches.
        first = int(self._plan.now * 1000)
        optional = self._advisory if self._attempts else ()
        return [window.write(first) for window in opened.values() if window.key not in optional]

    def committed(self, result: CommitResult) -> bool:
        """Take the result of a commit. Returns False if there is more to read and commit."""
        if result.conflict is not None:
            self._attempts += 1
            return False
        if self._attempts > TRIES:
            self.contended = True
        first = self._first
        if first is None:
            self.result = result
            return True
        if first.result is None:
            first.findings, first.result = self._findings, result
            self._known = _carry_over(self._findings, result)
            self._targets, self.keys = first.remaining, unique_keys(first.remaining)
            self._attempts = 0
            return False
        self.ops, self.result = _join(self._plan, first.findings, first.result, self._findings, self.ops, result)
        return True


class _FirstCommit:
    """The first of two commits of one decision."""

    __slots__ = ("findings", "remaining", "result")

    def __init__(self, remaining: Sequence[WindowTarget]) -> None:
        self.remaining = remaining  # windows of the second commit
        self.findings: Mapping[int, Op] = {}
        self.result: CommitResult | None = None


class AnswerUpdate:
    """Lets detectors update a window with the answer to a call that they evaluated. Gives up after `TRIES` attempts."""

    __slots__ = ("_answer", "_attempts", "_call", "_slots", "keys", "ops", "writes")

    def __init__(self, key: str, slots: Sequence[DetectorSlot], call: Call, answer: Answer) -> None:
        self._slots = slots
        self._call = call
        self._answer = answer
        self._attempts = 0
        self.keys = [key]
        self.ops: list[Op] = []
        self.writes: list[WindowWrite] = []

    def locate(self, _windows: Sequence[StoredWindow]) -> bool:
        """Return True: the decision has found the window."""
        return True

    def evaluate(self, windows: Sequence[StoredWindow]) -> bool:
        """Set `writes`. Returns False if nothing changes."""
        version, data = windows[0]
        window, answer, call = OpenWindow(self.keys[0], version, unpack_sections(data)), self._answer, self._call
        for slot in self._slots:
            detector = slot.detector
            tag = detector.tags[slot.group != ENFORCED]
            section = window.sections.get(tag, b"" if detector.locates else None)
            if section is not None:
                after = detector.answered_call(section, answer, call)
                if after is not section:
                    window.sections[tag] = after
                    window.changed = True
        if window.changed:
            self.writes = [window.write()]
        return window.changed

    def committed(self, result: CommitResult) -> bool:
        """Take the result of a commit. Returns False to start over."""
        self._attempts += 1
        return result.conflict is None or self._attempts >= TRIES


class RunEnd(AnswerUpdate):
    """Lets a detector record how a run ended, with what the session's window has of it."""

    __slots__ = ("_detector", "_shadow", "_steps_tag")

    def __init__(self, detector: RerunDetector, group: int, call: Call, answer: Answer) -> None:
        place = call.identity.shard
        super().__init__(window_key(f"{place}:{detector.owner(call)}"), (), call, answer)
        self._detector = detector
        self._shadow = group != ENFORCED
        steps, tags = detector.steps_of(call)
        self._steps_tag = tags[self._shadow]
        if steps:
            self.keys.append(window_key(f"{place}:{steps}"))

    def evaluate(self, windows: Sequence[StoredWindow]) -> bool:
        """Set `writes`. Returns False if nothing changes."""
        version, data = windows[0]
        window, tag = OpenWindow(self.keys[0], version, unpack_sections(data)), self._detector.tags[self._shadow]
        section = window.sections.get(tag)
        if section is None:
            return False
        steps = unpack_sections(windows[-1][1]).get(self._steps_tag, b"")
        after = self._detector.ended(section, steps, self._answer, self._call)
        window.changed = after is not section
        window.sections[tag] = after
        self.writes = [window.write()]
        return window.changed


def answer_updates(call: Call, answer: Answer) -> list[AnswerUpdate]:
    """Return the updates of windows that an answer leads to. An answer without calls ends a run."""
    state = state_of(call)
    updates: list[AnswerUpdate] = []
    for key, slots in state.windows or ():
        if len(slots) > 1:
            slots = [slot for slot in slots if slot.detector.reads_answer(call, answer)]  # noqa: PLW2901
        elif not slots[0].detector.reads_answer(call, answer):  # nearly always one: without a list
            continue
        if slots:
            updates.append(AnswerUpdate(key, slots, call, answer))
    if state.runs and not answer.calls and not answer.failed and (answer.text or answer.complete):
        updates += [
            RunEnd(slot.detector, slot.group, call, answer)
            for slot in state.runs
            if isinstance(slot, DetectorSlot) and isinstance(slot.detector, RerunDetector)
        ]
    return updates


Procedure = DecisionProcedure | AnswerUpdate


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


class WindowTarget(msgspec.Struct, frozen=True, gc=False):
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
            place = shard if shard is project else window_shard(owner, shard, project)
            key = f"win:{place}:{owner}:"  # as `window_key` makes it, without the call
            found.append(WindowTarget(number, slot, key, place, owner))
    return found


def window_keys(call: Call, plan: Plan) -> list[str]:
    """Return the keys of the windows that a plan needs, without duplicates."""
    return unique_keys(find_windows(call, plan))


def unique_keys(targets: Sequence[WindowTarget]) -> list[str]:
    found: list[str] = []  # few: no need of a set
    for target in targets:
        if target.key not in found:
            found.append(target.key)
    return found


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


class OpenWindow(msgspec.Struct, gc=False):
    """A window during one decision."""

    key: str
    version: int
    sections: dict[bytes, bytes]  # by detector tag
    changed: bool = False

    def write(self, first: int = 1) -> WindowWrite:
        data = pack_sections(self.sections) if self.changed else None
        return _new(WindowWrite, (self.key, self.version, data, WINDOW_TTL_S, first, 1))
