"""Plain words for what is wrong."""

from __future__ import annotations

from typing import Any

from breakloop.policy.schema import bundle
from breakloop.policy.schema.limits import Stage, TokenBucketConfig
from breakloop.policy.schema.types import Model
from tests.each import each
from tests.unit.policy.said import messages


@each(
    "model, data, said",
    [
        (bundle.Policy, {"id": 5, "spec": []}, ["must be text, got 5", "must be a map, got a list"]),
        (bundle.Policy, {"id": "x" * 70, "spec": "y" * 70}, [f'must be a map, got the text "{"y" * 60}..."']),
        (
            bundle.KillSwitch,
            {"scope_key": None, "scope_value": {}},
            ["must be text, got nothing", "must be text, got a map"],
        ),
        (
            TokenBucketConfig,
            {"rps": True, "burst": "1_0"},
            ["must be a number, got true", 'must be a number, got the text "1_0"'],
        ),
        (TokenBucketConfig, {"rps": 0, "burst": 1}, ["must be more than 0, got 0"]),
        (bundle.Spec, {"selector": {}, "rules": [{"algorithm": 5}]}, ["must be text, got 5"]),
        (
            bundle.Spec,
            {"selector": {}, "loop_detection": {"similarity": ["x"]}},
            ['must be one of "exact", "tail", "simhash", "steps", got a list'],
        ),
        (bundle.Spec, {"selector": {}, "loop_detection": {"similarity": None}}, ["is required"]),
        (bundle.RateLimit, {"requests_per_minute": 1, "brust": 2}, ['unknown field "brust"; did you mean "burst"?']),
        (Stage, {"threshold_percent": 100.5, "action": "warn"}, ["must be at most 100, got 100.5"]),
    ],
)
def test_what_is_said_about_wrong_values(model: type[Model], data: Any, said: list[str]) -> None:
    """Plain words for each kind of mistake (B-2)."""
    assert messages(model, data) == said
