"""Tests of `admin.bundle_words`: a bundle in words."""

from __future__ import annotations

from typing import Any

import pytest

from breakloop.admin.bundles import describe_loop, describe_policies, selector
from breakloop.policy.load import load_text
from breakloop.policy.schema.bundle import Selector
from breakloop.policy.schema.loops import ExactLoop, SimhashLoop, StepsLoop, TailLoop

TEXT = b"""
bundle_version: 1
policies:
- id: fair-use
  spec:
    selector: {pathPrefix: /v1/, methods: [POST], hosts: [a.example, b.example]}
    mode: shadow
    rules:
    - {name: per-agent, limit_keys: ["agent:id"], algorithm: token_bucket, algorithm_config: {rps: 10, burst: 40}}
    - name: money
      limit_keys: ["header:x-team"]
      match: {"llm:model": gpt-5}
      algorithm: cost_based
      algorithm_config:
        budget: 1500
        period: 30d
        cost_key: usage:usd
        staged_actions: [{threshold_percent: 80, action: warn}, {threshold_percent: 100, action: reject}]
    - name: tokens
      limit_keys: []
      algorithm: token_bucket_llm
      algorithm_config: {tokens_per_minute: 400000, tokens_per_day: 20000000, max_prompt_tokens: 9000}
    fallback_limit: {limit_keys: [], algorithm: cost_based, algorithm_config: {budget: 50, period: 5m, cost_key: usage:tokens, staged_actions: [{threshold_percent: 100, action: reject}]}}
    circuit_breaker: {enabled: true, spend_rate_threshold_per_minute: 5, auto_reset_after_minutes: 5, spend_source: usage:usd}
    loop_detection: [{similarity: exact, enabled: true, window_seconds: 60, threshold_identical_requests: 5}]
- id: plain
  spec: {selector: {pathExact: /v1/models}}
"""


def test_a_policy_in_words() -> None:
    """A policy in words (X-2)."""
    one, other = describe_policies(load_text(TEXT, "p.yaml").bundle)
    assert (one["id"], one["mode"]) == ("fair-use", "shadow")
    assert one["selector"] == "POST /v1/* to a.example or b.example"
    assert one["rules"] == [
        {"name": "per-agent", "algorithm": "token_bucket", "keys": ["agent:id"], "words": "10 a second, 40 at once"},
        {"name": "money", "algorithm": "cost_based", "keys": ["header:x-team"], "words": "$1,500 a month, warn at 80 %, where llm:model is gpt-5"},
        {"name": "tokens", "algorithm": "token_bucket_llm", "keys": [], "words": "400,000 tokens a minute, 20,000,000 a day, at most 9,000 a prompt"},
        {"name": "fallback_limit", "algorithm": "cost_based", "keys": [], "words": "50 tokens in 5 minutes"},
        {"name": "circuit_breaker", "algorithm": "circuit_breaker", "keys": ["agent:id"], "words": "opens at $5 a minute, tries again after 5 min"},
    ]  # fmt: skip
    assert one["loop_detection"] == "exact: 5 identical requests in 60 s: reject"
    assert other == {"id": "plain", "mode": "enforce", "selector": "/v1/models", "rules": [], "loop_detection": ""}


@pytest.mark.parametrize(
    ("block", "words"),
    [
        (TailLoop(similarity="tail"), "tail: more than 5 requests with the same last 3 messages in 60 s: reject"),
        (SimhashLoop(similarity="simhash", quarantine_seconds=600), "simhash: a score over 10 within 20 requests: kill (for 600 s)"),
        (StepsLoop(similarity="steps"), "steps: the same steps without progress, sensitivity normal: warn, then reject"),
        (StepsLoop(similarity="steps", enabled=False), "steps: off"),
        (ExactLoop(enabled=True, window_seconds=9, threshold_identical_requests=2, action="warn"), "exact: 2 identical requests in 9 s: warn"),
    ],
)  # fmt: skip
def test_a_detector_in_words(block: Any, words: str) -> None:
    assert describe_loop(block) == words


def test_a_ladder_in_words() -> None:
    block = StepsLoop.model_validate({"similarity": "steps", "ladder": {"notice": "steer", "stop": "kill"}})
    assert describe_loop(block).endswith(": steer, then reject, then kill")


def test_everything_is_said_so() -> None:
    assert selector(Selector()) == "every request"
    assert selector(Selector(methods=["GET"])) == "GET"
