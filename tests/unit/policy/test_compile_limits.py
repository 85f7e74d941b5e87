"""Rules of a bundle -> their limiters."""

from __future__ import annotations

from typing import Any

import pytest

from breakloop.limits.budget import CostBudget
from breakloop.limits.llm_tokens import LlmTokens
from breakloop.limits.token_bucket import TokenBucket
from tests.builders import Json, bucket, bundle, policy, world

REJECT = [{"threshold_percent": 100, "action": "reject"}]


def rule(algorithm: str, **config: Any) -> Json:
    return {"name": "r", "limit_keys": [], "algorithm": algorithm, "algorithm_config": config}


@pytest.mark.parametrize(
    ("data", "kind", "needs"),
    [
        (bucket(), TokenBucket, ""),
        (rule("cost_based", budget=5, period="1d", staged_actions=REJECT), CostBudget, ""),
        (
            rule("cost_based", budget=5, period="7d", cost_key="usage:usd", staged_actions=REJECT),
            CostBudget,
            "microusd",
        ),
        (
            rule("cost_based", budget=5, period="1h", cost_key="usage:tokens", staged_actions=REJECT),
            CostBudget,
            "tokens",
        ),
        (rule("token_bucket_llm", tokens_per_minute=600), LlmTokens, "tokens"),
    ],
)
def test_each_algorithm_has_its_limiter(data: Json, kind: type, needs: str) -> None:
    """What an answer corrects has an estimator; whose it is can be remembered, whatever it costs (L-1 to L-3)."""
    made = world(bundle()).use(bundle(policy("p", data))).policies[0]
    (compiled,) = made.rules
    assert type(compiled.limiter) is kind
    assert compiled.limiter.needs == needs
    assert (compiled.estimator is not None) is bool(needs)
    assert made.metered is bool(needs)
    assert made.steady


def test_rules_share_an_estimator() -> None:
    """What was guessed for one rule holds for the next."""
    one, other = rule("token_bucket_llm", tokens_per_minute=600), rule("token_bucket_llm", tokens_per_minute=900)
    first, second = world(bundle()).use(bundle(policy("p", one, {**other, "name": "s"}))).policies[0].rules
    assert first.estimator is second.estimator


def test_a_breaker_counts_what_the_first_rule_charges() -> None:
    """In that rule's unit, or in money (CB-1)."""
    breaker = {"enabled": True, "spend_rate_threshold_per_minute": 5}
    tokens = rule("token_bucket_llm", tokens_per_minute=600)
    made = world(bundle()).use(bundle(policy("p", tokens, circuit_breaker=breaker))).policies[0].breaker
    assert made is not None
    assert made.limiter.unit.name == "token"
    money = world(bundle()).use(bundle(policy("p", tokens, circuit_breaker={**breaker, "spend_source": "usage:usd"})))
    assert money.policies[0].breaker is not None
    assert money.policies[0].breaker.limiter.unit.name != "token"
    off = world(bundle()).use(bundle(policy("p", tokens, circuit_breaker={"enabled": False})))
    assert off.policies[0].breaker is None


def test_the_cap_of_streams() -> None:
    """Only where it is asked for; in shadow it is another one, which cuts nothing (L-3)."""
    asks = rule("token_bucket_llm", tokens_per_minute=600, max_completion_tokens=50, enforce_mid_stream=True)
    caps = world().use(bundle(policy("p", asks))).policies[0].rules[0].caps
    assert caps is not None
    assert caps == ((50, "p", "r", True), (50, "p", "r", False))
    for other in (bucket(), rule("token_bucket_llm", tokens_per_minute=600, max_completion_tokens=50)):
        assert world().use(bundle(policy("p", other))).policies[0].rules[0].caps is None
