"""What sending needs from outside: time, threads, names of hosts, trust, chance. All of it is handed in, so that tests
decide over it. What is sent, and to whom, is not this file's business."""

from __future__ import annotations

import logging
import secrets
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from breakloop.alerts.ssrf import Resolve, system_addresses
from breakloop.clock import Clock

T = TypeVar("T")

Say = Callable[[int, str, Mapping[str, object]], None]  # level, message, fields


class Aside(Protocol):
    """Runs something slow in a thread."""

    def __call__(self, function: Callable[[], T], /) -> Awaitable[T]:
        """Return what it returned."""
        ...


def quiet(_level: int, _message: str, _fields: Mapping[str, object]) -> None:
    """Log nothing."""


def chance() -> float:
    """Return a number from 0 to 1."""
    return secrets.randbelow(1_000_001) / 1_000_000


def trust(ca_file: str = "") -> ssl.SSLContext:
    """Return how servers are verified: by the system's authorities, and those of a file."""
    context = ssl.create_default_context()
    if ca_file:
        context.load_verify_locations(cafile=ca_file)
    return context


@dataclass(frozen=True, slots=True)
class Means:
    """Everything that sending needs."""

    clock: Clock
    aside: Aside
    say: Say = quiet
    resolve: Resolve = system_addresses
    tls: ssl.SSLContext = field(default_factory=trust)
    chance: Callable[[], float] = chance
    timeout_s: float = 10.0

    def warn(self, message: str, **fields: Any) -> None:
        """Log something that a person should look at."""
        self.say(logging.WARNING, message, fields)
