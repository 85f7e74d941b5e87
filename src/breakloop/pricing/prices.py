"""Prices of models, and the cost of token usage.

Amounts are integers: prices in micro-dollars per million tokens, costs in micro-dollars, rounded once. `Prices`
searches the override tables in order, then `GenaiTable`; if no table has the model, the price assumed for unknown
models applies, if one is configured. Model ids are tried in several spellings, the most specific first (`ways`).

`GenaiTable` wraps the package `genai-prices` (the extra `prices`) and is the only code that depends on it. The package
is imported on first use, and its updater is not started, so no network requests are made. Only its uncached lookups are
used, because its caches grow without limit.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from decimal import ROUND_HALF_UP, Decimal
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Protocol

from breakloop.clock import Clock, SystemClock
from breakloop.model.call import Usage

MILLION: Final = 1_000_000
_HALF: Final = MILLION // 2


class Price(NamedTuple):
    """Micro-dollars per million tokens of each kind. None: the price of input (or of output, for reasoning) applies."""

    input: int = 0
    output: int = 0
    cached: int | None = None  # input read from the provider's cache
    cache_write: int | None = None  # input written to the provider's cache
    reasoning: int | None = None  # reasoning output
    call: int = 0  # micro-dollars per call, regardless of its size
    tiers: tuple[Tier, ...] = ()  # ascending; the last one that applies is used for the whole call

    def for_input(self, input_tokens: int) -> Price:
        """Return the price that applies to a call with this many input tokens."""
        found = self
        for tier in self.tiers:
            if input_tokens <= tier.above_tokens:
                break
            found = tier.price
        return found


class Tier(NamedTuple):
    """The price of calls with more than `above_tokens` input tokens."""

    above_tokens: int
    price: Price


def cost_microusd(price: Price, usage: Usage) -> int:
    """Return the cost in micro-dollars, rounded half up. If the parts of a usage exceed its total, they are charged."""
    asked, answered, cached, written, reasoned, _ = usage
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
    """Convert dollars per million tokens to micro-dollars per million tokens."""
    return _whole(usd_per_million * MILLION)


def from_dollars_a_token(usd_per_token: Decimal) -> int:
    """Convert dollars per token to micro-dollars per million tokens."""
    return _whole(usd_per_token * MILLION * MILLION)


def dollars(microusd: int) -> Decimal:
    return Decimal(microusd).scaleb(-6)


def _whole(amount: Decimal) -> int:
    return int(amount.quantize(Decimal(1), rounding=ROUND_HALF_UP))


_PREFIXES_MAX: Final = 3
NAME_MAX: Final = 200  # longer names are not models, and matching them is slow

# Names of upstreams and gateway prefixes of model ids -> the provider's name in price tables.
PROVIDERS: Final = {
    "azure_ai": "azure",
    "azure_openai": "azure",
    "bedrock": "aws",
    "bedrock_converse": "aws",
    "claude": "anthropic",
    "fireworks_ai": "fireworks",
    "gemini": "google",
    "grok": "x-ai",
    "mistralai": "mistral",
    "moonshot": "moonshotai",
    "text-completion-openai": "openai",
    "together_ai": "together",
    "vertex": "google",
    "vertex_ai": "google",
    "xai": "x-ai",
}
# For example us.anthropic.claude-opus-4-5-20251101-v1:0, which is region, vendor and model.
_BEDROCK: Final = re.compile(
    r"^(?:[a-z]{2,6}(?:-gov)?\.)?"
    r"(?:ai21|amazon|anthropic|cohere|deepseek|google|meta|minimax|mistral|moonshotai?|nvidia|openai|qwen|writer|zai)\.[a-z]"
)
_VERTEX: Final = re.compile(r"^(?:projects/.+/)?publishers/[^/]+/models/")  # served by Google, whatever the vendor
_ARN: Final = re.compile(r"^arn:aws[a-z-]*:bedrock:[^/]+/")
_VARIANT: Final = re.compile(r"(?::(?:beta|exacto|extended|floor|nitro|online|thinking)|\[[0-9a-z]+\])$")
_VERSION: Final = re.compile(r"(?:[-@](?:20\d\d-\d\d-\d\d|20\d{6})|[-@:]latest|@default)$")


class ModelName(NamedTuple):
    """A name to look up. `provider` is empty if it is unknown."""

    provider: str
    model: str


def canonical_provider(name: str) -> str:
    """Return the name of a provider in price tables."""
    folded = name.strip().lower()
    return PROVIDERS.get(folded, folded)


def ways(provider: str, model: str) -> list[ModelName]:
    """Return the names under which to look up a model, the most specific first, without duplicates."""
    names = dict.fromkeys(_ways(canonical_provider(provider), model.strip().lower()))
    return [named for named in names if named.model]


def _ways(provider: str, model: str) -> Iterator[ModelName]:
    for name in _spellings(model):
        yield ModelName(provider, name)
        if _BEDROCK.match(name):
            yield ModelName("aws", name)
        rest = name
        for _ in range(_PREFIXES_MAX):  # openrouter/anthropic/claude-opus-4.5: each prefix may be the provider
            prefix, slash, after = rest.partition("/")
            if not slash:
                break
            rest = after
            yield ModelName(canonical_provider(prefix), rest)
        yield ModelName("", name)
        yield ModelName("", rest)


def _spellings(model: str) -> Iterator[str]:
    """Return the id as given, then without location, then without variant, then without version."""
    yield model
    plain = _ARN.sub("", model)
    plain = _VERTEX.sub("google/", plain).removeprefix("models/")
    yield plain
    plain = _VARIANT.sub("", plain)
    yield plain
    yield _VERSION.sub("", plain)


Unknown = Literal["warn", "deny", "assume"]

_KEPT: Final = 2048
_AGE_S: Final = 900.0  # prices that depend on the time of day change on the quarter hour, others by date


class FoundPrice(NamedTuple):
    price: Price
    name: str
    source: str


class PriceTable(Protocol):
    """A source of prices, with its name for display."""

    @property
    def source(self) -> str: ...

    def find(self, named: ModelName, at_s: float) -> FoundPrice | None:
        """Return the price of a model at a given time, or None if the table does not have this name."""
        ...

    def names(self) -> Iterable[str]: ...


class ListedModel:
    """Prices by exact name (`model` or `provider/model`), ignoring case."""

    __slots__ = ("_prices", "_said", "source")

    def __init__(self, prices: Mapping[str, Price], source: str) -> None:
        self.source = source
        self._prices: dict[str, Price] = {}
        self._said: dict[str, str] = {}  # key -> the name as written
        for name, price in prices.items():
            for key in _keys(name):
                self._prices.setdefault(key, price)
                self._said.setdefault(key, name)

    def find(self, named: ModelName, at_s: float) -> FoundPrice | None:  # noqa: ARG002 - these prices always hold
        key = f"{named.provider}/{named.model}" if named.provider else named.model
        price = self._prices.get(key)
        return None if price is None else FoundPrice(price, self._said[key], self.source)

    def names(self) -> Iterable[str]:
        return dict.fromkeys(self._said.values())


class Prices:
    """The prices in effect, from all tables."""

    cost_microusd = staticmethod(cost_microusd)

    def __init__(
        self,
        table: PriceTable,
        overrides: Sequence[PriceTable] = (),
        *,
        unknown: Unknown = "warn",
        assumed: Price | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.tables: Sequence[PriceTable] = (*overrides, table)  # in order of precedence
        self.assumed = assumed if unknown == "assume" else None
        self._clock = clock or SystemClock()
        self._known: dict[tuple[str, str], Price | None] = {}
        self._since = 0.0
        self.unknown = unknown

    def find(self, provider: str, model: str) -> Price | None:
        """Return the price of a model, or None. `provider` may be the name of an upstream, or empty."""
        now = self._clock.now()
        if now - self._since >= _AGE_S:
            self._known.clear()
            self._since = now - now % _AGE_S
        key = (provider, model)
        try:
            return self._known[key]
        except KeyError:
            found = self.look_up(provider, model)
        price = self.assumed if found is None else found.price
        if len(model) <= NAME_MAX:
            if len(self._known) >= _KEPT:  # names come from clients, so the cache must not grow without limit
                self._known.clear()
            self._known[key] = price
        return price

    def look_up(self, provider: str, model: str) -> FoundPrice | None:
        """Return the price of a model and its source, or None if it is unknown. Assumed prices are not considered."""
        if len(model) > NAME_MAX:
            return None
        now = self._clock.now()
        tried = ways(provider, model)
        for table in self.tables:
            for named in tried:
                found = table.find(named, now)
                if found is not None:
                    return found
        return None

    def load(self) -> None:
        """Load the tables in advance, so that no request waits for them."""
        self.look_up("", "-")


def _keys(name: str) -> Iterable[str]:
    """Return the name in lower case, and with its prefix replaced by the provider's canonical name."""
    folded = name.strip().lower()
    prefix, slash, rest = folded.partition("/")
    return (folded, f"{canonical_provider(prefix)}/{rest}") if slash else (folded,)


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
# Vendors that serve their own models, in order of precedence: bare names that match no pattern are theirs.
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


