"""Many cases in one test: all of them run, and those that fail are listed."""

from __future__ import annotations

import pytest

from tests.each import each


def test_every_case_runs_and_those_that_fail_are_listed(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The others are no reason to stop, and fixtures are passed on."""
    seen: list[object] = []

    @each("number", [1, 2, 3])
    @each("word, other", {"one": ("a", "b"), "two": ("c", "d")})
    def check(number: int, word: str, other: str, fixture: str) -> None:
        seen.append((number, word, other, fixture))
        assert number != 2, "the second"
        assert word != "c", "the word"

    with pytest.raises(pytest.fail.Exception) as raised:
        check(fixture="f")
    assert len(seen) == 6
    assert (1, "a", "b", "f") in seen
    told = str(raised.value)
    assert told.startswith("3 of 3 cases\n1: Failed: 1 of 2 cases")
    assert "2: Failed: 2 of 2 cases" in told
    assert "two: AssertionError: the word" in told
    assert "one: AssertionError: the second" in told


def test_all_is_well() -> None:
    """Nothing is raised where nothing fails."""

    @each("number", range(100))
    def check(number: int) -> None:
        assert number < 100

    check()


def test_a_test_needs_cases() -> None:
    """A list that turned out empty would hide what it was to test."""
    with pytest.raises(AssertionError, match="without a case"):
        each("number", [])
