"""Price files of LiteLLM's form: what is read, and a museum of what is wrong with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from breakloop.errors import SettingsError
from breakloop.pricing.litellm import Imported, parse_litellm, read_litellm
from breakloop.pricing.prices import Price, Tier


def read(entry: dict[str, Any], service_tier: str = "standard") -> Imported:
    return parse_litellm(json.dumps({"m": entry}, indent=2), "p.json", service_tier)


def price(service_tier: str = "standard", /, **entry: Any) -> Price | None:
    found = read(entry, service_tier)
    assert found.problems == ()
    return found.prices.get("m")


def test_a_file_as_people_have_it(tmp_path: Path) -> None:
    """Models, with what is not a model and what is not paid by tokens passed over; a byte order mark is one (L-5)."""
    text = """
{
    "sample_spec": {"input_cost_per_token": "USD per token", "max_tokens": "LEGACY parameter"},
    "fallback_generalizations": {"rules": []},
    "gpt-4.1": {
        "cache_read_input_token_cost": 5e-07,
        "input_cost_per_token": 2e-06,
        "input_cost_per_token_batches": 1e-06,
        "litellm_provider": "openai",
        "max_tokens": 32768,
        "mode": "chat",
        "output_cost_per_token": 8e-06,
        "output_cost_per_token_batches": 4e-06,
        "supports_vision": true
    },
    "azure/gpt-4.1": {"input_cost_per_token": 2.2e-06, "output_cost_per_token": 8.8e-06},
    "text-embedding-3-small": {"input_cost_per_token": 2e-08, "output_cost_per_token": 0.0},
    "text-moderation": {"input_cost_per_token": 0.0, "output_cost_per_token": 0.0},
    "dall-e-3": {"input_cost_per_image": 0.04, "mode": "image_generation"},
    "whisper-1": {"input_cost_per_second": 0.0001, "output_cost_per_second": 0.0001, "mode": "audio_transcription"}
}
"""
    file = tmp_path / "prices.json"
    file.write_text(text, "utf-8-sig")
    found = read_litellm(file)
    assert found.prices == {
        "gpt-4.1": Price(2_000_000, 8_000_000, 500_000),
        "azure/gpt-4.1": Price(2_200_000, 8_800_000),
        "text-embedding-3-small": Price(20_000, 0),
        "text-moderation": Price(0, 0),
    }
    assert (found.problems, found.others) == ((), 2)
    assert read_litellm(file, "batch").prices["gpt-4.1"] == Price(1_000_000, 4_000_000, 500_000)


def test_every_kind() -> None:
    """Input, output, cached, written, reasoning, and the call itself; exact (L-5)."""
    assert price(
        input_cost_per_token=3e-06,
        output_cost_per_token=1.5e-05,
        cache_read_input_token_cost=3e-07,
        cache_creation_input_token_cost=3.75e-06,
        output_cost_per_reasoning_token=2e-05,
        input_cost_per_request=0.012,
        cache_creation_input_token_cost_above_1hr=6e-06,
        input_cost_per_audio_token=1e-04,
        comment="x",
    ) == Price(3_000_000, 15_000_000, 300_000, 3_750_000, 20_000_000, 12_000)
    assert price(input_cost_per_token=5.5e-07, input_cost_per_token_cache_hit=1.4e-07) == Price(550_000, 0, 140_000)
    assert price(input_cost_per_token="2.5e-06", output_cost_per_token=None) == Price(2_500_000, 0)
    assert price(input_cost_per_token=5e-06, output_cost_per_image_token=4e-05) == Price(5_000_000, 40_000_000)
    assert price(output_cost_per_token=1) == Price(0, 1_000_000_000_000)


def test_tiers_by_field() -> None:
    """What holds above so many tokens; a field without such a price keeps its own (L-5)."""
    assert price(
        input_cost_per_token=1e-06,
        output_cost_per_token=2e-06,
        cache_read_input_token_cost=1e-07,
        input_cost_per_token_above_200k_tokens=3e-06,
        output_cost_per_token_above_200k_tokens=4e-06,
        input_cost_per_token_above_128k_tokens=2e-06,
        input_cost_per_image_above_128k_tokens=1,
        output_cost_per_token_above_512k_tokens=None,
    ) == Price(
        1_000_000,
        2_000_000,
        100_000,
        tiers=(
            Tier(128_000, Price(2_000_000, 2_000_000, 100_000)),
            Tier(200_000, Price(3_000_000, 4_000_000, 100_000)),
        ),
    )


def test_tiers_by_range() -> None:
    """A list of ranges of the input, in any order; a range without a price for output has the model's (L-5)."""
    tiers = [
        {"range": [32000.0, 128000.0], "input_cost_per_token": 2e-06, "output_cost_per_token": 6e-06},
        {"range": [0, 32000], "input_cost_per_token": 1e-06, "cache_read_input_token_cost": 1e-07},
    ]
    assert price(output_cost_per_token=4e-06, tiered_pricing=tiers) == Price(
        1_000_000, 4_000_000, 100_000, tiers=(Tier(32_000, Price(2_000_000, 6_000_000)),)
    )
    searches = [{"max_results_range": [0, 25], "input_cost_per_query": 0.005}]
    both = {"a": {"tiered_pricing": searches}, "b": {"input_cost_per_token": 1}}
    assert parse_litellm(json.dumps(both), "p.json").others == 1


