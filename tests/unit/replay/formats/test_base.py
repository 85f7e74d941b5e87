"""What readers of logs look for."""

from __future__ import annotations

import math

import pytest

from breakloop.replay.formats.base import count, decoded, first, mapping, named, seconds
from tests.each import each


@each(
    "value, expected",
    [
        (1_700_000_000, 1_700_000_000.0),
        (1_700_000_000_500, 1_700_000_000.5),
        ("1700000000000000000", 1_700_000_000.0),
        ("1700000000.25", 1_700_000_000.25),
        ("2023-11-14T22:13:20Z", 1_700_000_000.0),
        ("2023-11-14 22:13:20", 1_700_000_000.0),
        ("2023-11-15T00:13:20+02:00", 1_700_000_000.0),
        ("yesterday", None),
        (True, None),
        (None, None),
    ],
)
def test_times(value: object, expected: float | None) -> None:
    """Seconds, milliseconds, nanoseconds, dates; without a zone UTC is meant (X-5)."""
    assert seconds(value) == expected


def test_json_in_texts() -> None:
    """Some logs keep bodies as text."""
    assert decoded('{"a": 1}') == {"a": 1}
    assert decoded(" [1]") == [1]
    assert decoded("{not json") == "{not json"
    assert decoded("7") == "7"
    assert mapping('{"a": 1}') == {"a": 1}
    assert mapping("[1]") == {}


def test_the_first_that_says_something() -> None:
    """Empty values are missing values."""
    assert first({"a": None, "b": "", "c": [], "d": 0, "e": 1}, "abcde") == 0
    assert first({}, "a") is None


def test_names_are_looked_for_in_the_metadata_too() -> None:
    """A name is a text or a number."""
    assert named({"session_id": "s"}, ("session_id",)) == "s"
    assert named({"metadata": '{"session_id": 7}'}, ("session_id",)) == "7"
    assert named({"session_id": {"x": 1}, "metadata": {"session_id": "m"}}, ("session_id",)) == "m"
    assert named({"session_id": True}, ("session_id",)) == ""


@pytest.mark.parametrize(
    ("value", "number"), [(7, 7), (7.9, 7), (0, 0), (-3, 0), (True, 0), ("7", 0), (None, 0), (1e300, 0), (math.nan, 0)]
)
def test_counts(value: object, number: int) -> None:
    """Tokens are a positive number, or none were recorded (X-6)."""
    assert count(value) == number
