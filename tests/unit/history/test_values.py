"""What a database takes, whatever it was given."""

from __future__ import annotations

import json
import math
from types import MappingProxyType

import pytest

from breakloop.history.schema import MOMENT_MAX, TEXT_MAX, moment, text, to_json, whole


class Secret:
    def __repr__(self) -> str:
        return "canary"


@pytest.mark.parametrize(
    ("value", "stored"),
    [("a", "a"), ("ä\N{SNOWMAN}", "ä\N{SNOWMAN}"), (None, ""), (7, ""), ("a\0b", "a�b"), ("\ud800x", "?x")],
)
def test_texts(value: object, stored: str) -> None:
    assert text(value) == stored


def test_texts_are_bounded() -> None:
    assert text("x" * 5000) == "x" * TEXT_MAX
    assert text("x" * 5000, 4) == "xxxx"


@pytest.mark.parametrize(
    ("value", "stored"),
    [(7, 7), (7.9, 7), (True, 1), ("7", 0), (None, 0), (math.nan, 0), (math.inf, 2**62), (-(10**30), -(2**62))],
)
def test_whole_numbers(value: object, stored: int) -> None:
    assert whole(value) == stored


@pytest.mark.parametrize(
    ("value", "known"),
    [(1.5, 1.5), (-3.0, 0.0), (math.nan, 0.0), (math.inf, MOMENT_MAX), (-math.inf, 0.0), (10**40, MOMENT_MAX)],
)
def test_moments(value: float, known: float) -> None:
    assert moment(value) == known


def test_json_comes_back_as_it_was() -> None:
    data = {"a": [1, 2.5, None, True], "b": {"c": "ä\0\ud800"}, "d": "x" * 10_000}
    stored = to_json(MappingProxyType(data))
    assert stored.isascii()
    assert "\0" not in stored
    assert json.loads(stored) == data


def test_json_of_what_it_has_no_form_for() -> None:
    """An object's own text may hold anything (Y-1)."""
    assert (
        to_json({"a": Secret(), "b": (1, 2), "c": MappingProxyType({"d": 1})})
        == '{"a":"<Secret>","b":[1,2],"c":{"d":1}}'
    )
    assert json.loads(to_json({"a": {1}})) == {"a": [1]}
