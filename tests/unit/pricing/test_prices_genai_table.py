"""The table that ships with the package."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from fractions import Fraction

import pytest
from genai_prices.data import providers
from genai_prices.types import Usage as TheirUsage

from breakloop.clock import FakeClock
from breakloop.model.call import Usage
from breakloop.pricing.prices import GenaiTable, ModelName, Price, Prices, ServiceTier, Tier, cost_microusd
from tests.each import each

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC).timestamp()
TABLE = GenaiTable()
PRICES = Prices(TABLE, clock=FakeClock(NOW))


def test_prices_are_exact_and_tiers_are_kept() -> None:
    """Dollars for a million tokens, times a million (L-5)."""
    assert PRICES.find("openai", "gpt-4.1") == Price(2_000_000, 8_000_000, 500_000)
    assert PRICES.find("anthropic", "claude-opus-4-5") == Price(5_000_000, 25_000_000, 500_000, 6_250_000)
    assert PRICES.find("gemini", "gemini-2.5-pro") == Price(
        1_250_000, 10_000_000, 125_000, tiers=(Tier(200_000, Price(2_500_000, 15_000_000, 250_000)),)
    )
    assert PRICES.find("perplexity", "sonar") == Price(1_000_000, 1_000_000, call=12_000)
    assert PRICES.find("perplexity", "sonar-deep-research") == Price(2_000_000, 8_000_000, reasoning=3_000_000)


@each(
    "provider, model, name",
    [
        ("openai", "gpt-4.1-mini-2025-04-14", "openai/gpt-4.1-mini"),
        ("", "openai/gpt-4.1", "openai/gpt-4.1"),
        ("", "gpt-4.1", "openai/gpt-4.1"),
        ("litellm", "gpt-4.1", "openai/gpt-4.1"),
        ("my-openai", "gpt-4.1", "openai/gpt-4.1"),
        ("openai", "gpt-4.1-2031-12-24", "openai/gpt-4.1"),
        ("openai", "text-embedding-3-small", "openai/text-embedding-3-small"),
        ("", "text-embedding-3-small", "openai/text-embedding-3-small"),
        ("openai", "ft:gpt-4o-mini-2024-07-18:org::id", "openai/ft:gpt-4o-mini"),
        ("anthropic", "claude-opus-4-5-20251101", "anthropic/claude-opus-4-5"),
        ("", "anthropic/claude-sonnet-4-5", "anthropic/claude-sonnet-4-5"),
        ("", "claude-sonnet-4-5[1m]", "anthropic/claude-sonnet-4-5"),
        ("openai", "claude-opus-4-5", "anthropic/claude-opus-4-5"),
        ("gemini", "models/gemini-2.5-pro", "google/gemini-2.5-pro"),
        ("", "gemini/gemini-2.5-flash", "google/gemini-2.5-flash"),
        ("", "vertex_ai/claude-sonnet-4@20250514", "google/claude-4-sonnet"),
        ("", "projects/p/locations/l/publishers/google/models/gemini-2.5-flash", "google/gemini-2.5-flash"),
        ("bedrock", "anthropic.claude-3-haiku-20240307-v1:0", "aws/regional.anthropic.claude-3-haiku-20240307-v1:0"),
        ("", "eu.amazon.nova-pro-v1:0", "aws/amazon.nova-pro-v1:0"),
        ("azure", "gpt-4.1", "azure/gpt-4.1"),
        ("openrouter", "anthropic/claude-opus-4.5", "openrouter/anthropic/claude-opus-4.5"),
        ("groq", "llama-3.3-70b-versatile", "groq/llama-3.3-70b-versatile"),
        ("", "xai/grok-4", "x-ai/grok-4-0709"),
        ("", "mistral/mistral-large-latest", "mistral/mistral-large"),
    ],
)
def test_ids_as_gateways_see_them(provider: str, model: str, name: str) -> None:
    """Ids as gateways see them (L-5)."""
    found = PRICES.look_up(provider, model)
    assert found is not None
    assert (found.name, found.source) == (name, TABLE.source)
    assert found.source.startswith("genai-prices 0.")


@pytest.mark.parametrize("model", ["my-deployment", "llama-3.3-70b", "<synthetic>", "gpt-banana", "", "whisper-1"])
def test_ids_that_say_nothing(model: str) -> None:
    """A deployment's name, a model of many hosts, one that is not paid by tokens: not known, and not free (L-5)."""
    assert PRICES.look_up("azure" if model == "my-deployment" else "", model) is None


