"""Guesses of tokens, and how they are held against what was counted."""

from __future__ import annotations

import pytest

from breakloop.model.call import PromptSize, ToolCall
from breakloop.pricing.tokens import (
    MEDIA_TOKENS,
    EstimateError,
    EstimateErrors,
    HeaderHint,
    SimpleWord,
    Tokenizer,
    answer_tokens,
    estimator,
)
from tests.each import each


class Said:
    """A prompt that says so much."""

    def __init__(self, size: PromptSize | None, body_bytes: int = 0, *texts: str) -> None:
        self.size = size
        self.body_bytes = body_bytes
        self._texts = texts

    def texts(self) -> list[str]:
        return list(self._texts)


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (PromptSize(4000), 1000),
        (PromptSize(4001), 1001),
        (PromptSize(1), 1),
        (PromptSize(0), 0),
        (PromptSize(10, media=2), 3 + 2 * MEDIA_TOKENS),
        (PromptSize(10, tokens=7), 3 + 7),
        (None, 250),
    ],
)
def test_four_characters_are_a_token(size: PromptSize | None, expected: int) -> None:
    """4,000 characters are 1,000 tokens; what cannot be read counts by the length of its body (L-3)."""
    assert SimpleWord().prompt_tokens(Said(size, 997)) == expected


@each(
    "hint, expected",
    [
        ("1200", 1200),
        (" 12.1 ", 13),
        ("0", 0),
        ("1e3", 1000),
        ("1000000000", 10**9),
        ("1000000001", 5),
        ("-1", 5),
        ("nan", 5),
        ("inf", 5),
        ("many", 5),
        ("", 5),
        ("1" * 5000, 5),
        (None, 5),
    ],
)
def test_a_client_may_know_better(hint: str | None, expected: int) -> None:
    """`header_hint` takes a number, rounded up, and guesses where there is none of use (L-3)."""
    assert HeaderHint().prompt_tokens(Said(PromptSize(20)), hint) == expected
    assert SimpleWord().prompt_tokens(Said(PromptSize(20)), hint) == 5


@pytest.mark.parametrize(
    ("name", "kind"), [("simple_word", SimpleWord), ("header_hint", HeaderHint), ("tokenizer", Tokenizer)]
)
def test_each_has_its_name(name: str, kind: type) -> None:
    """As a bundle writes it (L-3)."""
    assert type(estimator(name)) is kind


@pytest.mark.parametrize(
    ("text", "calls", "expected"),
    [
        ("", (), 0),
        ("x" * 400, (), 100),
        ("x", (ToolCall("read", '{"a":1}'),), 3),
        ("中中", (), 2),
        ("a\ud800", (), 1),
    ],
)
def test_an_answer_that_broke_off_counts_by_what_came(text: str, calls: tuple[ToolCall, ...], expected: int) -> None:
    """What is said and what is called (L-3)."""
    assert answer_tokens(text, calls) == expected
    assert answer_tokens(text, calls, 4000) == expected + 1000


def test_errors_are_gathered() -> None:
    """Count, sum and a histogram of fixed size (L-3)."""
    errors = EstimateError()
    assert (errors.count, errors.mean) == (0, 1.0)
    for estimated, actual in [(100, 100), (50, 100), (900, 100), (110, 100)]:
        errors.note(estimated, actual)
    assert errors.count == 4
    assert errors.total == pytest.approx(1 + 0.5 + 9 + 1.1)
    assert errors.mean == pytest.approx(2.9)
    assert (errors.signed_tokens, errors.absolute_tokens) == (-50 + 800 + 10, 50 + 800 + 10)
    assert dict(zip((*EstimateError.BOUNDS, "above"), errors.buckets, strict=True)) == {
        0.25: 0, 0.5: 1, 0.75: 0, 0.9: 0, 1.0: 1, 1.1: 1, 1.25: 0, 1.5: 0, 2.0: 0, 4.0: 0, "above": 1,
    }  # fmt: skip


@pytest.mark.parametrize(("estimated", "actual"), [(5, 0), (5, -1), (-1, 5)])
def test_a_pair_that_says_nothing_is_left_out(estimated: int, actual: int) -> None:
    """No answer, no count (L-3)."""
    errors = EstimateError()
    errors.note(estimated, actual)
    assert (errors.count, sum(errors.buckets)) == (0, 0)


def test_memory_is_bounded() -> None:
    """However many there are (Y-2)."""
    errors = EstimateError()
    for number in range(1, 2000):
        errors.note(number, 500)
    assert (errors.count, sum(errors.buckets), len(errors.buckets)) == (1999, 1999, len(EstimateError.BOUNDS) + 1)


def test_errors_of_each_estimator() -> None:
    """Apart from each other, and as lines to be told; one that says nothing is none (L-3)."""
    errors = EstimateErrors()
    assert (len(errors), errors.lines()) == (0, [])
    for name, estimated in [("tokenizer", 100), ("simple_word", 80), ("simple_word", 130), ("header_hint", -1)]:
        errors.note(name, estimated, 100)
    assert sum(error.count for error in errors.values()) == 3
    first, second = errors.lines()
    assert first == {
        "estimator": "simple_word", "count": 2, "mean_ratio": 1.05, "signed_tokens": 10, "absolute_tokens": 50,
    }  # fmt: skip
    assert (second["estimator"], second["absolute_tokens"]) == ("tokenizer", 0)


@pytest.mark.parametrize("name", ["simple_word", "header_hint", "tokenizer"])
def test_an_estimator_knows_its_name(name: str) -> None:
    """Errors are told by it (L-3)."""
    assert estimator(name).name == name
