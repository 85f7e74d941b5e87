"""Prices in the settings: US dollars per million tokens, kept exactly."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest
from pydantic import ValidationError

from breakloop.config.loader import LoadedSettings, effective_settings, load_settings, settings_json_schema
from breakloop.config.settings import AssumedPrice, ModelPrice, Settings
from breakloop.errors import SettingsError
from breakloop.pricing.prices import Price


def load(tmp_path: Path, text: str = "", **env: str) -> LoadedSettings:
    (tmp_path / "breakloop.yaml").write_text(text)
    return load_settings({}, env=env, directory=tmp_path)


def wrong(tmp_path: Path, text: str = "", **env: str) -> list[str]:
    with pytest.raises(SettingsError) as raised:
        load(tmp_path, text, **env)
    return str(raised.value).splitlines()


@pytest.mark.parametrize(
    ("written", "microusd"),
    [("2.5", 2_500_000), ("0.0375", 37_500), ("3", 3_000_000), ("'1.10'", 1_100_000), ("1e-6", 1)],
)
def test_dollars_are_read_as_written(tmp_path: Path, written: str, microusd: int) -> None:
    """0.1 is a tenth, not what a float makes of it (L-5)."""
    text = f"prices: {{models: {{m: {{input_usd_per_million: {written}, output_usd_per_million: 0}}}}}}\n"
    assert load(tmp_path, text).settings.prices.models["m"].price == Price(microusd, 0)


def test_every_kind() -> None:
    """What is not set costs what it is part of (L-5)."""
    said = ModelPrice.model_validate(
        {
            "input_usd_per_million": 1,
            "output_usd_per_million": 2.5,
            "cached_usd_per_million": 0,
            "cache_write_usd_per_million": "1.25",
            "reasoning_usd_per_million": Decimal(3),
        }
    )
    assert said.price == Price(1_000_000, 2_500_000, 0, 1_250_000, 3_000_000)
    assert AssumedPrice().price == Price(0, 0)


MUSEUM = {
    "a sign": ("input_usd_per_million: $2", 'm.input_usd_per_million: must be a number, got "$2" (US dollars per'),
    "a list": ("input_usd_per_million: [2]", "m.input_usd_per_million: must be a number (US dollars per million"),
    "truth": ("input_usd_per_million: true", "m.input_usd_per_million: must be a number (US dollars"),
    "negative": ("input_usd_per_million: -1", "m.input_usd_per_million: must be 0 to 1000000, got -1"),
    "too much": ("input_usd_per_million: 1e9", "m.input_usd_per_million: must be 0 to 1000000, got 1"),
    "no number": ("input_usd_per_million: 'nan'", "m.input_usd_per_million: must be"),
    "too fine": (
        "input_usd_per_million: 0.0000001",
        "m.input_usd_per_million: 1E-7 has more than six decimal places",
    ),
    "misspelt": (
        "input_usd_per_milion: 1",
        'm.input_usd_per_milion: is not a setting; did you mean "input_usd_per_million"?',
    ),
}


@pytest.mark.parametrize("case", MUSEUM)
def test_museum(tmp_path: Path, case: str) -> None:
    """File, line, column, field and remedy (L-5, T-1)."""
    field, said = MUSEUM[case]
    text = f"port: 1\nprices:\n  models:\n    m:\n      {field}\n      output_usd_per_million: 1\n"
    found = wrong(tmp_path, text)
    assert any(line.startswith("breakloop.yaml:5:") and f": prices.models.{said}" in line for line in found), found


def test_both_prices_are_needed(tmp_path: Path) -> None:
    """A price without the other half would make half of every call free (L-5)."""
    assert wrong(tmp_path, "prices:\n  models:\n    gpt-4.1: {input_usd_per_million: 1}\n") == [
        'breakloop.yaml:3:5: prices.models["gpt-4.1"].output_usd_per_million: is missing'
    ]
    assert wrong(tmp_path, "prices: {models: {m: 3}}\n") == ["breakloop.yaml:1:22: prices.models.m: must be a map"]
    assert wrong(tmp_path, "prices: {models: [m]}\n") == [
        "breakloop.yaml:1:18: prices.models: must be a map, got ['m']"
    ]


def test_assuming_needs_a_price(tmp_path: Path) -> None:
    """`assume` without numbers would be free of charge (L-5)."""
    assert wrong(tmp_path, "prices:\n  unknown_model: assume\n  assume: {output_usd_per_million: 1}\n") == [
        "breakloop.yaml:2:18: prices.unknown_model: needs an assumed price (set prices.assume.input_usd_per_million)"
    ]
    (said,) = wrong(tmp_path, BREAKLOOP_PRICES_UNKNOWN_MODEL="assume")
    assert said.startswith("environment BREAKLOOP_PRICES_UNKNOWN_MODEL: needs an assumed price (set prices.assume.")
    assert said.endswith("input_usd_per_million and prices.assume.output_usd_per_million)")
    settings = load(
        tmp_path, "prices: {unknown_model: assume, assume: {input_usd_per_million: 3, output_usd_per_million: 15}}\n"
    ).settings
    assert settings.prices.assume.price == Price(3_000_000, 15_000_000)
    assert wrong(tmp_path, "prices: {unknown_model: guess}\n") == [
        "breakloop.yaml:1:25: prices.unknown_model: must be 'warn', 'deny' or 'assume', got 'guess'"
    ]


def test_variables(tmp_path: Path) -> None:
    """Every one of them, the map as JSON; what is wrong names the variable and the field (T-1)."""
    loaded = load(
        tmp_path,
        "prices: {unknown_model: deny, models: {a: {input_usd_per_million: 1, output_usd_per_million: 1}}}\n",
        BREAKLOOP_PRICES_UNKNOWN_MODEL="ASSUME",
        BREAKLOOP_PRICES_ASSUME_INPUT_USD_PER_MILLION="2.50",
        BREAKLOOP_PRICES_ASSUME__OUTPUT_USD_PER_MILLION="10",
        BREAKLOOP_PRICES_MODELS='{"b": {"input_usd_per_million": 0.1, "output_usd_per_million": 0}}',
        BREAKLOOP_PRICES_FILE="/p.json",
        BREAKLOOP_PRICES_SERVICE_TIER="batch",
    )
    said = loaded.settings.prices
    assert (said.unknown_model, said.file, said.service_tier) == ("assume", "/p.json", "batch")
    assert said.assume.price == Price(2_500_000, 10_000_000)
    assert {name: one.price for name, one in said.models.items()} == {"b": Price(100_000, 0)}
    assert loaded.warnings == ()
    shown = {row.name: (row.value, row.origin) for row in effective_settings(loaded.settings)}
    assert shown["prices.models"] == ("b", "environment BREAKLOOP_PRICES_MODELS")
    assert shown["prices.assume.cached_usd_per_million"] == ("-", "default")
    assert wrong(tmp_path, BREAKLOOP_PRICES_MODELS="{") == [
        "environment BREAKLOOP_PRICES_MODELS: must be a map, got '{'"
    ]
    models = '{"b": {"input_usd_per_million": -1, "output_usd_per_million": 0}}'
    (line,) = wrong(tmp_path, BREAKLOOP_PRICES_MODELS=models)
    assert line.startswith("environment BREAKLOOP_PRICES_MODELS: b.input_usd_per_million: must be 0 to 1000000, got -1")
    assert line.endswith(" (US dollars per million tokens, such as 2.50)")


def test_the_file_lies_beside_the_settings(tmp_path: Path) -> None:
    """Paths in breakloop.yaml start where it lies (T-2)."""
    assert load(tmp_path, "prices: {file: prices.json}\n").settings.prices.file == str(tmp_path / "prices.json")


def test_without_settings() -> None:
    """The shipped table, standard prices, and a warning for what it does not know (L-5)."""
    said = Settings().prices
    assert (said.file, said.models, said.unknown_model, said.service_tier) == ("", {}, "warn", "standard")


def test_the_schema_knows_numbers() -> None:
    """The schema knows numbers: for editors (T-1)."""
    block = settings_json_schema()["$defs"]["ModelPrice"]
    assert block["properties"]["input_usd_per_million"]["type"] == "number"
    assert block["required"] == ["input_usd_per_million", "output_usd_per_million"]


def test_a_name_must_not_be_empty() -> None:
    """A name must not be empty (L-5)."""
    with pytest.raises(ValidationError, match="must not be empty"):
        Settings.model_validate(
            {"prices": {"models": {" ": {"input_usd_per_million": 1, "output_usd_per_million": 1}}}}
        )
