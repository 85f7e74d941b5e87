"""What a bundle's source is (SPEC B-3): something that hands over bytes, one file each: `source_file`, `source_http`,
`source_redis`. What is done with them (verify, validate, put in force, keep, tell) is `policy.source`'s."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from breakloop.errors import Problem

Stamp = tuple[object, ...]  # what changes when the bundle does


@dataclass(frozen=True, slots=True)
class Document:
    """One text of a bundle. `name` stands in messages; `kind` is "json" or "yaml" where that is known, else empty."""

    name: str
    data: bytes
    kind: str = ""
    unread: Problem | None = None  # why there is no data


@dataclass(frozen=True, slots=True)
class Fetched:
    """What a source holds now: one document, or those of a directory in their order, and its detached signature."""

    documents: tuple[Document, ...]
    stamp: Stamp = ()
    signature: str = ""
    directory: bool = False
    forced: bool = False  # whoever put it there asked for a lower version


class Source(Protocol):
    """Where a bundle comes from. Used by one thread at a time, never by the event loop's."""

    @property
    def name(self) -> str:
        """What people know it by; nothing of a credential is in it."""
        ...

    @property
    def key(self) -> str:
        """What tells it from other sources, in the name of its last good copy."""
        ...

    @property
    def whole(self) -> bool:
        """Tell whether it never hands over something half-written, so that a mistake can be told at once."""
        ...

    def fetch(self, known: Stamp | None) -> Fetched | None:
        """Return what it holds, or None if that is still what has this stamp; raises `BundleError` or `OSError`."""
        ...

    def wait_s(self, failures: int) -> float:
        """Return how long to wait before looking again, after so many failures in a row to look."""
        ...
