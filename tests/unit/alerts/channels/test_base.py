"""What is handed to targets, and what they say."""

from __future__ import annotations

from breakloop.alerts.channels.base import Delivery, DeliveryResult
from tests.alert_world import CANARY


def test_what_is_in_a_parcel_is_not_shown() -> None:
    """In logs and tracebacks (Y-1)."""
    assert CANARY not in repr(Delivery("msg_1", "loop.detected", CANARY))


def test_an_outcome_says_no_more_than_it_knows() -> None:
    made = DeliveryResult(delivered=False)
    assert (made.status, made.error, made.retry_after_s, made.gone) == (0, "", 0.0, False)