def has_table() -> bool:
    """Return whether the package of prices is installed, without importing it."""
    return find_spec("genai_prices") is not None


class GenaiTable:
    """Prices of about 2,000 models from about 50 providers."""

    __slots__ = ("_bare", "_context", "_loaded", "source")

    def __init__(self, service_tier: ServiceTier = "standard") -> None:
        from importlib.metadata import version  # noqa: PLC0415 - a `Guard` whose policy has no budget does not need it

        self.source = f"{_PACKAGE} {version(_PACKAGE)}"
        self._context = _CONTEXTS[service_tier]
        self._loaded: list[Provider] | None = None
        self._bare: dict[str, tuple[Provider, ModelInfo]] = {}

    def find(self, named: ModelName, at_s: float) -> FoundPrice | None:
        for provider, model in self._matches(named):
            price = _price(model.get_prices(datetime.fromtimestamp(at_s, UTC), self._context or None))
            if price is not None:
                return FoundPrice(price, f"{provider.id}/{model.id}", self.source)
        return None

    def names(self) -> Iterable[str]:
        """Return the names of all models, as `provider/model`."""
        return [f"{provider.id}/{model.id}" for provider in self.load() for model in provider.models]

    def load(self) -> list[Provider]:
        """Load the table on first use, which takes about 0.2 s."""
        if self._loaded is None:
            from genai_prices.data import providers  # noqa: PLC0415 - heavy, and not needed by everybody

            by_id = {provider.id: provider for provider in providers}
            for maker in reversed(_MAKERS):
                if maker in by_id:
                    self._bare |= {model.id.lower(): (by_id[maker], model) for model in by_id[maker].models}
            self._loaded = providers
        return self._loaded

    def _matches(self, named: ModelName) -> Iterator[tuple[Provider, ModelInfo]]:
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
    """Convert a price of `genai-prices`; None if it is not per token. A price without any amounts is free."""
    amounts: Amounts = dict(vars(said))
    if amounts and amounts.get("input_mtok") is None and amounts.get("output_mtok") is None:
        return None
    tiered = [one for one in amounts.values() if one is not None and not isinstance(one, Decimal)]
    starts = sorted({tier.start for one in tiered for tier in one.tiers})
    base = _at(amounts, 0)
    return base._replace(tiers=tuple(Tier(start, _at(amounts, start + 1)) for start in starts))


def _at(amounts: Amounts, tokens: int) -> Price:
    """Return the price that applies to a call with this many input tokens."""
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
