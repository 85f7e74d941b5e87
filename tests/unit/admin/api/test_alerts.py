"""Tests of `admin.api_hooks`: webhooks, what was sent, alert rules."""

from __future__ import annotations

from typing import Any

import pytest

from breakloop.errors import AlertError
from tests.admin_client import client
from tests.admin_world import World, full

HOOKS = "/api/v1/webhooks"


@pytest.fixture
def world() -> World:
    return full()


def test_a_webhook_is_made_listed_tested_and_removed(world: World) -> None:
    """`{url, events, allow_private}` answers with `{id, secret}`; the secret is never shown again (T-2, G-4)."""
    made = client(world)
    wanted = {"url": "https://hooks.example.com/in", "events": ["loop.detected"], "allow_private": False}
    answer = made.post(HOOKS, json=wanted)
    assert (answer.status_code, set(answer.json())) == (201, {"id", "secret"})
    listed = made.get(HOOKS)
    assert listed.json()["webhooks"][-1]["url"] == wanted["url"]
    assert answer.json()["secret"] not in listed.text
    own = answer.json()["id"]
    assert made.post(f"{HOOKS}/{own}/test").json() == {"delivered": True, "status": 200}
    assert world.hooks.tested == [own]
    assert made.delete(f"{HOOKS}/{own}").json() == {"id": own}
    assert made.delete(f"{HOOKS}/{own}").status_code == 404
    assert made.post(f"{HOOKS}/{own}/test").status_code == 404
    assert world.hooks.tested == [own]


def test_a_webhook_gets_a_new_secret(world: World) -> None:
    """Shown this once, and not written down (G-4)."""
    made = client(world)
    assert made.post(f"{HOOKS}/wh_1/rotate").json() == {"id": "wh_1", "secret": "whsec_bmV3"}
    assert made.post(f"{HOOKS}/wh_9/rotate").status_code == 404
    row = world.history.audit_rows[0]
    assert (row.action, row.target) == ("webhook.rotate", "wh_1")
    assert "bmV3" not in str(row)


def test_what_was_given_up_is_sent_again(world: World) -> None:
    """Only that; what is under way or delivered is left alone (G-4)."""
    made = client(world)
    assert made.post("/api/v1/deliveries/msg_29/again").json() == {"id": "msg_29"}
    assert [one["state"] for one in world.hooks.sent] == ["pending", "delivered", "pending"]
    for other in ("msg_29", "msg_30", "msg_99"):
        assert made.post(f"/api/v1/deliveries/{other}/again").status_code == 404
    assert [row.action for row in world.history.audit_rows].count("delivery.again") == 1


@pytest.mark.parametrize("wrong", [{}, {"url": "ftp://x"}, {"url": "x"}, {"url": "https://x", "events": [""]}, {"url": "https://x", "secret": "own"}])  # fmt: skip
def test_a_wrong_webhook_is_refused(world: World, wrong: dict[str, Any]) -> None:
    assert client(world).post(HOOKS, json=wrong).status_code == 400


def test_a_target_that_is_refused_says_why(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A target that is refused says why (Y-4)."""

    def refused(*_: Any, **__: Any) -> None:
        raise AlertError("10.0.0.1 is a private address")

    monkeypatch.setattr(world.hooks, "add_webhook", refused)
    answer = client(world).post(HOOKS, json={"url": "http://10.0.0.1/"})
    assert answer.json()["error"] == {"code": "target_refused", "message": "10.0.0.1 is a private address", "field": "url"}  # fmt: skip


def test_deliveries_and_rules_are_listed(world: World) -> None:
    made = client(world)
    assert [one["state"] for one in made.get("/api/v1/deliveries").json()["deliveries"]] == ["pending", "delivered", "failed"]  # fmt: skip
    assert len(made.get("/api/v1/deliveries?most=1").json()["deliveries"]) == 1
    assert made.get("/api/v1/alerts/rules").json()["rules"][0]["type"] == "loop"
