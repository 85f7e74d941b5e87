"""`Price`: what the tokens of one model cost, and what one usage of it comes to (SPEC L-5). Whole numbers only: a price
is micro-dollars for a million tokens, a cost is micro-dollars, rounded once. Which price a model has is `prices`'."""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal
from typing import Final, NamedTuple

from breakloop.model.answer import Usage

MILLION: Final = 1_000_000
_HALF: Final = MILLION // 2


class Price(NamedTuple):
    """Micro-dollars for a million tokens of each kind; None: this kind costs what the kind it is part of costs."""

    input: int = 0
    output: int = 0
    cached: int | None = None  # input that was read from the provider's cache
    cache_write: int | None = None  # input that was written to it
    reasoning: int | None = None  # output that nobody sees
    call: int = 0  # micro-dollars for the call itself, whatever its size
    tiers: tuple[Tier, ...] = ()  # ascending; the last one that applies holds for the whole call

    def for_input(self, input_tokens: int) -> Price:
        """Return the price of a call with so much input."""
        found = self
        for tier in self.tiers:
            if input_tokens <= tier.above_tokens:
                break
            found = tier.price
        return found


class Tier(NamedTuple):
    """What calls with more input than `above_tokens` cost."""

    above_tokens: int
    price: Price


def cost_microusd(price: Price, usage: Usage) -> int:
    """Return what these tokens cost, in whole micro-dollars; half of one counts as one.

    A usage whose parts are larger than the whole is paid by its parts.
    """
    asked, answered, cached, written, reasoned = usage
    if price.tiers:
        price = price.for_input(asked)
    per_input, per_output, per_cached, per_written, per_reasoned, per_call, _ = price
    fresh = asked - cached - written
    spoken = answered - reasoned
    paid = fresh * per_input if fresh > 0 else 0
    if spoken > 0:
        paid += spoken * per_output
    if cached:
        paid += cached * (per_input if per_cached is None else per_cached)
    if written:
        paid += written * (per_input if per_written is None else per_written)
    if reasoned:
        paid += reasoned * (per_output if per_reasoned is None else per_reasoned)
    return (paid + _HALF) // MILLION + per_call


def from_dollars(usd_per_million: Decimal) -> int:
    """Return a price for a million tokens as it is kept here."""
    return _whole(usd_per_million * MILLION)


def from_dollars_a_token(usd_per_token: Decimal) -> int:
    """Return a price for one token as it is kept here."""
    return _whole(usd_per_token * MILLION * MILLION)


def dollars(microusd: int) -> Decimal:
    """Return micro-dollars as dollars."""
    return Decimal(microusd).scaleb(-6)


def _whole(amount: Decimal) -> int:
    return int(amount.quantize(Decimal(1), rounding=ROUND_HALF_UP))
