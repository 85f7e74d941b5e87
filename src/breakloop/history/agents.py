"""The agent registry, and sums over time.

Sums are added up as they are written, so no page reads events: per minute for a project and per five minutes for an
agent for two days, per hour for both as long as history is kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import Connection, Row, ScalarSelect, Select, case, func, select

from breakloop.history.schema import (
    AGENT_POINTS,
    AGENTS,
    CALLERS,
    POINTS,
    adding,
    from_json,
    insert,
    moment,
    text,
    to_json,
    upsert,
)
from breakloop.model.events import LOOP_DETECTED, Activity, AgentUse, Event
from breakloop.model.records import AgentRecord, Point, TotalsRecord

Key = tuple[str, str]  # project, agent
_USED: Final = ("requests", "denied", "failed", "input_tokens", "output_tokens", "cost_microusd")


@dataclass(slots=True)
class AgentSums(AgentUse):
    loops: int = 0
    saved_requests: int = 0
    saved_microusd: int = 0

    def add(self, other: AgentSums) -> None:
        for name in ("failed", *SUMS):
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass(slots=True)
class SumsBatch:
    agents: dict[Key, AgentSums] = field(default_factory=dict)
    callers: dict[tuple[str, str, str], float] = field(default_factory=dict)  # project, agent, caller: last seen

    def of(self, project: str, agent: str) -> AgentSums:
        """Return the sums of an agent, which are created if needed."""
        key = text(project), text(agent)
        known = self.agents.get(key)
        if known is None:
            known = self.agents[key] = AgentSums()
        return known

    def projects(self) -> dict[str, AgentSums]:
        found: dict[str, AgentSums] = {}
        for (project, _), sums in self.agents.items():
            found.setdefault(project, AgentSums()).add(sums)
        return found


def summed(events: Iterable[Event], activity: Activity, now: float) -> SumsBatch:
    """Add up a batch. Loops in shadow mode are not counted."""
    batch = SumsBatch()
    for (project, caller, agent), use in activity.agents.items():
        sums = batch.of(project, agent)
        for name in _USED:
            setattr(sums, name, getattr(sums, name) + getattr(use, name))
        at = use.last_at or now
        if at >= sums.last_at:
            sums.last_at, sums.model = at, text(use.model) or sums.model
        batch.callers[text(project), text(agent), text(caller)] = at
    for (project, _, agent, _), loop in activity.loops.items():
        sums = batch.of(project, agent)
        sums.saved_requests += loop.stopped
        sums.saved_microusd += loop.stopped_microusd
        sums.last_at = sums.last_at or now
    for event in events:
        if event.name == LOOP_DETECTED and not event.data.get("shadow"):
            sums = batch.of(event.project, text(event.data.get("agent")))
            sums.loops += 1
            sums.last_at = max(sums.last_at, event.at)
    return batch


FINE_S: Final = 60
AGENT_FINE_S: Final = 300
COARSE_S: Final = 3600
FINE_KEPT_S: Final = 48 * 3600
POINTS_MAX: Final = 5000  # points of one curve
STEP_MAX_S: Final = 366 * 86_400
SUMS: Final = tuple(column.name for column in POINTS.c if not column.primary_key)
_DRAWN: Final = ("requests", "denied", "cost_microusd", "saved_microusd")


def add_to_curves(connection: Connection, batch: SumsBatch, now: float) -> None:
    projects = [
        {"span_s": span_s, "at": _start(now, span_s), "project": project, **_values(sums)}
        for project, sums in batch.projects().items()
        for span_s in (FINE_S, COARSE_S)
    ]
    agents = [
        {"span_s": span_s, "at": _start(now, span_s), "project": project, "agent": agent, **values}
        for (project, agent), sums in batch.agents.items()
        for values in (_values(sums),)
        for span_s in (AGENT_FINE_S, COARSE_S)
    ]
    if agents:
        connection.execute(adding(connection, POINTS, SUMS), projects)
        connection.execute(adding(connection, AGENT_POINTS, SUMS), agents)


def find_totals(connection: Connection, since: float, project: str, now: float) -> TotalsRecord:
    """Return sums from the interval of `since` on. The caller fills in agents and incidents."""
    since = moment(since)
    span_s = FINE_S if since >= now - FINE_KEPT_S else COARSE_S
    columns = POINTS.c
    found = select(*(func.coalesce(func.sum(columns[name]), 0).label(name) for name in SUMS))
    found = found.where(columns.span_s == span_s, columns.at >= _start(since, span_s))
    if project:
        found = found.where(columns.project == text(project))
    row = connection.execute(found).one()
    return TotalsRecord(**{name: int(getattr(row, name)) for name in SUMS})


class CurveRange:
    """The intervals of a curve, and the interval length of the stored sums it is read from."""

    def __init__(self, since: float, until: float, step_s: int, now: float) -> None:
        self.step_s = min(max(int(step_s), 1), STEP_MAX_S)
        self.start = _start(moment(since), self.step_s)
        end = moment(until) if until < math.inf else _start(now, self.step_s) + self.step_s
        self.count = min(max(math.ceil((end - self.start) / self.step_s), 0), POINTS_MAX)
        self.end = self.start + self.count * self.step_s
        self.coarse = self.step_s % COARSE_S == 0 or self.start < now - FINE_KEPT_S

    def index(self, at: int) -> int:
        """Return the interval of a sum. A stored hour that is wider than an interval counts where it begins."""
        return max((at - self.start) // self.step_s, 0)


def find_curve(connection: Connection, span: CurveRange, project: str, agent: str) -> list[Point]:
    """Return every interval, including empty ones. Without a project: of all projects."""
    sums = [[0, 0, 0, 0] for _ in range(span.count)]
    for found in _agent_sums(connection, span, project, agent) if agent else [_project_sums(span, project)]:
        for row in connection.execute(found):
            into = sums[span.index(row.at)]
            for index, name in enumerate(_DRAWN):
                into[index] += int(getattr(row, name))
    return [Point(float(span.start + index * span.step_s), *values) for index, values in enumerate(sums)]


def _project_sums(span: CurveRange, project: str) -> Select[Any]:
    columns, span_s = POINTS.c, COARSE_S if span.coarse else FINE_S
    found = select(columns.at, *(func.sum(columns[name]).label(name) for name in _DRAWN)).group_by(columns.at)
    found = found.where(columns.span_s == span_s, columns.at >= _start(span.start, span_s), columns.at < span.end)
    return found.where(columns.project == text(project)) if project else found


def _agent_sums(connection: Connection, span: CurveRange, project: str, agent: str) -> Iterator[Select[Any]]:
    """One query per project, so that each one follows the primary key."""
    known = select(POINTS.c.project).where(POINTS.c.span_s == COARSE_S).distinct()
    columns, span_s = AGENT_POINTS.c, COARSE_S if span.coarse else AGENT_FINE_S
    for name in [text(project)] if project else connection.execute(known).scalars().all():
        yield select(columns.at, *(columns[drawn] for drawn in _DRAWN)).where(
            columns.span_s == span_s,
            columns.project == name,
            columns.agent == text(agent),
            columns.at >= _start(span.start, span_s),
            columns.at < span.end,
        )


def _start(at: float, span_s: int) -> int:
    return int(at // span_s) * span_s


def _values(sums: AgentSums) -> dict[str, int]:
    return {name: getattr(sums, name) for name in SUMS}


DAY_S: Final = 86_400
LIST_MAX: Final = 1000
CALLERS_COUNTED: Final = 1000  # further callers are not counted
_SEEN_AGAIN_S: Final = 3600.0  # a caller that was seen within this hour is not written again
_SUMS: Final = ("failed", *(name for name in SUMS if name in AGENTS.c))


def add_to_agents(connection: Connection, batch: SumsBatch) -> None:
    rows = [
        {
            "project": project,
            "agent": agent,
            "first_at": sums.last_at,
            "last_at": sums.last_at,
            "model": sums.model,
            "settings": "{}",
            **{name: getattr(sums, name) for name in _SUMS},
        }
        for (project, agent), sums in batch.agents.items()
    ]
    if not rows:
        return
    old, new = AGENTS.c, insert(connection, AGENTS)
    changes: dict[str, Any] = {name: old[name] + new.excluded[name] for name in _SUMS}
    changes["last_at"] = case((new.excluded.last_at > old.last_at, new.excluded.last_at), else_=old.last_at)
    changes["first_at"] = case((old.first_at == 0.0, new.excluded.first_at), else_=old.first_at)
    changes["model"] = case((new.excluded.model != "", new.excluded.model), else_=old.model)
    connection.execute(upsert(new, AGENTS, changes), rows)
    _add_callers(connection, batch)


def _add_callers(connection: Connection, batch: SumsBatch) -> None:
    rows = [
        {"project": project, "agent": agent, "caller": caller, "last_at": at}
        for (project, agent, caller), at in batch.callers.items()
    ]
    if rows:
        new = insert(connection, CALLERS)
        seen = new.on_conflict_do_update(
            index_elements=list(CALLERS.primary_key.columns),
            set_={"last_at": new.excluded.last_at},
            where=new.excluded.last_at > CALLERS.c.last_at + _SEEN_AGAIN_S,
        )
        connection.execute(seen, rows)


def set_agent(connection: Connection, project: str, agent: str, settings: Mapping[str, Any]) -> None:
    """Store the settings of an agent. An agent that was never seen is added with zeros."""
    row = {"project": text(project), "agent": text(agent), "first_at": 0.0, "last_at": 0.0, "model": ""}
    row |= {"settings": to_json(settings), **dict.fromkeys(_SUMS, 0)}
    new = insert(connection, AGENTS)
    connection.execute(upsert(new, AGENTS, {"settings": new.excluded.settings}), row)


def find_agents(connection: Connection, project: str, find: str, most: int, now: float) -> list[AgentRecord]:
    """Return agents, the last seen first."""
    found = _select(now).order_by(AGENTS.c.last_at.desc(), AGENTS.c.agent).limit(min(max(most, 1), LIST_MAX))
    if project:
        found = found.where(AGENTS.c.project == text(project))
    if find:
        found = found.where(AGENTS.c.agent.icontains(text(find), autoescape=True))
    return [_record(row) for row in connection.execute(found)]


def find_agent(connection: Connection, project: str, agent: str, now: float) -> AgentRecord | None:
    found = _select(now).where(AGENTS.c.project == text(project), AGENTS.c.agent == text(agent))
    row = connection.execute(found).one_or_none()
    return None if row is None else _record(row)


def count_agents(connection: Connection, since: float, project: str) -> int:
    found = select(func.count()).select_from(AGENTS).where(AGENTS.c.last_at >= moment(since))
    if project:
        found = found.where(AGENTS.c.project == text(project))
    return int(connection.execute(found).scalar_one())


def _select(now: float) -> Select[Any]:
    return select(AGENTS, _today(now).label("today"), _callers().label("callers"))


def _today(now: float) -> ScalarSelect[Any]:
    """Return the cost since midnight UTC."""
    points = AGENT_POINTS.c
    midnight = int(now // DAY_S) * DAY_S
    own = (points.project == AGENTS.c.project) & (points.agent == AGENTS.c.agent)
    sums = select(func.coalesce(func.sum(points.cost_microusd), 0))
    return sums.where(points.span_s == COARSE_S, own, points.at >= midnight).scalar_subquery()


def _callers() -> ScalarSelect[Any]:
    own = (CALLERS.c.project == AGENTS.c.project) & (CALLERS.c.agent == AGENTS.c.agent)
    some = select(CALLERS.c.caller).where(own).limit(CALLERS_COUNTED).correlate(AGENTS).subquery()
    return select(func.count()).select_from(some).correlate(AGENTS).scalar_subquery()


def _record(row: Row[Any]) -> AgentRecord:
    return AgentRecord(
        row.project,
        row.agent,
        callers=row.callers,
        first_at=row.first_at,
        last_at=row.last_at,
        today_microusd=int(row.today),
        model=row.model,
        settings=from_json(row.settings, {}),
        **{name: getattr(row, name) for name in _SUMS if name != "failed"},
    )
