"""Periods against the calendar: aligned, without gaps, and where the documented examples say."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from breakloop.limits.base import LocalDay, Period
from tests.each import each

NAMES = ["5m", "1h", "1d", "7d", "30d"]
TIMES = st.floats(0, 4e9, allow_nan=False) | st.integers(0, 4_000_000_000)
ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe", "America/Havana"]


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())


@each(
    "name, now, start, end",
    [
        ("5m", "2026-02-03T14:34:59", "2026-02-03T14:30:00", "2026-02-03T14:35:00"),
        ("5m", "2026-02-03T14:35:00", "2026-02-03T14:35:00", "2026-02-03T14:40:00"),
        ("1h", "2026-02-03T14:30:00", "2026-02-03T14:00:00", "2026-02-03T15:00:00"),
        ("1d", "2026-02-03T14:30:00", "2026-02-03T00:00:00", "2026-02-04T00:00:00"),
        ("7d", "2026-02-03T14:30:00", "2026-02-02T00:00:00", "2026-02-09T00:00:00"),
        ("7d", "2026-02-01T23:59:59", "2026-01-26T00:00:00", "2026-02-02T00:00:00"),
        ("7d", "2026-02-02T00:00:00", "2026-02-02T00:00:00", "2026-02-09T00:00:00"),
        ("30d", "2026-02-03T14:30:00", "2026-02-01T00:00:00", "2026-03-01T00:00:00"),
        ("30d", "2028-02-29T23:59:59", "2028-02-01T00:00:00", "2028-03-01T00:00:00"),
        ("30d", "2026-12-31T23:59:59", "2026-12-01T00:00:00", "2027-01-01T00:00:00"),
    ],
)
def test_examples(name: str, now: str, start: str, end: str) -> None:
    """UTC, weeks from Monday 00:00, `30d` is the month (L-2)."""
    period = Period(name)
    assert period.bounds(at(now)) == (at(start), at(end))
    assert period.bounds(at(now) + 0.75) == (at(start), at(end))


@given(name=st.sampled_from(NAMES), now=TIMES)
@example(name="7d", now=0)
@example(name="30d", now=at("2027-01-01T00:00:00") - 0.000001)
def test_periods_follow_each_other(name: str, now: float) -> None:
    """Every moment is in one period, and the next begins where it ends (L-2)."""
    period = Period(name)
    start, end = period.bounds(now)
    assert type(start) is type(end) is int
    assert start <= now < end
    assert Period(name).bounds(start) == (start, end) == Period(name).bounds(end - 1)
    assert Period(name).bounds(end)[0] == end
    assert Period(name).bounds(start - 1)[1] == start


@given(TIMES)
def test_they_begin_where_the_calendar_says(now: float) -> None:
    """Hours on the hour, days at midnight, weeks on Monday, months on the first (L-2)."""
    begins = {name: datetime.fromtimestamp(Period(name).bounds(now)[0], UTC) for name in NAMES}
    assert begins["5m"].minute % 5 == begins["5m"].second == 0
    assert begins["1h"].minute == begins["1h"].second == 0
    for name in ("1d", "7d", "30d"):
        assert (begins[name].hour, begins[name].minute, begins[name].second) == (0, 0, 0)
    assert begins["7d"].weekday() == 0
    assert begins["30d"].day == 1
    lengths = {name: Period(name).bounds(now)[1] - Period(name).bounds(now)[0] for name in NAMES}
    assert lengths == {"5m": 300, "1h": 3600, "1d": 86400, "7d": 604800, "30d": lengths["30d"]}
    assert lengths["30d"] // 86400 in {28, 29, 30, 31}


@given(st.lists(TIMES, min_size=2, max_size=20))
def test_a_period_remembers_nothing_that_matters(times: list[float]) -> None:
    """In whatever order it is asked, also backwards (L-2)."""
    month, day = Period("30d"), LocalDay(ZoneInfo("Europe/Berlin"))
    for now in times:
        assert month.bounds(now) == Period("30d").bounds(now)
        assert day.bounds(now) == LocalDay(ZoneInfo("Europe/Berlin")).bounds(now)


def test_an_unknown_period() -> None:
    """The list is closed (L-2)."""
    with pytest.raises(KeyError):
        Period("30m")


@pytest.mark.parametrize(
    ("zone", "now", "hours"),
    [
        ("UTC", "2026-03-29T12:00:00", 24),
        ("Europe/Berlin", "2026-03-29T12:00:00", 23),
        ("Europe/Berlin", "2026-10-25T12:00:00", 25),
        ("Asia/Kolkata", "2026-03-29T12:00:00", 24),
    ],
)
def test_a_day_of_a_time_zone(zone: str, now: str, hours: int) -> None:
    """An agent's day is its own, also when its clocks change (B-1)."""
    start, end = LocalDay(ZoneInfo(zone)).bounds(at(now))
    local = datetime.fromtimestamp(start, ZoneInfo(zone))
    assert (local.hour, local.minute) == (0, 0)
    assert end - start == hours * 3600


@given(zone=st.sampled_from(ZONES), now=st.integers(0, 4_000_000_000))
def test_days_of_a_time_zone_follow_each_other(zone: str, now: int) -> None:
    """Every moment is in one day (B-1)."""
    day = LocalDay(ZoneInfo(zone))
    start, end = day.bounds(now)
    assert start <= now < end
    assert day.bounds(end)[0] == end
    assert day.bounds(start - 1)[1] == start
    here = datetime.fromtimestamp(now, ZoneInfo(zone)).date()
    assert datetime.fromtimestamp(start, ZoneInfo(zone)).date() == here
    assert datetime.fromtimestamp(end, ZoneInfo(zone)).date() == here + timedelta(days=1)