def test_free_models_are_free() -> None:
    """The table says so by naming no unit at all (L-5)."""
    assert PRICES.find("google", "gemma-3-27b-it") == Price()


def test_prices_change_with_time() -> None:
    """By the date, and by the time of day (L-5)."""

    def at(model: str, when: datetime) -> Price | None:
        found = TABLE.find(ModelName("", model), when.timestamp())
        return None if found is None else found.price

    o3 = [at("o3", datetime(2025, month, 1, tzinfo=UTC)) for month in (6, 7)]
    assert [price and price.input for price in o3] == [10_000_000, 2_000_000]
    hours = {at("deepseek-chat", datetime(2025, 3, 1, hour, tzinfo=UTC)) for hour in range(24)}
    assert len(hours) == 2, "cheaper at night"


@pytest.mark.parametrize(
    ("tier", "price"),
    [("batch", Price(1_000_000, 4_000_000, 250_000)), ("standard", Price(2_000_000, 8_000_000, 500_000))],
)
def test_batch_prices(tier: ServiceTier, price: Price) -> None:
    """Where the traffic here is paid by another service tier; models without such a price have the standard one
    (L-5)."""
    found = GenaiTable(tier).find(ModelName("openai", "gpt-4.1"), NOW)
    assert found is not None
    assert found.price == price._replace(cached=found.price.cached)
    plain = GenaiTable(tier).find(ModelName("groq", "llama-3.3-70b-versatile"), NOW)
    assert plain is not None


def test_every_model_costs_what_its_package_says() -> None:
    """The whole table against the package's own arithmetic, to the micro-dollar (L-5)."""
    usage = Usage(130_001, 7_003, 50_001, 0, 0)
    compared = 0
    for provider in providers:
        for model in provider.models:
            stated = model.get_prices(datetime.fromtimestamp(NOW, UTC))
            kinds = {key for key in vars(stated) if not key.endswith(("_mtok", "requests_kcount"))}
            found = TABLE.find(ModelName(provider.id, model.id.lower()), NOW)
            if found is None or found.name != f"{provider.id}/{model.id}" or kinds or "output_mtok" not in vars(stated):
                continue
            theirs = stated.calc_price(
                TheirUsage(
                    input_tokens=usage.input_tokens,
                    output_tokens=usage.output_tokens,
                    cache_read_tokens=usage.cached_tokens,
                )
            )["total_price"]
            exact = Fraction(theirs) * 1_000_000
            assert abs(cost_microusd(found.price, usage) - exact) <= Fraction(1, 2), found
            compared += 1
    assert compared > 1500


def test_names() -> None:
    """Who serves it, and the model (X-3)."""
    names = list(TABLE.names())
    assert len(names) > 2000
    assert "openai/gpt-4.1" in names


def test_it_can_be_loaded_beforehand() -> None:
    """So that the first request that costs money does not wait for it (L-5)."""
    table = GenaiTable()
    Prices(table).load()
    assert table._loaded is not None


def test_it_is_loaded_when_it_is_asked() -> None:
    """Not by importing breakloop, nor by making the table; and it fetches nothing (T-1)."""
    code = (
        "import sys, socket\n"
        "def refuse(*_): raise AssertionError('network')\n"
        "socket.socket.connect = socket.getaddrinfo = refuse\n"
        "import breakloop, breakloop.pricing.prices\n"
        "from breakloop.pricing.prices import GenaiTable\n"
        "table = GenaiTable()\n"
        "assert 'genai_prices' not in sys.modules\n"
        "assert len(list(table.names())) > 2000 and 'genai_prices' in sys.modules\n"
        "import threading; assert threading.active_count() == 1\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
