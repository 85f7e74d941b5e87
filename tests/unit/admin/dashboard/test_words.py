"""Numbers, money and times as people read them."""

from __future__ import annotations

import math

import pytest

from breakloop.admin.dashboard import words
from breakloop.formatting import duration, plural, timestamp


@pytest.mark.parametrize(
    ("microusd", "said"),
    [(0, "$0.00"), (1, "$0.0000"), (1_200, "$0.0012"), (10_000, "$0.01"), (72_440_000, "$72.44"), (1_234_567_890_000, "$1,234,567.89")],
)  # fmt: skip
def test_money(microusd: int, said: str) -> None:
    """Cents as a rule, more digits below a cent."""
    assert words.money(microusd) == said


@pytest.mark.parametrize(
    ("number", "said"),
    [(0, "0"), (9_120, "9,120"), (12_400, "12.4k"), (402_300, "402k"), (9_100_000, "9.10M"), (2_500_000_000, "2.50B")],
)
def test_short(number: int, said: str) -> None:
    """Three digits are enough at a glance."""
    assert words.short(number) == said


def test_counted_and_count() -> None:
    assert plural(1, "request") == "1 request"
    assert plural(1_200, "request") == "1,200 requests"
    assert plural(2, "entry", "entries") == "2 entries"
    assert words.count(1_000) == "1,000"
    assert words.amount(7, "usd") == "$7"
    assert words.amount(7_000, "requests") == "7,000 requests"


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.2, "0 s"), (59, "59 s"), (60, "1 min"), (90, "1 min 30 s"), (5_400, "1 h 30 min"), (90_000, "1 d 1 h"), (math.inf, "for ever")],
)  # fmt: skip
def test_lasted(seconds: float, said: str) -> None:
    assert duration(seconds) == said


def test_ago_looks_both_ways() -> None:
    assert words.ago(100, 101) == "just now"
    assert words.ago(100, 144) == "44 s ago"
    assert words.ago(0, 7_300) == "2 h ago"
    assert words.ago(280, 100) == "in 3 min"


def test_a_time_that_never_comes() -> None:
    """What cannot be a date is a dash, never an error."""
    assert timestamp(1_800_000_000) == "2027-01-15 08:00:00 UTC"
    assert words.stamp(1_800_000_000) == "2027-01-15T08:00:00+00:00"
    for at in (math.inf, math.nan, 1e300, -1e300):
        assert timestamp(at) == "\N{EN DASH}"
        assert words.stamp(at) == ""


def test_shortened_hides_no_tricks() -> None:
    """Long values are cut, and characters that turn the text around are shown as what they are."""
    assert words.shortened("x" * 500, 10) == "x" * 9 + "\N{HORIZONTAL ELLIPSIS}"
    assert words.shortened("a\u202eb\x00c\u200bd") == "a\ufffdb\ufffdc\ufffdd"
    assert words.shortened({"a": [1, "ü"]}) == '{"a": [1, "ü"]}'
    assert words.shortened("two\nlines") == "two\nlines"


def test_every_event_has_words() -> None:
    """A name that nobody knows is shown as it is."""
    assert words.event_words("loop.detected") == ("Loop detected", "warn")
    assert words.event_words("new.thing") == ("new.thing", "info")
    assert {tone for _, tone in map(words.event_words, words.EVENT_NAMES)} <= {"good", "info", "warn", "bad", "shadow"}


def test_kinds() -> None:
    assert words.kind_meaning("cycle") == "the same 2 to 16 steps in the same order, repeatedly"
    assert words.kind_meaning("simhash")
    assert words.kind_meaning("unheard of") == ""


def test_details_leave_out_what_is_empty() -> None:
    data = {
        "hit_count": 1_200,
        "agent": "a",
        "by": "",
        "expires_at": None,
        "shadow": False,
        "until_at": 1_800_000_000.0,
        "steps": [[1_800_000_000.0, "edit_file", "ab", "cd", 5, False, "pass"]],  # drawn elsewhere
        "score": {"score": 12.5},
    }
    assert words.details(data, ("agent",)) == [
        ("hit count", "1,200"),
        ("shadow", "no"),
        ("until at", "2027-01-15 08:00:00 UTC"),
    ]
