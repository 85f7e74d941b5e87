"""Calls of paused runs that the gateway holds open until a person answers (`hold_open_seconds`).

A waiting call is an object in a table: no task, thread or timer of its own. Each change of a hold and each new bundle
wakes the calls that it may concern, and so does the end of their time, which is checked once a second. A call that
wakes up is decided again, from the start.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from breakloop.engine.engine import Engine
from breakloop.engine.quarantine import Hold, Key
from breakloop.gateway.connection import ServerCore
from breakloop.gateway.exchange import DeferredReply

WAITING_MAX: Final = 1000  # calls of one process; further ones get their 429 at once

Again = Callable[["WaitingCall"], None]  # decides a call again


class WaitingCall(DeferredReply):
    """A call that waits. `ends` is the tick of the server at which it gets its 429."""

    __slots__ = ("_waiting", "again", "ends", "run", "size")

    def __init__(self, waiting: WaitingCalls, run: Key, ends: int, size: int, again: Again) -> None:
        super().__init__()
        self._waiting = waiting
        self.run = run
        self.ends = ends
        self.size = size
        self.again = again

    def cancel(self) -> None:
        """The client left."""
        super().cancel()
        self._waiting.remove(self)

    def drain(self) -> None:
        """The server is stopping: end with a 429 now, so that the client asks another instance."""
        self.ends = 0
        self._waiting.wake([self])


class WaitingCalls:
    """The calls that wait in one process."""

    def __init__(self, engine: Engine, server: ServerCore) -> None:
        self._engine = engine
        self._server = server
        self._calls: dict[WaitingCall, None] = {}
        self._bundle = engine.bundle
        engine.quarantine.on_change = self._changed
        server.on_sweep.append(self.sweep)

    def __len__(self) -> int:
        return len(self._calls)

    @property
    def tick(self) -> int:
        """The time of the server, in seconds."""
        return self._server.tick

    def wait(self, run: Key, ends: int, size: int, again: Again) -> WaitingCall | None:
        """Let a call wait that holds `size` bytes; None if it may not: there is no room, or no time."""
        server = self._server
        full = len(self._calls) >= WAITING_MAX or size > server.body_memory.room
        if full or server.draining or server.tick >= ends:
            return None
        server.body_memory.held += size
        call = WaitingCall(self, run, ends, size, again)
        self._calls[call] = None
        return call

    def remove(self, call: WaitingCall) -> None:
        if call in self._calls:
            del self._calls[call]
            self._server.body_memory.held -= call.size

    def wake(self, calls: list[WaitingCall]) -> None:
        """Decide calls again, those that still wait."""
        for call in calls:
            if call in self._calls:
                self.remove(call)
                call.again(call)

    def sweep(self) -> None:
        """Wake calls whose time is over; all of them after a change of the bundle or of orders."""
        if not self._calls:
            return
        self._engine.sweep_holds()  # applies the defaults of pauses that are due
        bundle, tick = self._engine.bundle, self._server.tick
        changed, self._bundle = bundle is not self._bundle, bundle
        self.wake([call for call in self._calls if changed or tick >= call.ends])

    def _changed(self, hold: Hold) -> None:
        """Wake the calls of a run whose hold has changed, or of a project in which an agent or a caller is held. In the
        next turn of the loop: this may be called while another call is decided.
        """
        of_run = [call for call in self._calls if call.run == hold.key]
        of_others = [call for call in self._calls if call.run[1] == hold.project] if hold.question is None else []
        if of_run or of_others:
            self._server.loop.call_soon(self.wake, of_run or of_others)
