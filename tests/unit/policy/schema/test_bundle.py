"""The bundle's outer models: defaults, overrides, kill switches; beyond what the museum shows."""

from __future__ import annotations

from typing import Any

import pytest

from breakloop.policy.schema import bundle
from breakloop.policy.schema.loops import ExactLoop, SimhashLoop, TailLoop
from tests.unit.policy.said import messages


def spec(**fields: Any) -> bundle.Spec:
    return bundle.Spec.model_validate({"selector": {}, **fields})


def test_defaults_of_a_spec() -> None:
    """Enforce, 429 and allow unless said otherwise (B-1)."""
    made = spec()
    assert (made.mode, made.deny_status, made.on_store_error) == ("enforce", 429, "allow")
    assert (made.rules, made.loops, made.fallback_limit, made.circuit_breaker) == ([], (), None, None)


def test_one_loop_block_or_a_list() -> None:
    """`loop_detection` is one block or a list (LD-1, LD-2)."""
    one = spec(loop_detection={"enabled": True, "window_seconds": 9, "threshold_identical_requests": 3})
    two = spec(loop_detection=[{"similarity": "tail"}, {"similarity": "simhash"}])
    assert [type(block) for block in one.loops] == [ExactLoop]
    assert [type(block) for block in two.loops] == [TailLoop, SimhashLoop]


def test_defaults_off_builtin_and_own() -> None:
    """Nothing said is the built-in block, `off` is none (B-6)."""
    off = bundle.Defaults.model_validate({"loop_detection": "off"})
    own = bundle.Defaults.model_validate({"loop_detection": {"similarity": "tail"}})
    assert (bundle.Defaults().loop_detection, bundle.Defaults().loops) == (None, ())
    assert (off.loop_detection, off.loops) == ("off", ())
    assert len(own.loops) == 1


def test_fallback_may_leave_its_name_out() -> None:
    """Fallback may leave its name out (B-1)."""
    nameless = {"limit_keys": [], "algorithm": "token_bucket", "algorithm_config": {"rps": 1, "burst": 2}}
    fallback = spec(fallback_limit=nameless).fallback_limit
    assert fallback is not None
    assert fallback.name == "fallback_limit"


def test_an_override_needs_reason_and_end_only_when_enabled() -> None:
    """An override needs reason and end only when enabled (K-1)."""
    assert messages(bundle.Override, {"enabled": False}) == []
    assert messages(bundle.Override, {"enabled": True}) == ["is required when enabled", "is required when enabled"]


def test_an_override_that_has_expired_is_no_error() -> None:
    """An override that has expired is no error (B-5)."""
    past = {"enabled": True, "reason": "x", "expires_at": "2001-01-01T00:00:00Z"}
    assert messages(bundle.Override, past) == []


@pytest.mark.parametrize("route", ["*", "v1", "/a*b", "/v1?x", "/a//b*"])
def test_wrong_routes(route: str) -> None:
    """Exact, or a prefix ending in `*` (K-2)."""
    assert messages(bundle.KillSwitch, {"scope_key": "jwt:sub", "scope_value": "x", "route": route})