def test_tiers_of_service() -> None:
    """Flex and priority have fields of their own; where they are missing the standard price holds (L-5)."""
    entry: dict[str, Any] = {
        "input_cost_per_token": 2e-06,
        "output_cost_per_token": 8e-06,
        "input_cost_per_token_priority": 4e-06,
        "input_cost_per_token_above_272k_tokens": 5e-06,
        "input_cost_per_token_above_272k_tokens_priority": 9e-06,
    }
    assert price(**entry) == Price(2_000_000, 8_000_000, tiers=(Tier(272_000, Price(5_000_000, 8_000_000)),))
    assert price("priority", **entry) == Price(
        4_000_000, 8_000_000, tiers=(Tier(272_000, Price(9_000_000, 8_000_000)),)
    )
    assert price("flex", **entry) == price(**entry)


def test_tokens_that_are_written_as_nothing_are_not_free() -> None:
    """A model that is paid by the second or the image has zeros for its tokens (L-5)."""
    found = parse_litellm(
        '{"a": {"input_cost_per_token": 0, "output_cost_per_token": 0, "input_cost_per_second": 0.0004},'
        ' "b": {"input_cost_per_token": 0, "output_cost_per_token": 0, "input_cost_per_second": 0}}',
        "p.json",
    )
    assert (found.prices, found.others) == ({"b": Price(0, 0)}, 1)


MUSEUM = {
    "text": ({"input_cost_per_token": "cheap"}, "m.input_cost_per_token: must be a number, got 'cheap'"),
    "truth": ({"output_cost_per_token": True}, "m.output_cost_per_token: must be a number, got True"),
    "negative": ({"input_cost_per_token": -1e-06}, "m.input_cost_per_token: must not be negative, got -0.000001"),
    "not a number": ({"input_cost_per_token": float("nan")}, "m.input_cost_per_token: must be a number, got nan"),
    "dollars for a million": (
        {"input_cost_per_token": 2.5},
        "m.input_cost_per_token: 2.5 is not the price of a single token",
    ),
    "list": ({"input_cost_per_token": [1]}, "m.input_cost_per_token: must be a number, got [1]"),
    "a kind beside": (
        {"input_cost_per_token": 1e-06, "cache_read_input_token_cost": "x"},
        "m.cache_read_input_token_cost: must be a number, got 'x'",
    ),
    "a tier": (
        {"input_cost_per_token": 1e-06, "input_cost_per_token_above_200k_tokens": {}},
        "m.input_cost_per_token_above_200k_tokens: must be a number, got {}",
    ),
    "no ranges": ({"tiered_pricing": {}}, "m.tiered_pricing: must be a list of ranges"),
    "a range that is none": ({"tiered_pricing": ["x"]}, "m.tiered_pricing[0]: must be a map"),
    "a range of words": (
        {"tiered_pricing": [{"range": ["a", "b"], "input_cost_per_token": 1}]},
        "m.tiered_pricing[0].range: must be two numbers of tokens (such as [0, 200000])",
    ),
    "a range without a price": (
        {"tiered_pricing": [{"range": [0, 1]}]},
        "m.tiered_pricing[0].input_cost_per_token: is missing",
    ),
    "a range with a bad price": (
        {"tiered_pricing": [{"range": [0, 1], "input_cost_per_token": -1}]},
        "m.tiered_pricing[0].input_cost_per_token: must not be negative, got -1",
    ),
}


@pytest.mark.parametrize("case", MUSEUM)
def test_museum_of_bad_entries(case: str) -> None:
    """Named with line, model and field, and left out; the others hold (L-5, T-1)."""
    entry, said = MUSEUM[case]
    text = '{"good": {"input_cost_per_token": 1e-06},\n "m": ' + json.dumps(entry) + "}"
    found = parse_litellm(text, "p.json")
    assert found.prices == {"good": Price(1_000_000, 0)}
    (problem,) = found.problems
    assert str(problem).startswith(f"p.json:2:2: {said}")


def test_entries_that_are_none() -> None:
    """A number in the place of a model says what to write (L-5)."""
    (problem,) = parse_litellm('{"m": 2.5}', "p.json").problems
    assert str(problem) == (
        'p.json:1:2: m: must be a map (write {"input_cost_per_token": 2.5e-06, "output_cost_per_token": 1e-05})'
    )


def test_a_model_that_stands_there_twice() -> None:
    """The last one counts, as every reader of JSON has it; and it is said (L-5)."""
    text = '{"m": {"input_cost_per_token": 1e-06},\n"m": {"input_cost_per_token": 2e-06}}'
    found = parse_litellm(text, "p.json")
    assert found.prices == {"m": Price(2_000_000, 0)}
    assert [str(problem) for problem in found.problems] == ["p.json:1:2: m: is defined twice; the last one is used"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "p.json:1: is not JSON: Expecting value"),
        ('{"a": {}\n "b": {}}', "p.json:2: is not JSON: Expecting ',' delimiter"),
        ("[" * 100_000, "p.json:1: is not JSON: nested too deep"),
        ("[]", "p.json: must be a map of models"),
        ("{}", "p.json: contains no prices (no entry has input_cost_per_token)"),
        ('{"a": {"mode": "chat"}}', "p.json: contains no prices"),
    ],
)
def test_files_that_are_none_are_refused(text: str, said: str) -> None:
    """Whole, because nothing of them can be meant (L-5, T-1)."""
    with pytest.raises(SettingsError) as raised:
        parse_litellm(text, "p.json")
    assert str(raised.value).startswith(f"prices.file: {said}")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    """Named, with the reason (T-1)."""
    with pytest.raises(SettingsError, match=r"^prices\.file: .*none: cannot be read: No such file or directory$"):
        read_litellm(tmp_path / "none")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(SettingsError, match="it is not UTF-8 text"):
        read_litellm(tmp_path / "bytes")
