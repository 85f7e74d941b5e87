"""Calendar periods that budgets run in (SPEC L-2): aligned to UTC, weeks begin on Monday, `30d` is the calendar month.
A period holds its first second and not its end. Time is handed in; nothing here reads a clock."""

from __future__ import annotations

import math
from calendar import timegm
from datetime import UTC, date, datetime, timedelta, tzinfo
from typing import Final

_DAY_S: Final = 86_400
_MONDAY: Final = 4 * _DAY_S  # 1970-01-05, the first one
# name -> length (0: by the calendar), the start of one of them, and how a limit of it reads: "100 a day"
_PERIODS: Final = {
    "5m": (300, 0, "in 5 minutes"),
    "1h": (3600, 0, "an hour"),
    "1d": (_DAY_S, 0, "a day"),
    "7d": (7 * _DAY_S, _MONDAY, "a week"),
    "30d": (0, 0, "a month"),
}


class Span:
    """A stretch of time that follows on another like it. `bounds` is the fast way to start and end."""

    __slots__ = ()

    words: str  # in a message, behind an amount

    def bounds(self, now: float) -> tuple[int, int]:
        """Return start and end of the one that `now` is in."""
        raise NotImplementedError

    def start(self, now: float) -> int:
        """Return when it began."""
        return self.bounds(now)[0]

    def end(self, now: float) -> int:
        """Return when it ends, which is when the next one begins."""
        return self.bounds(now)[1]


class Period(Span):
    """One kind of period, by UTC."""

    __slots__ = ("_first", "_last", "_length", "words")

    def __init__(self, name: str) -> None:
        self._length, self._first, self.words = _PERIODS[name]
        self._last = (0, 0)  # the month that was asked for last: the next request is in it, too

    def bounds(self, now: float) -> tuple[int, int]:
        """Return start and end."""
        second = math.floor(now)
        length = self._length
        if length:
            start = second - (second - self._first) % length
            return start, start + length
        last = self._last
        if not last[0] <= second < last[1]:
            last = self._last = _month(second)
        return last


class LocalDay(Span):
    """The day of a time zone, from midnight to midnight: 23 or 25 hours long when its clocks change."""

    __slots__ = ("_last", "_zone")

    words = "a day"

    def __init__(self, zone: tzinfo) -> None:
        self._zone = zone
        self._last = (0, 0)

    def bounds(self, now: float) -> tuple[int, int]:
        """Return start and end."""
        second = math.floor(now)
        last = self._last
        if not last[0] <= second < last[1]:
            today = datetime.fromtimestamp(second, self._zone).date()
            last = self._last = (self._midnight(today), self._midnight(today + timedelta(days=1)))
        return last

    def _midnight(self, day: date) -> int:
        return int(datetime(day.year, day.month, day.day, tzinfo=self._zone).timestamp())


def _month(second: int) -> tuple[int, int]:
    today = datetime.fromtimestamp(second, UTC)
    year, month = today.year, today.month
    return timegm((year, month, 1, 0, 0, 0)), timegm((year + month // 12, month % 12 + 1, 1, 0, 0, 0))
