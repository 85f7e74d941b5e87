"""Checks of single settings. Each returns the value, or raises an error with a message and a hint."""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from hashlib import sha256
from typing import Any, Final
from urllib.parse import urlsplit

from breakloop.errors import SettingsError
from breakloop.model.upstream import UpstreamUrlError, parse_named
from breakloop.policy import descriptors
from breakloop.policy.client import ClientIp
from breakloop.policy.schema.types import SchemaFault, fault, refuse
from breakloop.store.redis.url import is_redis_url, parse_redis_url

HISTORY_OFF: Final = "off"
ADMIN_ROLES: Final = ("viewer", "operator")
POLICY_REDIS: Final = "redis"  # the bundle is in the Redis of `state`
_POLICY_HINT: Final = "write a path, https://HOST/PATH, or redis"
_HASH: Final = 'use the first word of: printf %s "$KEY" | sha256sum'
_DOLLARS_HINT: Final = "US dollars per million tokens, such as 2.50"
_USD_MAX: Final = 1_000_000
_NO_KEY: Final = sha256(b"").hexdigest()
# Header fields of others. If one of them started with our prefix, it would not be forwarded.
_FIELDS_OF_OTHERS: Final = (
    "accept-encoding",
    "anthropic-version",
    "content-type",
    "mcp-session-id",
    "openai-organization",
    "x-agent-id",
    "x-api-key",
    "x-forwarded-for",
    "x-goog-api-key",
    "x-original-uri",
    "x-stainless-lang",
)


def policy(value: str) -> str:
    """A path, an HTTP(S) URL, or `redis`."""
    if "://" not in value:
        return value
    try:
        url = urlsplit(value)
        usable = bool(url.hostname) and url.port != 0
    except ValueError:
        raise fault("is not a URL", _POLICY_HINT) from None
    if url.scheme not in {"http", "https"} or not usable or url.fragment or not re.fullmatch(r"[!-~]+", value):
        raise fault("is not a URL of a bundle", _POLICY_HINT)
    if url.username is not None or url.password is not None:
        raise fault("contains credentials", "remove them from the URL and set policy_token")
    return value


def state(value: str) -> str:
    """`memory://` or the URL of a Redis."""
    if value == "memory://":
        return value
    if not is_redis_url(value):
        raise fault("is not a store", "write memory://, or the URL of a Redis: redis://HOST:6379/0")
    try:
        parse_redis_url(value)
    except SettingsError as error:
        raise fault(str(error), "for example redis://user:password@host:6379/0") from None
    return value


def proxy_network(value: str) -> str:
    """An address, a network, or `unix`."""
    try:
        ClientIp((value,))
    except SettingsError:
        raise fault(f'"{value}" is not an address or a network', "write 10.0.0.0/8, 10.1.2.3 or unix") from None
    return value


def upstream(value: str) -> str:
    try:
        parse_named(value)
    except UpstreamUrlError as error:
        raise fault(error.message, error.hint) from None
    return value


def upstream_key(value: str) -> str:
    """NAME=env:VARIABLE or NAME=file:/PATH, never the key itself."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]*=(?:env:[A-Za-z_][A-Za-z0-9_]*|file:/.+)", value):
        raise fault(
            "must be NAME=env:VARIABLE or NAME=file:/PATH",
            "do not write the key itself; write openai=env:OPENAI_API_KEY",
        )
    return value


def caller(value: str) -> str:
    match = re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}=([0-9A-Fa-f]{64})", value)
    if match is None:
        raise fault("must be NAME=SHA256", _HASH)
    if match[1].lower() == _NO_KEY:
        raise fault("is the SHA-256 of an empty string: the variable was not set", _HASH)
    return value


def admin_token(value: str) -> str:
    match = re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}:(\w+):([0-9A-Fa-f]{64})", value)
    if match is None or match[1] not in ADMIN_ROLES:
        raise fault(f"must be NAME:ROLE:SHA256 with the role {' or '.join(ADMIN_ROLES)}", _HASH)
    if match[2].lower() == _NO_KEY:
        raise fault("is the SHA-256 of an empty string: the variable was not set", _HASH)
    return value


def admin_tokens_once(values: list[str]) -> list[str]:
    """A token has one name, which the audit log shows."""
    digests = [value.rpartition(":")[2].lower() for value in values]
    refuse(
        [
            SchemaFault((at,), "has the same token as another entry", "give each its own token")
            for at, _ in _repeated(digests)
        ]
    )
    return values


def names_once(values: list[str]) -> list[str]:
    """Names in a list of NAME=... are unique."""
    names = [value.partition("=")[0] for value in values]
    refuse([SchemaFault((at,), f'duplicate name "{name}"', "remove one") for at, name in _repeated(names)])
    return values


def keys_once(values: list[str]) -> list[str]:
    """A key belongs to one name. A name may have several keys, so that a client can rotate its key."""
    digests = [value.rpartition("=")[2].lower() for value in values]
    refuse(
        [
            SchemaFault((at,), "has the same key as another entry", "give each caller its own key")
            for at, _ in _repeated(digests)
        ]
    )
    return values


def _repeated(values: list[str]) -> Iterator[tuple[int, str]]:
    return ((at, value) for at, value in enumerate(values) if value in values[:at])


def header_prefix(value: str) -> str:
    """A prefix of header names that no other software uses."""
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9-]*-", value):
        raise fault("is not a prefix of header names", "use letters, digits and hyphens, with a hyphen at the end")
    taken = next((name for name in _FIELDS_OF_OTHERS if name.startswith(value.lower())), "")
    if taken:
        raise fault(
            f"is also the prefix of {taken}, which would not be forwarded", "use a prefix of your own, such as X-Own-"
        )
    return value


def descriptor(value: str) -> str:
    """The name of a descriptor, or empty."""
    wrong = descriptors.fault(value) if value else None
    if wrong is not None:
        raise fault(*wrong)
    return value


def dollars(value: Any) -> Decimal:
    """An amount with at most six decimal places. Numbers in YAML are read as they are written there."""
    if isinstance(value, bool) or not isinstance(value, int | float | str | Decimal):
        raise fault("must be a number", _DOLLARS_HINT)
    try:
        amount = Decimal(str(value).strip())
    except InvalidOperation:
        raise fault(f'must be a number, got "{value!s:.40}"', _DOLLARS_HINT) from None
    if not amount.is_finite() or not 0 <= amount <= _USD_MAX:
        raise fault(f"must be 0 to {_USD_MAX}, got {amount}", _DOLLARS_HINT)
    if amount != round(amount, 6):
        raise fault(f"{amount} has more than six decimal places", _DOLLARS_HINT)
    return amount
