"""Curves of requests, denials and money: spans of time a person can choose, the numbers as the chart reads them, and
the same as a table for whoever does not see it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from breakloop.admin.dashboard.views import words
from breakloop.model.records import Point

TABLE_ROWS: Final = 24


@dataclass(frozen=True, slots=True)
class Span:
    """A span of time up to now."""

    name: str
    said: str
    length_s: int
    step_s: int

    def since(self, now: float) -> float:
        """Return where it begins: on an interval's edge."""
        return (now - self.length_s) // self.step_s * self.step_s


SPANS: Final = (
    Span("1h", "last hour", 3_600, 60),
    Span("24h", "last 24 hours", 86_400, 900),
    Span("7d", "last 7 days", 7 * 86_400, 7_200),
    Span("30d", "last 30 days", 30 * 86_400, 21_600),
)
DAY: Final = SPANS[1]


def span(name: str) -> Span:
    """Return the span of this name; a day for any other."""
    return next((one for one in SPANS if one.name == name), DAY)


def chart(points: Sequence[Point]) -> str:
    """Return the numbers as JSON: times, requests that passed, denials, dollars spent and saved."""
    columns: list[list[Any]] = [
        [one.at for one in points],
        [max(0, one.requests - one.denied) for one in points],
        [one.denied for one in points],
        [one.cost_microusd / 1e6 for one in points],
        [one.saved_microusd / 1e6 for one in points],
    ]
    return json.dumps(columns, separators=(",", ":"))


def table(points: Sequence[Point], rows: int = TABLE_ROWS) -> list[tuple[float, str, str, str, str]]:
    """Return the same in at most `rows` rows, newest first: begin, requests, denied, spent, saved."""
    size = max(1, (len(points) + rows - 1) // rows)
    groups = [points[at : at + size] for at in range(0, len(points), size)]
    return [
        (
            group[0].at,
            words.count(sum(one.requests for one in group)),
            words.count(sum(one.denied for one in group)),
            words.money(sum(one.cost_microusd for one in group)),
            words.money(sum(one.saved_microusd for one in group)),
        )
        for group in reversed(groups)
    ]


def anything(points: Sequence[Point]) -> bool:
    """Tell whether there is anything to draw."""
    return any(one.requests or one.denied for one in points)
