"""Tokens and money."""

from __future__ import annotations

import pytest

from breakloop.model.call import Answer, ToolCall, Usage
from breakloop.pricing.prices import ListedModel, Prices
from breakloop.pricing.prices import Price as TokenPrice
from breakloop.replay.sessions import ByModel, ModelPricing, Spent, free, spent, total


def test_recorded_tokens_are_taken() -> None:
    """Recorded tokens are taken (X-6)."""
    answer = Answer(200, "x" * 400, usage=Usage(1000, 50, 900))
    assert spent(answer, "m", 4000) == Spent(1000, 50, 900, estimated=False, money=None)
    assert spent(answer, "m", 4000).tokens == 1050


def test_else_four_bytes_are_one() -> None:
    """And it says that it is an estimate (X-6)."""
    answer = Answer(200, "x" * 40, (ToolCall("a", "y" * 40),))
    assert spent(answer, "m", 400) == Spent(100, 20, 0, estimated=True, money=None)


def test_prices() -> None:
    """For a million; what was read from a cache costs a tenth, unless somebody says otherwise (X-6)."""
    usage = Usage(1_000_000, 100_000, 900_000)
    assert ModelPricing(3.0, 15.0)("m", usage) == pytest.approx(0.3 + 0.27 + 1.5)
    assert ModelPricing(3.0, 15.0, 1.0)("m", usage) == pytest.approx(0.3 + 0.9 + 1.5)
    assert free("m", usage) is None


def test_a_price_list_can_stand_in() -> None:
    """Whatever is called with the model and its tokens (X-6)."""
    known = {"m": 2.0}
    priced = spent(Answer(200, usage=Usage(10, 10), model="m"), "other", 0, lambda model, _: known.get(model))
    assert priced.money == 2.0
    assert spent(Answer(200), "other", 0, lambda model, _: known.get(model)).money is None


def test_the_list_of_prices() -> None:
    """Each model at its own price; those without one are noted, if they were paid for (X-6, L-5)."""
    pricing = ByModel(Prices(ListedModel({"m": TokenPrice(2_000_000, 8_000_000, cached=500_000)}, "t")))
    assert pricing("m", Usage(1000, 10, 400)) == (600 * 2 + 400 * 0.5 + 10 * 8) / 1e6
    assert pricing("own", Usage(10, 1)) is None
    assert pricing("<synthetic>", Usage()) is None
    assert pricing("", Usage(10, 1)) is None
    assert pricing.unpriced == {"own"}


def test_sums() -> None:
    """One estimate makes the sum one; money is known as far as it is (X-6)."""
    parts = [Spent(1, 2, 1, money=0.5), Spent(10, 20, estimated=True), Spent(100, 200, money=0.25)]
    assert total(parts) == Spent(111, 222, 1, estimated=True, money=0.75)
    assert total([]) == Spent()
