"""What a turn cost: tokens as recorded, else a quarter of its characters, marked as an estimate; money by the list of
prices (`ByModel`), or at one price for every model (`Price`). Anything that is called like these can stand in."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from breakloop.model.answer import Answer, Usage
from breakloop.model.prompt import CHARS_A_TOKEN
from breakloop.pricing.prices import Prices

_MILLION = 1e6
_NAMES_MAX = 1000
_CACHED_SHARE = 0.1  # of the price of input, where nobody says another: what providers ask for a read of their cache


class Spent(NamedTuple):
    """Tokens of one or more calls. `estimated`: at least one of them was not recorded."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0  # of the input
    estimated: bool = False
    money: float | None = None

    @property
    def tokens(self) -> int:
        """All of them."""
        return self.input_tokens + self.output_tokens


Pricing = Callable[[str, Usage], float | None]  # model and tokens -> US dollars; None: not known


@dataclass(frozen=True, slots=True)
class Price:
    """One price for every model: US dollars for a million tokens."""

    input: float = 0.0
    output: float = 0.0
    cached: float | None = None

    def __call__(self, _model: str, usage: Usage) -> float:
        """Return what these tokens cost."""
        cached = self.input * _CACHED_SHARE if self.cached is None else self.cached
        fresh = max(usage.input_tokens - usage.cached_tokens, 0)
        paid = fresh * self.input + usage.cached_tokens * cached + usage.output_tokens * self.output
        return paid / _MILLION


class ByModel:
    """The list of prices. `unpriced`: models that it does not know and that were paid for."""

    __slots__ = ("_prices", "unpriced")

    def __init__(self, prices: Prices) -> None:
        self._prices = prices
        self.unpriced: set[str] = set()

    def __call__(self, model: str, usage: Usage) -> float | None:
        """Return what these tokens cost, if the model has a price."""
        price = self._prices.find("", model) if model else None
        if price is not None:
            return self._prices.cost_microusd(price, usage) / _MILLION
        if model and any(usage) and len(self.unpriced) < _NAMES_MAX:
            self.unpriced.add(model)
        return None


def free(_model: str, _usage: Usage) -> float | None:
    """No price is known."""
    return None


def spent(answer: Answer, model: str, request_bytes: int, pricing: Pricing = free) -> Spent:
    """Return what one call cost."""
    usage, estimated = answer.usage, False
    if usage is None:
        said = len(answer.text) + sum(len(call.arguments) for call in answer.calls)
        usage, estimated = Usage(request_bytes // CHARS_A_TOKEN, said // CHARS_A_TOKEN), True
    money = pricing(answer.model or model, usage)
    return Spent(usage.input_tokens, usage.output_tokens, usage.cached_tokens, estimated, money)


def total(parts: Iterable[Spent]) -> Spent:
    """Add up; money is known when it is known of any."""
    asked = answered = cached = 0
    estimated, money, priced = False, 0.0, False
    for one in parts:
        asked += one.input_tokens
        answered += one.output_tokens
        cached += one.cached_tokens
        estimated = estimated or one.estimated
        if one.money is not None:
            money, priced = money + one.money, True
    return Spent(asked, answered, cached, estimated, money if priced else None)
