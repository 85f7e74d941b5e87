"""Actions are done, audited, and then acknowledged with a notice (X-2)."""

from __future__ import annotations

from tests.admin_client import browser
from tests.admin_records import PROJECT
from tests.admin_world import World, full


def act(world: World, name: str, **form: str) -> tuple[int, str, str]:
    """Do something; return the status, where it leads, and the page that is shown then, or the answer itself."""
    made, csrf = browser(world)
    answer = made.post(f"/act/{name}", data={"csrf": csrf, **form})
    where = answer.headers.get("location", "")
    return answer.status_code, where, made.get(where).text if where else answer.text


def test_done_audited_and_said() -> None:
    """The next page says it once, and the audit log names who did it."""
    world = full()
    made, csrf = browser(world)
    answer = made.post(
        "/act/agent.kill", data={"csrf": csrf, "project": PROJECT, "agent": "planner", "reason": "spins"}
    )
    assert (answer.status_code, answer.headers["location"]) == (303, "/agent?project=default&name=planner")
    assert "planner is quarantined." in made.get("/agents").text
    assert 'id="notice"' not in made.get("/agents").text
    entry = world.history.audit_rows[0]
    assert (entry.who, entry.action, entry.target) == ("ada", "agent.kill", "default/planner")
    assert [one.by for one in world.operator.holds() if one.agent == "planner"] == ["ada"]


def test_back_to_where_it_was_asked() -> None:
    world = full()
    assert (
        act(world, "agent.release", project=PROJECT, agent="code-fixer", back="/incidents/inc-7c20")[1]
        == "/incidents/inc-7c20"
    )
    assert act(world, "agent.release", project=PROJECT, agent="x", back="//evil.example")[1].startswith("/agent?")
    assert act(world, "agent.release", project=PROJECT, agent="x", back="https://evil.example")[1].startswith("/agent?")


def test_what_cannot_be_done_is_said() -> None:
    """Nothing is audited that was not done."""
    world = full()
    before = list(world.history.audit_rows)
    status, _, text = act(world, "agent.kill", project=PROJECT, agent="planner", reason="")
    assert status == 400
    assert "reason: must not be empty" in text
    assert act(world, "agent.kill", project=PROJECT, agent="planner", reason="x", **{"for": "soon"})[0] == 400
    assert act(world, "none")[0] == 404
    assert world.history.audit_rows == before


def test_a_store_that_is_away_is_said() -> None:
    """It is done here; that others follow later is no secret (K-3)."""
    world = full()

    async def never(timeout_s: float = 1.0) -> bool:
        return False

    world.operator.acknowledged = never  # type: ignore[method-assign]
    assert "other instances follow" in act(world, "agent.release", project=PROJECT, agent="code-fixer")[2]


def test_only_forms() -> None:
    made, csrf = browser(full())
    answer = made.post("/act/agent.kill", json={"agent": "planner"}, headers={"x-csrf-token": csrf})
    assert answer.status_code == 415
