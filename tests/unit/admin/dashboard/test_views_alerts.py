"""Alerts: fields that may not be there, states by colour."""

from __future__ import annotations

from breakloop.admin.dashboard import views
from tests.admin_world import DELIVERIES


def test_filled() -> None:
    assert views.filled({"id": 1, "more": 2}, ("id", "url")) == {"id": 1, "url": None}


def test_tones() -> None:
    assert [views.tone(state) for state in ("delivered", "pending", "failed", None)] == ["good", "warn", "bad", "info"]


def test_endings() -> None:
    assert views.endings(DELIVERIES) == {"pending": 1, "delivered": 1, "failed": 1}


def test_listed() -> None:
    assert views.listed(None) == views.listed("") == []
    assert views.listed("slack") == ["slack"]
    assert views.listed(("a", 2)) == ["a", "2"]
