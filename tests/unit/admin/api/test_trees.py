"""Trees of agents through the admin API (G-6)."""

from __future__ import annotations

from tests.admin_client import client
from tests.admin_world import full

TREE = {"project": "default", "caller": "key:4f2a", "root": "nightly-refactor"}


def test_trees_and_their_sessions() -> None:
    """Each session after the one that started it, with what it has spent."""
    made = client(full())
    [listed] = made.get("/api/v1/trees").json()["trees"]
    assert {name: listed[name] for name in TREE} == TREE
    assert (listed["sessions"], listed["at_work"], listed["depth"], listed["usd"]) == (5, 3, 3, 19.4)
    found = made.get("/api/v1/tree", params=TREE).json()
    assert found["tree"] == listed
    sessions = [(one["session"], one["parent"], one["agent"], one["depth"]) for one in found["sessions"]]
    assert sessions == [
        ("nightly-refactor", "", "lead", 1),
        ("plan-02", "nightly-refactor", "planner", 2),
        ("code-03", "nightly-refactor", "code-fixer", 2),
        ("test-04", "code-03", "tester", 3),
        ("test-05", "code-03", "tester", 3),
    ]
    assert sum(one["tokens"] for one in found["sessions"]) == listed["tokens"]
    assert made.get("/api/v1/tree", params={**TREE, "root": "another"}).status_code == 404


def test_a_part_is_stopped_and_released() -> None:
    world = full()
    made = client(world)
    part = {**TREE, "session": "code-03"}
    assert made.post("/api/v1/tree/kill", json={**part, "reason": "too dear"}).json()["sessions"] == 3
    assert sum(one.binds == "run" for one in world.operator.holds()) == 3
    assert made.post("/api/v1/tree/release", json=part).json()["sessions"] == 3
    assert made.post("/api/v1/tree/land", json={**part, "reason": "enough"}).json()["sessions"] == 3
    assert [one.lands for one in world.operator.holds() if one.binds == "run"] == [True] * 3
    assert made.post("/api/v1/tree/release", json=part).json()["sessions"] == 3
    assert made.post("/api/v1/tree/kill", json={**part, "session": "another", "reason": "r"}).status_code == 404
