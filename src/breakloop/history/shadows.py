"""What policies in shadow mode would have denied, added up by day (UTC). The events themselves are among the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sqlalchemy import Connection, func, select

from breakloop.history.schema import SHADOWS
from breakloop.history.statements import adding
from breakloop.history.values import moment, text

DAY_S: Final = 86_400


def add_shadows(connection: Connection, counts: Mapping[tuple[str, str, str, str], int], now: float) -> None:
    """Add what was counted: by project, policy, rule and reason."""
    day = int(now // DAY_S)
    rows = [
        {
            "day": day,
            "project": text(project),
            "policy": text(policy),
            "rule": text(rule),
            "reason": text(reason),
            "requests": count,
        }
        for (project, policy, rule, reason), count in counts.items()
    ]
    if rows:
        connection.execute(adding(connection, SHADOWS, ("requests",)), rows)


def find_shadows(connection: Connection, since: float, policy: str) -> list[tuple[str, str, str, int]]:
    """Return policy, rule, reason and how often, from the day of `since` on; the most frequent first."""
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
