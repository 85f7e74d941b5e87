"""Events with filters, page by page (G-2)."""

from __future__ import annotations

from dataclasses import replace

from breakloop.admin.dashboard.pages import EVENTS_LISTED
from tests.admin_client import browser
from tests.admin_world import full


def test_filters() -> None:
    made, _ = browser(full())
    text = made.get("/parts/events?name=agent.killed").text
    assert text.count("<tr") == 3
    assert (
        'hx-get="/parts/events?name=agent.killed&amp;agent=&amp;incident="'
        in made.get("/events?name=agent.killed").text
    )
    assert "research-crew" not in made.get("/parts/events?agent=code-fixer").text
    assert "Nothing matches" in made.get("/parts/events?incident=none").text


def test_pages() -> None:
    """A later page stands still; the first one follows along."""
    world = full()
    one = world.history.event_rows[0]
    world.history.event_rows = [replace(one, id=1_000 - at) for at in range(EVENTS_LISTED + 3)]
    made, _ = browser(world)
    assert "before=951" in made.get("/events").text
    second = made.get("/events?before=951").text
    assert second.count("data-id=") == 3
    assert "hx-trigger" not in second
    assert made.get("/events?before=x").status_code == 200
