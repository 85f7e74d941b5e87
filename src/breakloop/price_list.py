"""Puts the list of prices together as the settings say: single models first, then the price file, then the table that
ships with the package (SPEC L-5)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from breakloop.clock import Clock
from breakloop.errors import Problem
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
