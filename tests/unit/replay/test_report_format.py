"""Figures in reports."""

from __future__ import annotations

from breakloop.replay.report import moment, money, rounded, tokens
from breakloop.replay.sessions import Spent


def test_tokens_say_what_they_are() -> None:
    """An estimate is marked, and not more exact than it is (X-6)."""
    assert tokens(Spent(1200, 34)) == "1,234"
    assert tokens(Spent(181_234, 0, estimated=True)) == "about 180,000"
    assert [rounded(number) for number in (0, 7, 17, 123, 999, 181_234)] == [0, 7, 17, 120, 1000, 180_000]


def test_money() -> None:
    """Money (X-6)."""
    assert [money(amount) for amount in (None, 0.0, 0.0012, 0.126, 1234.5)] == [
        "",
        "$0.00",
        "$0.0012",
        "$0.13",
        "$1,234.50",
    ]


def test_moments() -> None:
    """Only where the recording has real times (X-6)."""
    assert moment(1_800_000_000.0) == "2027-01-15 08:00:00 UTC"
    assert [moment(at_s) for at_s in (None, 12.0, 1e12, -5.0)] == [""] * 4
