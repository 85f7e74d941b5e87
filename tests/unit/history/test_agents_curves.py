"""Sums over time: what is added up as it is written is what every interval shows."""

from __future__ import annotations

import math

from breakloop.clock import FakeClock
from breakloop.history.agents import POINTS_MAX, CurveRange
from breakloop.history.store import History
from breakloop.model.events import Activity, AgentUse
from breakloop.model.records import Point, TotalsRecord
from tests.each import each
from tests.histories import detected, looped, used

HOUR = 3600
START = 1_800_000_000.0  # a whole hour and minute


def write(history: History, at: float, cost: int, **who: str) -> None:
    history.write([], used(requests=1, denied=2, cost_microusd=cost, last_at=at, **who), at)


def costs(points: list[Point]) -> dict[float, int]:
    return {point.at - START: point.cost_microusd for point in points if point.cost_microusd}


def test_a_curve_shows_every_interval(history: History, clock: FakeClock) -> None:
    """Minutes, also the empty ones (X-2)."""
    clock.advance(300)
    write(history, START, 1)
    write(history, START + 59, 2)
    write(history, START + 60, 4)
    write(history, START + 200, 8)
    found = history.curve(START, START + 300, 60)
    assert [point.at - START for point in found] == [0, 60, 120, 180, 240]
    assert [(point.requests, point.denied, point.cost_microusd) for point in found] == [
        (2, 4, 3),
        (1, 2, 4),
        (0, 0, 0),
        (1, 2, 8),
        (0, 0, 0),
    ]
    assert costs(history.curve(START + 61, START + 300, 120)) == {0: 7, 120: 8}
    assert history.curve(START, math.inf, 60)[-1].at == START + 300


def test_what_was_saved(history: History, clock: FakeClock) -> None:
    history.write([detected(START)], looped(stopped=3, stopped_microusd=50), START)
    (point,) = history.curve(START, START + 60, 60)
    assert (point.saved_microusd, point.requests) == (50, 0)
    assert history.totals(START) == TotalsRecord(
        loops=1, incidents_open=1, agents=1, saved_requests=3, saved_microusd=50
    )


def test_projects_and_agents(history: History, clock: FakeClock) -> None:
    clock.advance(600)
    write(history, START, 1, agent="a", project="p")
    write(history, START + 1, 2, agent="a", project="q")
    write(history, START + 301, 4, agent="b", project="p")
    assert costs(history.curve(START, START + 600, 300)) == {0: 3, 300: 4}
    assert costs(history.curve(START, START + 600, 300, project="p")) == {0: 1, 300: 4}
    assert costs(history.curve(START, START + 600, 300, project="p", agent="a")) == {0: 1}
    assert costs(history.curve(START, START + 600, 300, agent="a")) == {0: 3}
    assert costs(history.curve(START, START + 600, 300, project="q", agent="b")) == {}


def test_hours_for_what_is_long_ago(history: History, clock: FakeClock) -> None:
    """Two days in minutes; before that an hour stands where it began."""
    write(history, START + 90, 1)
    write(history, START + HOUR + 90, 2)
    clock.advance(49 * HOUR)
    write(history, clock.now(), 4)
    assert costs(history.curve(START + 30 * 60, clock.now() + 1, HOUR)) == {0: 1, HOUR: 2, 49 * HOUR: 4}
    assert costs(history.curve(START, START + 2 * HOUR, 60)) == {0: 1, HOUR: 2}
    assert costs(history.curve(START, START + 2 * HOUR, 60, agent="bot")) == {0: 1, HOUR: 2}
    assert costs(history.curve(START, math.inf, 86_400)) == {
        START // 86_400 * 86_400 - START: 3,
        2 * 86_400 - 28_800: 4,
    }


def test_totals(history: History, clock: FakeClock) -> None:
    """From the minute of `since`, or the hour for what is older than two days (X-2)."""
    use = AgentUse(10, 2, 0, 300, 40, 5000, START, "m")
    history.write([detected(START, "a")], Activity(agents={("p", "c", "a"): use, ("q", "c", "b"): use}), START)
    clock.advance(120)
    write(history, clock.now(), 7, agent="c", project="p")
    everything = TotalsRecord(21, 6, 1, 1, 4, 600, 80, 10_007)
    assert history.totals(START) == everything
    assert history.totals(START + 59).cost_microusd == 10_007
    assert history.totals(START + 60) == TotalsRecord(1, 2, 0, 1, 1, 0, 0, 7)
    assert history.totals(START, "q") == TotalsRecord(10, 2, 0, 0, 1, 300, 40, 5000)
    clock.advance(60 * HOUR)
    history.end_quiet(clock.now())
    assert history.totals(START).cost_microusd == 10_007
    assert history.totals(0.0).requests == 21
    assert history.totals(clock.now()) == TotalsRecord()


@each(
    "since, until, step_s, count, coarse",
    [
        (START, START + 600, 60, 10, False),
        (START + 1, START + 599, 60, 10, False),
        (START, START, 60, 0, False),
        (START, START - 60, 60, 0, False),
        (START, math.inf, 60, 1, False),
        (0.0, math.inf, 1, POINTS_MAX, True),
        (START, START + 7200, 3600, 2, True),
        (START - 50 * HOUR, START, 60, 3000, True),
        (START, START + 10, 0, 10, False),
        (-5.0, 10.0, 5, 2, True),
    ],
)
def test_spans(since: float, until: float, step_s: int, count: int, coarse: bool) -> None:
    """However it is asked, the number of intervals is bounded."""
    span = CurveRange(since, until, step_s, START)
    assert (span.count, span.coarse) == (count, coarse)
    assert span.start % span.step_s == 0
