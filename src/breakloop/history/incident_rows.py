"""Incidents as rows: those that a batch may change are read, folded by `incidents`, and written back; and the lists and
the single one that people look at."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from itertools import islice
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Row, and_, func, or_, select, update

from breakloop.history.api import IncidentFilter
from breakloop.history.incidents import LATE_S, STRAGGLERS_S, Case, Folding, concerned, new_incident_id
from breakloop.history.schema import INCIDENTS, PICTURES
from breakloop.history.statements import replacing
from breakloop.history.values import MOMENT_MAX, data_json, from_json, moment, text, to_json
from breakloop.model.activity import Activity
from breakloop.model.events import LOOP_CLEARED, Event
from breakloop.model.records import CLEARED, Incident, StepMark

PAGE_MAX: Final = 500
_ASKED_AT_ONCE: Final = 500
_RECORD: Final = tuple(field.name for field in fields(Incident) if field.name not in {"steps", "score"})
_COLUMNS: Final = tuple(column.name for column in INCIDENTS.c)


def fold_incidents(connection: Connection, events: Sequence[Event], activity: Activity, now: float) -> list[str]:
    """Bring the incidents up to date; return for each event the id of its own, or ""."""
    agents, callers = concerned(events, activity)
    folding = Folding(_load(connection, agents, callers, now), new_incident_id)
    ids = [folding.event(event) for event in events]
    for key, use in activity.loops.items():
        seen = activity.agents.get(key[:3])
        folding.used(key, use, seen.last_at if seen is not None and seen.last_at else now)
    _save(connection, folding.changed)
    return ids


def end_quiet(connection: Connection, now: float) -> list[Event]:
    """End what nothing more was heard of, and return that it is over. Of several processes, one is told."""
    columns = INCIDENTS.c
    over = and_(columns.ended_at.is_(None), columns.over_at <= now - LATE_S)
    ended = update(INCIDENTS).where(over).values(state=CLEARED, ended_at=columns.over_at, held_until=0.0)
    return [_cleared(Case(**row), now) for row in connection.execute(ended.returning(INCIDENTS)).mappings()]


def find_incidents(connection: Connection, wanted: IncidentFilter) -> list[Incident]:
    """Return a page, the last seen first, without their steps."""
    most = min(max(wanted.most, 1), PAGE_MAX)
    columns = INCIDENTS.c
    found = select(INCIDENTS).where(*_conditions(wanted))
    rows = connection.execute(found.order_by(columns.last_at.desc(), columns.id.desc()).limit(most))
    return [_record(row) for row in rows]


def find_incident(connection: Connection, incident_id: str) -> Incident | None:
    """Return one, with its steps and its score."""
    row = connection.execute(select(INCIDENTS).where(INCIDENTS.c.id == text(incident_id))).one_or_none()
    if row is None:
        return None
    picture = connection.execute(select(PICTURES).where(PICTURES.c.incident == row.id)).one_or_none()
    if picture is None:
        return _record(row)
    steps = tuple(StepMark(*mark) for mark in from_json(picture.steps))
    return _record(row, steps=steps, score=from_json(picture.score))


def count_live(connection: Connection, project: str) -> int:
    """Return how many go on that somebody feels."""
    columns = INCIDENTS.c
    found = select(func.count()).select_from(INCIDENTS).where(columns.ended_at.is_(None), columns.shadow.is_(False))
    return int(connection.execute(found.where(columns.project == text(project)) if project else found).scalar_one())


def _load(connection: Connection, agents: set[str], callers: set[str], now: float) -> Iterator[Case]:
    seen: set[str] = set()
    for column, names in ((INCIDENTS.c.agent, agents), (INCIDENTS.c.caller, callers)):
        for some in _chunks(names):
            rows = connection.execute(
                select(INCIDENTS).where(column.in_(some), INCIDENTS.c.over_at >= now - STRAGGLERS_S)
            ).mappings()
            for row in rows:
                if row["id"] not in seen:
                    seen.add(row["id"])
                    yield Case(**row)


def _chunks(names: Iterable[str]) -> Iterator[list[str]]:
    rest = iter(names)
    while some := list(islice(rest, _ASKED_AT_ONCE)):
        yield some


def _save(connection: Connection, cases: Sequence[Case]) -> None:
    if not cases:
        return
    connection.execute(replacing(connection, INCIDENTS), [_row(case) for case in cases])
    pictured = [case for case in cases if case.steps is not None or case.score is not None]
    if pictured:
        connection.execute(replacing(connection, PICTURES), [_picture(connection, case) for case in pictured])


def _row(case: Case) -> dict[str, Any]:
    return {name: getattr(case, name) for name in _COLUMNS}


def _picture(connection: Connection, case: Case) -> dict[str, Any]:
    """Return the picture's row; what the batch does not bring stays as it is."""
    known = None
    if case.detections > 1 and (case.steps is None or case.score is None):
        known = connection.execute(select(PICTURES).where(PICTURES.c.incident == case.id)).one_or_none()
    steps = to_json(case.steps) if case.steps is not None else known.steps if known is not None else "[]"
    score = data_json(case.score) if case.score is not None else known.score if known is not None else "{}"
    return {"incident": case.id, "steps": steps, "score": score}


def _cleared(case: Case, now: float) -> Event:
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
