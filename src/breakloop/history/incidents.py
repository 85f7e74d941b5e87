"""Folds events and activity into incidents.

A loop that is detected again within 10 minutes belongs to the same incident, even if its fingerprint changes. An
incident ends when an event ends it, or after 10 minutes without events, but not while its agent is blocked or
quarantined. `IncidentFolder` is pure; the functions below it read the affected incidents, fold a batch, and write
them back.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import islice
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Row, and_, func, or_, select, update

from breakloop.history.schema import INCIDENTS, MOMENT_MAX, PICTURES, from_json, moment, replacing, text, to_json, whole
from breakloop.model.events import (
    AGENT_KILLED,
    AGENT_RELEASED,
    LOOP_CLEARED,
    LOOP_DETECTED,
    Activity,
    Event,
    LoopKey,
    LoopUse,
)
from breakloop.model.records import CLEARED, OPEN, STOPPED, Incident, IncidentFilter, StepMark

QUIET_S: Final = 600.0
LATE_S: Final = 5.0  # events may take this long to arrive; an incident is not ended before
STRAGGLERS_S: Final = 60.0  # activity this late still counts for an incident that is over
STEPS_MAX: Final = 60
EVIDENCE_MAX: Final = 2000
_STOPS: Final = frozenset(("reject", "kill", "cut"))  # these actions stop a request; the others let it pass
OF_LOOPS: Final = frozenset((LOOP_DETECTED, LOOP_CLEARED, AGENT_KILLED, AGENT_RELEASED))
_DIGITS: Final = "0123456789abcdefghjkmnpqrstvwxyz"  # in ASCII order, without characters that look alike

NewId = Callable[[float], str]
_Who = tuple[str, str | None, str | None]  # project, caller, agent; None: any


@dataclass(slots=True)
class OpenIncident:
    """An incident while it is folded. The fields are those of `model.records.Incident`."""

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
    over_at: float = 0.0  # `ended_at`, or when the incident ends without further events
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
    steps: Sequence[Sequence[Any]] | None = None  # new steps; None: the stored ones stay
    score: Mapping[str, Any] | None = None

    def seen(self, at: float) -> None:
        """Extend the incident: something happened in it."""
        self.last_at = max(self.last_at, at)
        self.over_at = max(self.last_at + max(QUIET_S, self.cooldown_seconds), self.held_until)

    def end(self, at: float) -> None:
        self.state, self.held_until = CLEARED, 0.0
        self.ended_at = self.over_at = at


class IncidentFolder:
    """Folds one batch. `cases` are the incidents that `concerned` selects: open, or over for less than a minute."""

    def __init__(self, cases: Iterable[OpenIncident], new_id: NewId) -> None:
        self._new_id = new_id
        self._changed: dict[str, OpenIncident] = {}
        self._known: dict[_Who, list[OpenIncident]] = {}
        for case in cases:
            self._add(case)

    @property
    def changed(self) -> list[OpenIncident]:
        return list(self._changed.values())

    def event(self, event: Event) -> str:
        """Fold an event; return the id of its incident, or ""."""
        if event.name not in OF_LOOPS:
            return ""
        if event.name == LOOP_DETECTED:
            return self._detected(event)
        told_of = event.data.get("incident")
        if told_of:  # the history has ended the incident itself
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
        """Add requests that passed and requests that were stopped within a loop."""
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
            if use.stopped and not case.shadow:  # whatever the last detection reported
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
            case = OpenIncident(self._new_id(at), *who, *what, at, at)
            self._add(case)
        self._changed[case.id] = case
        _describe(case, data)
        case.seen(at)
        return case.id

    def _add(self, case: OpenIncident) -> None:
        project, caller, agent = case.project, case.caller, case.agent
        for who in ((project, caller, agent), (project, None, agent), (project, caller, None)):
            self._known.setdefault(who, []).append(case)

    def _meant(self, event: Event) -> list[OpenIncident]:
        """Return the incidents that a kill, a release or the end of a loop refers to. Empty fields match all."""
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

    def _loop_of(self, key: LoopKey) -> OpenIncident | None:
        """Return the incident of a loop. Preferred are: the same fingerprint, open, enforced, the latest."""
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
    """Return the agents, and the callers without an agent, whose incidents a batch may change."""
    agents = {text(agent) for _, _, agent, _ in activity.loops}
    callers = set()
    for event in events:
        if event.name in OF_LOOPS:
            agent = text(event.data.get("agent"))
            if agent or event.name == LOOP_DETECTED:
                agents.add(agent)
            else:
                callers.add(text(event.data.get("caller")))
    return agents, callers - {""}


def new_incident_id(at: float) -> str:
    """Return an id that sorts by time and cannot be guessed: 7 digits for the second, 8 random ones."""
    number = (int(at) & 0x7FFFFFFFF) << 40 | secrets.randbits(40)
    return "".join(_DIGITS[number >> shift & 31] for shift in range(70, -1, -5))


def _describe(case: OpenIncident, data: Mapping[str, Any]) -> None:
    """Copy the fields of a detection; the last one describes the incident."""
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
    _set_steps(case, data.get("steps"))


def _set_steps(case: OpenIncident, steps: object) -> None:
    """Take the steps of an event if they are newer or longer than the known ones."""
    if not isinstance(steps, Sequence) or isinstance(steps, str):
        return
    marks = [mark for mark in steps if _is_mark(mark)][-STEPS_MAX:]
    if not marks:
        return
    at, count = float(marks[-1][0]), len(marks)
    if at > case.steps_at or count > case.steps_count:
        case.steps, case.steps_at, case.steps_count = marks, at, count


def _is_mark(mark: object) -> bool:
    """Return whether this is `at, tools, step, result, size, failed, verdict`."""
    return (
        isinstance(mark, Sequence)
        and len(mark) == 7
        and isinstance(mark[0], int | float)
        and math.isfinite(mark[0])
        and isinstance(mark[4], int)
        and all(isinstance(mark[index], str) for index in (1, 2, 3, 6))
    )


def _killed(case: OpenIncident, event: Event) -> None:
    case.state = STOPPED
    until = event.data.get("expires_at")
    case.held_until = max(case.held_until, float(until) if isinstance(until, int | float) else math.inf)
    case.seen(event.at)


PAGE_MAX: Final = 500
_ASKED_AT_ONCE: Final = 500
_RECORD: Final = tuple(field.name for field in fields(Incident) if field.name not in {"steps", "score"})
_COLUMNS: Final = tuple(column.name for column in INCIDENTS.c)


def fold_incidents(connection: Connection, events: Sequence[Event], activity: Activity, now: float) -> list[str]:
    """Update the incidents; return the id of each event's incident, or ""."""
    agents, callers = concerned(events, activity)
    folding = IncidentFolder(_load(connection, agents, callers, now), new_incident_id)
    ids = [folding.event(event) for event in events]
    for key, use in activity.loops.items():
        seen = activity.agents.get(key[:3])
        folding.used(key, use, seen.last_at if seen is not None and seen.last_at else now)
    _save(connection, folding.changed)
    return ids


