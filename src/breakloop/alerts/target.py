"""What every target of alerts has in common: it gets a parcel and says what became of it. Each target is a file of its
own; when to try again, and for how long, is `delivery`'s business."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Parcel:
    """Something to send. `id` and `body` are the same at every try."""

    id: str
    event: str
    body: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a try. `error` is for people, without secrets and addresses."""

    delivered: bool
    status: int = 0  # of HTTP, or of SMTP; 0: there was no answer
    error: str = ""
    retry_after_s: float = 0.0  # the target wants to be left alone so long
    gone: bool = False  # it wants nothing any more


class Target(Protocol):
    """Somebody who can be told."""

    async def send(self, parcel: Parcel) -> Outcome:
        """Try once. Returns in bounded time, and raises nothing that another try could mend."""
        ...
