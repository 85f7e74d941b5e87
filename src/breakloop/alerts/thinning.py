"""Events of which there may be one a request are passed on once in ten seconds, with a count of the others: nobody
wants ten thousand messages about one limit. What is rare passes as it is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from breakloop.alerts.subjects import FREQUENT, subject
from breakloop.model.events import Event

INTERVAL_S: Final = 10.0
_KEYS_MAX: Final = 1_000  # more different ones in one interval are only counted


@dataclass(slots=True)
class _Run:
    since: float
    last: Event
    more: int = 0


class Thinning:
    """Remembers what was passed on in the last ten seconds. One thread at a time."""

    def __init__(self) -> None:
        self._runs: dict[tuple[str, str], _Run] = {}
        self.left_out = 0  # that no later event tells of

    def pass_on(self, events: Iterable[Event], now: float) -> list[Event]:
        """Return what is told now: rare events, the first of many, and what became of earlier ones."""
        passed = self._ended(now)
        for event in events:
            if event.name not in FREQUENT:
                passed.append(event)
                continue
            key = event.name, subject(event)
            run = self._runs.get(key)
            if run is not None:
                run.more, run.last = run.more + 1, event
            elif len(self._runs) < _KEYS_MAX:
                self._runs[key] = _Run(now, event)
                passed.append(event)
            else:
                self.left_out += 1
        return passed

    def _ended(self, now: float) -> list[Event]:
        over = [key for key, run in self._runs.items() if not 0 <= now - run.since < INTERVAL_S]
        runs = [self._runs.pop(key) for key in over]
        return [replace(run.last, data={**run.last.data, "left_out": run.more - 1}) for run in runs if run.more]
