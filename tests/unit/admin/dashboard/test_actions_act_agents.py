"""Hold, release, set, snooze from the dashboard (G-1, LD-6)."""

from __future__ import annotations

import math
from dataclasses import replace

from breakloop.admin.dashboard.actions import agent_path
from breakloop.engine.quarantine import CALLER, Hold
from tests.admin_client import browser
from tests.admin_records import NOW, PROJECT
from tests.admin_world import full
from tests.unit.admin.dashboard.test_actions_acts import act


def test_kill_for_a_while_or_until_released() -> None:
    world = full()
    act(world, "agent.kill", project=PROJECT, agent="planner", reason="spins", **{"for": "3600"})
    act(world, "agent.kill", project=PROJECT, agent="docs-writer", reason="spins", **{"for": ""})
    until = {one.agent: one.until for one in world.operator.holds()}
    assert (until["planner"], until["docs-writer"]) == (NOW + 3_600, math.inf)


def test_release_agents_callers_and_runs() -> None:
    """Whatever is held can go; what is not held is said."""
    world = full()
    world.operator._quarantine.adopt(Hold(CALLER, PROJECT, "key:77", "", NOW, NOW + 60, "three agents"), foreign=False)
    assert (
        "code-fixer is released: 1 hold ended." in act(world, "agent.release", project=PROJECT, agent="code-fixer")[2]
    )
    assert (
        "caller key:77 is released: 1 hold ended." in act(world, "agent.release", project=PROJECT, caller="key:77")[2]
    )
    assert [one.agent for one in world.operator.holds()] == ["scraper-7"]
    assert (
        "planner was neither quarantined nor blocked"
        in act(world, "agent.release", project=PROJECT, agent="planner")[2]
    )
    assert act(world, "agent.release", project=PROJECT)[0] == 400


def test_settings_are_checked_and_kept() -> None:
    """As the bundle would have them; what is wrong is said, and nothing is kept."""
    world = full()
    form = {
        "project": PROJECT,
        "agent": "planner",
        "active": "on",
        "budget_usd_per_day": "5",
        "allowed_hours": "08:00-18:00",
    }
    assert "Settings of planner are saved." in act(world, "agent.settings", **form)[2]
    kept = world.history.agent(PROJECT, "planner")
    assert kept is not None
    assert kept.settings == {"budget_usd_per_day": 5.0, "allowed_hours": "08:00-18:00"}
    status, _, text = act(world, "agent.settings", **{**form, "allowed_hours": "late"})
    assert status == 400
    assert "allowed_hours" in text
    assert world.history.audit_rows[0].action == "agent.settings"
    act(world, "agent.settings", project=PROJECT, agent="planner")
    off = world.history.agent(PROJECT, "planner")
    assert off is not None
    assert off.settings == {"active": False}


def test_snooze() -> None:
    world = full()
    act(world, "loop.snooze", fingerprint="9b0c44d1e2a7f350", agent="docs-writer", back="/incidents/inc-7c21")
    assert world.snoozed == {"9b0c44d1e2a7f350": NOW + 3_600}
    assert act(world, "loop.snooze")[0] == 400


def test_names_with_anything_in_them_have_a_page() -> None:
    assert agent_path("p", "a/b c&d=é") == "/agent?project=p&name=a%2Fb+c%26d%3D%C3%A9"


def test_a_kill_of_nobody_says_so() -> None:
    """It is done, and a name that was mistyped does not look like success (G-1)."""
    world = full()
    said = act(world, "agent.kill", project=PROJECT, agent="plannr", reason="spins")[2]
    assert "plannr is quarantined, but no agent of this name was ever seen. Did you mean planner?" in said
    assert "plannr" in {one.agent for one in world.operator.holds()}
    assert "ever seen" not in act(world, "agent.kill", project=PROJECT, agent="planner", reason="spins")[2]


def test_a_loop_that_is_blocked_is_released_from_its_incident() -> None:
    """Not only holds; the audit log says what was done (G-1, LD-5)."""
    world = full()
    one = next(one for one in world.history.incident_rows if one.id == "inc-7c1e")
    blocked = replace(one, agent="sql-helper", last_at=NOW - 5, cooldown_seconds=60)
    world.history.incident_rows[world.history.incident_rows.index(one)] = blocked
    assert "/ask/agent.release?" in browser(world)[0].get("/incidents/inc-7c1e").text
    said = act(world, "agent.release", project=PROJECT, agent="sql-helper")[2]
    assert "sql-helper is released: 1 blocked loop cleared." in said
    assert world.history.audit_rows[0].detail["loops"] == 1
    told = [event for event in world.published if event.name == "agent.released"]
    assert [(event.project, event.data["agent"]) for event in told] == [(PROJECT, "sql-helper")]
    world.clock.advance(600)
    assert "/ask/agent.release?" not in browser(world)[0].get("/incidents/inc-7c1e").text
