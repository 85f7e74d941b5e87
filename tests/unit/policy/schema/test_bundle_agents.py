"""Agents: hours and time zones."""

from __future__ import annotations

from typing import Any

import pytest

from breakloop.policy.schema import bundle
from tests.each import each
from tests.unit.policy.said import messages


@pytest.mark.parametrize(
    ("said", "minutes"),
    [("08:00-18:30", (480, 1110)), ("22:00-06:00", (1320, 360)), ([8, 18], (480, 1080)), ([0, 24], (0, 1440))],
)
def test_allowed_hours(said: Any, minutes: tuple[int, int]) -> None:
    """As text or as two hours, over midnight too (B-1)."""
    assert bundle.Agent.model_validate({"allowed_hours": said}).hours == minutes


@each("said", ["8-18", "08:00-25:00", "24:00-08:00", [8], [8, 8], [24, 8], [8, 18.5], [True, 5], 8, ""])
def test_wrong_hours(said: Any) -> None:
    assert messages(bundle.Agent, {"allowed_hours": said})


def test_no_hours_is_no_limit() -> None:
    assert bundle.Agent().hours is None


@pytest.mark.parametrize("zone", ["", "/etc/passwd", "../UTC", "Europe", "Europe/Nowhere", "\0"])
def test_wrong_time_zones(zone: str) -> None:
    assert messages(bundle.Agent, {"timezone": zone})
