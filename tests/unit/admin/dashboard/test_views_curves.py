"""Curves: the chart and the table say the same."""

from __future__ import annotations

import json

from breakloop.admin.dashboard import views
from breakloop.model.records import Point

POINTS = [Point(60.0 * at, 10 + at, at % 3, 1_500_000, 250_000) for at in range(50)]


def test_spans_begin_on_an_edge() -> None:
    """So that the last interval grows, and the others stand still."""
    assert views.span("7d").name == "7d"
    assert views.span("nonsense") is views.DAY
    for span in views.SPANS:
        assert span.since(1_800_000_123.0) % span.step_s == 0
        assert span.length_s / span.step_s <= 120


def test_the_chart_has_columns() -> None:
    """Times, what passed, what was denied, dollars."""
    times, passed, denied, spent, saved = json.loads(views.chart(POINTS))
    assert (times[1], passed[1], denied[1], spent[1], saved[1]) == (60.0, 10, 1, 1.5, 0.25)
    assert len(times) == len(passed) == 50


def test_the_table_adds_up() -> None:
    """Fewer rows than intervals, newest first, the same sums."""
    rows = views.curve_table(POINTS, rows=10)
    assert len(rows) == 10
    assert rows[0][0] > rows[-1][0]
    assert rows[-1] == (0.0, "60", "4", "$7.50", "$1.25")
    assert sum(int(row[1]) for row in rows) == sum(point.requests for point in POINTS)
    assert views.curve_table([]) == []


def test_nothing_to_draw() -> None:
    assert not views.anything([Point(0.0, 0, 0, 0, 0)])
    assert views.anything(POINTS)
