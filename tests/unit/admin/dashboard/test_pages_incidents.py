"""Incidents: filters, pages, and the page of one."""

from __future__ import annotations

from dataclasses import replace

from breakloop.admin.dashboard.pages import INCIDENTS_LISTED
from tests.admin_client import browser
from tests.admin_records import NOW
from tests.admin_world import empty, full


def test_filters() -> None:
    made, _ = browser(full())
    stopped = made.get("/incidents?state=stopped").text
    assert "inc-7c20" in stopped
    assert "inc-7c21" not in stopped
    assert "inc-7b90" in made.get("/incidents?kind=simhash").text
    assert "inc-7b11" in made.get("/incidents?shadow=yes").text
    assert "inc-7b11" not in made.get("/incidents?shadow=no").text
    assert "Nothing matches" in made.get("/incidents?agent=nobody").text
    assert made.get("/incidents?state=odd&before=nan").status_code == 200
    assert "breakloop demo" in browser(empty())[0].get("/incidents").text


def test_older_ones_are_behind_a_link() -> None:
    """The next page begins where this one ends, and does not follow along."""
    world = full()
    one = world.history.incident_rows[3]
    world.history.incident_rows = [replace(one, id=f"inc-{at}", last_at=NOW - at) for at in range(INCIDENTS_LISTED + 5)]
    made, _ = browser(world)
    first = made.get("/incidents").text
    assert f"before={NOW - INCIDENTS_LISTED + 1!r}" in first
    second = made.get(f"/incidents?before={NOW - INCIDENTS_LISTED + 1!r}").text
    assert "/incidents/inc-54" in second
    assert "/incidents/inc-3" not in second
    assert "hx-trigger" not in second


def test_one_incident_tells_all() -> None:
    """Evidence in words, the picture, spent and saved, buttons, events (G-3)."""
    text = browser(full())[0].get("/incidents/inc-7c20").text
    for said in (
        "edit_file, run_tests, read_file: the same round 7 times",
        "$41.80",
        "$3.42",
        "same 3 steps, 7 rounds",
        "steps 4 to 24 repeat",
        "/ask/agent.release?",
        "/ask/loop.snooze?fingerprint=3fd2a1907bc4e6d8",
        "Agent quarantined",
        "until it is released",
    ):
        assert said in text, said
    assert text.count('class="cross"') == 6 * 2 + 1  # wide, narrow, and the key
    assert "/ask/agent.kill?" not in text


def test_an_incident_that_was_landed() -> None:
    """Beside its state, in the list and on its page (G-3, LD-10)."""
    world = full()
    world.history.incident_rows = [replace(world.history.incident_rows[0], action="land")]
    made, _ = browser(world)
    for page in ("/incidents", "/incidents/inc-7c21"):
        assert ">landed</span>" in made.get(page).text
    assert ">landed</span>" not in browser(full())[0].get("/incidents").text


def test_whoever_runs_can_be_killed() -> None:
    text = browser(full())[0].get("/incidents/inc-7c21").text
    assert "/ask/agent.kill?" in text
    assert "/ask/agent.release?" not in text


def test_the_score_is_taken_apart() -> None:
    text = browser(full())[0].get("/incidents/inc-7b90").text
    assert "How the score adds up" in text
    assert "Similar responses" in text
    assert "<b>12.5</b>" in text
    assert "No steps: this kind" in text
