"""Tests of `admin.api_bundle`: the bundle over the API, as its own text."""

from __future__ import annotations

import pytest

from breakloop.admin.api.operations import BODY_MAX
from tests.admin_client import client
from tests.admin_world import World, full


@pytest.fixture
def world() -> World:
    return full()


def test_it_is_shown_checked_and_compared(world: World) -> None:
    """It is shown, checked and compared (X-1)."""
    made = client(world)
    assert made.get("/api/v1/bundle").json()["version"] == 14
    assert made.get("/api/v1/bundle/policies").json()["policies"][0]["id"] == "builtin-steps"
    assert made.get("/api/v1/bundle/history").json()["history"][0]["by"] == "grace"
    assert made.post("/api/v1/bundle/validate", content=b"version: 15\n").json() == {"ok": True, "problems": []}
    wrong = made.post("/api/v1/bundle/validate", content=b"x").json()
    assert (wrong["ok"], wrong["problems"][0]["message"]) == (False, "is no bundle")
    assert made.post("/api/v1/bundle/diff", content=b"x").json() == {"diff": "--- in force\n+++ yours\n"}


@pytest.mark.parametrize("kind", ["application/yaml", "application/json", "text/plain", "application/octet-stream", ""])
def test_a_file_is_sent_as_it_is(world: World, kind: str) -> None:
    headers = {"content-type": kind} if kind else {}
    answer = client(world).post("/api/v1/bundle/apply", content=b"version: 15\n", headers=headers)
    assert (answer.status_code, answer.json()["version"]) == (200, 14)
    assert world.history.audit_rows[0].action == "bundle.apply"
    assert world.history.audit_rows[0].detail["force"] is False


def test_it_may_be_large_and_forced(world: World) -> None:
    answer = client(world).post("/api/v1/bundle/apply?force=true", content=b"version: 15\n" + b"#" * BODY_MAX)
    assert answer.status_code == 200
    assert world.history.audit_rows[0].detail["force"] is True


def test_a_refused_bundle_tells_its_problems(world: World) -> None:
    """A refused bundle tells its problems (B-2)."""
    answer = client(world).post("/api/v1/bundle/apply", content=b"nonsense")
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "bundle_refused")
    assert answer.json()["error"]["problems"][0]["message"] == "is no bundle"


def test_rollback_and_promote(world: World) -> None:
    made = client(world)
    assert made.post("/api/v1/bundle/rollback", json={"version": 13}).status_code == 200
    assert world.history.audit_rows[0].target == "13"
    assert made.post("/api/v1/bundle/promote", json={"policy": "support-shadow"}).status_code == 200
    assert world.bundles.promoted == ["support-shadow"]
    again = made.post("/api/v1/bundle/promote", json={"policy": "support-shadow"})
    assert (again.status_code, again.json()["error"]["code"]) == (400, "bundle_refused")
