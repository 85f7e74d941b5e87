"""PagerDuty, against a stand-in: one key for the alert and its end."""

from __future__ import annotations

import asyncio

from breakloop.alerts.channels.base import Delivery
from breakloop.alerts.channels.services import PAGERDUTY_URL, PagerDutyTarget, pagerduty_event
from breakloop.alerts.messages import message_of
from tests.alert_world import CANARY, loop, means, notice_body, receiver, released


def test_trigger_and_resolve() -> None:
    """Events API v2, with the same dedup_key (G-4)."""
    with receiver() as server:
        server.status = 202
        target = PagerDutyTarget(
            means(), CANARY, server.url.removesuffix("/hook") + "/", "https://ops.example", allow_private=True
        )
        for body in (notice_body(loop()), notice_body(released(), about=loop())):
            assert asyncio.run(target.send(Delivery("msg_1", "x", body))).delivered
        trigger, resolve = (got.json for got in server.got)
        assert [got.path for got in server.got] == ["/v2/enqueue"] * 2
    assert trigger["routing_key"] == CANARY
    assert (trigger["event_action"], resolve["event_action"]) == ("trigger", "resolve")
    assert trigger["dedup_key"] == resolve["dedup_key"] == "breakloop-loop-1"
    assert trigger["payload"]["severity"] == "critical"
    assert trigger["payload"]["source"] == "summariser"
    assert trigger["payload"]["custom_details"]["Evidence"] == "the same last 3 messages 6 times"
    assert trigger["links"][0]["href"] == "https://ops.example"
    assert set(resolve) == {"routing_key", "event_action", "dedup_key"}


def test_its_key_is_not_shown() -> None:
    """Its key is not shown (Y-1)."""
    target = PagerDutyTarget(means(), CANARY)
    assert target.url == PAGERDUTY_URL
    assert CANARY not in repr(target)


def test_it_stays_within_bounds() -> None:
    made = pagerduty_event(message_of(notice_body(loop("x" * 5000))), "key")
    assert len(made["payload"]["summary"]) <= 1024
    assert len(made["dedup_key"]) <= 255
