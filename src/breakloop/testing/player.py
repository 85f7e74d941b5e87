"""Carries the steps of an answer out on a connection: writes, waits, holds, ends. Callbacks instead of a task each, so
that a thousand paced streams cost little."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Iterator

from breakloop.testing.gate import Gate
from breakloop.testing.http import SeenRequest
from breakloop.testing.steps import Leave, Pause, Step


class Player:
    """One answer on its way. `ended` is called once when all of it is written, not when the connection is gone."""

    __slots__ = ("_ended", "_gate", "_loop", "_seen", "_steps", "_timer", "_transport", "_waits", "held", "over")

    def __init__(
        self,
        transport: asyncio.Transport,
        steps: Iterator[Step],
        seen: SeenRequest,
        ended: Callable[[], None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._transport = transport
        self._steps = steps
        self._seen = seen
        self._ended = ended
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None  # while it pauses
        self._gate: Gate | None = None  # while it stands before one
        self._waits = False  # for the client to read what was written
        self.held = False  # by a stall
        self.over = False

    def go(self) -> None:
        """Carry out what can be done now."""
        if self.over or self.held or self._waits or self._timer is not None or not self._passes():
            return
        write, is_closing = self._transport.write, self._transport.is_closing
        for step in self._steps:
            if is_closing():  # the client is leaving, and uvloop raises on a write now
                return
            if type(step) is bytes:
                self._seen.bytes_sent += len(step)
                write(step)
                if self._must_wait():
                    return
            elif not self._goes_on(step):
                return
        self.over = True
        self._seen.outcome = "sent"
        self._ended()

    def _must_wait(self) -> bool:
        return self._waits  # may have changed while writing

    def _passes(self) -> bool:
        gate = self._gate
        if gate is not None:
            if not gate.passes(self.go):
                return False
            self._gate = None
        return True

    def _goes_on(self, step: Step) -> bool:
        if type(step) is Pause:
            self._timer = self._loop.call_later(step.seconds, self._wake)
            return False
        if isinstance(step, Gate):
            self._gate = step
            return self._passes()
        if isinstance(step, Leave):
            self._leave(step)
            return False
        self.held = True
        return False

    def _wake(self) -> None:
        self._timer = None
        self.go()

    def _leave(self, step: Leave) -> None:
        self.over = True
        self._seen.outcome = "cut" if step.abrupt else "sent"
        if step.reset:
            sock = self._transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if step.reset or (step.abrupt and self._transport.get_extra_info("ssl_object") is not None):
            # Not at once: uvloop writes at the end of the turn. Under TLS, closing would say a proper goodbye.
            self._loop.call_soon(self._transport.abort)
        else:
            self._transport.close()

    def resume(self) -> None:
        """Go on after a stall."""
        self.held = False
        self.go()

    def pause_writing(self) -> None:
        """The client does not read fast enough."""
        self._waits = True

    def resume_writing(self) -> None:
        """The client has read."""
        self._waits = False
        self.go()

    def abandon(self) -> None:
        """The client left."""
        if not self.over:
            self.over = True
            self._seen.outcome = "aborted"
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
