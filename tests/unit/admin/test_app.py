"""Tests of `admin.app`: shield, guard, API and pages in one application."""

from __future__ import annotations

import pytest

from breakloop.errors import HistoryError
from tests.admin_client import browser, client
from tests.admin_world import World, full


@pytest.fixture
def world() -> World:
    return full()


def test_alive_and_metrics(world: World) -> None:
    """Alive and metrics (D-5, G-5)."""
    made = client(world)
    assert made.get("/livez").headers["content-type"].startswith("text/plain")
    assert made.get("/livez").headers["x-breakloop-plane"] == "admin"  # by which the CLI knows whom it shows a token
    metrics = made.get("/metrics")
    assert metrics.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert metrics.content == b"breakloop_up 1\n"


def test_further_names_can_be_allowed(world: World) -> None:
    from tests.admin_client import app_of

    app = app_of(world, hosts=("ops.example.com",))
    assert client(world, app=app).get("/livez", headers={"host": "ops.example.com"}).status_code == 200
    assert client(world, app=app).get("/livez", headers={"host": "other.example.com"}).status_code == 421


def test_the_api_does_not_hide_the_pages(world: World) -> None:
    """Whoever has a token sees the same paths, as pages (X-2)."""
    assert client(world).get("/api/v1/agents").headers["content-type"] == "application/json"
    assert client(world).get("/theme").status_code == 405


def test_a_history_that_fails_is_said_so(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise HistoryError("the disk is full")

    monkeypatch.setattr(world.history, "events", broken)
    answer = client(world).get("/api/v1/events")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_history")


def test_slashes_are_not_redirected(world: World) -> None:
    """A redirect would lose a body, or go where a Host header says."""
    assert client(world).get("/api/v1/status/").status_code == 404


def test_an_unknown_page_leads_back(world: World) -> None:
    """A person gets a page, a program JSON (X-2)."""
    page = browser(world)[0].get("/agentz", headers={"accept": "text/html,*/*"})
    assert (page.status_code, page.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert "Page not found" in page.text
    assert 'href="/"' in page.text
    for path, accept in (("/agentz", "*/*"), ("/api/v1/agentz", "text/html"), ("/static/none.js", "text/html")):
        answer = browser(world)[0].get(path, headers={"accept": accept})
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
