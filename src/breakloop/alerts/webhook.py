"""A webhook: a signed POST of an event's payload (SPEC G-4, Y-4). For those that were registered at run time, and for
those of the settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from breakloop.alerts import signing
from breakloop.alerts.means import Means
from breakloop.alerts.post import post
from breakloop.alerts.target import Outcome, Parcel


@dataclass(frozen=True, slots=True)
class WebhookTarget:
    """`keys` returns what signs at a time; without any it is not signed."""

    means: Means = field(repr=False)
    url: str = field(repr=False)
    keys: Callable[[float], Sequence[bytes]] = field(repr=False)
    allow_private: bool = False

    async def send(self, parcel: Parcel) -> Outcome:
        """Sign and send it; the time of the signature is that of the try."""
        body, now = parcel.body.encode("ascii"), self.means.clock.now()
        fields = signing.headers(parcel.id, now, body, self.keys(now))
        return await post(self.means, self.url, body, fields, allow_private=self.allow_private)
