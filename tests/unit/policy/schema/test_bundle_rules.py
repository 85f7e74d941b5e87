"""Rules: their descriptors, and `match`."""

from __future__ import annotations

from typing import Any

from breakloop.policy.schema import bundle
from breakloop.policy.schema.limits import AnyRule, TokenBucketConfig
from tests.unit.policy.said import messages


def bucket(**config: Any) -> dict[str, Any]:
    return {"name": "r", "limit_keys": [], "algorithm": "token_bucket", "algorithm_config": config}


def rules(*made: dict[str, Any]) -> list[AnyRule]:
    return bundle.Spec.model_validate({"selector": {}, "rules": list(made)}).rules


def test_header_descriptors_have_one_spelling() -> None:
    """Case, `-` and `_` make no difference (C-2)."""
    rule = rules({**bucket(rps=1, burst=1, cost_source="header:X_Cost"), "limit_keys": ["header:X_Org"]})[0]
    assert rule.limit_keys == ["header:x-org"]
    assert isinstance(rule.algorithm_config, TokenBucketConfig)
    assert rule.algorithm_config.cost_source == "header:x-cost"


def test_one_header_in_two_spellings_is_refused_in_match() -> None:
    data = {"selector": {}, "rules": [{**bucket(rps=1, burst=1), "match": {"header:X-A": "1", "header:x_a": "2"}}]}
    assert messages(bundle.Spec, data) == ["names one header in two spellings"]


def test_match_takes_numbers_and_booleans_as_their_text() -> None:
    """Equality is on text (E-3)."""
    rule = rules({**bucket(rps=1, burst=1), "match": {"jwt:tier": 2, "query:debug": True}})[0]
    assert rule.match == {"jwt:tier": "2", "query:debug": "true"}


def test_circuit_breaker_needs_a_threshold_only_when_enabled() -> None:
    """Circuit breaker needs a threshold only when enabled (CB-1)."""
    assert messages(bundle.CircuitBreaker, {"enabled": False}) == []
    assert messages(bundle.CircuitBreaker, {"enabled": True}) == ["is required when enabled"]


def test_a_rule_that_was_made_in_code_is_kept() -> None:
    """Models can be built from models, not only from text."""
    (rule,) = rules(bucket(rps=1, burst=1))
    assert bundle.Spec(selector=bundle.Selector(), rules=[rule]).rules == [rule]


def test_what_is_no_rule_is_told_so() -> None:
    """A rule that is no map, and one whose configuration says another algorithm (B-2)."""
    assert messages(bundle.Spec, {"selector": {}, "rules": ["x"]}) == ['must be a map, got the text "x"']
    other = bucket(rps=1, burst=1, algorithm="cost_based")
    said = ['is "cost_based", but the rule\'s algorithm is "token_bucket"']
    assert messages(bundle.Spec, {"selector": {}, "rules": [other]}) == said
