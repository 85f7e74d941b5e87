"""Agents: found by name and state, and the page of one."""

from __future__ import annotations

from breakloop.engine.quarantine import AGENT, CALLER, RUN, Hold
from tests.admin_client import browser
from tests.admin_records import NOW, PROJECT
from tests.admin_world import empty, full


def test_search_and_state() -> None:
    made, _ = browser(full())
    assert "planner" not in made.get("/agents?find=crew").text
    assert "research-crew" in made.get("/agents?find=crew").text
    held = made.get("/agents?state=quarantined").text
    assert "code-fixer" in held
    assert "planner" not in held
    assert "No agent matches" in made.get("/agents?find=nobody").text
    assert "X-Agent-Id" in browser(empty())[0].get("/agents").text


def test_held_callers_and_runs_are_listed_too() -> None:
    """Whoever is held can be released here, though it is no agent that was seen."""
    world = full()
    for one in (Hold(CALLER, PROJECT, "key:77", "", NOW, NOW + 60, "three agents"), Hold(RUN, PROJECT, "c", "planner", NOW, NOW + 60, "50 steps", "run-9")):  # fmt: skip
        world.operator._quarantine.adopt(one, foreign=False)
    text = browser(world)[0].get("/agents").text
    assert "caller key:77" in text
    assert "run run-9" in text
    assert "run=run-9" in text
    assert "caller=key%3A77" in text


def test_one_agent() -> None:
    """Its money, its loops, what holds it, and its settings."""
    text = browser(full())[0].get("/agent?project=default&name=code-fixer").text
    for said in ("$31.42", "cycle loop (edit_file, run_tests, read_file)", "until it is released", "/incidents/inc-7c20", 'action="/act/agent.settings"', "Release", "Kill"):  # fmt: skip
        assert said in text, said


def test_settings_are_filled_in() -> None:
    text = browser(full())[0].get("/agent?project=default&name=invoice-bot").text
    assert 'name="budget_usd_per_day" value="20.0"' in text
    assert 'name="allowed_hours" value="06:00-22:00"' in text


def test_a_run_at_its_ceiling_does_not_hold_the_agent() -> None:
    world = full()
    world.operator._quarantine.adopt(
        Hold(RUN, PROJECT, "c", "planner", NOW, NOW + 60, "50 steps", "run-9"), foreign=False
    )
    world.operator._quarantine.adopt(Hold(AGENT, PROJECT, "c", "pr-reviewer", NOW, NOW + 60, "loop"), foreign=False)
    text = browser(world)[0].get("/agent?project=default&name=planner").text
    assert '<span class="pill good">running</span>' in text
    assert "run-9" in text


def test_a_kill_switch_is_seen() -> None:
    """Whom a kill switch stops is not running, in the list and on its page (K-2)."""
    world = full()
    world.operator.set_switch("agent:id", "planner", "ada", reason="INC-9")
    world.operator.set_switch("agent:id", "docs-writer", "ada", route="/v1/x")  # not all of it
    made, _ = browser(world)
    listed = made.get("/agents?state=kill+switch").text
    assert "planner" in listed
    assert "docs-writer" not in listed
    page = made.get("/agent?project=default&name=planner").text
    assert '<span class="pill bad">kill switch</span>' in page
    assert "INC-9" in page
    assert "Stopped by a kill switch" in page


def test_one_that_is_held_and_was_never_seen_has_a_page() -> None:
    """So that a name that was mistyped can be released (G-1)."""
    world = full()
    world.operator.kill(PROJECT, "plannr", "INC-9", "ada")
    page = browser(world)[0].get("/agent?project=default&name=plannr")
    assert page.status_code == 200
    assert "INC-9" in page.text
    assert "/ask/agent.release?" in page.text
