"""Whole units: exact sums, nothing free, numbers as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakloop.limits.base import COST, LARGEST, MICROUSD, TOKENS, Unit, read_cost
from tests.each import each


@each(
    "unit, value, units",
    [
        (COST, 1, 1000), (COST, 0.1, 100), (COST, 1.1, 1100), (COST, 2.3, 2300), (COST, 0.00001, 1),
        (TOKENS, 6000, 6000), (TOKENS, 0.2, 1), (MICROUSD, 12.34, 12_340_000), (MICROUSD, 0.000001, 1),
        (COST, 1e300, LARGEST), (COST, 1e306, LARGEST), (MICROUSD, 2.0**53, LARGEST),
    ],
)  # fmt: skip
def test_units(unit: Unit, value: float, units: int) -> None:
    """To the nearest unit, at least one, and never more than a store can add exactly (L-2, L-5)."""
    assert unit.of(value) == units


@given(st.integers(1, 10**12))
def test_what_has_three_decimals_is_exact(thousandths: int) -> None:
    """Costs as people write them lose nothing (L-2)."""
    assert COST.of(thousandths / 1000) == thousandths


@given(st.integers(1, 10**9))
def test_dollars_are_exact_to_the_micro_dollar(microusd: int) -> None:
    """1,000 dollars and below (L-5)."""
    assert MICROUSD.of(microusd / 1_000_000) == microusd


@each(
    "unit, units, words",
    [
        (COST, 100_000, "100"), (COST, 2_500, "2.5"), (COST, 1_234_567_001, "1234567.001"), (COST, 999.6, "1"),
        (TOKENS, 5000, "5000 tokens"), (TOKENS, 12.4, "12 tokens"),
        (MICROUSD, 12_340_000, "$12.34"), (MICROUSD, 12_345_678, "$12.35"), (MICROUSD, 500_000, "$0.50"),
        (MICROUSD, 123, "$0.000123"), (MICROUSD, 1_500, "$0.0015"), (MICROUSD, 0, "$0.00"),
        (MICROUSD, 999_999, "$0.999999"), (MICROUSD, 1_999_999, "$2.00"),
    ],
)  # fmt: skip
def test_words(unit: Unit, units: float, words: str) -> None:
    """What messages say (L-2)."""
    assert unit.words(units) == words


@pytest.mark.parametrize(
    ("text", "cost"),
    [("4", 4), ("2.5", 2.5), (None, 2), ("", 2), ("0", 2), ("-3", 2), ("abc", 2), ("nan", 2), ("inf", 2)],
)
def test_nobody_gets_in_free_by_nonsense(text: str | None, cost: float) -> None:
    """What is no positive number costs the default (L-1, L-2)."""
    assert read_cost(text, 2) == cost
