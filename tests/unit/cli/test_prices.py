"""`breakloop prices`: what a model costs, and where that is from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from breakloop.cli.main import run

SETTINGS = """\
prices:
  file: prices.json
  models:
    own-large: {input_usd_per_million: 2.5, output_usd_per_million: 10, cached_usd_per_million: 0.0375}
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def printed(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    content = json.loads(capsys.readouterr().out)
    assert isinstance(content, dict)
    return content


def test_a_model_of_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    """The name it was found under, the list, every kind, and tiers (L-5, X-3)."""
    assert run(["prices", "models/gemini-2.5-pro"]) == 0
    assert capsys.readouterr().out == (
        "models/gemini-2.5-pro: google/gemini-2.5-pro, from genai-prices 0.2.1\n"
        "\n"
        "US dollars for a million tokens:\n"
        "  input                1.25\n"
        "  cached              0.125\n"
        "  cache write      as input\n"
        "  output              10.00\n"
        "  reasoning       as output\n"
        "calls with more than 200,000 tokens of input:\n"
        "  input                2.50\n"
        "  cached               0.25\n"
        "  cache write      as input\n"
        "  output              15.00\n"
        "  reasoning       as output\n"
    )


def test_what_tokens_cost(capsys: pytest.CaptureFixture[str]) -> None:
    """To the micro-dollar (L-5)."""
    assert (
        run(["prices", "gpt-4.1", "--input", "10000", "--cached", "9000", "--output", "501", "--reasoning", "1"]) == 0
    )
    said = capsys.readouterr().out.splitlines()[-1]
    assert said == "10,000 input (9,000 cached) and 501 output (1 reasoning): $0.010508"
    assert run(["prices", "gpt-4.1", "--input", "1", "--json"]) == 0
    assert printed(capsys)["cost_microusd"] == 2
    assert run(["prices", "sonar", "--provider", "perplexity", "--input", "1000"]) == 0
    said = capsys.readouterr().out
    assert "each call" in said
    assert "$0.013000" in said


def test_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    """Amounts as text, so that they stay exact; each kind has one (X-3)."""
    assert run(["prices", "claude-opus-4-5", "--json", "--input", "1000", "--cache-write", "200"]) == 0
    assert printed(capsys) == {
        "ok": True,
        "model": "claude-opus-4-5",
        "name": "anthropic/claude-opus-4-5",
        "source": "genai-prices 0.2.1",
        "input_usd_per_million": "5.00",
        "cached_usd_per_million": "0.50",
        "cache_write_usd_per_million": "6.25",
        "output_usd_per_million": "25.00",
        "reasoning_usd_per_million": "25.00",
        "call_usd": "0.00",
        "tiers": [],
        "usage": {
            "input_tokens": 1000,
            "output_tokens": 0,
            "cached_tokens": 0,
            "cache_write_tokens": 200,
            "reasoning_tokens": 0,
        },
        "cost_microusd": 5250,
    }
    assert run(["prices", "gemini-2.5-pro", "--json"]) == 0
    assert printed(capsys)["tiers"][0]["above_input_tokens"] == 200_000


def test_an_unknown_model(capsys: pytest.CaptureFixture[str]) -> None:
    """An unknown model: exit code 1, with the nearest names, what follows from it, and what to do (X-3)."""
    assert run(["prices", "openai/gpt-4.1-mni"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("no price is known for openai/gpt-4.1-mni\n  nearest: openai/gpt-4.1-mini")
    assert "a model without a price costs nothing; a warning is logged (prices.unknown_model: warn)" in said.err
    assert 'prices: {models: {"openai/gpt-4.1-mni": {input_usd_per_million: 2.50' in said.err
    assert run(["prices", "gpt-4.1-mni", "--json"]) == 1
    content = printed(capsys)
    assert (content["ok"], content["unknown_model"]) == (False, "warn")
    assert any(name.endswith("gpt-4.1-mini") for name in content["nearest"])
    assert run(["prices", "zzzzzzzzzzzz"]) == 1
    assert "nearest" not in capsys.readouterr().err


def test_the_remedy_works(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What it says to write can be written (X-3)."""
    assert run(["prices", "own/x.1"]) == 1
    (here / "breakloop.yaml").write_text(capsys.readouterr().err.splitlines()[-1].strip() + "\n")
    assert run(["prices", "own/x.1"]) == 0
    assert "own/x.1, from the settings" in capsys.readouterr().out


def test_settings_and_file(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Overrides, and which entries of the file were left out (L-5)."""
    (here / "breakloop.yaml").write_text(SETTINGS)
    (here / "prices.json").write_text('{"m": {"input_cost_per_token": 1e-06},\n "bad": {"input_cost_per_token": "x"}}')
    assert run(["prices", "own-large"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("own-large: own-large, from the settings\n")
    assert "0.0375\n" in said
    assert run(["prices"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(
        "Prices are looked up in this order:\n      1 model   the settings\n      1 model   prices.json\n"
    )
    assert " models  genai-prices 0.2.1\n" in said
    assert "left out, 1 of the file:\n  prices.json:2:2: bad.input_cost_per_token: must be a number, got 'x'" in said
    assert run(["prices", "--json"]) == 0
    content = printed(capsys)
    assert [one["models"] for one in content["lists"]][:2] == [1, 1]
    assert content["lists"][2]["models"] > 2000
    assert content["problems"][0]["line"] == 2


def test_what_is_assumed(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """unknown_model and assume are shown (L-5)."""
    (here / "c.yaml").write_text(
        "prices: {unknown_model: assume, assume: {input_usd_per_million: 3, output_usd_per_million: 15}}\n"
    )
    assert run(["prices", "--config", "c.yaml"]) == 0
    said = capsys.readouterr().out
    assert "is assumed to cost 3.00 for input, 15.00 for output (prices.unknown_model: assume)" in said


@pytest.mark.parametrize(
    "arguments",
    [
        ["--input", "1"],
        ["gpt-4.1", "--input", "-1"],
        ["gpt-4.1", "--input", "5", "--cached", "6"],
        ["gpt-4.1", "--output", "5", "--reasoning", "6"],
        ["gpt-4.1", "gpt-4o"],
    ],
)
def test_calling_it_wrongly(arguments: list[str]) -> None:
    """Calling it wrongly: usage is 3 (X-3)."""
    assert run(["prices", *arguments]) == 3


def test_wrong_settings(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Wrong settings: exit code 1, and what is wrong (X-3)."""
    (here / "breakloop.yaml").write_text("prices: {file: none.json}\n")
    assert run(["prices", "gpt-4.1"]) == 1
    assert "prices.file: none.json: cannot be read: No such file" in capsys.readouterr().err
    (here / "breakloop.yaml").write_text("prices: {models: 1}\n")
    assert run(["prices", "--json"]) == 1
    assert printed(capsys)["ok"] is False
