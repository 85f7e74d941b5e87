"""Puts the list of prices together as the settings say: single models first, then the price file, then the table that
ships with the package (SPEC L-5)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from breakloop.clock import Clock
from breakloop.errors import Problem
from breakloop.observe.log import log
from breakloop.pricing.genai_table import GenaiTable
from breakloop.pricing.litellm_prices import read_litellm
from breakloop.pricing.prices import Listed, Prices
from breakloop.settings import Settings
from breakloop.settings_prices import price


class PriceList(NamedTuple):
    """The prices, and which entries of the file were left out of them."""

    prices: Prices
    problems: Sequence[Problem] = ()


def price_list(settings: Settings, clock: Clock) -> PriceList:
    """Return the prices that hold; raises SettingsError when there is a price file that cannot be read."""
    said = settings.prices
    lists: list[Listed] = []
    problems: Sequence[Problem] = ()
    if said.models:
        lists.append(Listed({name: price(one) for name, one in said.models.items()}, "the settings"))
    if said.file:
        imported = read_litellm(Path(said.file), said.service_tier)
        lists.append(Listed(imported.prices, said.file))
        problems = imported.problems
    assumed = price(said.assume) if said.unknown_model == "assume" else None
    return PriceList(
        Prices(GenaiTable(said.service_tier), lists, unknown=said.unknown_model, assumed=assumed, clock=clock),
        problems,
    )


class LazyPrices:
    """The list of a process. It is read when somebody needs it: most bundles do not."""

    __slots__ = ("_clock", "_prices", "_settings")

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._prices: Prices | None = None

    def __call__(self) -> Prices:
        """Return the list."""
        if self._prices is None:
            found = price_list(self._settings, self._clock)
            for problem in found.problems:
                log(logging.WARNING, "prices.problem", {"problem": str(problem)})
            self._prices = found.prices
        return self._prices
