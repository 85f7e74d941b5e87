"""What settings may not say together."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from breakloop.config.settings import Settings, inconsistencies
from breakloop.policy.schema.types import SchemaFault

FAULTS: dict[str, tuple[dict[str, Any], tuple[str | int, ...], str]] = {
    "a policy in a Redis that is not named": ({"policy": "redis"}, ("policy",), "state is not the URL of a Redis"),
    "workers that each count for themselves": ({"workers": 2}, ("workers",), "2 processes cannot share"),
    "a key of no upstream": (
        {"upstream_keys": ["openai=env:A", "mine=env:B"]},
        ("upstream_keys", 1),
        "unknown upstream",
    ),
    "Envoy without a decision service": (
        {"envoy_grpc_port": 9, "mode": "proxy"},
        ("envoy_grpc_port",),
        "mode is proxy",
    ),
}


@pytest.mark.parametrize(("given", "at", "message"), FAULTS.values(), ids=FAULTS)
def test_it_is_refused_at_its_place(given: dict[str, Any], at: tuple[str | int, ...], message: str) -> None:
    """A clear error that names the field and the remedy (T-1, S-5, B-3)."""
    with pytest.raises(ValidationError) as caught:
        Settings.model_validate(given)
    [error] = caught.value.errors()
    assert error["loc"] == at
    assert message in error["msg"]
    assert error["ctx"]["hint"]


def test_all_of_it_is_told_at_once() -> None:
    """Nobody mends one thing to hear of the next (T-1)."""
    wrong = Settings.model_construct(
        policy="redis", workers=3, state="memory://", mode="proxy", envoy_grpc_port=1, upstream_keys=["x=y"]
    )
    assert [fault.at[0] for fault in inconsistencies(wrong)] == [
        "policy",
        "upstream_keys",
        "workers",
        "envoy_grpc_port",
    ]
    assert all(isinstance(fault, SchemaFault) for fault in inconsistencies(wrong))


def test_what_goes_together() -> None:
    """The same with a Redis, an upstream, a decision service (T-1)."""
    redis = {"state": "redis://127.0.0.1/", "policy": "redis", "workers": 2}
    proxy = {"upstream": ["mine=http://127.0.0.1:1"], "upstream_keys": ["mine=env:B"], "envoy_grpc_port": 9}
    assert list(inconsistencies(Settings.model_validate(redis | proxy))) == []
