"""What all pages have in common."""

from __future__ import annotations

import pytest

from breakloop.errors import HistoryError
from tests.admin_client import browser
from tests.admin_world import full


@pytest.mark.parametrize("path", ["/", "/agents", "/incidents/x", "/events", "/audit", "/policies"])
def test_history_that_fails_is_said(path: str) -> None:
    """A page, not a stack trace, and the status says so."""
    world = full()

    def broken(*_: object, **__: object) -> None:
        raise HistoryError("the disk is <full>")

    for name in ("totals", "agents", "incident", "incidents", "events", "audit", "shadow"):
        setattr(world.history, name, broken)
    answer = browser(world)[0].get(path)
    assert answer.status_code == 503
    assert "the disk is &lt;full&gt;" in answer.text
    assert 'aria-label="Pages"' in answer.text


def test_where_one_is() -> None:
    """The navigation names the page, also from an agent's and an incident's."""
    made, _ = browser(full())
    for path, name in (("/", "Overview"), ("/agent?name=code-fixer", "Agents"), ("/incidents/inc-7c20", "Incidents")):
        text = made.get(path).text
        assert text.count('aria-current="page"><svg') == 1
        assert f"</svg><span>{name}</span>" in text.partition('aria-current="page"><svg')[2][:900]


def test_a_degraded_store_is_on_every_page() -> None:
    world = full()
    status = world.services.status()
    world.services.status = lambda: {**status, "degraded": True}
    assert "The shared store is unavailable" in browser(world)[0].get("/settings").text
