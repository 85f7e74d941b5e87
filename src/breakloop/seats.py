"""Gives a process its operations, where somebody wants them; they are imported only then."""

from __future__ import annotations

from breakloop.seating import Nobody, Seated, wanted
from breakloop.settings import Settings


def seated(settings: Settings) -> Seated:
    """Return operations, or nobody."""
    if not wanted(settings):
        return Nobody()
    from breakloop.operations_here import OperationsHere  # noqa: PLC0415 - a database and a web framework take their time

    return OperationsHere()
