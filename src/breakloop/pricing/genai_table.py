"""The table of prices that ships with the package: `genai-prices`, behind our own interface, and the only file that
knows it. It is loaded when it is first asked, and nothing here fetches anything: the updater of that package is not
started. Its own lookups remember every name for ever, so only its uncached parts are used."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from importlib.metadata import version
from typing import TYPE_CHECKING, Final, Literal

from breakloop.pricing.names import Named
from breakloop.pricing.price import Price, Tier, from_dollars
from breakloop.pricing.prices import Found

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo, ModelPrice, Provider, TieredPrices

    Amounts = dict[str, Decimal | TieredPrices | None]

ServiceTier = Literal["standard", "batch", "flex", "priority"]

_PACKAGE: Final = "genai-prices"
_PER_CALL: Final = "requests_kcount"
_CONTEXTS: Final[dict[str, dict[str, str]]] = {
    "standard": {},
    "batch": {"processing": "batch"},
    "flex": {"service_tier": "flex"},
    "priority": {"service_tier": "priority"},
}
# Who made the models they serve: a bare name is theirs, where no pattern of the table says whose it is.
_MAKERS: Final = (
    "openai",
    "anthropic",
    "google",
    "mistral",
    "deepseek",
    "x-ai",
    "cohere",
    "voyageai",
    "moonshotai",
    "zai",
    "minimax",
    "meta",
    "perplexity",
)


class GenaiTable:
    """Prices of some two thousand models of some fifty providers."""

    __slots__ = ("_bare", "_context", "_loaded", "source")

    def __init__(self, service_tier: ServiceTier = "standard") -> None:
        self.source = f"{_PACKAGE} {version(_PACKAGE)}"
        self._context = _CONTEXTS[service_tier]
        self._loaded: list[Provider] | None = None
        self._bare: dict[str, tuple[Provider, ModelInfo]] = {}

    def find(self, named: Named, at_s: float) -> Found | None:
        """Return the price of a model at a time, if it stands here under that name."""
        for provider, model in self._matches(named):
            price = _price(model.get_prices(datetime.fromtimestamp(at_s, UTC), self._context or None))
            if price is not None:
                return Found(price, f"{provider.id}/{model.id}", self.source)
        return None

    def names(self) -> Iterable[str]:
        """Return the names of its models, `provider/model`."""
        return [f"{provider.id}/{model.id}" for provider in self.load() for model in provider.models]

    def load(self) -> list[Provider]:
        """Load the table, if it is not: some 0.2 s, once."""
        if self._loaded is None:
            from genai_prices.data import providers  # noqa: PLC0415 - heavy, and not needed by everybody

            by_id = {provider.id: provider for provider in providers}
            for maker in reversed(_MAKERS):
                if maker in by_id:
                    self._bare |= {model.id.lower(): (by_id[maker], model) for model in by_id[maker].models}
            self._loaded = providers
        return self._loaded

    def _matches(self, named: Named) -> Iterator[tuple[Provider, ModelInfo]]:
        providers = self.load()
        if named.provider:
            served = self._provider(named.provider)
            found = served.find_model(named.model, all_providers=providers) if served is not None else None
            if served is not None and found is not None:
                yield served, found
            return
        for provider in providers:
            if provider.model_match is not None and provider.model_match.is_match(named.model):
                found = provider.find_model(named.model)
                if found is not None:
                    yield provider, found
        if named.model in self._bare:
            yield self._bare[named.model]

    def _provider(self, name: str) -> Provider | None:
        providers = self.load()
        exact = next((provider for provider in providers if provider.id == name), None)
        if exact is not None:
            return exact
        matching = (one for one in providers if one.provider_match is not None and one.provider_match.is_match(name))
        return next(matching, None)


def _price(said: ModelPrice) -> Price | None:
    """Return a price as it is counted with; None when it is not by tokens. One that names no unit at all is free."""
    amounts: Amounts = dict(vars(said))
    if amounts and amounts.get("input_mtok") is None and amounts.get("output_mtok") is None:
        return None
    tiered = [one for one in amounts.values() if one is not None and not isinstance(one, Decimal)]
    starts = sorted({tier.start for one in tiered for tier in one.tiers})
    base = _at(amounts, 0)
    return base._replace(tiers=tuple(Tier(start, _at(amounts, start + 1)) for start in starts))


def _at(amounts: Amounts, tokens: int) -> Price:
    """The price of a call with so much input."""
    per_thousand = amounts.get(_PER_CALL)
    return Price(
        _kind(amounts.get("input_mtok"), tokens) or 0,
        _kind(amounts.get("output_mtok"), tokens) or 0,
        _kind(amounts.get("cache_read_mtok"), tokens),
        _kind(amounts.get("cache_write_mtok"), tokens),
        _kind(amounts.get("output_reasoning_mtok"), tokens),
        from_dollars(per_thousand / 1000) if isinstance(per_thousand, Decimal) else 0,
    )


def _kind(amount: Decimal | TieredPrices | None, tokens: int) -> int | None:
    if amount is None or isinstance(amount, Decimal):
        return None if amount is None else from_dollars(amount)
    prices = [tier.price for tier in amount.tiers if tokens > tier.start]
    return from_dollars(prices[-1] if prices else amount.base)
