"""Numbers, money and times as people read them."""

from __future__ import annotations

import math

import pytest

from breakloop.formatting import duration, money, plural, timestamp


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-3, "0 s"),
        (0.2, "0 s"),
        (59, "59 s"),
        (60, "1 min"),
        (139, "2 min 19 s"),
        (3_700, "1 h 1 min"),
        (86_460, "1 d"),
        (98_200, "1 d 3 h"),
        (math.inf, "for ever"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    """The two largest units (X-6)."""
    assert duration(seconds) == text


@pytest.mark.parametrize(("usd", "text"), [(0, "$0.00"), (0.0012, "$0.0012"), (0.126, "$0.13"), (1234.5, "$1,234.50")])
def test_money(usd: float, text: str) -> None:
    """Less than a cent is not nothing (X-6)."""
    assert money(usd) == text


def test_plurals() -> None:
    assert [plural(number, "turn") for number in (0, 1, 1200)] == ["0 turns", "1 turn", "1,200 turns"]
    assert plural(2, "policy", "policies") == "2 policies"


def test_timestamps() -> None:
    assert timestamp(1_800_000_000.0) == "2027-01-15 08:00:00 UTC"
    assert timestamp(1e300) == "\N{EN DASH}"
