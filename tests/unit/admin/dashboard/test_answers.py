"""Links that answer for a paused run (K-8): opening one changes nothing, one click does, once."""

from __future__ import annotations

import re

import pytest
from starlette.testclient import TestClient

from breakloop.admin.auth import FREE, AnswerLinks
from breakloop.model.verdict import ANSWERS
from tests.admin_client import KEY, client, pause
from tests.admin_world import World, full

SAME_SITE = {"sec-fetch-site": "same-origin"}


@pytest.fixture
def world() -> World:
    return full()


def links(world: World) -> AnswerLinks:
    return AnswerLinks(KEY, world.clock, "http://127.0.0.1:8788")


def link(world: World, answer: str = "once", lasts_s: float = 1800.0) -> str:
    return "/answer/" + links(world).token(pause(world), answer, world.clock.now() + lasts_s)


def nobody(world: World) -> TestClient:
    """Somebody who is not signed in."""
    return client(world, "")


def waiting(world: World) -> int:
    return len(world.operator.pauses())


def words(page: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page.partition("<main>")[2]))


def test_opening_a_link_changes_nothing(world: World) -> None:
    """A scanner or a preview may do it as often as it likes (K-8)."""
    path = link(world)
    for method in ("GET", "HEAD", "GET"):
        answer = nobody(world).request(method, path)
        assert answer.status_code == 200
    assert waiting(world) == 1
    page = nobody(world).get(path)
    assert "Go on once? Agent planner" in words(page.text)
    assert "same 37 bytes 5 times in a row" in page.text
    assert page.headers["cache-control"] == "no-store"
    assert page.headers["referrer-policy"] == "same-origin"
    assert "script-src 'self'" in page.headers["content-security-policy"]


@pytest.mark.parametrize("answer", ANSWERS)
def test_one_click_answers(world: World, answer: str) -> None:
    """Without signing in; the answer is in the audit log with the address it came from (K-8, O-3)."""
    done = nobody(world).post(link(world, answer), headers=SAME_SITE)
    assert (done.status_code, waiting(world)) == (200, 0)
    assert f"Done {ANSWERS[answer]}: your answer is in force." in words(done.text)
    entry = world.history.audit_rows[0]
    assert (entry.who, entry.action, entry.target) == ("link (127.0.0.1)", "run.answer", "default/planner")
    assert (entry.detail["answer"], entry.detail["pause"]) == (answer, "planner-1")


def test_a_link_is_used_once(world: World) -> None:
    """And so are the other links of the same pause: they do nothing and say so (K-8)."""
    first, second = link(world), link(world, "kill")
    nobody(world).post(first, headers=SAME_SITE)
    entries = len(world.history.audit_rows)
    for path in (first, second):
        for method in ("GET", "POST"):
            answer = nobody(world).request(method, path, headers=SAME_SITE)
            assert answer.status_code == 404
            assert "Nothing was done This was answered already. Nothing was changed." in words(answer.text)
    assert len(world.history.audit_rows) == entries


def test_a_link_expires(world: World) -> None:
    """With the time to answer (K-8)."""
    path = link(world, lasts_s=60)
    world.clock.advance(60)
    for method in ("GET", "POST"):
        answer = nobody(world).request(method, path, headers=SAME_SITE)
        assert (answer.status_code, waiting(world)) == (404, 1)
        assert "This link has expired" in answer.text


def forged(world: World) -> dict[str, str]:
    good = link(world).removeprefix("/answer/")
    said, mac = good.rsplit(".", 1)
    other = AnswerLinks(b"another secret", world.clock).token("planner-1", "once", world.clock.now() + 60)
    return {
        "another answer": f"{said.replace('.once.', '.kill.')}.{mac}",
        "another pause": f"{said.replace('planner-1', 'planner-2')}.{mac}",
        "a longer life": f"{said}9.{mac}",
        "another secret": other,
        "no signature": said,
        "a lone surrogate": "%ED%A0%80.x",
        "too long": "x" * 5000,
    }


@pytest.mark.parametrize("how", forged(full()))
def test_a_forged_link_does_nothing(world: World, how: str) -> None:
    """It is bound to the pause, the answer and its end, and signed with the key of the installation (K-8)."""
    for method in ("GET", "POST"):
        answer = nobody(world).request(method, f"/answer/{forged(world)[how]}", headers=SAME_SITE)
        assert (answer.status_code, waiting(world)) == (404, 1)
        assert "This link is not valid." in answer.text


def test_another_site_cannot_click(world: World) -> None:
    """The form of another page, by what browsers say of it (K-8, X-4)."""
    path = link(world)
    for headers in ({"sec-fetch-site": "cross-site"}, {"origin": "https://evil.example"}):
        assert nobody(world).post(path, headers=headers).status_code == 403
    assert waiting(world) == 1


def test_guessing_is_slowed_down(world: World) -> None:
    """As wrong tokens at the log-in are, and they are counted with those (K-8)."""
    app = nobody(world)
    for number in range(FREE):
        assert app.get(f"/answer/guess.{number}").status_code == 404
    began = world.clock.now()
    answer = app.get("/answer/guess")
    answer = app.get("/answer/guess")
    assert answer.status_code == 404
    assert world.clock.now() > began
