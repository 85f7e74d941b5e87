"""The limiters' configurations: what can never work."""

from __future__ import annotations

import pytest

from breakloop.policy.diagnostics import findings
from breakloop.policy.schema.limits import CostBasedConfig, LlmTokensConfig
from breakloop.policy.schema.types import validate
from tests.unit.policy.said import messages


def test_stages_are_sorted() -> None:
    """Accepted in any order (L-2)."""
    config = CostBasedConfig.model_validate(
        {
            "budget": 9,
            "period": "1h",
            "staged_actions": [
                {"threshold_percent": 100, "action": "reject"},
                {"threshold_percent": 50, "action": "warn"},
                {"threshold_percent": 80, "action": "throttle", "delay_ms": 5},
            ],
        }
    )
    assert [stage.threshold_percent for stage in config.stages] == [50, 80, 100]


@pytest.mark.parametrize(
    ("config", "wrong"),
    [
        ({"tokens_per_minute": 100}, []),
        ({"tokens_per_minute": 100, "max_completion_tokens": 50}, []),  # the default of 1000 is cut down silently
        ({"tokens_per_minute": 100, "max_tokens_per_request": 101}, ["max_tokens_per_request"]),
        ({"tokens_per_minute": 100, "burst_tokens": 200, "max_tokens_per_request": 200}, []),
        ({"tokens_per_minute": 100, "tokens_per_day": 50, "max_tokens_per_request": 60}, ["max_tokens_per_request"]),
        (
            {"tokens_per_minute": 100, "max_tokens_per_request": 20, "max_completion_tokens": 30},
            ["max_completion_tokens"],
        ),
        (
            {"tokens_per_minute": 100, "max_tokens_per_request": 20, "default_max_completion": 30},
            ["default_max_completion"],
        ),
        ({"tokens_per_minute": 100, "enforce_mid_stream": True}, ["enforce_mid_stream"]),
        ({"tokens_per_minute": 100, "enforce_mid_stream": True, "max_completion_tokens": 9}, []),
    ],
)
def test_llm_limits_that_can_never_work(config: dict[str, int], wrong: list[str]) -> None:
    """Cross-field values (L-3, B-2)."""
    found = findings(validate(LlmTokensConfig, config)[1], config, LlmTokensConfig)
    assert [finding.path[-1] for finding in found] == wrong


def test_llm_burst_defaults_to_the_rate() -> None:
    """LLM burst defaults to the rate (L-3)."""
    assert LlmTokensConfig(tokens_per_minute=70).burst == 70
    assert LlmTokensConfig(tokens_per_minute=70, burst_tokens=90).burst == 90


def test_a_fixed_cost_above_the_budget_can_never_pass() -> None:
    """Cross-field values; with another source of cost the fixed one is not used (L-2, B-2)."""
    stages = [{"threshold_percent": 100, "action": "reject"}]
    config = {"budget": 5, "period": "1h", "fixed_cost": 6, "staged_actions": stages}
    assert messages(CostBasedConfig, config) == ["must be at most the budget (5), got 6"]
    assert messages(CostBasedConfig, {**config, "cost_key": "usage:usd"}) == []
