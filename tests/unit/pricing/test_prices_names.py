"""Model ids as they come, and under which names they are looked for."""

from __future__ import annotations

import pytest

from breakloop.pricing.prices import NAME_MAX, ModelName, canonical_provider, ways
from tests.each import each


@pytest.mark.parametrize(
    ("provider", "model", "tried"),
    [
        ("openai", "gpt-4.1", [("openai", "gpt-4.1"), ("", "gpt-4.1")]),
        ("", "GPT-4.1 ", [("", "gpt-4.1")]),
        (
            "openai",
            "gpt-4.1-mini-2025-04-14",
            [
                ("openai", "gpt-4.1-mini-2025-04-14"),
                ("", "gpt-4.1-mini-2025-04-14"),
                ("openai", "gpt-4.1-mini"),
                ("", "gpt-4.1-mini"),
            ],
        ),
        ("", "anthropic/claude-x", [("", "anthropic/claude-x"), ("anthropic", "claude-x"), ("", "claude-x")]),
        (
            "",
            "openrouter/anthropic/claude-x",
            [
                ("", "openrouter/anthropic/claude-x"),
                ("openrouter", "anthropic/claude-x"),
                ("anthropic", "claude-x"),
                ("", "claude-x"),
            ],
        ),
    ],
)
def test_the_closest_name_first(provider: str, model: str, tried: list[tuple[str, str]]) -> None:
    """Who serves it and its whole name, then less and less of it; nothing twice (L-5)."""
    assert list(ways(provider, model)) == [ModelName(*one) for one in tried]


@each(
    "model, named",
    [
        ("models/gemini-2.5-pro", ModelName("google", "gemini-2.5-pro")),
        ("publishers/google/models/gemini-2.5-pro", ModelName("google", "gemini-2.5-pro")),
        ("projects/p/locations/eu/publishers/anthropic/models/claude-x@20250929", ModelName("google", "claude-x")),
        ("claude-x@20250929", ModelName("", "claude-x")),
        ("claude-x@default", ModelName("", "claude-x")),
        ("claude-x-20250929", ModelName("", "claude-x")),
        ("claude-x[1m]", ModelName("", "claude-x")),
        ("gpt-x:online", ModelName("", "gpt-x")),
        ("mistral-x-latest", ModelName("", "mistral-x")),
        ("llama3:latest", ModelName("", "llama3")),
        ("us.anthropic.claude-x-v1:0", ModelName("aws", "us.anthropic.claude-x-v1:0")),
        (
            "arn:aws:bedrock:us-east-1:1:inference-profile/eu.amazon.nova-x-v1:0",
            ModelName("aws", "eu.amazon.nova-x-v1:0"),
        ),
        ("bedrock/anthropic.claude-x", ModelName("aws", "anthropic.claude-x")),
        ("vertex_ai/gemini-x", ModelName("google", "gemini-x")),
        ("xai/grok-x", ModelName("x-ai", "grok-x")),
    ],
)
def test_what_gateways_and_clouds_make_of_a_name(model: str, named: ModelName) -> None:
    """Resource names, ARNs, prefixes, dates and variants are read (L-5)."""
    assert named in list(ways("gemini" if model.startswith("models/") else "", model))


@pytest.mark.parametrize("model", ["deepseek-x:free", "ft:gpt-4.1:org::1", "gpt-4.1-mini", "o3", "llama-3.3-70b"])
def test_what_makes_another_price_is_left_on(model: str) -> None:
    """A free variant, a model of one's own and a smaller one are not the model itself (L-5)."""
    assert {named.model for named in ways("", model)} == {model}


def test_nobody_can_make_it_try_for_ever() -> None:
    """A name of many parts is not taken apart to the end (Y-2)."""
    assert len(list(ways("openrouter", "a/" * (NAME_MAX // 2)))) < 20
    assert list(ways("openai", "")) == list(ways("", " ")) == []


def test_names_of_upstreams() -> None:
    """The built-in upstreams, and what people call theirs (D-2, L-5)."""
    assert canonical_provider("gemini") == canonical_provider(" Vertex_AI ") == "google"
    assert canonical_provider("openai") == "openai"
    assert canonical_provider("") == ""
