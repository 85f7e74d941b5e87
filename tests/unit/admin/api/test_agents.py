"""Tests of `admin.api_agents`: agents with any name, their settings, holds and releases."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from breakloop.engine.quarantine import AGENT, CALLER, Hold
from tests.admin_client import client
from tests.admin_world import World, full

ODD = ["team/bot", "a/kill", "a/release", "/", "//", "ünï-\U0001f501", "a?b#c", " ", "a b", "..", "x" * 256, "a\nb", "a;b=c", "<script>"]  # fmt: skip


@pytest.fixture
def world() -> World:
    return full()


def _held(world: World, agent: str) -> list[Hold]:
    return [hold for hold in world.operator.holds() if hold.agent == agent]


@pytest.mark.parametrize("agent", [one for one in ODD if one.strip()])
def test_any_name_can_be_killed_seen_set_and_released(world: World, agent: str) -> None:
    """The id is URL-encoded, slashes too (T-2)."""
    made, path = client(world), f"/api/v1/agents/{quote(agent, safe='')}".replace("..", "%2E%2E")
    killed = made.post(f"{path}/kill", json={"reason": "spins"})
    assert killed.status_code == 200
    assert killed.json()["hold"]["agent"] == agent
    assert len(_held(world, agent)) == 1
    seen = made.get(path).json()
    assert (seen["agent"], seen["holds"][0]["reason"], seen["first_at"]) == (agent, "spins", None)
    assert made.patch(path, json={"active": False}).json()["agent"] == agent
    released = made.post(f"{path}/release").json()
    assert [one["agent"] for one in released["released"]] == [agent]
    assert _held(world, agent) == []


@pytest.mark.parametrize("agent", ["", " "])
def test_an_empty_name_is_refused(world: World, agent: str) -> None:
    made, before = client(world), len(world.operator.holds())
    path = f"/api/v1/agents/{quote(agent)}"
    assert made.post(f"{path}/kill", json={"reason": "x"}).status_code == 400
    assert made.patch(path, json={}).status_code == 400
    assert made.get(path).status_code == 404
    assert len(world.operator.holds()) == before
    if not agent:
        assert made.post(f"{path}/release").json()["error"]["field"] == "id"


def test_agents_are_listed_with_what_holds_them(world: World) -> None:
    """Agents are listed with what holds them (G-1)."""
    found = client(world).get("/api/v1/agents").json()["agents"]
    assert found[0]["agent"] == "support-triage"
    holds = {one["agent"]: [hold["by"] for hold in one["holds"]] for one in found if one["holds"]}
    assert holds == {"code-fixer": ["breakloop"], "scraper-7": ["ada"]}
    assert [one["agent"] for one in client(world).get("/api/v1/agents?find=bot").json()["agents"]] == ["invoice-bot"]
    assert len(client(world).get("/api/v1/agents?most=3").json()["agents"]) == 3
    assert client(world).get("/api/v1/agents?project=other").json() == {"agents": []}


def test_one_agent_of_another_project_is_not_it(world: World) -> None:
    assert client(world).get("/api/v1/agents/planner").json()["model"] == "gpt-5"
    missing = client(world).get("/api/v1/agents/planner?project=other")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "unknown_agent")


def test_a_kill_may_be_of_one_caller(world: World) -> None:
    """And is audited as such (G-1, K-1)."""
    killed = client(world).post("/api/v1/agents/a/kill", json={"reason": "x", "caller": "key:1"}).json()["hold"]
    assert (killed["binds"], killed["caller"], killed["agent"]) == ("agent", "key:1", "a")
    assert [hold.by for hold in _held(world, "a")] == ["ada"]


def test_a_kill_may_end_by_itself(world: World) -> None:
    made = client(world)
    until = made.post("/api/v1/agents/a/kill", json={"reason": "x", "expires_at": "2027-01-15T09:00:00Z"})
    assert until.json()["hold"]["until"] == 1_800_003_600.0
    made.post("/api/v1/agents/b/kill?project=blue", json={"reason": "x", "expires_at": 1_800_000_060})
    assert [(hold.project, hold.until) for hold in _held(world, "b")] == [("blue", 1_800_000_060.0)]


def test_settings_are_checked_by_the_bundles_schema(world: World) -> None:
    """The same words for the same mistakes (B-1, G-1)."""
    refused = client(world).patch("/api/v1/agents/planner", json={"rate_limit": {"requests_per_minute": 0}})
    error = refused.json()["error"]
    assert (refused.status_code, error["field"]) == (400, "rate_limit.requests_per_minute")
    assert "must be more than 0, got 0" in error["message"]
    made = client(world).patch("/api/v1/agents/planner", json={"allowed_hours": [8, 18], "timezone": "Europe/Paris"})
    assert made.json()["settings"] == {"allowed_hours": "08:00-18:00", "timezone": "Europe/Paris"}
    assert client(world).get("/api/v1/agents/planner").json()["settings"]["timezone"] == "Europe/Paris"


def test_everybody_who_is_held_is_listed(world: World) -> None:
    now = world.clock.now()
    world.operator._quarantine.hold(Hold(CALLER, "blue", "key:1", "", now, now + 60, "three of its agents"))
    world.operator._quarantine.hold(Hold(AGENT, "blue", "key:1", "a", now, now + 60, "cycle"))
    found = client(world).get("/api/v1/quarantine?project=blue").json()["holds"]
    assert [(one["binds"], one["until"]) for one in found] == [("caller", now + 60), ("agent", now + 60)]
    assert len(client(world).get("/api/v1/quarantine").json()["holds"]) == 4


def test_a_caller_or_a_run_can_be_released(world: World) -> None:
    """A caller is held, too, after three of its agents (G-1)."""
    now = world.clock.now()
    world.operator._quarantine.hold(Hold(CALLER, "default", "key:1", "", now, now + 60, "three of its agents"))
    made = client(world)
    released = made.post("/api/v1/quarantine/release", json={"caller": "key:1"}).json()["released"]
    assert [one["binds"] for one in released] == ["caller"]
    nobody = made.post("/api/v1/quarantine/release", json={})
    assert (nobody.status_code, nobody.json()["error"]["field"]) == (400, "agent")


def test_a_kill_of_nobody_is_carried_out_and_said(world: World) -> None:
    """With the name that may be meant; who is held and was never seen is listed, too (G-1)."""
    made = client(world)
    done = made.post("/api/v1/agents/plannr/kill", json={"reason": "spins"}).json()
    assert (done["hold"]["agent"], done["seen"], done["did_you_mean"]) == ("plannr", False, "planner")
    known = made.post("/api/v1/agents/planner/kill", json={"reason": "spins"}).json()
    assert (known["seen"], known["did_you_mean"]) == (True, "")
    found = made.get("/api/v1/agents?find=plann").json()["agents"]
    assert [(one["agent"], one["last_at"] is None, len(one["holds"])) for one in found] == [
        ("planner", False, 1),
        ("plannr", True, 1),
    ]
    assert [one["agent"] for one in made.get("/api/v1/agents?project=blue").json()["agents"]] == []


def test_whom_a_kill_switch_stops(world: World) -> None:
    """Whom a kill switch stops (K-2)."""
    switch = world.operator.set_switch("agent:id", "planner", "ada")
    assert client(world).get("/api/v1/agents/planner").json()["stopped_by"] == f"kill_switch/{switch}"
    found = {one["agent"]: one["stopped_by"] for one in client(world).get("/api/v1/agents").json()["agents"]}
    assert (found["planner"], found["docs-writer"]) == (f"kill_switch/{switch}", "")
