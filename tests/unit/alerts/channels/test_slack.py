"""Slack, against a stand-in."""

from __future__ import annotations

import asyncio

from breakloop.alerts.channels.base import Delivery
from breakloop.alerts.channels.services import SlackTarget, slack_message
from breakloop.alerts.messages import message_of
from tests.alert_world import CANARY, loop, means, notice_body, paused, receiver, released


def test_a_message() -> None:
    """A line for notifications, and slack_message within Slack's bounds (G-4)."""
    with receiver() as server:
        target = SlackTarget(means(), server.url + f"?{CANARY}", "https://ops.example", allow_private=True)
        parcel = Delivery("msg_1", "loop.detected", notice_body(loop(), spent_microusd=1_230_000))
        assert asyncio.run(target.send(parcel)).delivered
        made = server.got[0].json
    assert made["text"] == "🔴 Agent summariser loops (tail), stopped, $1.23 spent"
    assert [part["type"] for part in made["blocks"]] == ["header", "section", "section", "actions"]
    assert len(made["blocks"][2]["fields"]) <= 10
    assert made["blocks"][3]["elements"][0]["url"] == "https://ops.example"
    assert CANARY not in repr(target)


def test_its_end_looks_different() -> None:
    made = slack_message(message_of(notice_body(released(), about=loop())))
    assert made["text"] == "✅ Agent summariser is released"
    assert "actions" not in [part["type"] for part in made["blocks"]]


def test_names_call_nobody_and_link_nowhere() -> None:
    """An agent's name is text (Y-3)."""
    made = slack_message(message_of(notice_body(loop("<!channel> <http://evil|click> @here *x*"))))
    texts = [made["text"], made["blocks"][1]["text"]["text"], *(one["text"] for one in made["blocks"][2]["fields"])]
    assert len(texts) > 5
    assert not [text for text in texts if "<" in text or ">" in text or "@here" in text]
    assert "&lt;!channel&gt;" in made["text"]


def test_a_private_address_needs_permission() -> None:
    """A private address needs permission (Y-4)."""
    with receiver() as server:
        outcome = asyncio.run(
            SlackTarget(means(), server.url).send(Delivery("m", "loop.detected", notice_body(loop())))
        )
        assert (outcome.delivered, server.got) == (False, [])


def test_a_button_for_each_answer() -> None:
    """Block Kit buttons with a URL: links, which need no app (K-8)."""
    made = slack_message(message_of(notice_body(paused()), "https://ops.example"))
    [actions] = [part for part in made["blocks"] if part["type"] == "actions"]
    assert [one["type"] for one in actions["elements"]] == ["button"] * 6
    assert actions["elements"][0]["text"] == {"type": "plain_text", "text": "Go on once"}
    assert actions["elements"][0]["url"] == "https://ops.example/answer/p-1.once.x"
