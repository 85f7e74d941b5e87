"""Whether an agent may work at all, and at this hour."""

from __future__ import annotations

from datetime import UTC, datetime

from breakloop.policy.compiled import ActiveHours
from tests.each import each


def at(hour: int, minute: int = 0, second: int = 0) -> float:
    return datetime(2026, 1, 15, hour, minute, second, tzinfo=UTC).timestamp()


def test_an_agent_that_is_switched_off() -> None:
    """Waiting does not help (B-1)."""
    absence = ActiveHours(active=False).absent(at(12))
    assert absence is not None
    assert (absence.reason, absence.wait_s) == ("agent_inactive", None)
    assert ActiveHours().absent(at(3)) is None


@each(
    "hours, zone, now, wait_s",
    [
        ((8 * 60, 18 * 60), "UTC", at(8), None),
        ((8 * 60, 18 * 60), "UTC", at(17, 59, 59), None),
        ((8 * 60, 18 * 60), "UTC", at(18), 14 * 3600),
        ((8 * 60, 18 * 60), "UTC", at(7, 59, 30), 30),
        ((22 * 60, 6 * 60), "UTC", at(23), None),
        ((22 * 60, 6 * 60), "UTC", at(5, 59), None),
        ((22 * 60, 6 * 60), "UTC", at(12), 10 * 3600),
        ((8 * 60, 18 * 60), "Europe/Paris", at(7), None),
        ((8 * 60, 18 * 60), "Europe/Paris", at(17, 30), 13.5 * 3600),
        ((8 * 60, 24 * 60), "UTC", at(23, 59), None),
    ],
)
def test_hours(hours: tuple[int, int], zone: str, now: float, wait_s: float | None) -> None:
    """In the agent's own time zone, over midnight too (B-1)."""
    absence = ActiveHours(hours=hours, zone=zone).absent(now)
    assert (absence.wait_s if absence else None) == wait_s
    if absence is not None:
        assert absence.reason == "outside_hours"
        assert zone in absence.message
