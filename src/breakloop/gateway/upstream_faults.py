"""Tells of upstreams that fail: each cause once in ten seconds, with a count of the others, because all of the requests
of an outage fail. What the client is told is the door's business."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from breakloop.clock import Clock
from breakloop.model.call import Call
from breakloop.model.events import UPSTREAM_FAILED, Event, Publish

INTERVAL_S: Final = 10.0
_KEYS_MAX: Final = 100  # more different ones are not told of: causes are few, but some are worded by a library


@dataclass(slots=True)
class _Told:
    since: float
    project: str
    request_id: str
    status: int
    left_out: int = 0


class UpstreamFaults:
    """One per process."""

    __slots__ = ("_clock", "_publish", "_told")

    def __init__(self, publish: Publish, clock: Clock) -> None:
        self._publish = publish
        self._clock = clock
        self._told: dict[tuple[str, str], _Told] = {}

    def note(self, call: Call, status: int, cause: str) -> None:
        """Tell of a request that failed, or count it."""
        key = call.upstream, cause
        known = self._told.get(key)
        if known is not None:
            known.left_out += 1
            known.project, known.request_id, known.status = call.project, call.request_id, status
        elif len(self._told) < _KEYS_MAX:
            known = self._told[key] = _Told(self._clock.now(), call.project, call.request_id, status)
            self._tell(key, known, 0)

    def sweep(self) -> None:
        """Tell what was left out in intervals that are over; called once a second."""
        if not self._told:
            return
        now = self._clock.now()
        for key, known in list(self._told.items()):
            if not 0 <= now - known.since < INTERVAL_S:
                del self._told[key]
                if known.left_out:
                    self._tell(key, known, known.left_out - 1)  # this event stands for one of them

    def _tell(self, key: tuple[str, str], known: _Told, left_out: int) -> None:
        data: dict[str, object] = {"upstream": key[0], "cause": key[1], "status": known.status}
        if left_out:
            data["left_out"] = left_out
        self._publish(Event(UPSTREAM_FAILED, self._clock.now(), data, known.project, known.request_id))
