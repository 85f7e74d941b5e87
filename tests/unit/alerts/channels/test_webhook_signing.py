"""Signatures: the receivers' own library verifies them."""

from __future__ import annotations

import base64

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from breakloop.alerts.channels import services as webhook
from breakloop.clock import SystemClock
from breakloop.errors import AlertError
from tests.alert_world import CANARY

BODY = b'{"event":"loop.detected"}'


def test_the_real_library_verifies() -> None:
    """Standard Webhooks (G-4)."""
    secret = webhook.new_secret()
    fields = webhook.signature_headers("msg_1", SystemClock().now(), BODY, [webhook.decode_secret(secret)])
    assert Webhook(secret).verify(BODY, fields) == {"event": "loop.detected"}
    for name, value in (("webhook-id", "msg_2"), ("webhook-signature", "v1,AAAA"), ("webhook-timestamp", "1")):
        with pytest.raises(WebhookVerificationError):
            Webhook(secret).verify(BODY, fields | {name: value})
    with pytest.raises(WebhookVerificationError):
        Webhook(secret).verify(BODY + b" ", fields)
    with pytest.raises(WebhookVerificationError):
        Webhook(webhook.new_secret()).verify(BODY, fields)


def test_while_a_secret_is_changed_both_verify() -> None:
    """Several signatures, the newest first (G-4)."""
    secrets = [webhook.new_secret() for _ in range(2)]
    fields = webhook.signature_headers(
        "msg_1", SystemClock().now(), BODY, [webhook.decode_secret(one) for one in secrets]
    )
    assert [Webhook(one).verify(BODY, fields) for one in secrets] == [{"event": "loop.detected"}] * 2
    assert len(fields["webhook-signature"].split(" ")) == 2


def test_a_known_signature() -> None:
    """The example of the specification's own test suites: id, time in whole seconds and body, joined by dots."""
    key = webhook.decode_secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    fields = webhook.signature_headers("msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330.9, b'{"test": 2432232314}', [key])
    assert fields == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


@pytest.mark.parametrize(
    "secret", ["", CANARY, f"whsec_{CANARY}", "whsec_", "whsec_AAAA", "whsec_" + "A" * 200, "AAAA" * 8]
)
def test_what_is_no_secret(secret: str) -> None:
    """Refused without being repeated (Y-1)."""
    with pytest.raises(AlertError) as raised:
        webhook.decode_secret(secret)
    assert CANARY not in str(raised.value)


def test_secrets_are_long_and_new() -> None:
    one, other = webhook.new_secret(), webhook.new_secret()
    assert one != other
    assert len(webhook.decode_secret(one)) == 32
    unpadded = "whsec_" + base64.b64encode(b"x" * 25).decode().rstrip("=")
    assert webhook.decode_secret(unpadded) == b"x" * 25
