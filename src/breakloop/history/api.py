"""`History`: what is asked of the past, and given to it. Everything here may wait for a disk or a network: it is called
from threads, never from the event loop. `history.store` does it, over SQLite or PostgreSQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from breakloop.model.activity import Activity
from breakloop.model.events import Event
from breakloop.model.records import Agent, AuditRecord, EventRecord, Incident, Point, Totals


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Which events. Newest first, unless `after` is given: then those behind this id, oldest first."""

    names: Sequence[str] = ()
    project: str = ""
    agent: str = ""
    incident: str = ""
    since: float = 0.0
    until: float = float("inf")
    before: int = 0  # an id: the page behind it
    after: int = 0
    most: int = 50


@dataclass(frozen=True, slots=True)
class IncidentFilter:
    """Which incidents, newest first."""

    state: str = ""
    project: str = ""
    agent: str = ""
    kind: str = ""
    shadow: bool | None = None
    policy: str = ""
    before: float = float("inf")  # `last_at`: the page behind it
    before_id: str = ""  # of the incident with this `last_at`, so that none of the same time is left out
    most: int = 50


class History(Protocol):
    """Reads and writes; raises `HistoryError` where the database cannot."""

    def write(self, events: Sequence[Event], activity: Activity, now: float) -> None:
        """Keep what happened, fold it into incidents, agents and curves, in one transaction."""
        ...

    def end_quiet(self, now: float) -> list[Event]:
        """End incidents that nothing more was heard of; return that they are over, to be published."""
        ...

    def events(self, wanted: EventFilter) -> list[EventRecord]:
        """Return events."""
        ...

    def incidents(self, wanted: IncidentFilter) -> list[Incident]:
        """Return incidents, without their steps."""
        ...

    def incident(self, incident_id: str) -> Incident | None:
        """Return one, with its steps."""
        ...

    def agents(self, project: str = "", find: str = "", most: int = 200) -> list[Agent]:
        """Return agents, the last seen first."""
        ...

    def agent(self, project: str, agent: str) -> Agent | None:
        """Return one."""
        ...

    def set_agent(self, project: str, agent: str, settings: Mapping[str, Any]) -> None:
        """Keep what was set for an agent at run time, also for one that has not been seen yet."""
        ...

    def totals(self, since: float, project: str = "") -> Totals:
        """Return sums from `since` until now."""
        ...

    def curve(self, since: float, until: float, step_s: int, project: str = "", agent: str = "") -> list[Point]:
        """Return sums for each interval, those without anything included."""
        ...

    def shadow(self, since: float, policy: str = "") -> list[tuple[str, str, str, int]]:
        """Return what policies in shadow mode would have denied: policy, rule, reason, how often."""
        ...

    def audited(self, who: str, role: str, action: str, target: str, detail: Mapping[str, Any], now: float) -> None:
        """Keep that somebody did something, before it is acknowledged."""
        ...

    def audit(self, before: int = 0, most: int = 100) -> list[AuditRecord]:
        """Return who did what, newest first."""
        ...

    def purge(self, now: float) -> int:
        """Drop what is older than the retention or beyond its number of rows; return how many rows."""
        ...

    def close(self) -> None:
        """Let go."""
        ...
