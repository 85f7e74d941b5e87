"""The way in and out, and the choice of colours (Y-3)."""

from __future__ import annotations

import asyncio

from breakloop.admin.app import admin_app
from breakloop.admin.auth import FREE
from tests.admin_client import OWN, auth_of, browser, client
from tests.admin_world import full


def test_in_and_out() -> None:
    """A token for a cookie; the page asked for comes next; signing out ends it."""
    made = client(full(), "")
    page = made.get("/login?next=/agents%3Fstate%3Dquarantined")
    assert 'name="next" value="/agents?state=quarantined"' in page.text
    assert "code-fixer" not in page.text
    assert "admin-token.sha256" in page.text  # how to get another token
    entered = made.post("/login", data={"token": f" {OWN} ", "next": "/agents?state=quarantined"})
    assert (entered.status_code, entered.headers["location"]) == (303, "/agents?state=quarantined")
    shown = made.get("/agents")
    assert shown.status_code == 200
    csrf = shown.text.partition('name="csrf" value="')[2].partition('"')[0]
    assert made.post("/logout", data={"csrf": csrf}).headers["location"] == "/login"
    assert made.get("/agents").status_code == 401


def test_a_wrong_token() -> None:
    made = client(full(), "")
    answer = made.post("/login", data={"token": "guess", "next": "https://evil.example"})
    assert answer.status_code == 401
    assert "This token is not valid" in answer.text
    assert 'role="alert"' in answer.text
    assert "guess" not in answer.text
    assert 'name="next" value="/"' in answer.text
    assert made.post("/login", json={}).status_code == 415


def test_colours_are_kept() -> None:
    """Also without a script; what is no choice changes nothing."""
    made, csrf = browser(full())
    assert 'data-theme="auto"' in made.get("/").text
    assert made.post("/theme", data={"csrf": csrf, "theme": "dark", "back": "/agents"}).headers["location"] == "/agents"
    assert 'data-theme="dark"' in made.get("/").text
    assert 'data-theme="dark"' in client(full(), "").get("/login", headers={"cookie": "breakloop_theme=dark"}).text
    made.post("/theme", data={"csrf": csrf, "theme": '"><script>'})
    assert 'data-theme="dark"' in made.get("/").text


def test_too_many_wrong_tokens_are_said_in_the_form() -> None:
    """Not as JSON: a person reads it (Y-3)."""
    world = full()
    auth = auth_of(world)
    auth._sleep = lambda _seconds: asyncio.sleep(0)  # as if all of them came at once
    made = client(world, "", app=admin_app(world.services, auth))
    answers = [made.post("/login", data={"token": "guess"}) for _ in range(FREE + 40)]
    assert (answers[0].status_code, answers[-1].status_code) == (401, 429)
    assert "too many wrong tokens from your address" in answers[-1].text
    assert "<form" in answers[-1].text
