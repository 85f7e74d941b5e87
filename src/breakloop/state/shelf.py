"""Where one bundle lies for every instance to take (SPEC B-3, Redis): as plain data and a protocol, so that it can be
tested without a server. What a bundle means is `policy`'s business; here it is bytes with a version."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Protocol

from breakloop.errors import StateError

BUNDLE_KEY: Final = "bl:bundle"  # the hash, and the channel that tells of a new one


@dataclass(frozen=True, slots=True)
class Shelved:
    """A bundle on the shelf. `digest` is the SHA-256 of `data`, `pushed_at` the store's own time, as it wrote it."""

    version: int
    digest: str
    data: bytes
    signature: str = ""
    forced: bool = False
    pushed_at: str = ""
    pushed_by: str = ""

    @property
    def stamp(self) -> tuple[str, str]:
        """What changes with every push."""
        return self.digest, self.pushed_at


def moment(pushed_at: str) -> str:
    """The store's time as people write it."""
    try:
        return datetime.fromtimestamp(float(pushed_at), tz=UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return "an unknown time"


class EmptyShelfError(StateError):
    """Nothing was pushed yet."""


class PushRefusedError(StateError):
    """There is a newer bundle, or another one with the same version; somebody else was quicker, perhaps."""


class Shelf(Protocol):
    """One place for one bundle. Blocks; not for the event loop's thread."""

    @property
    def name(self) -> str:
        """Where it is, without any credential."""
        ...

    def fetch(self, known: tuple[object, ...] | None) -> Shelved | None:
        """Return what lies there, None if it still is what has this stamp. Raises `StateError`."""
        ...

    def push(self, bundle: Shelved) -> bool:
        """Put a bundle there, in one step; tells whether it was another. Raises `PushRefusedError` or `StateError`."""
        ...

    def close(self) -> None:
        """Let go of the connection."""
        ...
