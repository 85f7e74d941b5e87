"""`History`: what is asked of the past, and given to it. Everything here may wait for a disk or a network: it is called
from threads, never from the event loop. `history.store` does it, over SQLite or PostgreSQL.

What goes into a column and comes out of it: texts that any database takes, whole numbers that fit, JSON. Nothing is
added to what was given and nothing is looked into.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from breakloop.model.events import Activity, Event
from breakloop.model.records import AgentRecord, AuditRecord, EventRecord, Incident, Point, TotalsRecord


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

    def agents(self, project: str = "", find: str = "", most: int = 200) -> list[AgentRecord]:
        """Return agents, the last seen first."""
        ...

    def agent(self, project: str, agent: str) -> AgentRecord | None:
        """Return one."""
        ...

    def set_agent(self, project: str, agent: str, settings: Mapping[str, Any]) -> None:
        """Keep what was set for an agent at run time, also for one that has not been seen yet."""
        ...

    def totals(self, since: float, project: str = "") -> TotalsRecord:
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


TEXT_MAX: Final = 400  # characters: an index of PostgreSQL takes no entry beyond 2,700 bytes
MOMENT_MAX: Final = 1e11  # seconds since the epoch: the year 5138
_WHOLE_MAX: Final = 2**62


def text(value: object, most: int = TEXT_MAX) -> str:
    """Return a text for a column, or "" for what is none. PostgreSQL takes no NUL, and no database half a character."""
    if not isinstance(value, str):
        return ""
    if not value.isascii():
        value = value.encode("utf-8", "replace").decode()
    if "\0" in value:
        value = value.replace("\0", "\N{REPLACEMENT CHARACTER}")
    return value[:most]


def whole(value: object) -> int:
    """Return a whole number that fits a column of 64 bits; 0 for what is none."""
    if not isinstance(value, int | float) or value != value:  # noqa: PLR0124 - not a number
        return 0
    return int(min(max(value, -_WHOLE_MAX), _WHOLE_MAX))


def moment(value: float) -> float:
    """Return a time that can be reckoned with, whatever was asked for."""
    return min(value, MOMENT_MAX) if value > 0.0 else 0.0


def to_json(value: object) -> str:
    """Return JSON in ASCII, so that every database takes it as it is."""
    return _ENCODER.encode(value)


def data_json(data: Mapping[str, Any]) -> str:
    """Return a map of any kind as JSON."""
    return to_json(dict(data))


def from_json(stored: str) -> Any:
    """Return what was stored."""
    return json.loads(stored)


def _other(value: object) -> object:
    """What JSON has no form for is told by its kind alone: its text may hold more than should be kept."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, set | frozenset | tuple):
        return list(value)
    return f"<{type(value).__name__}>"


_ENCODER: Final = json.JSONEncoder(separators=(",", ":"), default=_other)
