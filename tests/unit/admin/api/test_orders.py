"""Tests of `admin.api_orders`: kill switches, overrides, snoozes and breakers at run time."""

from __future__ import annotations

import pytest

from tests.admin_client import client
from tests.admin_world import World, full

SWITCHES, OVERRIDES = "/api/v1/kill-switches", "/api/v1/overrides"


@pytest.fixture
def world() -> World:
    return full()


def test_a_kill_switch_is_set_listed_and_lifted(world: World) -> None:
    """A kill switch is set, listed and lifted (K-3)."""
    made = client(world)
    wanted = {"scope_key": "header:x-team", "scope_value": "blue", "route": "/v1/*", "reason": "spends", "expires_at": 1_800_003_600}  # fmt: skip
    answer = made.post(SWITCHES, json=wanted)
    assert (answer.status_code, answer.json()["shared"]) == (201, True)
    listed = {one["id"]: one for one in made.get(SWITCHES).json()["kill_switches"]}
    found = listed[answer.json()["id"]]
    assert {name: found[name] for name in wanted} == wanted
    assert (found["by"], len(listed)) == ("ada", 2)
    assert made.delete(f"{SWITCHES}/{found['id']}").json() == {"shared": True}
    assert len(world.operator.switches()) == 1
    gone = made.delete(f"{SWITCHES}/{found['id']}")
    assert (gone.status_code, gone.json()["error"]["code"]) == (404, "not_found")


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"scope_key": "agent", "scope_value": "a"}, "scope_key"),
        ({"scope_key": "header:authorization", "scope_value": "Bearer x"}, "scope_key"),
        ({"scope_key": "ip:address", "scope_value": "10.0.0.0/8"}, "scope_value"),
        ({"scope_key": "agent:id", "scope_value": "a", "route": "v1"}, "route"),
        ({"scope_key": "agent:id", "scope_value": "a", "expires_at": 1}, "expires_at"),
    ],
)
def test_a_wrong_kill_switch_is_refused(world: World, wrong: dict[str, object], field: str) -> None:
    """Checked as the bundle's are, and no secret is kept (K-2)."""
    refused = client(world).post(SWITCHES, json=wrong)
    assert (refused.status_code, refused.json()["error"]["field"]) == (400, field)
    assert len(world.operator.switches()) == 1


def test_an_override_is_switched_on_and_off(world: World) -> None:
    """An override is switched on and off (K-1)."""
    made, until = client(world), world.clock.now() + 600
    assert made.put(f"{OVERRIDES}/global_shadow", json={"reason": "rollout", "expires_at": until}).status_code == 200
    (found,) = made.get(OVERRIDES).json()["overrides"]
    assert (found["name"], found["reason"], found["expires_at"], found["by"]) == (
        "global_shadow",
        "rollout",
        until,
        "ada",
    )
    assert made.delete(f"{OVERRIDES}/global_shadow").status_code == 200
    assert made.delete(f"{OVERRIDES}/global_shadow").status_code == 404
    assert made.get(OVERRIDES).json() == {"overrides": []}


def test_a_wrong_override_is_refused(world: World) -> None:
    until, made = world.clock.now() + 600, client(world)
    wrong = made.put(f"{OVERRIDES}/everything", json={"reason": "x", "expires_at": until})
    assert (wrong.status_code, wrong.json()["error"]["field"]) == (400, "name")
    assert made.put(f"{OVERRIDES}/global_shadow", json={"reason": "x"}).json()["error"]["field"] == "expires_at"
    assert made.put(f"{OVERRIDES}/global_shadow", json={"reason": "x", "expires_at": None}).status_code == 400


def test_a_loop_is_snoozed(world: World) -> None:
    """A loop is snoozed (LD-6)."""
    made = client(world)
    answer = made.post("/api/v1/snooze", json={"fingerprint": "9b0c44d1e2a7f350", "seconds": 60}).json()
    assert answer == {"fingerprint": "9b0c44d1e2a7f350", "until": world.clock.now() + 60}
    assert len(world.snoozed) == 1
    for wrong in ({"fingerprint": "x", "seconds": 60}, {"fingerprint": "9b0c44d1e2a7f350", "seconds": 0}):
        assert made.post("/api/v1/snooze", json=wrong).status_code == 400
    assert len(world.snoozed) == 1


def test_a_breaker_is_closed_at_once(world: World) -> None:
    """A breaker is closed at once (CB-2)."""
    made = client(world)
    listed = made.get("/api/v1/breakers").json()["breakers"]
    assert [one["state"] for one in listed] == ["open", "closed"]
    which = {"policy": listed[0]["policy"], "key": listed[0]["key"]}
    assert made.post("/api/v1/breakers/reset", json=which).json() == listed[0]
    assert world.reset == [(which["policy"], which["key"])]
    closed = made.post("/api/v1/breakers/reset", json={"policy": listed[1]["policy"], "key": listed[1]["key"]})
    assert closed.status_code == 404


def test_budgets_of_trees() -> None:
    """What each tree has spent and what is left to it; an operator gives it its budget again (G-6)."""
    made = client(full())
    listed = made.get("/api/v1/tree-budgets").json()["trees"]
    assert [(one["root"], one["usd"], one["usd_limit"], one["usd_left"]) for one in listed] == [
        ("nightly-refactor", 19.4, 20.0, 0.6),
        ("triage-0815", 1.2, 20.0, 18.8),
    ]
    assert {(one["tokens_limit"], one["tokens_left"], one["shadow"]) for one in listed} == {(None, None, False)}
    which = {name: listed[0][name] for name in ("project", "caller", "root")}
    assert made.post("/api/v1/tree-budgets/reset", json=which).json() == listed[0]
    assert made.post("/api/v1/tree-budgets/reset", json={**which, "root": "another"}).status_code == 404
