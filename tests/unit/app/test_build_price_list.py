"""The list of prices as the settings put it together."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from breakloop.app.build import price_list
from breakloop.clock import FakeClock
from breakloop.config.settings import Settings
from breakloop.errors import SettingsError
from breakloop.pricing.prices import Price

FILE = {
    "gpt-4.1": {"input_cost_per_token": 1e-06, "output_cost_per_token": 2e-06, "input_cost_per_token_batches": 5e-07},
    "gpt-4o": {"input_cost_per_token": 1e-06, "output_cost_per_token": 2e-06},
    "bad": {"input_cost_per_token": -1},
}
OWN = {"gpt-4o": {"input_usd_per_million": 7, "output_usd_per_million": 9}}


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "prices.json"
    path.write_text(json.dumps(FILE))
    return str(path)


def test_settings_then_file_then_table(file: str) -> None:
    """The shipped table can be overridden, model by model (L-5)."""
    settings = Settings.model_validate({"prices": {"file": file, "models": OWN}})
    made = price_list(settings, FakeClock())
    assert made.prices.find("openai", "gpt-4o-2024-08-06") == Price(7_000_000, 9_000_000)
    assert made.prices.find("openai", "gpt-4.1") == Price(1_000_000, 2_000_000)
    assert made.prices.find("openai", "gpt-4o-mini") == Price(150_000, 600_000, 75_000)
    assert [table.source for table in made.prices.tables][:2] == ["the settings", file]
    assert [problem.path for problem in made.problems] == ["bad.input_cost_per_token"]
    assert made.prices.find("openai", "bad") is None


def test_without_settings_there_is_the_table() -> None:
    """A price table ships with the package (L-5)."""
    made = price_list(Settings(), FakeClock())
    assert len(made.prices.tables) == 1
    assert made.prices.find("anthropic", "claude-opus-4-5") == Price(5_000_000, 25_000_000, 500_000, 6_250_000)
    assert (made.prices.unknown, made.prices.find("x", "x"), made.problems) == ("warn", None, ())


def test_service_tier_and_unknown_models(file: str) -> None:
    """Batch prices of file and table; what is assumed of the rest (L-5)."""
    said = {
        "file": file,
        "service_tier": "batch",
        "unknown_model": "assume",
        "assume": {"input_usd_per_million": 3, "output_usd_per_million": 15},
    }
    prices = price_list(Settings.model_validate({"prices": said}), FakeClock()).prices
    assert prices.find("openai", "gpt-4.1") == Price(500_000, 2_000_000)
    batch = prices.find("openai", "gpt-4.1-mini")
    assert batch is not None
    assert (batch.input, batch.output) == (200_000, 800_000)
    assert prices.find("openai", "own") == Price(3_000_000, 15_000_000)


def test_a_file_that_cannot_be_read() -> None:
    """The start fails, as with the other files of the settings (T-1)."""
    with pytest.raises(SettingsError, match=r"^prices\.file: none\.json: cannot be read"):
        price_list(Settings.model_validate({"prices": {"file": "none.json"}}), FakeClock())
