"""A webhook gets a signed payload."""

from __future__ import annotations

import asyncio

from standardwebhooks import Webhook

from breakloop.alerts.channels import services as webhook
from breakloop.alerts.channels.base import Delivery
from breakloop.alerts.channels.services import WebhookTarget
from breakloop.alerts.router import encoded, payload
from breakloop.clock import SystemClock
from tests.alert_world import CANARY, loop, means, receiver


def test_the_receivers_library_verifies_what_arrives() -> None:
    """Standard Webhooks, with every secret that signs; the time is that of the try (G-4)."""
    secrets = [webhook.new_secret(), webhook.new_secret()]
    body = encoded(payload(loop("ünïcode")))
    with receiver() as server:
        keys = [webhook.decode_secret(one) for one in secrets]
        target = WebhookTarget(means(SystemClock()), server.url, lambda _now: keys, allow_private=True)
        assert asyncio.run(target.send(Delivery("msg_1", "loop.detected", body))).delivered
        (got,) = server.got
    assert got.headers["webhook-id"] == "msg_1"
    for secret in secrets:
        assert Webhook(secret).verify(got.body, got.headers)["data"]["agent"] == "ünïcode"


def test_private_addresses_are_refused() -> None:
    """Private addresses are refused (Y-4)."""
    with receiver() as server:
        target = WebhookTarget(means(), server.url, lambda _now: [b"k" * 32])
        assert not asyncio.run(target.send(Delivery("m", "x", "{}"))).delivered
        assert server.got == []


def test_nothing_secret_is_shown() -> None:
    """Nothing secret is shown (Y-1)."""
    target = WebhookTarget(means(), f"https://h.example/{CANARY}", lambda _now: [CANARY.encode()])
    assert CANARY not in repr(target)
