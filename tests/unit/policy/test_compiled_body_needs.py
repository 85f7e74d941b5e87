"""Which bodies have to be seen whole (D-1)."""

from __future__ import annotations

from typing import Any

import pytest

from breakloop.policy.compiled import needs_body
from tests.builders import Json, bucket, bundle, exact, policy, tail, world
from tests.each import each

GUARD: Json = {"defaults": {}}
SWITCH = {"scope_value": "x", "reason": "r"}


@each(
    "data, kind, needed",
    [
        (bundle(), b"application/json", False),
        (bundle(**GUARD), b"application/json; charset=utf-8", True),
        (bundle(**GUARD), b"", True),
        (bundle(**GUARD), b"multipart/form-data", False),
        (bundle(policy("p", bucket(keys=["header:x"])), **GUARD), b"audio/wav", False),
        (bundle(policy("p", bucket(keys=["llm:model"]))), b"audio/wav", True),
        (bundle(policy("p", bucket(match={"tool:name": "x"}))), b"audio/wav", True),
        (bundle(policy("p", loop=exact())), b"audio/wav", True),
        (bundle(policy("p", loop=tail(), prefix="/other/")), b"audio/wav", False),
        (bundle(policy("p", loop=exact(enabled=False)), **GUARD), b"application/json", False),
        (bundle(policy("p", loop=exact(enabled=False), mode="shadow"), **GUARD), b"application/json", True),
        (bundle(kill_switches=[{**SWITCH, "scope_key": "llm:model"}]), b"audio/wav", True),
        (bundle(kill_switches=[{**SWITCH, "scope_key": "header:x"}]), b"audio/wav", False),
    ],
)
def test_who_looks_into_a_body(data: Json, kind: bytes, needed: bool) -> None:
    compiled = world(data).engine.bundle
    assert compiled is not None
    wanted: Any = needs_body(compiled, "h", "POST", "/v1/files", kind)
    assert wanted is needed


TOKENS = {"name": "t", "limit_keys": [], "algorithm": "token_bucket_llm", "algorithm_config": {"tokens_per_minute": 9}}
BREAKER = {"enabled": True, "spend_rate_threshold_per_minute": 9, "spend_source": "usage:usd"}


@pytest.mark.parametrize(
    ("data", "path", "needed"),
    [
        (bundle(policy("p", TOKENS)), "/v1/chat/completions", True),
        (bundle(policy("p", TOKENS)), "/v1/files", False),  # which says nothing to a model
        (bundle(policy("p", TOKENS, prefix="/other/")), "/v1/chat/completions", False),
        (bundle(policy("p", bucket())), "/v1/chat/completions", False),
        (bundle(policy("p", bucket(), circuit_breaker=BREAKER)), "/v1/chat/completions", True),
        (bundle(agents={"a": {"budget_usd_per_day": 5}}), "/v1/messages", True),
        (bundle(agents={"a": {"budget_usd_per_day": 5}}), "/v1/files", False),
    ],
)
def test_limits_of_tokens_and_money_read_the_prompt(data: Json, path: str, needed: bool) -> None:
    """A long prompt that comes in many pieces must not pass uncounted (L-3, L-2, CB-1)."""
    compiled = world(data).engine.bundle
    assert compiled is not None
    assert needs_body(compiled, "h", "POST", path, b"application/json") is needed
