"""Which price a model has."""

from __future__ import annotations

from breakloop.clock import FakeClock
from breakloop.model.call import Usage
from breakloop.pricing.prices import NAME_MAX, FoundPrice, ListedModel, ModelName, Price, Prices

A, B, C = Price(1, 1), Price(2, 2), Price(3, 3)


class Asked(ListedModel):
    """Counts how often it is asked."""

    times = 0
    at_s = 0.0

    def find(self, named: ModelName, at_s: float) -> FoundPrice | None:
        self.times += 1
        self.at_s = at_s
        return super().find(named, at_s)


def test_overrides_come_first_in_their_order() -> None:
    """Single models, then the file, then the table (L-5)."""
    prices = Prices(
        ListedModel({"m": A, "n": A, "o": A}, "table"),
        [ListedModel({"m": C}, "settings"), ListedModel({"m": B, "n": B}, "file")],
    )
    assert [prices.find("", name) for name in "mno"] == [C, B, A]
    assert prices.look_up("openai", "n") == FoundPrice(B, "n", "file")
    assert [table.source for table in prices.tables] == ["settings", "file", "table"]


def test_an_override_holds_for_dated_versions_too() -> None:
    """The answer often names the version; an entry of its own in the same list is closer (L-5)."""
    prices = Prices(
        ListedModel({"gpt-x-2025-01-01": A}, "table"), [ListedModel({"gpt-x": B, "gpt-x-2024-01-01": C}, "own")]
    )
    assert prices.find("openai", "gpt-x-2025-01-01") == B
    assert prices.find("openai", "gpt-x-2024-01-01") == C


def test_names_with_their_provider() -> None:
    """`provider/model` holds for that provider only, by any of its names and in any case (L-5)."""
    prices = Prices(ListedModel({"Azure/GPT-x": A, "gpt-x": B, "gemini/g": C}, "own"))
    assert (prices.find("azure", "gpt-x"), prices.find("openai", "gpt-x"), prices.find("", "azure/gpt-X")) == (A, B, A)
    assert prices.find("gemini", "models/g") == prices.find("", "vertex_ai/g") == C
    assert prices.find("openai", "g") is None
    assert prices.look_up("azure", "gpt-x") == FoundPrice(A, "Azure/GPT-x", "own")
    assert list(ListedModel({"Azure/GPT-x": A, "gpt-x": B}, "own").names()) == ["Azure/GPT-x", "gpt-x"]


def test_unknown_models() -> None:
    """`warn` and `deny` leave it to whoever asks; `assume` has a price for everything (L-5)."""
    table = ListedModel({"m": A}, "table")
    assert Prices(table).find("openai", "x") is None
    assert Prices(table).unknown == "warn"
    assert Prices(table, unknown="deny", assumed=B).find("openai", "x") is None
    assuming = Prices(table, unknown="assume", assumed=B)
    assert (assuming.find("openai", "x"), assuming.find("openai", "m"), assuming.assumed) == (B, A, B)
    assert assuming.look_up("openai", "x") is None, "what is assumed is in no list"
    assert assuming.find("openai", "x" * (NAME_MAX + 1)) == B


def test_it_is_remembered_for_a_quarter_of_an_hour() -> None:
    """Prices change with the date and the time of day (L-5)."""
    clock = FakeClock(900 * 2_000_000 + 30.0)
    table = Asked({"m": A}, "table")
    prices = Prices(table, clock=clock)
    for _ in range(3):
        assert (prices.find("openai", "m"), prices.find("openai", "x")) == (A, None)
    asked = table.times
    clock.advance(869)
    prices.find("openai", "m")
    assert table.times == asked
    clock.advance(1)
    prices.find("openai", "m")
    assert table.times > asked
    assert table.at_s == clock.now()


def test_a_clock_that_steps_back_does_no_harm() -> None:
    """A clock that steps back does no harm (L-5)."""
    clock = FakeClock()
    prices = Prices(ListedModel({"m": A}, "table"), clock=clock)
    assert prices.find("", "m") == A
    clock.advance(-5000)
    assert prices.find("", "m") == A


def test_names_come_from_clients() -> None:
    """They cannot make it grow, and very long ones are not looked at (Y-2)."""
    table = Asked({"m": A}, "table")
    prices = Prices(table, clock=FakeClock())
    for number in range(5000):
        prices.find("openai", f"x{number}")
    assert len(prices._known) <= 2048
    asked = table.times
    assert prices.find("openai", "m" * (NAME_MAX + 1)) is None
    assert table.times == asked
    assert all(len(model) <= NAME_MAX for _, model in prices._known)


def test_costs() -> None:
    """As `price` counts (L-5)."""
    assert Prices.cost_microusd(Price(2_500_000, 10_000_000), Usage(1000, 10)) == 2600
