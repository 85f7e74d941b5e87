"""What costs are counted in: whole units, so that sums are exact in every store. Thousandths of a plain cost, tokens,
micro-dollars (SPEC L-5). A bundle writes 12.34; accounts and breakers hold units; people read words."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

LARGEST: Final = 2**53  # whole numbers beyond it are not exact in every store
_CENT: Final = 10_000
_DOLLAR: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Unit:
    """One kind of unit."""

    name: str  # for events and records
    scale: int  # so many of it are 1 in the bundle
    shown: int  # so many of it are 1 in the `RateLimit` fields, which hold whole numbers only
    words: Callable[[float], str]

    def of(self, value: float) -> int:
        """Return a positive number of the bundle or a request in units: at least one, so that nothing is free."""
        return min(max(1, round(value * self.scale)), LARGEST)


def _plain(units: float) -> str:
    whole, rest = divmod(round(units), 1000)
    return f"{whole}.{rest:03}".rstrip("0") if rest else str(whole)


def _tokens(units: float) -> str:
    return f"{round(units)} tokens"


def _dollars(units: float) -> str:
    """To the cent; what is less than a dollar to the micro-dollar, where there are such."""
    microusd = round(units)
    if microusd % _CENT == 0 or microusd >= _DOLLAR:
        cents = (microusd + _CENT // 2) // _CENT
        return f"${cents // 100}.{cents % 100:02}"
    return f"$0.{microusd:06}".rstrip("0")


COST: Final = Unit("cost", 1000, 1000, _plain)
TOKENS: Final = Unit("token", 1, 1, _tokens)
# A budget of a few dollars would have nothing between all and nothing if the fields held whole dollars.
MICROUSD: Final = Unit("microusd", _DOLLAR, 1, _dollars)


def read_cost(text: str | None, default: float) -> float:
    """Return the cost that a request names. One that is missing, no number or not positive is the default."""
    if text is None:
        return default
    try:
        cost = float(text)
    except ValueError:
        return default
    return cost if 0.0 < cost < math.inf else default
