"""`open_history`: the past behind one interface (`api.History`), on SQLite or PostgreSQL. What belongs to one question
is in the file of its name; here each gets its connection, and a write its one transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from breakloop.clock import Clock
from breakloop.errors import SettingsError
from breakloop.history import agents, audit, curves, event_rows, incident_rows, shadows
from breakloop.history.api import EventFilter, History, IncidentFilter
from breakloop.history.database import Database, Place
from breakloop.history.postgres_place import PostgresPlace, is_postgres
from breakloop.history.retention import BATCH, ROUNDS, Retention, drop, excess
from breakloop.history.sqlite_place import SqlitePlace
from breakloop.history.sums import summed
from breakloop.model.activity import Activity
from breakloop.model.events import Event
from breakloop.model.records import Agent, AuditRecord, EventRecord, Incident, Point, Totals
from breakloop.state.sqlite_file import Report

_SQLITE = "sqlite:///"


def open_history(where: str | Path, *, retention: Retention, clock: Clock, report: Report) -> History:
    """Return the history at a path or URL. Nothing is opened before the first call, so that nothing fails here but a
    setting that cannot be right: `SettingsError`. `report` hears of a file that was set aside or cannot be used."""
    return SqlHistory(Database(_place(where, report), clock), retention, clock)


def _place(where: str | Path, report: Report) -> Place:
    if isinstance(where, str):
        if is_postgres(where):
            return PostgresPlace(where)
        if "://" in where and not where.startswith(_SQLITE):
            raise SettingsError("history: must be the path of a file, or postgresql://user:password@host/database")
        where = Path(where.removeprefix(_SQLITE))
    return SqlitePlace(where, report)


class SqlHistory:
    """The past in a database."""

    def __init__(self, database: Database, retention: Retention, clock: Clock) -> None:
        self._database = database
        self._retention = retention
        self._clock = clock

    def write(self, events: Sequence[Event], activity: Activity, now: float) -> None:
        """Keep what happened, in one transaction."""
        batch = summed(events, activity, now)
        with self._database.writing() as connection:
            incidents = incident_rows.fold_incidents(connection, events, activity, now)
            event_rows.insert_events(connection, events, incidents)
            agents.add_to_agents(connection, batch)
            curves.add_to_curves(connection, batch, now)
            shadows.add_shadows(connection, activity.shadow, now)

    def end_quiet(self, now: float) -> list[Event]:
        """End incidents that nothing more was heard of; return that they are over, to be published."""
        with self._database.writing() as connection:
            return incident_rows.end_quiet(connection, now)

    def events(self, wanted: EventFilter) -> list[EventRecord]:
        """Return events."""
        with self._database.reading() as connection:
            return event_rows.find_events(connection, wanted)

    def incidents(self, wanted: IncidentFilter) -> list[Incident]:
        """Return incidents, without their steps."""
        with self._database.reading() as connection:
            return incident_rows.find_incidents(connection, wanted)

    def incident(self, incident_id: str) -> Incident | None:
        """Return one, with its steps."""
        with self._database.reading() as connection:
            return incident_rows.find_incident(connection, incident_id)

    def agents(self, project: str = "", find: str = "", most: int = 200) -> list[Agent]:
        """Return agents, the last seen first."""
        with self._database.reading() as connection:
            return agents.find_agents(connection, project, find, most, self._clock.now())

    def agent(self, project: str, agent: str) -> Agent | None:
        """Return one."""
        with self._database.reading() as connection:
            return agents.find_agent(connection, project, agent, self._clock.now())

    def set_agent(self, project: str, agent: str, settings: Mapping[str, Any]) -> None:
        """Keep what was set for an agent; on disk when this returns."""
        with self._database.writing(durable=True) as connection:
            agents.set_agent(connection, project, agent, settings)

    def totals(self, since: float, project: str = "") -> Totals:
        """Return sums from `since` until now."""
        with self._database.reading() as connection:
            found = curves.find_totals(connection, since, project, self._clock.now())
            live = incident_rows.count_live(connection, project)
            return replace(found, incidents_open=live, agents=agents.count_agents(connection, since, project))

    def curve(self, since: float, until: float, step_s: int, project: str = "", agent: str = "") -> list[Point]:
        """Return sums for each interval."""
        span = curves.Span(since, until, step_s, self._clock.now())
        with self._database.reading() as connection:
            return curves.find_curve(connection, span, project, agent)

    def shadow(self, since: float, policy: str = "") -> list[tuple[str, str, str, int]]:
        """Return what policies in shadow mode would have denied."""
        with self._database.reading() as connection:
            return shadows.find_shadows(connection, since, policy)

    def audited(self, who: str, role: str, action: str, target: str, detail: Mapping[str, Any], now: float) -> None:
        """Keep that somebody did something; on disk when this returns."""
        with self._database.writing(durable=True) as connection:
            audit.add_audit(connection, AuditRecord(0, now, who, role, action, target, detail))

    def audit(self, before: int = 0, most: int = 100) -> list[AuditRecord]:
        """Return who did what, newest first."""
        with self._database.reading() as connection:
            return audit.find_audit(connection, before, most)

    def purge(self, now: float) -> int:
        """Drop what is too old or too much, in small transactions; return how many rows. It may take several calls
        to drop a lot."""
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
        """Let go."""
        self._database.close()
