"""Webhook: a POST of an event's payload, signed as the Standard Webhooks specification describes.

The signature is HMAC-SHA256 over id, timestamp and body. With several secrets there are several signatures, so a
receiver can switch to a new secret at any time.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Final, Literal

from pydantic import Field

from breakloop.alerts.channels.base import AllowPrivate, ChannelSettings, Delivery, DeliveryResult, Secret, Target, Url
from breakloop.errors import AlertError

if TYPE_CHECKING:
    from breakloop.alerts.transport import DeliveryContext

PREFIX: Final = "whsec_"
_KEY_BYTES: Final = 32
_KEY_MIN, _KEY_MAX = 24, 64  # the limits of the specification


class WebhookAlerts(ChannelSettings):
    """A webhook for the events of alert rules. (Webhooks for all events are added in the dashboard or the API.)"""

    type: Literal["webhook"] = Field(description="`webhook`: a signed POST of JSON.")
    url: Url = Field(description="URL to send to.")
    secret: Secret = Field(min_length=1, description="Signing secret (whsec_...), as env:VARIABLE or file:/PATH.")
    allow_private: AllowPrivate = False

    def target(self, secrets: Mapping[str, str], context: DeliveryContext, _dashboard_url: str) -> WebhookTarget:
        key = decode_secret(secrets[self.secret])
        return WebhookTarget(context, self.url, lambda _now: [key], self.allow_private)


@dataclass(frozen=True, slots=True)
class WebhookTarget(Target):
    """`keys` returns the signing keys at a time, the newest first."""

    raw: ClassVar[bool] = True

    context: DeliveryContext = field(repr=False)
    url: str = field(repr=False)
    keys: Callable[[float], Sequence[bytes]] = field(repr=False)
    allow_private: bool = False

    async def send(self, delivery: Delivery) -> DeliveryResult:
        """Sign and send; the timestamp of the signature is that of this attempt."""
        body, now = delivery.body.encode("ascii"), self.context.clock.now()
        headers = signature_headers(delivery.id, now, body, self.keys(now))
        return await self.context.post(self.url, body, headers, allow_private=self.allow_private)


def new_secret() -> str:
    return PREFIX + base64.b64encode(secrets.token_bytes(_KEY_BYTES)).decode()


def decode_secret(secret: str) -> bytes:
    """Return the key that a secret encodes. The message of an `AlertError` does not repeat it."""
    text = secret.removeprefix(PREFIX)
    try:
        key = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise AlertError(f"a webhook secret is {PREFIX} followed by base64") from None
    if not secret.startswith(PREFIX) or not _KEY_MIN <= len(key) <= _KEY_MAX:
        raise AlertError(f"a webhook secret is {PREFIX} followed by {_KEY_MIN} to {_KEY_MAX} bytes in base64")
    return key


def signature_headers(message_id: str, now: float, body: bytes, keys: Sequence[bytes]) -> dict[str, str]:
    """Return the three header fields of the specification, with one signature per key."""
    timestamp = str(int(now))
    signed = f"{message_id}.{timestamp}.".encode() + body
    signatures = (base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode() for key in keys)
    return {
        "webhook-id": message_id,
        "webhook-timestamp": timestamp,
        "webhook-signature": " ".join(f"v1,{signature}" for signature in signatures),
    }
