"""Alerts: states by colour."""

from __future__ import annotations

from breakloop.admin.dashboard import views


def test_tones() -> None:
    assert [views.tone(state) for state in ("delivered", "pending", "failed", None)] == ["good", "warn", "bad", "info"]
