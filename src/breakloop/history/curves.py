"""Sums over time, added up as they are written, so that no page ever looks at events: minutes of a project and five
minutes of an agent for two days, hours of both for as long as anything is kept."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final

from sqlalchemy import Connection, Select, func, select

from breakloop.history.schema import AGENT_POINTS, POINTS
from breakloop.history.statements import adding
from breakloop.history.sums import Batch, Sums
from breakloop.history.values import moment, text
from breakloop.model.records import Point, Totals

FINE_S: Final = 60
AGENT_FINE_S: Final = 300
COARSE_S: Final = 3600
FINE_KEPT_S: Final = 48 * 3600
POINTS_MAX: Final = 5000  # of one curve
STEP_MAX_S: Final = 366 * 86_400
SUMS: Final = (
    "requests",
    "denied",
    "loops",
    "input_tokens",
    "output_tokens",
    "cost_microusd",
    "saved_requests",
    "saved_microusd",
)
_DRAWN: Final = ("requests", "denied", "cost_microusd", "saved_microusd")


def add_to_curves(connection: Connection, batch: Batch, now: float) -> None:
    """Add a batch to the intervals of now."""
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


def find_totals(connection: Connection, since: float, project: str, now: float) -> Totals:
    """Return sums from the interval of `since` on; agents and incidents are the caller's to fill in."""
    since = moment(since)
    span_s = FINE_S if since >= now - FINE_KEPT_S else COARSE_S
    columns = POINTS.c
    found = select(*(func.coalesce(func.sum(columns[name]), 0).label(name) for name in SUMS))
    found = found.where(columns.span_s == span_s, columns.at >= _start(since, span_s))
    if project:
        found = found.where(columns.project == text(project))
    row = connection.execute(found).one()
    return Totals(**{name: int(getattr(row, name)) for name in SUMS})


class Span:
    """The intervals of a curve, and out of which kind of sums it is drawn."""

    def __init__(self, since: float, until: float, step_s: int, now: float) -> None:
        self.step_s = min(max(int(step_s), 1), STEP_MAX_S)
        self.start = _start(moment(since), self.step_s)
        end = moment(until) if until < math.inf else _start(now, self.step_s) + self.step_s
        self.count = min(max(math.ceil((end - self.start) / self.step_s), 0), POINTS_MAX)
        self.end = self.start + self.count * self.step_s
        self.coarse = self.step_s % COARSE_S == 0 or self.start < now - FINE_KEPT_S

    def index(self, at: int) -> int:
        """Return in which interval a sum is shown: an hour that is wider than one, in the one where it begins."""
        return max((at - self.start) // self.step_s, 0)


def find_curve(connection: Connection, span: Span, project: str, agent: str) -> list[Point]:
    """Return every interval, also those without anything. Without a project: of all of them."""
    sums = [[0, 0, 0, 0] for _ in range(span.count)]
    for found in _agent_sums(connection, span, project, agent) if agent else [_project_sums(span, project)]:
        for row in connection.execute(found):
            into = sums[span.index(row.at)]
            for index, name in enumerate(_DRAWN):
                into[index] += int(getattr(row, name))
    return [Point(float(span.start + index * span.step_s), *values) for index, values in enumerate(sums)]


def _project_sums(span: Span, project: str) -> Select[Any]:
    columns, span_s = POINTS.c, COARSE_S if span.coarse else FINE_S
    found = select(columns.at, *(func.sum(columns[name]).label(name) for name in _DRAWN)).group_by(columns.at)
    found = found.where(columns.span_s == span_s, columns.at >= _start(span.start, span_s), columns.at < span.end)
    return found.where(columns.project == text(project)) if project else found


def _agent_sums(connection: Connection, span: Span, project: str, agent: str) -> Iterator[Select[Any]]:
    """One project at a time: so each is a walk along the key."""
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


def _values(sums: Sums) -> dict[str, int]:
    return {name: getattr(sums, name) for name in SUMS}
