"""Signatures of webhooks, as the Standard Webhooks specification has them: HMAC-SHA256 over id, time and body. Several
secrets give several signatures, so that a receiver can change its secret whenever it likes."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Sequence
from typing import Final

from breakloop.errors import AlertError

PREFIX: Final = "whsec_"
_KEY_BYTES: Final = 32
_KEY_LEAST, _KEY_MOST = 24, 64  # as the specification says


def new_secret() -> str:
    """Make a secret."""
    return PREFIX + base64.b64encode(secrets.token_bytes(_KEY_BYTES)).decode()


def key_of(secret: str) -> bytes:
    """Return the key that a secret stands for; raises `AlertError`, which does not repeat it."""
    text = secret.removeprefix(PREFIX)
    try:
        key = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise AlertError(f"the secret of a webhook is {PREFIX} and base64") from None
    if not secret.startswith(PREFIX) or not _KEY_LEAST <= len(key) <= _KEY_MOST:
        raise AlertError(f"the secret of a webhook is {PREFIX} and {_KEY_LEAST} to {_KEY_MOST} bytes in base64")
    return key


def headers(message_id: str, now: float, body: bytes, keys: Sequence[bytes]) -> dict[str, str]:
    """Return the three fields that go with a body; one signature for each key, the newest first."""
    timestamp = str(int(now))
    signed = f"{message_id}.{timestamp}.".encode() + body
    signatures = (base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode() for key in keys)
    return {
        "webhook-id": message_id,
        "webhook-timestamp": timestamp,
        "webhook-signature": " ".join(f"v1,{signature}" for signature in signatures),
    }
