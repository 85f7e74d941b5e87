"""The head of an answer: status line and header fields, plain or as many as a provider's edge sends."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from http import HTTPStatus
from typing import Final

REALISTIC_COUNT: Final = 24

# What stands in answers of hosted models today, with made-up values. Enough of them to fill up any head.
_REALISTIC: Final = (
    ("x-request-id", "req_0123456789abcdef0123456789abcdef"),
    ("openai-organization", "org-standin"),
    ("openai-processing-ms", "412"),
    ("openai-project", "proj_standin"),
    ("openai-version", "2020-10-01"),
    ("x-envoy-upstream-service-time", "431"),
    ("x-ratelimit-limit-requests", "10000"),
    ("x-ratelimit-limit-tokens", "2000000"),
    ("x-ratelimit-remaining-requests", "9999"),
    ("x-ratelimit-remaining-tokens", "1998213"),
    ("x-ratelimit-reset-requests", "6ms"),
    ("x-ratelimit-reset-tokens", "53ms"),
    ("strict-transport-security", "max-age=31536000; includeSubDomains; preload"),
    ("cf-cache-status", "DYNAMIC"),
    ("set-cookie", "__cf_bm=standin.0123456789abcdef; path=/; HttpOnly; Secure; SameSite=None"),
    ("set-cookie", "_cfuvid=standin.fedcba9876543210; path=/; HttpOnly; Secure; SameSite=None"),
    ("x-content-type-options", "nosniff"),
    ("server", "stand-in"),
    ("cf-ray", "0123456789abcdef-SIN"),
    ("alt-svc", 'h3=":443"; ma=86400'),
    ("access-control-expose-headers", "X-Request-ID"),
    ("cache-control", "no-cache"),
)


def head(
    status: int,
    fields: Iterable[tuple[str, str]],
    own: Sequence[tuple[str, str]] = (),
    *,
    version: str = "1.1",
    realistic: bool = False,
) -> bytes:
    """Return a head; of the stand-in's `fields`, those that `own` names are left out."""
    named = {name.lower() for name, _ in own}
    pairs = [(name, value) for name, value in fields if name.lower() not in named]
    if realistic:
        room = REALISTIC_COUNT - len(pairs) - len(own)
        pairs += [pair for pair in _REALISTIC if pair[0] not in named][: max(room, 0)]
    pairs += own
    return _lines(status, pairs, version)


def informational(status: int, fields: Sequence[tuple[str, str]]) -> bytes:
    """Return an interim answer."""
    return _lines(status, fields, "1.1")


def _lines(status: int, pairs: Iterable[tuple[str, str]], version: str) -> bytes:
    lines = "".join([f"{name}: {value}\r\n" for name, value in pairs])
    return f"HTTP/{version} {status} {_reason(status)}\r\n{lines}\r\n".encode("latin-1")


def _reason(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Overloaded" if status == 529 else "Unknown"
