"""Tests of `admin.api_past`: incidents, events and the audit log by page; sums and curves."""

from __future__ import annotations

from typing import Any

import pytest

from tests.admin_client import client
from tests.admin_world import World, empty, full


@pytest.fixture(scope="module")
def world() -> World:
    return full()


def _pages(world: World, path: str, key: str, cursor: str) -> list[Any]:
    """Everything there is, page by page."""
    made, found, after = client(world), list[Any](), ""
    while True:
        page = made.get(path + (f"&{cursor}={after}" if after else "")).json()
        found += page[key]
        if page["next"] is None:
            return found
        after = page["next"]


def test_incidents_by_page_and_by_filter(world: World) -> None:
    """Incidents by page and by filter (G-3)."""
    everything = [one.id for one in world.history.incident_rows]
    assert [one["id"] for one in _pages(world, "/api/v1/incidents?most=2", "incidents", "cursor")] == everything
    stopped = client(world).get("/api/v1/incidents?state=stopped").json()["incidents"]
    assert stopped
    assert {one["state"] for one in stopped} == {"stopped"}
    assert all(one["steps"] == [] for one in stopped)
    shadowed = client(world).get("/api/v1/incidents?shadow=true").json()["incidents"]
    assert all(one["shadow"] for one in shadowed)


@pytest.mark.parametrize("query", ["state=closed", "cursor=x", "cursor=nan", "shadow=perhaps"])
def test_wrong_filters_are_refused(world: World, query: str) -> None:
    answer = client(world).get(f"/api/v1/incidents?{query}")
    assert (answer.status_code, answer.json()["error"]["field"]) == (400, query.partition("=")[0])


def test_one_incident_has_its_steps(world: World) -> None:
    wanted = next(one for one in world.history.incident_rows if one.steps)
    found = client(world).get(f"/api/v1/incidents/{wanted.id}").json()
    assert len(found["steps"]) == len(wanted.steps)
    assert found["saved_microusd"] == wanted.saved_microusd
    missing = client(world).get("/api/v1/incidents/nope")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "unknown_incident")


def test_events_by_page_both_ways(world: World) -> None:
    """Events by page both ways (G-2)."""
    everything = [one.id for one in world.history.event_rows]
    assert [one["id"] for one in _pages(world, "/api/v1/events?most=7", "events", "before")] == everything
    later = client(world).get(f"/api/v1/events?after={everything[3]}").json()
    assert [one["id"] for one in later["events"]] == everything[2::-1]
    assert later["next"] is None
    one = world.history.event_rows[0]
    same = client(world).get(f"/api/v1/events?agent={one.agent}&name={one.name}&since={one.at}").json()["events"]
    assert same[0]["id"] == one.id


def test_the_audit_log_by_page(world: World) -> None:
    """The audit log by page (K-3)."""
    everything = [one.id for one in world.history.audit_rows]
    assert [one["id"] for one in _pages(world, "/api/v1/audit?most=3", "audit", "before")] == everything


def test_sums_and_curves(world: World) -> None:
    made, now = client(world), world.clock.now()
    day = made.get("/api/v1/totals").json()
    assert day["since"] == now - 86_400
    assert day["totals"]["requests"] > 0
    points = made.get(f"/api/v1/curve?since={now - 3600}&step_s=600").json()["points"]
    assert len(points) in (6, 7)
    for query, field in ((f"since={now}&until={now}", "until"), (f"since={now - 9000}&step_s=1", "step_s")):
        refused = made.get(f"/api/v1/curve?{query}")
        assert (refused.status_code, refused.json()["error"]["field"]) == (400, field)


def test_what_shadow_would_have_denied(world: World) -> None:
    """What shadow would have denied (E-1)."""
    found = client(world).get("/api/v1/shadow?policy=support-shadow").json()["shadow"]
    assert found[0] == {"policy": "support-shadow", "rule": "per-agent", "reason": "token_bucket_exceeded", "count": 8}
    assert client(world).get("/api/v1/shadow?policy=x").json() == {"shadow": []}


def test_an_empty_world_has_empty_pages() -> None:
    made = client(empty())
    assert made.get("/api/v1/incidents").json() == {"incidents": [], "next": None}
    assert made.get("/api/v1/events").json() == {"events": [], "next": None}
    assert made.get("/api/v1/audit").json() == {"audit": [], "next": None}
