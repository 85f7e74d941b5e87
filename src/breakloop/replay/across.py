"""What only several recorded sessions show together: agents that start each other (kinds `tree` and `spawn`), and runs
that are started again with the same outcome (`rerun`).

Each session is replayed by itself, in any order. Its facts are kept until all are read: when it began and ended, how it
opened, what it did, its answer, its cost. Then the starts and ends of all sessions are evaluated in the order of time,
by the detectors of the bundle. A session that would not have been started did not start others either.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from breakloop.detect.rerun import RerunDetector, RunOpening, opens_run
from breakloop.detect.stateful import BLOCK, RUN_IDLE_S, DetectorSlot, Evaluation, unpack_sections
from breakloop.detect.steps.window import run_so_far
from breakloop.detect.trees import RunStart, TreeDetector, TreeEvaluator, task_of
from breakloop.model.call import Answer, Call, Tree
from breakloop.policy.compiled import CompiledBundle
from breakloop.policy.descriptors import Descriptors
from breakloop.replay.sessions import Pricing, RecordedSession, RecordedTurn, Spent, free, spent, total
from breakloop.store.keys import window_key
from breakloop.store.ops import Store

_TASK_MAX: Final = 4096  # characters of a task that are kept; its digest covers all of it
_BEAT_S: Final = RUN_IDLE_S / 2
_DEPTH_MAX: Final = 255
_START, _BEAT, _END = 0, 1, 2  # at the same time, in this order


@dataclass(slots=True)
class AcrossFinding:
    """Sessions that belong together, and would have been reported or not started."""

    kind: str
    evidence: str = ""  # when it was first denied, or else last reported
    first_notice: str = ""  # the session whose start was reported
    first_block: str = ""  # the session that would not have been started
    at_s: float = 0.0  # when that session began
    denied: list[Spent] = field(default_factory=list)  # sessions that would not have been started

    @property
    def saved(self) -> Spent:
        return total(self.denied)


class SessionFacts:
    """What is kept of one session."""

    __slots__ = (
        "agent",
        "answer",
        "beats",
        "begun_s",
        "ended_s",
        "key",
        "opening",
        "parent",
        "rerun",
        "session",
        "spent",
        "system",
        "task",
        "work",
    )  # fmt: skip

    def __init__(self, session: RecordedSession, at_s: float) -> None:
        self.session, self.agent, self.parent = session.id, session.agent, session.parent
        self.begun_s = self.ended_s = at_s
        self.beats: list[float] = []  # when it was active, at long intervals
        self.task = self.system = ""
        self.rerun: RerunDetector | None = None  # the detector that judges its run
        self.opening: RunOpening | None = None
        self.key = b""
        self.work: tuple[int, int, list[bytes]] = (0, 0, [])
        self.answer: Answer | None = None  # that ended it
        self.spent = Spent()


class Across:
    """The facts of all sessions of one replay."""

    def __init__(self, bundle: CompiledBundle, read: Descriptors, pricing: Pricing = free) -> None:
        self._read = read
        self._pricing = pricing
        loops = [*bundle.default_loops, *[one for policy in bundle.policies for one in policy.loops]]
        found = next((one for one in loops if isinstance(one, TreeDetector)), None)
        self._trees: TreeEvaluator | None = None if found is None else found.evaluator
        self._facts: dict[str, SessionFacts] = {}
        self._parents: dict[str, str] = {}

    def take(self, session: RecordedSession, call: Call, turn: RecordedTurn) -> None:
        """Record a turn that was decided. A session without times is left out."""
        at_s = turn.at_s
        self._parents.update(dict.fromkeys(turn.started, session.id))
        if at_s is None:
            return
        facts = self._facts.get(session.id)
        if facts is None:
            facts = self._facts[session.id] = SessionFacts(session, at_s)
            self._open(facts, call)
        if at_s - (facts.beats[-1] if facts.beats else facts.begun_s) >= _BEAT_S:
            facts.beats.append(at_s)
        facts.ended_s = max(facts.ended_s, at_s, turn.answered_at_s or at_s)
        answer = turn.answer
        facts.answer = answer if answer.text and not answer.calls and not answer.failed else None
        facts.spent = total([facts.spent, spent(answer, session.model, len(call.body), self._pricing)])

    def end(self, session: RecordedSession, call: Call, store: Store, now: float) -> None:
        """Record what a session did, by its window; `call` is its last one."""
        facts = self._facts.get(session.id)
        if facts is None or facts.rerun is None:
            return
        owner, (tag, _) = facts.rerun.steps_of(call)
        _, data = store.read_window(window_key(f"{call.identity.shard}:{owner}"), now)
        facts.work = run_so_far(unpack_sections(data).get(tag, b""))

    def _open(self, facts: SessionFacts, call: Call) -> None:
        read, step = self._read, self._read.step(call)
        if step is None or not opens_run(step):
            return
        facts.task, facts.system = task_of(step.users), read.model_and_system(call)
        for slot in call.decision.runs:
            if isinstance(slot, DetectorSlot) and isinstance(slot.detector, RerunDetector):
                facts.rerun = slot.detector
                named, has_tools = read.agent(call) != read.caller(call), bool(step.tools)
                opening = RunOpening(
                    facts.task, facts.system, session=facts.session, agent_named=named, has_tools=has_tools
                )
                facts.key = slot.detector.opening_id(opening)
                facts.opening = opening._replace(task=facts.task[:_TASK_MAX], system="")
                break

    def findings(self) -> list[AcrossFinding]:
        """Return what was found, the dearest first."""
        judged = _Judged(self._facts, {**_parents(self._facts.values()), **self._parents}, self._trees)
        for at_s, order, _, facts in sorted(_events(self._facts.values())):
            judged.take(facts, order, at_s)
        found = judged.found.values()
        return sorted(found, key=lambda one: (not one.first_block, -one.saved.tokens, one.at_s))


class _Judged:
    """The evaluation of all starts and ends."""

    def __init__(self, facts: dict[str, SessionFacts], parents: dict[str, str], trees: TreeEvaluator | None) -> None:
        self._facts = facts
        self._parents = parents
        self._trees = trees
        self._windows: dict[tuple[str, str], bytes] = {}
        self._denied: dict[str, AcrossFinding] = {}  # sessions that would not have been started
        self.found: dict[tuple[str, str, str], AcrossFinding] = {}

    def take(self, facts: SessionFacts, order: int, at_s: float) -> None:
        place = self._place(facts.session)
        if order == _START and place.parent in self._denied:
            self._deny(facts, self._denied[place.parent])
        if facts.session in self._denied:
            return
        if place.depth > 1 and self._trees is not None:
            self._tree(self._trees, facts, place, order, at_s)
        if facts.opening is not None and facts.rerun is not None and facts.session not in self._denied:
            self._rerun(facts.rerun, facts.opening, facts, order, at_s)

    def _tree(self, trees: TreeEvaluator, facts: SessionFacts, place: Tree, order: int, at_s: float) -> None:
        key = ("tree", place.root)
        window = self._windows.get(key, b"")
        start = RunStart(facts.session, place.parent, facts.agent, facts.task, facts.system, place, facts.agent)
        if order == _END:
            if facts.answer is not None:
                self._windows[key] = trees.ended(window, facts.session)
            return
        if order == _BEAT:
            self._windows[key] = trees.evaluate_work(window, start, at_s).window
            return
        evaluation = trees.evaluate_start(window, start, at_s)
        self._windows[key] = evaluation.window
        self._add(place.root, facts, evaluation)

    def _rerun(
        self, detector: RerunDetector, opening: RunOpening, facts: SessionFacts, order: int, at_s: float
    ) -> None:
        key = ("rerun", facts.agent)
        window = self._windows.get(key, b"")
        if order == _START:
            evaluation = detector.evaluate_opening(window, opening, at_s, facts.key)
            self._windows[key] = evaluation.window
            self._add(facts.key.hex(), facts, evaluation)
        elif order == _END and facts.answer is not None:
            self._windows[key] = detector.end_run(window, facts.key, facts.session, facts.work, facts.answer)

    def _deny(self, facts: SessionFacts, finding: AcrossFinding) -> None:
        self._denied[facts.session] = finding
        finding.denied.append(facts.spent)

    def _add(self, group: str, facts: SessionFacts, evaluation: Evaluation) -> None:
        """Add what was found about a start."""
        if not evaluation.level:
            return
        key = (evaluation.kind, group, evaluation.identity)
        finding = self.found.setdefault(key, AcrossFinding(evaluation.kind))
        if not finding.first_block:
            finding.evidence, finding.at_s = evaluation.evidence, facts.begun_s
        finding.first_notice = finding.first_notice or facts.session
        if evaluation.level >= BLOCK:
            finding.first_block = finding.first_block or facts.session
            self._deny(facts, finding)

    def _place(self, session: str) -> Tree:
        """Return the place of a session in its tree. Sessions that name each other as parents end somewhere."""
        parent = self._parents.get(session, "")
        root, depth = session, 1
        while depth < _DEPTH_MAX and (above := self._parents.get(root, "")) and above != root:
            root, depth = above, depth + 1
        return Tree(root, parent, depth)


def _parents(facts: Iterable[SessionFacts]) -> dict[str, str]:
    return {one.session: one.parent for one in facts if one.parent}


def _events(facts: Iterable[SessionFacts]) -> Iterator[tuple[float, int, int, SessionFacts]]:
    for number, one in enumerate(facts):
        yield one.begun_s, _START, number, one
        yield from ((at_s, _BEAT, number, one) for at_s in one.beats)
        yield one.ended_s, _END, number, one


def across_json(found: Iterable[AcrossFinding]) -> list[dict[str, Any]]:
    """Return the findings for `--json`."""
    lines: list[dict[str, Any]] = []
    for one in found:
        saved = one.saved
        line: dict[str, Any] = {
            "kind": one.kind,
            "evidence": one.evidence,
            "first_notice": one.first_notice or None,
            "first_block": one.first_block or None,
            "blocked_sessions": len(one.denied),
            "tokens": saved.tokens,
            "tokens_estimated": saved.estimated,
        }
        lines.append(line if saved.money is None else {**line, "cost_usd": round(saved.money, 6)})
    return lines
