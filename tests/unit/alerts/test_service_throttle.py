"""Frequent events are passed on once in ten seconds."""

from __future__ import annotations

import pytest

from breakloop.alerts import service
from breakloop.alerts.service import INTERVAL_S, EventThrottle
from tests.alert_world import NOW, limited, loop


def test_a_flood_becomes_two() -> None:
    """The first at once, then one with the count of the others; nobody gets one a request (G-4)."""
    thin = EventThrottle()
    assert thin.throttle([limited() for _ in range(1000)], NOW) == [limited()]
    assert thin.throttle([limited()], NOW + 9.9) == []
    (last,) = thin.throttle([], NOW + INTERVAL_S)
    assert last.data["left_out"] == 999
    assert thin.throttle([], NOW + 2 * INTERVAL_S) == []
    assert thin.throttle([limited()], NOW + 2 * INTERVAL_S) == [limited()]


def test_rare_events_pass_all() -> None:
    """A loop is never left out (G-4)."""
    assert len(EventThrottle().throttle([loop(), loop(), limited("a"), limited("b")], NOW)) == 4


def test_a_single_one_has_no_echo() -> None:
    thin = EventThrottle()
    thin.throttle([limited()], NOW)
    assert thin.throttle([], NOW + INTERVAL_S) == []


def test_too_many_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many kinds: counted only (Y-2)."""
    monkeypatch.setattr(service, "_KEYS_MAX", 3)
    thin = EventThrottle()
    assert len(thin.throttle([limited(str(number)) for number in range(10)], NOW)) == 3
    assert thin.dropped == 7
