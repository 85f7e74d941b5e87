"""`History`: all reads and writes of the history database, each in one transaction, and its retention.

Every method may wait for a disk or a network: call them from threads. Retention deletes by age and by number of
rows, a limited number at a time, so that a writer never waits long. Open incidents and the settings of agents are
not deleted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Select, Table, and_, delete, func, select, tuple_

from breakloop.clock import Clock
from breakloop.errors import SettingsError
from breakloop.history import agents
from breakloop.history import events as event_rows
from breakloop.history import incidents as incident_rows
from breakloop.history.agents import COARSE_S, FINE_KEPT_S, summed
from breakloop.history.database import DatabaseBackend, HistoryDatabase, PostgresBackend, SqliteBackend, is_postgres
from breakloop.history.events import first_id_since
from breakloop.history.schema import AGENT_POINTS, AGENTS, AUDIT, CALLERS, EVENTS, INCIDENTS, PICTURES, POINTS, SHADOWS
from breakloop.model.events import Activity, Event
from breakloop.model.records import (
    AgentRecord,
    AuditRecord,
    EventFilter,
    EventRecord,
    Incident,
    IncidentFilter,
    Point,
    TotalsRecord,
)
from breakloop.store.sqlite import Report

DAY_S: Final = 86_400
BATCH: Final = 5_000  # rows per transaction
ROUNDS: Final = 40  # transactions per purge; the rest waits for the next one
AUDIT_DAYS: Final = 365
AUDIT_MAX: Final = 100_000


@dataclass(frozen=True, slots=True)
class Retention:
    """How much is kept. The limits of incidents, agents and curves follow from the number of events."""

    days: int = 30
    events: int = 1_000_000

    @property
    def incidents(self) -> int:
        return max(self.events // 20, 100)

    @property
    def agents(self) -> int:
        return max(self.events // 10, 100)

    @property
    def agent_points(self) -> int:
        """The number of intervals of single agents."""
        return max(self.events, 1000)


def excess(connection: Connection, keep: Retention, now: float) -> Iterator[tuple[Table, ColumnElement[bool]]]:
    """Yield tables and conditions of rows to delete: old ones, and those beyond the limits. Evaluated lazily."""
    oldest = now - keep.days * DAY_S
    yield EVENTS, EVENTS.c.id < max(_old_events(connection, oldest), _last_id(connection, EVENTS) - keep.events + 1)
    over = INCIDENTS.c.ended_at.is_not(None)
    last = max(oldest, _beyond(connection, INCIDENTS.c.last_at, keep.incidents))
    yield INCIDENTS, and_(over, INCIDENTS.c.last_at < last)
    yield PICTURES, PICTURES.c.incident.not_in(select(INCIDENTS.c.id))
    seen = max(oldest, _beyond(connection, AGENTS.c.last_at, keep.agents))
    yield AGENTS, and_(AGENTS.c.settings == "{}", AGENTS.c.last_at < seen)
    yield CALLERS, CALLERS.c.last_at < max(oldest, _beyond(connection, CALLERS.c.last_at, keep.agent_points))
    for table in (POINTS, AGENT_POINTS):
        fine = and_(table.c.span_s < COARSE_S, table.c.at < now - FINE_KEPT_S - COARSE_S)
        yield table, fine
        yield table, and_(table.c.span_s == COARSE_S, table.c.at < oldest - COARSE_S)
    at = _beyond(connection, AGENT_POINTS.c.at, keep.agent_points)
    yield AGENT_POINTS, AGENT_POINTS.c.at < at
    yield SHADOWS, SHADOWS.c.day < int(oldest // DAY_S)
    audited = AUDIT.c.at < now - max(keep.days, AUDIT_DAYS) * DAY_S
    yield AUDIT, audited
    yield AUDIT, AUDIT.c.id <= _last_id(connection, AUDIT) - AUDIT_MAX


def drop(connection: Connection, table: Table, which: ColumnElement[bool]) -> int:
    """Delete at most one batch; return how many rows."""
    keys = list(table.primary_key.columns)
    some: Select[tuple[object, ...]] = select(*keys).where(which).limit(BATCH)
    key = tuple_(*keys) if len(keys) > 1 else keys[0]
    return connection.execute(delete(table).where(key.in_(some))).rowcount


def _old_events(connection: Connection, oldest: float) -> int:
    """Return the id of the first event that is recent enough; without one, all events may go."""
    first = first_id_since(connection, oldest)
    return _last_id(connection, EVENTS) + 1 if first is None else first


def _last_id(connection: Connection, table: Table) -> int:
    return int(connection.execute(select(func.coalesce(func.max(table.c.id), 0))).scalar_one())


def _beyond(connection: Connection, column: ColumnElement[float], most: int) -> float:
    """Return the value of the last row among the `most` highest, or 0 if there are fewer. Rows with the same value
    stay.
    """
    found = select(column).order_by(column.desc()).offset(most - 1).limit(1)
    value = connection.execute(found).scalar_one_or_none()
    return 0.0 if value is None else float(value)


_SQLITE = "sqlite:///"


def open_history(where: str | Path, *, retention: Retention, clock: Clock, report: Report) -> History:
    """Return the history at a path or URL. Nothing is opened before the first call.

    Raises `SettingsError` for a URL that cannot be used. `report` is called when a file was renamed or cannot be
    used.
    """
    return History(HistoryDatabase(_place(where, report, clock), clock), retention, clock)


def _place(where: str | Path, report: Report, clock: Clock) -> DatabaseBackend:
    if isinstance(where, str):
        if is_postgres(where):
            return PostgresBackend(where, report, clock)
        if "://" in where and not where.startswith(_SQLITE):
            raise SettingsError("history: must be the path of a file, or postgresql://user:password@host/database")
        where = Path(where.removeprefix(_SQLITE))
    return SqliteBackend(where, report, clock)


class History:
    """The history database. Methods raise `HistoryError`."""

    def __init__(self, database: HistoryDatabase, retention: Retention, clock: Clock) -> None:
        self._database = database
        self._retention = retention
        self._clock = clock

    def write(self, events: Sequence[Event], activity: Activity, now: float) -> None:
        """Store events, and fold them into incidents, agents and curves, in one transaction."""
        batch = summed(events, activity, now)
        with self._database.writing() as connection:
            incidents = incident_rows.fold_incidents(connection, events, activity, now)
            event_rows.insert_events(connection, events, incidents)
            agents.add_to_agents(connection, batch)
            agents.add_to_curves(connection, batch, now)
            event_rows.add_shadows(connection, activity.shadow, now)

    def end_quiet(self, now: float) -> list[Event]:
        with self._database.writing() as connection:
            return incident_rows.end_quiet(connection, now)

    def events(self, wanted: EventFilter) -> list[EventRecord]:
        with self._database.reading() as connection:
            return event_rows.find_events(connection, wanted)

    def incidents(self, wanted: IncidentFilter) -> list[Incident]:
        with self._database.reading() as connection:
            return incident_rows.find_incidents(connection, wanted)

    def incident(self, incident_id: str) -> Incident | None:
        with self._database.reading() as connection:
            return incident_rows.find_incident(connection, incident_id)

    def agents(self, project: str = "", find: str = "", most: int = 200) -> list[AgentRecord]:
        with self._database.reading() as connection:
            return agents.find_agents(connection, project, find, most, self._clock.now())

    def agent(self, project: str, agent: str) -> AgentRecord | None:
        with self._database.reading() as connection:
            return agents.find_agent(connection, project, agent, self._clock.now())

    def set_agent(self, project: str, agent: str, settings: Mapping[str, Any]) -> None:
        """Store the settings of an agent, also of one that was never seen; on disk when this returns."""
        with self._database.writing(durable=True) as connection:
            agents.set_agent(connection, project, agent, settings)

    def totals(self, since: float, project: str = "") -> TotalsRecord:
        with self._database.reading() as connection:
            found = agents.find_totals(connection, since, project, self._clock.now())
            live = incident_rows.count_live(connection, project)
            return replace(found, incidents_open=live, agents=agents.count_agents(connection, since, project))

    def curve(self, since: float, until: float, step_s: int, project: str = "", agent: str = "") -> list[Point]:
        """Return sums for each interval, including empty ones."""
        span = agents.CurveRange(since, until, step_s, self._clock.now())
        with self._database.reading() as connection:
            return agents.find_curve(connection, span, project, agent)

    def shadow(self, since: float, policy: str = "") -> list[tuple[str, str, str, int]]:
        """Return what policies in shadow mode would have denied: policy, rule, reason, count."""
        with self._database.reading() as connection:
            return event_rows.find_shadows(connection, since, policy)

    def add_audit(self, who: str, role: str, action: str, target: str, detail: Mapping[str, Any], now: float) -> None:
        """Add an entry to the audit log; on disk when this returns."""
        with self._database.writing(durable=True) as connection:
            event_rows.add_audit(connection, AuditRecord(0, now, who, role, action, target, detail))

    def audit(self, before: int = 0, most: int = 100) -> list[AuditRecord]:
        with self._database.reading() as connection:
            return event_rows.find_audit(connection, before, most)

    def purge(self, now: float) -> int:
        """Delete rows that are too old or too many, in small transactions; return how many. May need several calls."""
        with self._database.reading() as connection:
            which = list(excess(connection, self._retention, now))
        dropped = rounds = 0
        for table, condition in which:
            gone = BATCH
            while gone >= BATCH and rounds < ROUNDS:
                with self._database.writing() as connection:
                    gone = drop(connection, table, condition)
                dropped, rounds = dropped + gone, rounds + 1
        for _ in range(1 + dropped // BATCH):
            self._database.tidy()
        return dropped

    def close(self) -> None:
        self._database.close()
