"""Who is told of what, and what became of it (G-4)."""

from __future__ import annotations

from tests.admin_client import browser
from tests.admin_world import empty, full


def test_all_three() -> None:
    text = browser(full())[0].get("/alerts").text
    for said in ("https://hooks.example.com/breakloop", "loops to the team", "answered 503", "next attempt in 1 min", "1 pending, 1 delivered, 1 failed", "/ask/webhook.test?id=wh_1", "/ask/webhook.rotate?id=wh_1", "/ask/delivery.again?id=msg_29", "/ask/webhook.remove?id=wh_2"):  # fmt: skip
        assert said in text, said
    assert "whsec" not in text


def test_nobody_is_told() -> None:
    assert "No webhooks yet" in browser(empty())[0].get("/alerts").text
