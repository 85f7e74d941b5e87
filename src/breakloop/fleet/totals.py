"""What all workers have counted together since the start, those that are gone included. Exporting it is for others."""

from __future__ import annotations

from dataclasses import fields

from breakloop.model.tally import Tally


class Totals:
    """The sum of the workers' tallies; each tells its own, whole, once a second."""

    __slots__ = ("_gone", "_live")

    def __init__(self) -> None:
        self._live: dict[int, Tally] = {}  # by process id
        self._gone = Tally()

    def heard(self, pid: int, tally: Tally) -> None:
        """A worker has counted so much since it began."""
        self._live[pid] = tally

    def ended(self, pid: int) -> None:
        """A worker is gone; what it counted stays."""
        tally = self._live.pop(pid, None)
        if tally is not None:
            _add(self._gone, tally)

    def sum(self) -> Tally:
        """Return the sum now."""
        total = Tally()
        for tally in (self._gone, *self._live.values()):
            _add(total, tally)
        return total


def _add(total: Tally, tally: Tally) -> None:
    for field in fields(Tally):
        ours, more = getattr(total, field.name), getattr(tally, field.name)
        if isinstance(more, dict):
            for name, count in more.items():
                ours[name] = ours.get(name, 0) + count
        else:
            setattr(total, field.name, ours + more)
