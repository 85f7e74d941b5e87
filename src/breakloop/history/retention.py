"""What is dropped, and when: by age and by number of rows, a bounded number at a time, so that a writer never waits
long. What is still going on is not dropped, and neither is what somebody has set for an agent."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from sqlalchemy import ColumnElement, Connection, Select, Table, and_, delete, func, select, tuple_

from breakloop.history.curves import COARSE_S, FINE_KEPT_S
from breakloop.history.event_rows import first_id_since
from breakloop.history.schema import AGENT_POINTS, AGENTS, AUDIT, CALLERS, EVENTS, INCIDENTS, PICTURES, POINTS, SHADOWS

DAY_S: Final = 86_400
BATCH: Final = 5_000  # rows in one transaction
ROUNDS: Final = 40  # transactions in one purge; what is left waits for the next
AUDIT_DAYS: Final = 365
AUDIT_MAX: Final = 100_000


@dataclass(frozen=True, slots=True)
class Retention:
    """How much is kept. Incidents, agents and their curves have bounds that follow from the number of events."""

    days: int = 30
    events: int = 1_000_000

    @property
    def incidents(self) -> int:
        """How many incidents."""
        return max(self.events // 20, 100)

    @property
    def agents(self) -> int:
        """How many agents."""
        return max(self.events // 10, 100)

    @property
    def agent_points(self) -> int:
        """How many intervals of single agents."""
        return max(self.events, 1000)


def excess(connection: Connection, keep: Retention, now: float) -> Iterator[tuple[Table, ColumnElement[bool]]]:
    """Yield which rows of which table may go: old ones, and those beyond the number. Looks at each when asked."""
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
    """Delete at most a batch; return how many."""
    keys = list(table.primary_key.columns)
    some: Select[tuple[object, ...]] = select(*keys).where(which).limit(BATCH)
    key = tuple_(*keys) if len(keys) > 1 else keys[0]
    return connection.execute(delete(table).where(key.in_(some))).rowcount


def _old_events(connection: Connection, oldest: float) -> int:
    """The first event that is young enough; without one, all may go."""
    first = first_id_since(connection, oldest)
    return _last_id(connection, EVENTS) + 1 if first is None else first


def _last_id(connection: Connection, table: Table) -> int:
    return int(connection.execute(select(func.coalesce(func.max(table.c.id), 0))).scalar_one())


def _beyond(connection: Connection, column: ColumnElement[float], most: int) -> float:
    """Return the value of the last row that has a place among the `most` highest, or 0 if all have. Others with the
    same value stay too."""
    found = select(column).order_by(column.desc()).offset(most - 1).limit(1)
    value = connection.execute(found).scalar_one_or_none()
    return 0.0 if value is None else float(value)
