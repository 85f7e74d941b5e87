"""Tests of `admin.guard`: nobody passes who is not known, on any path."""

from __future__ import annotations

import pytest

from breakloop.admin.auth import FREE
from tests.admin_client import LOOKS, OWN, browser, client
from tests.admin_world import World, full

HTML = {"accept": "text/html,application/xhtml+xml"}


@pytest.fixture
def world() -> World:
    return full()


PATHS = ["/", "/agents", "/nope", "/api", "/api/v1/", "/api/v1/nope", "/api/v1/openapi.json", "/live", "/theme"]
PATHS += ["/logout", "/livez/", "//livez", "/Login", "/static", "/metricsx", "/act/agent.kill", "/ask/agent.kill"]


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE"])
@pytest.mark.parametrize("token", ["", "wrong"])
def test_everything_else_needs_a_token(world: World, method: str, token: str) -> None:
    """401 without and with a wrong token, whether or not the path exists (X-1)."""
    made = client(world, token)
    for path in PATHS:
        answer = made.request(method, f"http://127.0.0.1:8788{path}")
        assert answer.status_code == 401, path
        assert method == "HEAD" or answer.json()["error"]["code"] == "unauthenticated"


def test_some_things_are_open(world: World) -> None:
    """Some things are open (D-5, X-1)."""
    made = client(world, "")
    assert made.get("/livez").text == "ok\n"
    assert made.get("/metrics").text == "breakloop_up 1\n"
    assert made.get("/static/nope.js").status_code == 404


def test_metrics_from_elsewhere_need_a_token(world: World) -> None:
    """No token on loopback only, and not for whoever stands behind a proxy there (X-1)."""
    assert client(world, "", peer="10.0.0.9").get("/metrics").status_code == 401
    assert client(world, "").get("/metrics", headers={"x-forwarded-for": "10.0.0.9"}).status_code == 401
    assert client(world, LOOKS, peer="10.0.0.9").get("/metrics").status_code == 200


def test_a_browser_is_led_to_the_form(world: World) -> None:
    """401 too, and the form knows where to go on (X-2)."""
    answer = client(world, "").get("/agents?find=%22%3E", headers=HTML)
    assert answer.status_code == 401
    assert 'content="0; url=/login?next=%2Fagents%3Ffind%3D%2522%253E"' in answer.text
    assert client(world, "").get("/api/v1/agents", headers=HTML).json()["error"]["code"] == "unauthenticated"
    assert client(world, "").post("/act/x", headers=HTML).json()["error"]["code"] == "unauthenticated"
    assert client(world, "wrong").get("/agents", headers=HTML).json()["error"]["code"] == "unauthenticated"


def test_a_part_of_a_page_sends_the_whole_page_to_the_form(world: World) -> None:
    answer = client(world, "").get("/agents", headers=HTML | {"hx-request": "true"})
    assert (answer.status_code, answer.headers["hx-redirect"]) == (401, "/login")


def test_the_form_opens_a_session(world: World) -> None:
    """HttpOnly, SameSite=Strict, twelve hours (Y-3)."""
    made = client(world, "")
    answer = made.post("/login", data={"token": OWN, "next": "/agents"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/agents")
    cookie = answer.headers["set-cookie"].lower()
    assert cookie.startswith("breakloop_session=")
    for part in ("httponly", "samesite=strict", "max-age=43200", "path=/"):
        assert part in cookie
    assert OWN not in cookie
    assert made.get("/api/v1/status").json()["you"] == {"name": "ada", "role": "operator"}


def test_the_form_says_what_is_wrong(world: World) -> None:
    """401 with the page, and the wrong token is counted as any other (X-2)."""
    made = client(world, "")
    assert made.get("/login").status_code == 200
    answer = made.post("/login", data={"token": "wrong"})
    assert answer.status_code == 401
    assert answer.headers["content-type"].startswith("text/html")
    assert "set-cookie" not in answer.headers
    began = world.clock.now()
    for _ in range(FREE + 3):
        assert made.post("/login", data={"token": "wrong"}).status_code == 401
    assert world.clock.now() > began


def test_pages_are_shown_to_whoever_has_signed_in(world: World) -> None:
    made, _ = browser(world)
    page = made.get("/agents", headers=HTML)
    assert page.status_code == 200
    assert "code-fixer" in page.text
    assert page.headers["content-security-policy"].startswith("default-src 'none'")


def test_another_sites_form_opens_nothing(world: World) -> None:
    answer = client(world, "").post("/login", data={"token": OWN}, headers={"origin": "http://evil.example"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "cross_site")


def test_a_session_can_be_ended(world: World) -> None:
    made, csrf = browser(world)
    kept = dict(made.cookies)
    assert made.post("/logout", data={}).status_code == 403
    answer = made.post("/logout", data={"csrf": csrf})
    assert (answer.status_code, answer.headers["location"]) == (303, "/login")
    made.cookies.update(kept)
    assert made.get("/api/v1/status").status_code == 401
