"""Webhooks from the dashboard; a secret is shown once (G-4)."""

from __future__ import annotations

from tests.admin_world import full
from tests.unit.admin.dashboard.test_actions_acts import act


def test_add_shows_the_secret_once() -> None:
    """On the page that answers, not in a redirect, a cookie, or the audit log."""
    world = full()
    status, _, text = act(world, "webhook.add", url="https://a.example/x", events="loop.detected, agent.killed")
    assert status == 200
    assert "whsec_c2VjcmV0IGZvciB0ZXN0cw==" in text
    made = world.hooks.webhooks()[-1]
    assert (made["events"], made["allow_private"]) == (["loop.detected", "agent.killed"], False)
    assert "whsec" not in str(world.history.audit_rows[0])
    assert act(world, "webhook.add", url="ftp://a.example")[0] == 400


def test_remove() -> None:
    world = full()
    assert "Webhook wh_1 is removed." in act(world, "webhook.remove", id="wh_1")[2]
    assert [one["id"] for one in world.hooks.webhooks()] == ["wh_2"]
    assert act(world, "webhook.remove", id="wh_1")[0] == 404


def test_a_new_secret_is_shown_once() -> None:
    world = full()
    assert "whsec_bmV3" in act(world, "webhook.rotate", id="wh_1")[2]
    assert "bmV3" not in str(world.history.audit_rows[0])
    assert act(world, "webhook.rotate", id="wh_9")[0] == 404


def test_what_was_given_up_is_sent_again() -> None:
    world = full()
    assert "Delivery msg_29 is queued again." in act(world, "delivery.again", id="msg_29")[2]
    assert world.hooks.sent[-1]["state"] == "pending"
    assert act(world, "delivery.again", id="msg_30")[0] == 404


def test_a_test_says_what_came_of_it() -> None:
    world = full()
    assert "Test to wh_1: it answered 200." in act(world, "webhook.test", id="wh_1")[2]
    assert world.hooks.tested == ["wh_1"]
