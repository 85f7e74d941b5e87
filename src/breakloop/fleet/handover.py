"""What a new process gets from the supervisor: who it is and its settings, in memory that it inherits. Nothing of it
stands on a command line or on a disk, because secrets are in it."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, fields
from typing import Final

from breakloop.settings import Settings, settings_from_text, settings_text

CONTROL: Final = "control"
WORKER: Final = "worker"


@dataclass(frozen=True, slots=True)
class Handover:
    """Who a process is, and what it needs."""

    role: str
    number: int
    workers: int
    settings: Settings
    secret: str = ""  # the fleet's, where the settings name none
    line: int = -1  # descriptors that it inherits
    listeners: tuple[int, ...] = ()
    shares: int = -1
    mark: str = ""  # by which a request that came through this instance is known
    first: bool = True  # not in place of one that died


def write(handover: Handover) -> int:
    """Return a descriptor of what `read` reads."""
    plain = {field.name: getattr(handover, field.name) for field in fields(handover)}
    plain |= {"settings": settings_text(handover.settings, handover.secret), "secret": ""}
    fd = os.memfd_create("breakloop-handover")
    with os.fdopen(os.dup(fd), "wb") as file:
        file.write(json.dumps(plain).encode())
    return fd


def read(fd: int) -> Handover:
    """Take it over, and close the descriptor."""
    with os.fdopen(fd, "rb") as file:
        file.seek(0)
        plain = json.loads(file.read())
    plain["settings"] = settings_from_text(plain["settings"])
    plain["listeners"] = tuple(plain["listeners"])
    return Handover(**plain)
