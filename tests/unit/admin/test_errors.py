"""Tests of `admin.faults`: one shape for every error."""

from __future__ import annotations

import json

import pytest

from breakloop.admin.errors import CODES, ApiError, fault_of
from breakloop.errors import (
    AlertError,
    BreakloopError,
    BundleError,
    HistoryError,
    OrderError,
    Problem,
    SettingsError,
    StateError,
)


def _body(fault: ApiError) -> dict[str, object]:
    found: dict[str, object] = json.loads(bytes(fault.response().body))["error"]
    return found


@pytest.mark.parametrize(
    ("error", "status", "body"),
    [
        (OrderError(["reason: must not be empty"]), 400, {"code": "invalid", "message": "reason: must not be empty", "field": "reason"}),
        (OrderError(["it cannot be"]), 400, {"code": "invalid", "message": "it cannot be"}),
        (OrderError(["rate_limit.burst: is too low"]), 400, {"code": "invalid", "message": "rate_limit.burst: is too low", "field": "rate_limit.burst"}),
        (AlertError("is private"), 400, {"code": "target_refused", "message": "is private", "field": "url"}),
        (HistoryError("disk full"), 503, {"code": "no_history", "message": "disk full"}),
        (StateError("gone"), 503, {"code": "no_state", "message": "gone"}),
        (SettingsError("no such thing here"), 409, {"code": "conflict", "message": "no such thing here"}),
        (BreakloopError("odd"), 500, {"code": "internal", "message": "odd"}),
        (ApiError(404, "gone"), 404, {"code": "not_found", "message": "gone"}),
    ],
)  # fmt: skip
def test_errors_of_other_parts_have_the_shape(error: BreakloopError, status: int, body: dict[str, str]) -> None:
    found = fault_of(error)
    assert found.response().status_code == status
    assert _body(found) == body


def test_a_refused_bundle_tells_every_problem() -> None:
    """Line, column, path, message and hint (B-2)."""
    found = _body(fault_of(BundleError([Problem("p.yaml", 3, 5, "policies[0].id", "is required", "name it")])))
    assert found["code"] == "bundle_refused"
    assert found["message"] == "p.yaml:3:5: policies[0].id: is required (name it)"
    assert found["problems"] == [{"file": "p.yaml", "line": 3, "column": 5, "path": "policies[0].id", "message": "is required", "hint": "name it"}]  # fmt: skip


def test_every_status_has_a_code() -> None:
    assert ApiError(421, "x").code == "misdirected"
    assert len(set(CODES.values())) == len(CODES)