def end_quiet(connection: Connection, now: float) -> list[Event]:
    """End incidents without further events, and return the events to publish. Of several processes, one gets them."""
    columns = INCIDENTS.c
    over = and_(columns.ended_at.is_(None), columns.over_at <= now - LATE_S)
    ended = update(INCIDENTS).where(over).values(state=CLEARED, ended_at=columns.over_at, held_until=0.0)
    return [_cleared(OpenIncident(**row), now) for row in connection.execute(ended.returning(INCIDENTS)).mappings()]


def find_incidents(connection: Connection, wanted: IncidentFilter) -> list[Incident]:
    """Return a page of incidents without their steps, the last seen first."""
    most = min(max(wanted.most, 1), PAGE_MAX)
    columns = INCIDENTS.c
    found = select(INCIDENTS).where(*_conditions(wanted))
    rows = connection.execute(found.order_by(columns.last_at.desc(), columns.id.desc()).limit(most))
    return [_record(row) for row in rows]


def find_incident(connection: Connection, incident_id: str) -> Incident | None:
    """Return an incident with its steps and its score."""
    row = connection.execute(select(INCIDENTS).where(INCIDENTS.c.id == text(incident_id))).one_or_none()
    if row is None:
        return None
    picture = connection.execute(select(PICTURES).where(PICTURES.c.incident == row.id)).one_or_none()
    if picture is None:
        return _record(row)
    no_marks: list[Any] = []
    steps = tuple(StepMark(*mark) for mark in from_json(picture.steps, no_marks))
    return _record(row, steps=steps, score=from_json(picture.score, {}))


