"""What a usage comes to: exact, in whole micro-dollars."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from hashlib import blake2b
from typing import TypeVar

import pytest

from breakloop.model.call import Usage
from breakloop.pricing.prices import Price, Tier, cost_microusd, dollars, from_dollars, from_dollars_a_token

MILLION = 1_000_000
T = TypeVar("T")
# $2.50 input, $0.25 cached, $3.125 cache write, $10 output, $12 reasoning
PRICE = Price(2_500_000, 10_000_000, 250_000, 3_125_000, 12_000_000)


def by_hand(price: Price, usage: Usage) -> int:
    """The same by another way: fractions of a dollar, kind by kind, rounded once."""
    for tier in price.tiers:
        if usage.input_tokens > tier.above_tokens:
            price = tier.price
    rates = {
        "fresh": (usage.input_tokens - usage.cached_tokens - usage.cache_write_tokens, price.input),
        "cached": (usage.cached_tokens, price.input if price.cached is None else price.cached),
        "written": (usage.cache_write_tokens, price.input if price.cache_write is None else price.cache_write),
        "spoken": (usage.output_tokens - usage.reasoning_tokens, price.output),
        "reasoned": (usage.reasoning_tokens, price.output if price.reasoning is None else price.reasoning),
    }
    usd = sum(
        (Fraction(tokens * rate, MILLION) / MILLION for tokens, rate in rates.values()), Fraction(price.call, MILLION)
    )
    microusd = usd * MILLION
    whole = microusd.numerator // microusd.denominator
    return whole + (microusd - whole >= Fraction(1, 2))


class Dice:
    """The same throws in every run."""

    def __init__(self) -> None:
        self._throws = 0

    def number(self, low: int, high: int) -> int:
        self._throws += 1
        throw = blake2b(self._throws.to_bytes(8, "big"), digest_size=8).digest()
        return low + int.from_bytes(throw, "big") % (high - low + 1)

    def one_of(self, values: Sequence[T]) -> T:
        return values[self.number(0, len(values) - 1)]


def some_usage(dice: Dice) -> Usage:
    size = 10 ** dice.number(0, 7)
    asked, answered = dice.number(0, size), dice.number(0, size)
    cached = dice.one_of([0, dice.number(0, asked)])
    written = dice.one_of([0, dice.number(0, asked - cached)])
    return Usage(asked, answered, cached, written, dice.one_of([0, dice.number(0, answered)]))


def some_price(dice: Dice) -> Price:
    def kind() -> int:
        listed = [0, 1, dice.number(1, 999), dice.number(1, 200) * 12_500, dice.number(1, 150 * MILLION)]
        return dice.one_of(listed)

    def maybe() -> int | None:
        return dice.one_of([None, kind()])

    def flat() -> Price:
        return Price(kind(), kind(), maybe(), maybe(), maybe(), dice.one_of([0, 0, 12_000]))

    starts = dice.one_of([(), (), (200_000,), (999, 128_000)])
    return flat()._replace(tiers=tuple(Tier(start, flat()) for start in starts))


@pytest.mark.slow
def test_totals_equal_the_price_to_the_microdollar() -> None:
    """Ten thousand random usages of random prices, one by one and added up (L-5)."""
    dice = Dice()
    total = expected = 0
    for _ in range(10_000):
        price, usage = some_price(dice), some_usage(dice)
        cost = cost_microusd(price, usage)
        assert type(cost) is int
        assert cost == by_hand(price, usage), (price, usage)
        total += cost
        expected += by_hand(price, usage)
    assert total == expected > 0


@pytest.mark.parametrize(
    ("usage", "microusd"),
    [
        (Usage(), 0),
        (Usage(1_000_000, 0), 2_500_000),
        (Usage(0, 1_000_000), 10_000_000),
        (Usage(1_000_000, 0, cached_tokens=1_000_000), 250_000),
        (Usage(1_000_000, 0, cache_write_tokens=1_000_000), 3_125_000),
        (Usage(0, 1_000_000, reasoning_tokens=1_000_000), 12_000_000),
        (Usage(1000, 100, 600, 200, 40), 200 * 2.5 + 600 * 0.25 + 200 * 3.125 + 60 * 10 + 40 * 12),
    ],
)
def test_each_kind_at_its_own_price(usage: Usage, microusd: float) -> None:
    """Cached and reasoning tokens are priced; what is part of something is not paid twice (L-5)."""
    assert cost_microusd(PRICE, usage) == microusd


def test_kinds_without_a_price_cost_what_they_are_part_of() -> None:
    """Cached and written as input, reasoning as output (L-5)."""
    plain = Price(2_000_000, 8_000_000)
    assert cost_microusd(plain, Usage(1000, 500, 300, 200, 100)) == cost_microusd(plain, Usage(1000, 500))
    free_cache = Price(2_000_000, 8_000_000, cached=0)
    assert cost_microusd(free_cache, Usage(1000, 0, 1000)) == 0


def test_half_a_microdollar_counts_as_one_and_only_at_the_end() -> None:
    """Three kinds of a third each are one, not three times nothing (L-5)."""
    price = Price(400_000, 300_000, 300_000)
    assert cost_microusd(price, Usage(1, 0)) == 0
    assert cost_microusd(Price(500_000, 0), Usage(1, 0)) == 1
    assert cost_microusd(Price(499_999, 0), Usage(1, 0)) == 0
    assert cost_microusd(price, Usage(2, 1, 1)) == 1


def test_tiers_hold_for_the_whole_call() -> None:
    """More than 200,000 tokens of input make every token of the call dearer (L-5)."""
    long = Price(6_000_000, 22_500_000, 600_000)
    price = Price(3_000_000, 15_000_000, 300_000, tiers=(Tier(200_000, long), Tier(500_000, Price(9_000_000, 0))))
    assert cost_microusd(price, Usage(200_000, 1000, 100_000)) == 100_000 * 3 + 100_000 * 0.3 + 1000 * 15
    assert cost_microusd(price, Usage(200_001, 1000, 100_000)) == 100_001 * 6 + 100_000 * 0.6 + 1000 * 22.5
    assert cost_microusd(price, Usage(500_001, 1000)) == 500_001 * 9
    assert price.for_input(0) is price


def test_the_call_itself_may_cost() -> None:
    """Some providers ask for each call, whatever its size (L-5)."""
    assert cost_microusd(Price(1_000_000, 1_000_000, call=12_000), Usage(1000, 100)) == 13_100


def test_parts_larger_than_the_whole_do_not_make_it_cheaper() -> None:
    """A provider that reports cached tokens beside the input, not in it (L-5)."""
    assert cost_microusd(PRICE, Usage(100, 0, cached_tokens=1000)) == 1000 * 0.25
    assert cost_microusd(PRICE, Usage(0, 10, reasoning_tokens=50)) == 50 * 12


def test_no_floats_on_the_way() -> None:
    """Dollars are read exactly, to the micro-dollar for a million tokens (L-5)."""
    assert from_dollars(Decimal("0.0375")) == 37_500
    assert from_dollars(Decimal("0.1")) * 3 == from_dollars(Decimal("0.3"))
    assert from_dollars_a_token(Decimal("1.25e-07")) == 125_000
    assert from_dollars_a_token(Decimal("1.6666666666666667e-06")) == 1_666_667
    assert from_dollars_a_token(Decimal("0.5e-12")) == 1
    assert dollars(1_234_567) == Decimal("1.234567")
