"""Whether an agent may work at all, and at this hour (SPEC B-1): `active`, `allowed_hours` in its time zone."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo

_MINUTE_S: Final = 60
_DAY: Final = 24 * 60


class Absence(NamedTuple):
    """Why an agent may not work now."""

    reason: str
    message: str
    wait_s: int | None  # None: waiting does not help


class Presence:
    """When one agent, or all that a pattern names, may work."""

    __slots__ = ("_active", "_hours", "_zone")

    def __init__(self, *, active: bool = True, hours: tuple[int, int] | None = None, zone: str = "UTC") -> None:
        self._active = active
        self._hours = hours  # minutes of the day; the end is the smaller one when it goes over midnight
        self._zone = ZoneInfo(zone)

    def absent(self, now: float) -> Absence | None:
        """Return why it may not work now, or None."""
        if not self._active:
            return Absence("agent_inactive", "This agent is switched off in the bundle.", None)
        if self._hours is None:
            return None
        local = datetime.fromtimestamp(now, tz=UTC).astimezone(self._zone)
        minute = local.hour * 60 + local.minute
        start, end = self._hours
        inside = start <= minute < end if start < end else minute >= start or minute < end
        if inside:
            return None
        wait_s = ((start - minute) % _DAY) * _MINUTE_S - local.second
        span = f"{start // 60:02}:{start % 60:02} to {end // 60:02}:{end % 60:02} ({self._zone.key})"
        return Absence("outside_hours", f"This agent may work from {span}.", max(1, wait_s))
