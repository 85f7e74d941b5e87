"""Paused runs on the dashboard (K-6)."""

from __future__ import annotations

from tests.admin_client import LOOKS, browser, pause
from tests.admin_records import HOSTILE
from tests.admin_world import full


def test_they_are_on_the_overview_and_have_a_page() -> None:
    """With a button for each answer, and not among those that are quarantined."""
    world = full()
    pause(world)
    made, _ = browser(world)
    for path in ("/", "/pauses", "/parts/pauses"):
        page = made.get(path).text
        assert "same 37 bytes 5 times in a row" in page, path
        assert page.count("/ask/run.answer?id=planner-1&amp;answer=") == 2 * 5, path  # link and htmx
        assert "in 30 min, it stays held" in page, path
    assert "1 run waits for your answer" in made.get("/").text
    assert "37 bytes" not in made.get("/agents").text


def test_a_viewer_sees_them_without_buttons() -> None:
    world = full()
    pause(world)
    made, _ = browser(world, LOOKS)
    page = made.get("/pauses").text
    assert "37 bytes" in page
    assert "run.answer" not in page


def test_an_answer_is_asked_for_once_more_and_then_given() -> None:
    """The answer is in the audit log (O-3)."""
    world = full()
    made, csrf = browser(world)
    question = {"id": pause(world), "answer": "5usd", "agent": "planner"}
    asked = made.get("/ask/run.answer", params=question).text
    assert "Let planner go on for $5?" in asked
    done = made.post("/act/run.answer", data={**question, "csrf": csrf}, headers={"sec-fetch-site": "same-origin"})
    assert (done.status_code, done.headers["location"]) == (303, "/pauses")
    assert world.operator.pauses() == []
    assert (world.history.audit_rows[0].who, world.history.audit_rows[0].action) == ("ada", "run.answer")
    assert "Nobody waits for an answer" in made.get("/pauses").text
    again = made.post("/act/run.answer", data={**question, "csrf": csrf}, headers={"sec-fetch-site": "same-origin"})
    assert again.status_code == 400
    assert "it was given already" in again.text


def test_names_are_text() -> None:
    """Whatever an agent calls itself (Y-3)."""
    world = full()
    pause(world, HOSTILE)
    made, _ = browser(world)
    for path in ("/", "/pauses"):
        assert HOSTILE not in made.get(path).text
