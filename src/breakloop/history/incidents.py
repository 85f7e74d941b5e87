"""Folding: events and sums of what happened, into incidents (SPEC G-3). Pure: what is known is handed in, what has
changed is handed back; `incident_rows` reads and writes it.

A loop that is seen again within 10 minutes is the same incident, also when its fingerprint changes. It is over when
somebody says so, or after 10 quiet minutes; but not while its agent is blocked or held.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from breakloop.history.values import text, whole
from breakloop.model.activity import Activity, LoopKey, LoopUse
from breakloop.model.events import AGENT_KILLED, AGENT_RELEASED, LOOP_CLEARED, LOOP_DETECTED, Event
from breakloop.model.records import CLEARED, OPEN, STOPPED

QUIET_S: Final = 600.0
LATE_S: Final = 5.0  # events may be on their way so long; an incident is not ended before
STRAGGLERS_S: Final = 60.0  # what is counted so late still goes to an incident that is over
STEPS_MAX: Final = 60
EVIDENCE_MAX: Final = 2000
_STOPS: Final = frozenset(("reject", "kill", "cut"))  # actions that stop a request, the others let it pass
_OF_LOOPS: Final = frozenset((LOOP_DETECTED, LOOP_CLEARED, AGENT_KILLED, AGENT_RELEASED))
_DIGITS: Final = "0123456789abcdefghjkmnpqrstvwxyz"  # in the order of ASCII; none looks like another

NewId = Callable[[float], str]
_Who = tuple[str, str | None, str | None]  # project, caller, agent; None: any


@dataclass(slots=True)
class Case:
    """An incident while it is folded. Names and meanings are those of `model.records.Incident`."""

    id: str
    project: str
    caller: str
    agent: str
    kind: str
    policy: str
    shadow: bool
    first_at: float
    last_at: float
    state: str = OPEN
    model: str = ""
    fingerprint: str = ""
    action: str = ""
    evidence: str = ""
    ended_at: float | None = None
    over_at: float = 0.0  # `ended_at`, or when it ends if nothing more happens
    held_until: float = 0.0
    detections: int = 0
    hit_count: int = 0
    cooldown_seconds: int = 0
    spent_requests: int = 0
    spent_tokens: int = 0
    spent_microusd: int = 0
    saved_requests: int = 0
    saved_tokens: int = 0
    saved_microusd: int = 0
    steps_at: float = 0.0
    steps_count: int = 0
    steps: Sequence[Sequence[Any]] | None = None  # a new picture; None: what is kept stays
    score: Mapping[str, Any] | None = None

    def seen(self, at: float) -> None:
        """Something of it happened: it goes on for a while."""
        self.last_at = max(self.last_at, at)
        self.over_at = max(self.last_at + max(QUIET_S, self.cooldown_seconds), self.held_until)

    def end(self, at: float) -> None:
        """It is over."""
        self.state, self.held_until = CLEARED, 0.0
        self.ended_at = self.over_at = at


class Folding:
    """One batch. `cases` are those that `concerned` asks for: going on, or over since less than a minute."""

    def __init__(self, cases: Iterable[Case], new_id: NewId) -> None:
        self._new_id = new_id
        self._changed: dict[str, Case] = {}
        self._known: dict[_Who, list[Case]] = {}
        for case in cases:
            self._add(case)

    @property
    def changed(self) -> list[Case]:
        """Every incident that is new or not what it was."""
        return list(self._changed.values())

    def event(self, event: Event) -> str:
        """Take an event in; return the id of its incident, or ""."""
        if event.name not in _OF_LOOPS:
            return ""
        if event.name == LOOP_DETECTED:
            return self._detected(event)
        told_of = event.data.get("incident")
        if told_of:  # by the history itself, which has ended it
            return text(told_of)
        found = sorted(self._meant(event), key=lambda case: case.last_at)
        for case in found:
            self._changed[case.id] = case
            if event.name == AGENT_KILLED:
                _killed(case, event)
            else:
                case.end(event.at)
        return found[-1].id if found else ""

    def used(self, key: LoopKey, use: LoopUse, at: float) -> None:
        """Add what passed within a loop and what was stopped."""
        case = self._loop_of(key)
        if case is None:
            return
        self._changed[case.id] = case
        case.spent_requests += use.passed
        case.spent_tokens += use.passed_tokens
        case.spent_microusd += use.passed_microusd
        case.saved_requests += use.stopped
        case.saved_tokens += use.stopped_tokens
        case.saved_microusd += use.stopped_microusd
        if case.ended_at is None:
            if use.stopped and not case.shadow:  # whatever the last detection has said of it
                case.state = STOPPED
            case.seen(at)

    def _detected(self, event: Event) -> str:
        data, at = event.data, event.at
        who = text(event.project), text(data.get("caller")), text(data.get("agent"))
        what = text(data.get("kind")), text(data.get("policy")), bool(data.get("shadow"))
        case = None
        for known in self._known.get(who, ()):
            if (known.kind, known.policy, known.shadow) == what and known.ended_at is None:
                self._changed[known.id] = known
                if at <= known.over_at:
                    case = known
                else:
                    known.end(known.over_at)
        if case is None:
            case = Case(self._new_id(at), *who, *what, at, at)
            self._add(case)
        self._changed[case.id] = case
        _describe(case, data)
        case.seen(at)
        return case.id

    def _add(self, case: Case) -> None:
        project, caller, agent = case.project, case.caller, case.agent
        for who in ((project, caller, agent), (project, None, agent), (project, caller, None)):
            self._known.setdefault(who, []).append(case)

    def _meant(self, event: Event) -> list[Case]:
        """What a kill, a release or the end of a loop is about. What it leaves empty it does not ask for."""
        data, cleared = event.data, event.name == LOOP_CLEARED
        caller, agent = text(data.get("caller")) or None, text(data.get("agent")) or None
        if caller is None and agent is None:
            return []
        kind, policy = (text(data.get("kind")), text(data.get("policy"))) if cleared else ("", "")
        shadow = cleared and bool(data.get("shadow"))
        return [
            case
            for case in self._known.get((text(event.project), caller, agent), ())
            if case.ended_at is None
            and case.shadow is shadow
            and kind in {"", case.kind}
            and policy in {"", case.policy}
        ]

    def _loop_of(self, key: LoopKey) -> Case | None:
        """The incident of a loop: best the one with this fingerprint, that goes on, that is enforced, the last one."""
        project, caller, agent, fingerprint = map(text, key)
        found = [
            case
            for case in self._known.get((project, caller, agent), ())
            if case.ended_at is None or case.fingerprint == fingerprint
        ]
        return max(
            found,
            key=lambda case: (case.fingerprint == fingerprint, case.ended_at is None, not case.shadow, case.last_at),
            default=None,
        )


def concerned(events: Iterable[Event], activity: Activity) -> tuple[set[str], set[str]]:
    """Return the agents, and the callers without one, whose incidents a batch may change."""
    agents = {text(agent) for _, _, agent, _ in activity.loops}
    callers = set()
    for event in events:
        if event.name in _OF_LOOPS:
            agent = text(event.data.get("agent"))
            if agent or event.name == LOOP_DETECTED:
                agents.add(agent)
            else:
                callers.add(text(event.data.get("caller")))
    return agents, callers - {""}


def new_incident_id(at: float) -> str:
    """Return an id that sorts by time and cannot be guessed: 7 digits for the second, 8 for chance."""
    number = (int(at) & 0x7FFFFFFFF) << 40 | secrets.randbits(40)
    return "".join(_DIGITS[number >> shift & 31] for shift in range(70, -1, -5))


def _describe(case: Case, data: Mapping[str, Any]) -> None:
    """Take over what a detection says; the last one describes the incident."""
    case.detections += 1
    case.model = text(data.get("model")) or case.model
    case.fingerprint = text(data.get("fingerprint")) or case.fingerprint
    case.action = text(data.get("action"))
    case.evidence = text(data.get("evidence"), EVIDENCE_MAX) or case.evidence
    case.hit_count = max(case.hit_count, whole(data.get("hit_count")))
    case.cooldown_seconds = whole(data.get("cooldown_seconds"))
    if case.action in _STOPS and not case.shadow:
        case.state = STOPPED
    score = data.get("score")
    if isinstance(score, Mapping):
        case.score = score
    _picture(case, data.get("steps"))


def _picture(case: Case, steps: object) -> None:
    """Take the picture of the steps if it is newer or longer than what is known."""
    if not isinstance(steps, Sequence) or isinstance(steps, str):
        return
    marks = [mark for mark in steps if _is_mark(mark)][-STEPS_MAX:]
    if not marks:
        return
    at, count = float(marks[-1][0]), len(marks)
    if at > case.steps_at or count > case.steps_count:
        case.steps, case.steps_at, case.steps_count = marks, at, count


def _is_mark(mark: object) -> bool:
    """Whether this is `at, tools, step, result, size, failed, verdict`."""
    return (
        isinstance(mark, Sequence)
        and len(mark) == 7
        and isinstance(mark[0], int | float)
        and math.isfinite(mark[0])
        and isinstance(mark[4], int)
        and all(isinstance(mark[index], str) for index in (1, 2, 3, 6))
    )


def _killed(case: Case, event: Event) -> None:
    case.state = STOPPED
    until = event.data.get("expires_at")
    case.held_until = max(case.held_until, float(until) if isinstance(until, int | float) else math.inf)
    case.seen(event.at)
