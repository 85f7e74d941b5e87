"""Events, the audit log, and the findings of policies in shadow mode.

Queries for events walk one index from one end; they never count or sort. A filter that several indexes could serve
is written so that only the right one matches. Audit entries are written before an action is acknowledged and are
kept longer than everything else. Shadow findings are summed up per day (UTC).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from heapq import merge
from itertools import islice
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from sqlalchemy import ColumnElement, Connection, Row, func, insert, literal_column, select

from breakloop.history.schema import (
    AUDIT,
    EVENTS,
    MOMENT_MAX,
    SHADOWS,
    UNREADABLE,
    adding,
    from_json,
    moment,
    text,
    to_json,
    whole,
)
from breakloop.model.events import Event
from breakloop.model.records import AuditRecord, EventFilter, EventRecord

PAGE_MAX: Final = 1000
_LATE_S: Final = 120.0  # an event may be written this much later than one that happened after it
_EMPTY: Final[ColumnElement[str]] = literal_column(
    "''"
)  # as in the conditions of the indexes, which a parameter would not match


def insert_events(connection: Connection, events: Sequence[Event], incidents: Iterable[str]) -> None:
    """Write events, each with the id of its incident."""
    rows = [
        {
            "name": text(event.name),
            "at": moment(event.at),
            "project": text(event.project),
            "agent": text(event.data.get("agent")),
            "request_id": text(event.request_id),
            "incident": incident,
            "data": to_json(event.data),
        }
        for event, incident in zip(events, incidents, strict=True)
    ]
    if rows:
        connection.execute(insert(EVENTS), rows)


def find_events(connection: Connection, wanted: EventFilter) -> list[EventRecord]:
    most = min(max(wanted.most, 1), PAGE_MAX)
    onwards = wanted.after > 0
    within = _within(connection, wanted)
    ordered = select(EVENTS).order_by(EVENTS.c.id.asc() if onwards else EVENTS.c.id.desc()).limit(most)
    pages = [connection.execute(ordered.where(*condition, *within)).all() for condition in _walks(connection, wanted)]
    rows = merge(*pages, key=lambda row: row.id, reverse=not onwards)
    return [_record(row) for row in islice(rows, most)]


def read_from_file(file: Path, name: str, most: int) -> list[dict[str, Any]]:
    """Return the data of the last events of a name in a database file, without opening it for writing."""
    asked = "SELECT data FROM breakloop_events WHERE name = ? ORDER BY id DESC LIMIT ?"
    try:
        with closing(sqlite3.connect(f"file:{quote(str(file))}?mode=ro", uri=True)) as connection:
            return [from_json(data, {}) for (data,) in connection.execute(asked, (name, most))]
    except sqlite3.Error:
        return []


def first_id_since(connection: Connection, since: float) -> int | None:
    """Return the id of the first event from `since` on."""
    found = select(EVENTS.c.id).where(EVENTS.c.at >= since).order_by(EVENTS.c.at, EVENTS.c.id).limit(1)
    return connection.execute(found).scalar_one_or_none()


def _walks(connection: Connection, wanted: EventFilter) -> Iterator[list[ColumnElement[bool]]]:
    """Yield conditions that one index serves in the order of ids."""
    columns = EVENTS.c
    names = [text(name) for name in wanted.names]
    project, agent, incident = text(wanted.project), text(wanted.agent), text(wanted.incident)
    if incident:
        first = [columns.incident == incident, columns.incident != _EMPTY]
        if names:
            first.append(_plain(columns.name).in_(names))
        if agent:
            first.append(_plain(columns.agent) == agent)
        if project:
            first.append(_plain(columns.project) == project)
        yield first
        return
    if not (names or project or agent):
        yield []
        return
    for name in dict.fromkeys(names or _known_names(connection)):
        condition = [columns.name == name]
        if agent:
            condition += [columns.agent == agent, columns.agent != _EMPTY]
        if project:
            condition.append(_plain(columns.project) == project if agent else columns.project == project)
        yield condition


def _known_names(connection: Connection) -> list[str]:
    """Return every event name, by jumping through the index from one to the next."""
    found: list[str] = []
    while True:
        after = select(func.min(EVENTS.c.name)).where(EVENTS.c.name > (found[-1] if found else ""))
        name = connection.execute(after).scalar_one()
        if name is None:
            return found
        found.append(name)


def _within(connection: Connection, wanted: EventFilter) -> list[ColumnElement[bool]]:
    """Limit times by ids, which every index contains, and then exactly."""
    columns, conditions = EVENTS.c, []
    since, until = moment(wanted.since), moment(wanted.until)
    if wanted.before > 0:
        conditions.append(columns.id < whole(wanted.before))
    if wanted.after > 0:
        conditions.append(columns.id > whole(wanted.after))
    at = columns.at + 0.0
    if since > 0.0:
        first = first_id_since(connection, since - _LATE_S)
        conditions += [at >= since, columns.id >= (first or 0)]
    if until < MOMENT_MAX:
        beyond = first_id_since(connection, until + _LATE_S)
        conditions.append(at <= until)
        if beyond is not None:
            conditions.append(columns.id <= beyond)
    return conditions


def _plain(column: ColumnElement[str]) -> ColumnElement[str]:
    """Return an equivalent expression that no index can serve."""
    return column.concat(_EMPTY)


def _record(row: Row[Any]) -> EventRecord:
    return EventRecord(
        row.id, row.name, row.at, row.project, row.agent, row.request_id, row.incident, from_json(row.data, UNREADABLE)
    )


def add_audit(connection: Connection, record: AuditRecord) -> None:
    row = {"at": moment(record.at), "who": text(record.who), "role": text(record.role), "action": text(record.action)}
    connection.execute(insert(AUDIT), row | {"target": text(record.target), "detail": to_json(record.detail)})


def find_audit(connection: Connection, before: int, most: int) -> list[AuditRecord]:
    """Return a page of the audit log, the newest first."""
    found = select(AUDIT).order_by(AUDIT.c.id.desc()).limit(min(max(most, 1), PAGE_MAX))
    if before > 0:
        found = found.where(AUDIT.c.id < whole(before))
    return [
        AuditRecord(row.id, row.at, row.who, row.role, row.action, row.target, from_json(row.detail, UNREADABLE))
        for row in connection.execute(found)
    ]


DAY_S: Final = 86_400


def add_shadows(connection: Connection, counts: Mapping[tuple[str, str, str, str], int], now: float) -> None:
    """Add counts by project, policy, rule and reason."""
    day, names = int(now // DAY_S), ("project", "policy", "rule", "reason")
    rows = [
        {"day": day, "requests": count, **dict(zip(names, map(text, key), strict=True))}
        for key, count in counts.items()
    ]
    if rows:
        connection.execute(adding(connection, SHADOWS, ("requests",)), rows)


def find_shadows(connection: Connection, since: float, policy: str) -> list[tuple[str, str, str, int]]:
    """Return policy, rule, reason and count from the day of `since` on, the most frequent first."""
    columns = SHADOWS.c
    times = func.sum(columns.requests)
    found = select(columns.policy, columns.rule, columns.reason, times).where(
        columns.day >= int(moment(since) // DAY_S)
    )
    if policy:
        found = found.where(columns.policy == text(policy))
    found = found.group_by(columns.policy, columns.rule, columns.reason)
    found = found.order_by(times.desc(), columns.policy, columns.rule, columns.reason)
    return [(row[0], row[1], row[2], int(row[3])) for row in connection.execute(found)]
