"""What a worker has to tell the control process: events, gathered for a moment, and once a second what it has counted.
Room is bounded and nobody waits: what finds none is counted and gone. `LogEvents` does the rest there, once for all.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from breakloop.fleet.messages import Counted, Did, Happened, Message
from breakloop.model.activity import Activity
from breakloop.model.events import Event
from breakloop.model.figures import Figures

ROOM: Final = 4096
_AT_ONCE: Final = 256  # events in one message
_GATHER_S: Final = 0.02


class Outbox:
    """An `Events` that sends. Events may come from any thread."""

    def __init__(self, send: Callable[[Message], bool]) -> None:
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Event] = deque()
        self._armed = False
        self.figures: Callable[[], Figures] | None = None  # these two: where somebody wants to know
        self.activity: Callable[[], Activity] | None = None
        self.dropped = 0

    def __call__(self, event: Event) -> None:
        """Take note of an event."""
        if len(self._waiting) >= ROOM:
            self.dropped += 1
            return
        self._waiting.append(event)
        if not self._armed:
            self._armed = True
            self._loop.call_soon_threadsafe(self._arm)

    def flush(self, now: float, *, everything: bool = False) -> None:  # noqa: ARG002 - as `Events` says
        """Send what waits, and what was counted."""
        self.send()
        if self.figures is not None:
            self._send(Counted(self.figures()))
        if self.activity is not None:
            did = self.activity()
            if did.agents or did.shadow:
                self._send(Did.of(did))

    def send(self) -> None:
        """Send what waits, as far as there is room for it."""
        self._armed = False
        waiting = self._waiting
        while waiting:
            some = [waiting.popleft() for _ in range(min(len(waiting), _AT_ONCE))]
            if not self._send(Happened(some, self.dropped)):
                waiting.extendleft(reversed(some))  # the next event, or the next second, tries again
                return

    def _arm(self) -> None:
        self._loop.call_later(_GATHER_S, self.send)
