"""What a model costs, as settings say it: US dollars for a million tokens. Where these blocks stand is
`settings_fields`' business; the list of prices is put together in `price_list`."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated

from pydantic import BeforeValidator, Field, WithJsonSchema

from breakloop import settings_checks
from breakloop.policy.schema_types import Model
from breakloop.pricing.price import Price, from_dollars

Dollars = Annotated[Decimal, BeforeValidator(settings_checks.dollars), WithJsonSchema({"type": "number", "minimum": 0})]

_CACHED = "Input read from the provider's cache; as other input if it is not set."
_CACHE_WRITE = "Input written to the provider's cache; as other input if it is not set."
_REASONING = "Output that is reasoning; as other output if it is not set."


class ModelPrice(Model):
    """What one model costs, in US dollars for a million tokens."""

    input_usd_per_million: Dollars = Field(description="Input.")
    output_usd_per_million: Dollars = Field(description="Output; 0 for models that only embed.")
    cached_usd_per_million: Dollars | None = Field(default=None, description=_CACHED)
    cache_write_usd_per_million: Dollars | None = Field(default=None, description=_CACHE_WRITE)
    reasoning_usd_per_million: Dollars | None = Field(default=None, description=_REASONING)


class AssumedPrice(Model):
    """What an unknown model is assumed to cost, in US dollars for a million tokens."""

    input_usd_per_million: Dollars | None = Field(default=None, description="Input.")
    output_usd_per_million: Dollars | None = Field(default=None, description="Output.")
    cached_usd_per_million: Dollars | None = Field(default=None, description=_CACHED)
    cache_write_usd_per_million: Dollars | None = Field(default=None, description=_CACHE_WRITE)
    reasoning_usd_per_million: Dollars | None = Field(default=None, description=_REASONING)


def price(said: ModelPrice | AssumedPrice) -> Price:
    """Return it as it is counted with."""
    return Price(
        from_dollars(said.input_usd_per_million or Decimal(0)),
        from_dollars(said.output_usd_per_million or Decimal(0)),
        _kept(said.cached_usd_per_million),
        _kept(said.cache_write_usd_per_million),
        _kept(said.reasoning_usd_per_million),
    )


def _kept(usd_per_million: Decimal | None) -> int | None:
    return None if usd_per_million is None else from_dollars(usd_per_million)
