"""Requests for several answers at once: limits reserve all of them."""

from __future__ import annotations

from typing import Any

import pytest

from breakloop.testing import PATHS
from tests.builders import Json, bundle, call, policy, world
from tests.unit.dialects.recorded.shape import dump

SAID = [{"role": "user", "content": "abcd"}]


def tokens(**more: Any) -> Json:
    config = {"tokens_per_minute": 10_000, **more}
    return {"name": "t", "limit_keys": [], "algorithm": "token_bucket_llm", "algorithm_config": config}


@pytest.mark.parametrize(
    ("dialect", "body", "config", "reserved"),
    [
        ("openai_chat", {"messages": SAID, "max_tokens": 100}, {}, 101),
        ("openai_chat", {"messages": SAID, "max_tokens": 100, "n": 3}, {}, 301),
        ("openai_chat", {"messages": SAID, "n": 3}, {}, 3001),
        ("openai_chat", {"messages": SAID, "n": 3}, {"default_max_completion": 50}, 151),
        ("openai_chat", {"messages": SAID, "n": 3, "max_tokens": 900}, {"max_completion_tokens": 200}, 601),
        ("openai_chat", {"messages": SAID, "n": 3, "max_tokens": 90}, {"max_completion_tokens": 200}, 271),
        ("openai_completions", {"model": "m", "prompt": "abcd", "max_tokens": 100, "n": 2, "best_of": 4}, {}, 401),
        ("gemini", {"contents": [{"parts": [{"text": "abcd"}]}], "generationConfig": {"candidateCount": 2}}, {}, 2001),
        ("anthropic_messages", {"model": "m", "messages": SAID, "max_tokens": 100, "thinking": {"budget_tokens": 80}}, {}, 101),
    ],
)  # fmt: skip
def test_all_answers_are_reserved(dialect: str, body: Json, config: Json, reserved: int) -> None:
    """The longest answer, as many times as it is asked for; ceilings are for one of them (L-3)."""
    here = world(bundle(policy("p", tokens(**config))))
    verdict = here.engine.decide(call(PATHS[dialect], "POST", {"authorization": "Bearer k"}, body=dump(body)))
    assert verdict.limit is not None
    assert verdict.limit.remaining == 10_000 - reserved
