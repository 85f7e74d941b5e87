"""Tests of `admin.api_status`: how it is, its settings, its counters."""

from __future__ import annotations

import pytest

from tests.admin_client import LOOKS, client
from tests.admin_world import World, full


@pytest.fixture(scope="module")
def world() -> World:
    return full()


def test_status_says_how_it_is_and_who_asks(world: World) -> None:
    found = client(world, LOOKS).get("/api/v1/status").json()
    assert (found["version"], found["degraded"], found["you"]["role"]) == ("0.1.0", False, "viewer")


def test_settings_with_secrets_masked(world: World) -> None:
    """Settings with secrets masked (Y-1)."""
    found = {one["name"]: one for one in client(world).get("/api/v1/settings").json()["settings"]}
    assert found["admin_token"] == {"name": "admin_token", "value": "********", "origin": "BREAKLOOP_ADMIN_TOKEN"}


def test_counters_of_a_key(world: World) -> None:
    """Counters of a key (X-1)."""
    made = client(world)
    found = made.get("/api/v1/counters?key=tb:").json()["counters"]
    assert [one["kind"] for one in found] == ["bucket"]
    for query in ("", "?key="):
        assert made.get(f"/api/v1/counters{query}").json()["error"]["field"] == "key"
