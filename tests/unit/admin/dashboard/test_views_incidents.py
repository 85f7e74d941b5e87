"""Incidents: what needs a look comes first, and a score is taken apart."""

from __future__ import annotations

from dataclasses import replace

from breakloop.admin.dashboard import views
from breakloop.engine.quarantine import NAME, Hold
from tests import admin_records
from tests.admin_records import NOW, PROJECT


def test_open_ones_come_first() -> None:
    """Whatever the order they come in: going on, stopped, over; the newest first."""
    found = views.first_open(reversed(admin_records.incidents()))
    assert [one.id for one in found] == ["inc-7c21", "inc-7c20", "inc-7c1e", "inc-7b90", "inc-7b11", "inc-7a02"]


def test_states_in_words() -> None:
    first, second, *_, shadow, _last = admin_records.incidents()
    assert [views.state_said(state) for state in views.INCIDENT_STATES] == ["open", "stopped", "over"]
    assert "still allowed" in views.state_means(first)
    assert "denied" in views.state_means(second)
    contradictory = views.state_means(replace(first, saved_requests=3))
    assert contradictory == "The agent repeats itself and was warned; 3 requests of it were denied."
    assert "shadow" in views.state_means(shadow)
    assert views.state_said("odd") == "odd"
    assert views.state_means(replace(first, state="odd")) == ""


def test_what_was_landed_is_said() -> None:
    """Where the model was asked to finish; a later denial is told as one (LD-10)."""
    first, second, *_, shadow, _last = (replace(one, action="land") for one in admin_records.incidents())
    assert "requests pass with tools switched off" in views.state_means(first)
    assert views.state_means(replace(first, state="cleared")).startswith("The loop is over: the model was asked to")
    assert "denied" in views.state_means(second)
    assert "nothing was done" in views.state_means(shadow)


def test_who_is_held() -> None:
    incident = admin_records.incidents()[1]
    mine = Hold(NAME, PROJECT, "", incident.agent, NOW, NOW + 1, "why")
    assert views.held(incident, [replace(mine, agent="other"), mine]) is mine
    assert views.held(incident, [replace(mine, project="other")]) is None


def test_a_score_adds_up() -> None:
    """How many, what each weighs, what they add up to (LD-3)."""
    found = views.score(admin_records.incidents()[3].score)
    assert found is not None
    assert [(part["name"], part["number"], part["weight"], part["points"]) for part in found["parts"]] == [
        ("Similar prompts", 5, 1, 5),
        ("Similar responses", 3, 2, 6),
        ("The same tool calls", 1, 1.5, 1.5),
    ]
    assert (found["total"], found["threshold"], found["window"]) == (12.5, 10, 19)
    assert sum(part["share"] for part in found["parts"]) == 1.0


def test_no_score() -> None:
    assert views.score({}) is None
    assert views.score({"score": "12"}) is None
    half = views.score({"score": 0, "prompts": 1})
    assert half is not None
    assert half["parts"] == []
    assert half["threshold"] is None
