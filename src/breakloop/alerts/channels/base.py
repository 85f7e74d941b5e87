"""The parts every alert channel shares: the base classes of its settings and its target, and the types of fields.

A new channel is a subclass of `ChannelSettings` and a subclass of `Target`, in `services` or in a module beside it, and
one row in `channels.CHANNELS`. `config.settings` imports these modules, so they import neither asyncio nor a database.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, ClassVar, Final, get_args
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field
from pydantic.fields import FieldInfo

from breakloop.policy.schema.types import Model, fault

if TYPE_CHECKING:
    from breakloop.alerts.transport import DeliveryContext

_REFERENCE: Final = re.compile(r"env:[A-Za-z_][A-Za-z0-9_]*|file:/.+")


@dataclass(frozen=True, slots=True)
class Delivery:
    """One message to one target. `id` and `body` stay the same across retries."""

    id: str
    event: str
    body: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class DeliveryResult:
    """The outcome of one attempt. `error` is shown to people and contains no secret and no address."""

    delivered: bool
    status: int = 0  # of HTTP or SMTP; 0: there was no response
    error: str = ""
    retry_after_s: float = 0.0  # the target asked for this pause
    gone: bool = False  # the target must not be tried again


class Target(ABC):
    """Sends deliveries to one configured receiver."""

    __slots__ = ()
    raw: ClassVar[bool] = False  # gets the event's payload instead of a message for people
    always_recovers: ClassVar[bool] = False  # gets recoveries even if the alert rule does not send them

    @abstractmethod
    async def send(self, delivery: Delivery) -> DeliveryResult:
        """Try once, in bounded time. Failures that a retry can fix are returned, not raised."""


class ChannelSettings(Model):
    """One entry of `alert_targets`. Subclasses declare `type` as a literal, which selects them."""

    def target(self, secrets: Mapping[str, str], context: DeliveryContext, dashboard_url: str) -> Target:
        """Return the target; `secrets` maps each reference of a `Secret` field to its value. Raises `AlertError`."""
        raise NotImplementedError


def names_secret(info: FieldInfo) -> bool:
    """Return whether a field refers to a secret, or to a list of secrets."""
    return SECRET in info.metadata or any(
        SECRET in getattr(item, "__metadata__", ()) for item in get_args(info.annotation)
    )


def _check_reference(value: str) -> str:
    if value and not _REFERENCE.fullmatch(value):
        raise fault("is not env:VARIABLE or file:/PATH", "do not write the secret itself; write env:MY_SECRET")
    return value


def _check_url(value: str) -> str:
    parts = urlsplit("")
    try:
        parts = urlsplit(value)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or not re.fullmatch(r"[!-~]+", value):
        raise fault("is not a URL", "write https://HOST/PATH")
    if parts.username is not None or parts.password is not None:
        raise fault("contains a credential", "remove it from the URL")
    return value


SECRET: Final = "secret"  # marks fields that refer to a secret
Secret = Annotated[str, SECRET, AfterValidator(_check_reference)]
Url = Annotated[str, AfterValidator(_check_url)]
AllowPrivate = Annotated[bool, Field(description="Also send to loopback and private addresses.")]