def count_live(connection: Connection, project: str) -> int:
    """Return the number of open incidents that are not in shadow mode."""
    columns = INCIDENTS.c
    found = select(func.count()).select_from(INCIDENTS).where(columns.ended_at.is_(None), columns.shadow.is_(False))
    return int(connection.execute(found.where(columns.project == text(project)) if project else found).scalar_one())


def _load(connection: Connection, agents: set[str], callers: set[str], now: float) -> Iterator[OpenIncident]:
    seen: set[str] = set()
    for column, names in ((INCIDENTS.c.agent, agents), (INCIDENTS.c.caller, callers)):
        for some in _chunks(names):
            rows = connection.execute(
                select(INCIDENTS).where(column.in_(some), INCIDENTS.c.over_at >= now - STRAGGLERS_S)
            ).mappings()
            for row in rows:
                if row["id"] not in seen:
                    seen.add(row["id"])
                    yield OpenIncident(**row)


def _chunks(names: Iterable[str]) -> Iterator[list[str]]:
    rest = iter(names)
    while some := list(islice(rest, _ASKED_AT_ONCE)):
        yield some


def _save(connection: Connection, cases: Sequence[OpenIncident]) -> None:
    if not cases:
        return
    rows = [{name: getattr(case, name) for name in _COLUMNS} for case in cases]
    connection.execute(replacing(connection, INCIDENTS), rows)
    pictured = [case for case in cases if case.steps is not None or case.score is not None]
    if pictured:
        connection.execute(replacing(connection, PICTURES), [_steps_row(connection, case) for case in pictured])


def _steps_row(connection: Connection, case: OpenIncident) -> dict[str, Any]:
    """Return the row of the steps; fields that the batch does not change are kept."""
    known = None
    if case.detections > 1 and (case.steps is None or case.score is None):
        known = connection.execute(select(PICTURES).where(PICTURES.c.incident == case.id)).one_or_none()
    steps = to_json(case.steps) if case.steps is not None else known.steps if known is not None else "[]"
    score = to_json(case.score) if case.score is not None else known.score if known is not None else "{}"
    return {"incident": case.id, "steps": steps, "score": score}


def _cleared(case: OpenIncident, now: float) -> Event:
    names = ("agent", "caller", "model", "kind", "policy", "fingerprint", "shadow", "hit_count")
    sums = ("spent_requests", "spent_microusd", "saved_requests", "saved_microusd")
    known = {name: getattr(case, name) for name in (*names, *sums)}
    lasted_s = round(max(0.0, case.last_at - case.first_at), 1)
    return Event(LOOP_CLEARED, now, {"incident": case.id, **known, "lasted_seconds": lasted_s}, case.project)


def _conditions(wanted: IncidentFilter) -> Iterator[ColumnElement[bool]]:
    columns = INCIDENTS.c
    for name in ("state", "project", "agent", "kind", "policy"):
        value = text(getattr(wanted, name))
        if value:
            yield columns[name] == value
    if wanted.shadow is not None:
        yield columns.shadow.is_(wanted.shadow)
    before = moment(wanted.before)
    if before < MOMENT_MAX:
        tied = and_(columns.last_at == before, columns.id < text(wanted.before_id))
        yield columns.last_at <= before
        yield or_(columns.last_at < before, tied)


def _record(row: Row[Any], **picture: Any) -> Incident:
    return Incident(**{name: getattr(row, name) for name in _RECORD}, **picture)
