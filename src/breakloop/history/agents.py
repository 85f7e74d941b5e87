"""The register of agents (SPEC G-1): who was seen, what they used, what was set for them at run time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sqlalchemy import Connection, Row, ScalarSelect, Select, case, func, select

from breakloop.history.curves import COARSE_S
from breakloop.history.schema import AGENT_POINTS, AGENTS, CALLERS
from breakloop.history.statements import insert, upsert
from breakloop.history.sums import Batch
from breakloop.history.values import data_json, from_json, moment, text
from breakloop.model.records import Agent

DAY_S: Final = 86_400
LIST_MAX: Final = 1000
CALLERS_COUNTED: Final = 1000  # more are not counted
_SEEN_AGAIN_S: Final = 3600.0  # a caller that was seen this hour is not written again
_SUMS: Final = (
    "requests",
    "denied",
    "failed",
    "loops",
    "input_tokens",
    "output_tokens",
    "cost_microusd",
    "saved_microusd",
)


def add_to_agents(connection: Connection, batch: Batch) -> None:
    """Add a batch."""
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


def _add_callers(connection: Connection, batch: Batch) -> None:
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
    """Keep what was set for an agent; one that was never seen is there from now on, with zeros."""
    row = {"project": text(project), "agent": text(agent), "first_at": 0.0, "last_at": 0.0, "model": ""}
    row |= {"settings": data_json(settings), **dict.fromkeys(_SUMS, 0)}
    new = insert(connection, AGENTS)
    connection.execute(upsert(new, AGENTS, {"settings": new.excluded.settings}), row)


def find_agents(connection: Connection, project: str, find: str, most: int, now: float) -> list[Agent]:
    """Return agents, the last seen first."""
    found = _select(now).order_by(AGENTS.c.last_at.desc(), AGENTS.c.agent).limit(min(max(most, 1), LIST_MAX))
    if project:
        found = found.where(AGENTS.c.project == text(project))
    if find:
        found = found.where(AGENTS.c.agent.icontains(text(find), autoescape=True))
    return [_record(row) for row in connection.execute(found)]


def find_agent(connection: Connection, project: str, agent: str, now: float) -> Agent | None:
    """Return one."""
    found = _select(now).where(AGENTS.c.project == text(project), AGENTS.c.agent == text(agent))
    row = connection.execute(found).one_or_none()
    return None if row is None else _record(row)


def count_agents(connection: Connection, since: float, project: str) -> int:
    """Return how many were seen."""
    found = select(func.count()).select_from(AGENTS).where(AGENTS.c.last_at >= moment(since))
    if project:
        found = found.where(AGENTS.c.project == text(project))
    return int(connection.execute(found).scalar_one())


def _select(now: float) -> Select[Any]:
    return select(AGENTS, _today(now).label("today"), _callers().label("callers"))


def _today(now: float) -> ScalarSelect[Any]:
    """What it cost since midnight, UTC."""
    points = AGENT_POINTS.c
    midnight = int(now // DAY_S) * DAY_S
    own = (points.project == AGENTS.c.project) & (points.agent == AGENTS.c.agent)
    sums = select(func.coalesce(func.sum(points.cost_microusd), 0))
    return sums.where(points.span_s == COARSE_S, own, points.at >= midnight).scalar_subquery()


def _callers() -> ScalarSelect[Any]:
    own = (CALLERS.c.project == AGENTS.c.project) & (CALLERS.c.agent == AGENTS.c.agent)
    some = select(CALLERS.c.caller).where(own).limit(CALLERS_COUNTED).correlate(AGENTS).subquery()
    return select(func.count()).select_from(some).correlate(AGENTS).scalar_subquery()


def _record(row: Row[Any]) -> Agent:
    return Agent(
        row.project,
        row.agent,
        callers=row.callers,
        first_at=row.first_at,
        last_at=row.last_at,
        today_microusd=int(row.today),
        model=row.model,
        settings=from_json(row.settings),
        **{name: getattr(row, name) for name in _SUMS if name != "failed"},
    )
