"""Which price a model has (SPEC L-5): overrides first, each list in turn, then the table that ships with the package;
else what is assumed of unknown models, if anything is. What a price is and how it is paid is `price`'s; how model ids
are read is `names`'. Nothing here asks a network."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, NamedTuple, Protocol

from breakloop.clock import Clock, SystemClock
from breakloop.model.answer import Usage
from breakloop.pricing.names import NAME_MAX, Named, canonical_provider, ways
from breakloop.pricing.price import Price, cost_microusd

__all__ = ["Found", "Listed", "Price", "Prices", "Table", "Unknown"]

Unknown = Literal["warn", "deny", "assume"]

_KEPT: Final = 2048
_AGE_S: Final = 900.0  # prices by the time of day change on the quarter hour; others with the date


class Found(NamedTuple):
    """A price, the name it stands under, and the list that it is from."""

    price: Price
    name: str
    source: str


class Table(Protocol):
    """A list of prices."""

    @property
    def source(self) -> str:
        """Where it is from, for people."""
        ...

    def find(self, named: Named, at_s: float) -> Found | None:
        """Return the price of a model at a time, if it stands here under that name."""
        ...

    def names(self) -> Iterable[str]:
        """Return the names of its models."""
        ...


class Listed:
    """Prices by exact name, `model` or `provider/model`, in any case."""

    __slots__ = ("_prices", "_said", "source")

    def __init__(self, prices: Mapping[str, Price], source: str) -> None:
        self.source = source
        self._prices: dict[str, Price] = {}
        self._said: dict[str, str] = {}  # as it was written
        for name, price in prices.items():
            for key in _keys(name):
                self._prices.setdefault(key, price)
                self._said.setdefault(key, name)

    def find(self, named: Named, at_s: float) -> Found | None:  # noqa: ARG002 - these prices always hold
        """Return the price that stands under that name."""
        key = f"{named.provider}/{named.model}" if named.provider else named.model
        price = self._prices.get(key)
        return None if price is None else Found(price, self._said[key], self.source)

    def names(self) -> Iterable[str]:
        """Return the names, as they were written."""
        return dict.fromkeys(self._said.values())


class Prices:
    """The prices that hold here."""

    __slots__ = ("_assumed", "_clock", "_known", "_since", "_tables", "unknown")

    def __init__(
        self,
        table: Table,
        overrides: Sequence[Table] = (),
        *,
        unknown: Unknown = "warn",
        assumed: Price | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._tables = (*overrides, table)
        self._assumed = assumed if unknown == "assume" else None
        self._clock = clock or SystemClock()
        self._known: dict[tuple[str, str], Price | None] = {}
        self._since = 0.0
        self.unknown = unknown

    def find(self, provider: str, model: str) -> Price | None:
        """Return the price of a model; None: it is not known, and nothing is assumed.

        `provider` may be the name of an upstream, or empty.
        """
        now = self._clock.now()
        if now - self._since >= _AGE_S:
            self._known.clear()
            self._since = now - now % _AGE_S
        key = (provider, model)
        try:
            return self._known[key]
        except KeyError:
            found = self.look_up(provider, model)
        price = self._assumed if found is None else found.price
        if len(model) <= NAME_MAX:
            if len(self._known) >= _KEPT:  # names come from clients: this can be filled, but not made to grow
                self._known.clear()
            self._known[key] = price
        return price

    def look_up(self, provider: str, model: str) -> Found | None:
        """Return the price of a model with where it is from, nothing being assumed."""
        if len(model) > NAME_MAX:
            return None
        now = self._clock.now()
        tried = list(ways(provider, model))
        for table in self._tables:
            for named in tried:
                found = table.find(named, now)
                if found is not None:
                    return found
        return None

    def load(self) -> None:
        """Load what is loaded at the first look, so that no request waits for it."""
        self.look_up("", "-")

    @staticmethod
    def cost_microusd(price: Price, usage: Usage) -> int:
        """Return what these tokens cost, in whole micro-dollars."""
        return cost_microusd(price, usage)

    @property
    def assumed(self) -> Price | None:
        """What unknown models are assumed to cost."""
        return self._assumed

    @property
    def tables(self) -> Sequence[Table]:
        """The lists, in the order in which they are looked through."""
        return self._tables


def _keys(name: str) -> Iterable[str]:
    """The name in lower case, also with its first part as tables call that provider."""
    folded = name.strip().lower()
    prefix, slash, rest = folded.partition("/")
    return (folded, f"{canonical_provider(prefix)}/{rest}") if slash else (folded,)
