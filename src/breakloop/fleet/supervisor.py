"""The supervisor (SPEC S-5, S-6): keeps the workers and the control process running, connects them with each other, and
ends them in order. It holds the listening sockets and touches no request. How a process is started is `child`'s, and
what stands around all this (sockets, settings, signals) `fleet`'s.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, Protocol

from breakloop.clock import Clock
from breakloop.errors import FleetError
from breakloop.fleet.child import how
from breakloop.fleet.handover import CONTROL, WORKER
from breakloop.fleet.line import Say
from breakloop.fleet.restarts import Restarts
from breakloop.model.events import WORKER_DIED, WORKER_REPLACED, Event, Publish

_MARGIN_S: Final = 3.0  # beyond the grace, until a process that does not end is killed
_HURRIED_S: Final = 2.0
_CONTROL_S: Final = 5.0


class Process(Protocol):
    """What is needed of a process that was started."""

    @property
    def pid(self) -> int:
        """Its process id."""
        ...

    def say(self, message: Say, sockets: Sequence[socket.socket] = ()) -> bool:
        """Tell it something."""
        ...

    async def wait(self) -> int:
        """Wait for its end; returns its exit code, negative for a signal."""
        ...

    def kill(self) -> None:
        """End it at once."""
        ...


class Slot:
    """The place of one process; who is in it changes."""

    def __init__(self, role: str, number: int) -> None:
        self.role = role
        self.number = number
        self.process: Process | None = None
        self.ready = False
        self.first = True
        self.why = ""  # it cannot start
        self.restarts = Restarts()

    @property
    def title(self) -> str:
        """What people call it."""
        return f"worker {self.number}" if self.role == WORKER else CONTROL


Launch = Callable[[Slot, Callable[[Say], None]], Awaitable[Process]]
Pause = Callable[[asyncio.Event, float], Awaitable[None]]


async def until(event: asyncio.Event, timeout_s: float) -> None:
    """Wait for an event, or until the time is over."""
    with suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), timeout_s)


class Supervisor:
    """Keeps one process in each of its slots. `log` hears of deaths while there is no control process to tell."""

    def __init__(
        self, workers: int, launch: Launch, clock: Clock, log: Publish, *, grace_s: float, pause: Pause = until
    ) -> None:
        self.control = Slot(CONTROL, 0)
        self.workers = [Slot(WORKER, number) for number in range(1, workers + 1)]
        self.on_death: Callable[[Slot], None] = lambda _slot: None
        self.on_stop: Callable[[], None] = lambda: None
        self.started: dict[str, Any] = {}  # what the control process says about the bundle
        self._launch = launch
        self._clock = clock
        self._log = log
        self._grace_s = grace_s
        self._pause = pause
        self._begun = False
        self._failure = ""
        self._codes: list[int] = []
        self._all_ready = asyncio.Event()
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()

    async def run(self, ready: Callable[[], None]) -> int:
        """Start everything, call `ready`, and keep it running until `stop`; returns the exit code. Raises `FleetError`
        when a process cannot be started."""
        control = asyncio.create_task(self._keep(self.control))
        workers = [asyncio.create_task(self._keep(slot)) for slot in self.workers]
        begun = asyncio.create_task(self._all_ready.wait())
        stopped = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait((begun, stopped, control, *workers), return_when=asyncio.FIRST_COMPLETED)
            if self._all_ready.is_set() and not self._stop.is_set():
                self._begun = True
                ready()
                await asyncio.wait((stopped, control, *workers), return_when=asyncio.FIRST_COMPLETED)
        finally:
            begun.cancel()
            stopped.cancel()
            in_time = await self._end(control, workers)
        for task in (control, *workers):
            task.result()  # a mistake of ours is not kept quiet
        if self._failure:
            raise FleetError(self._failure)
        return 0 if in_time and not any(self._codes) else 1

    def stop(self) -> None:
        """End everything, in order; the second time at once."""
        (self._hurry if self._stop.is_set() else self._stop).set()

    def reload(self) -> None:
        """Let the bundle's source be looked at now."""
        if self.control.process is not None:
            self.control.process.say({"do": "reload"})

    # -- one slot ----------------------------------------------------------------------------------------------------

    async def _keep(self, slot: Slot) -> None:
        while not self._stop.is_set():
            slot.ready, slot.why = False, ""
            slot.restarts.started(self._clock.now())
            pid, code = await self._live(slot)
            if self._stop.is_set():
                self._codes.append(code)
            elif not self._begun:
                self._fail(slot.why or f"{slot.title} ended while it started: {how(code)}")
            else:
                await self._mourn(slot, pid, code)
            slot.first = False

    async def _live(self, slot: Slot) -> tuple[int, int]:
        """One life: start a process, and wait for its end; returns who it was, and its exit code."""
        try:
            process = slot.process = await self._launch(slot, partial(self._heard, slot))
        except OSError as error:  # no memory, too many processes: that may pass
            slot.why = f"{slot.title} cannot be started: {error.strerror}"
            return 0, 1
        self._connect(slot)
        if self._stop.is_set():  # it missed what the others were told
            process.say({"do": "stop"})
        code = await process.wait()
        slot.process = None
        self.on_death(slot)
        return process.pid, code

    async def _mourn(self, slot: Slot, pid: int, code: int) -> None:
        """Tell of a death, and wait before the next start if it dies again and again."""
        now = self._clock.now()
        wait_s = slot.restarts.died(now, ready=slot.ready)
        slot.ready = False
        if slot.restarts.hopeless and not any(worker.ready for worker in self.workers):
            self._fail(slot.why or f"{slot.title} cannot be started: {how(code)}")
            return
        data: dict[str, object] = {
            "process": slot.title,
            "pid": pid,
            "ended": how(code),
            "restart_in_seconds": wait_s,
        }
        if slot.why:
            data["problem"] = slot.why
        self._tell(Event(WORKER_DIED, now, data))
        if wait_s:
            await self._pause(self._stop, wait_s)

    def _heard(self, slot: Slot, message: Say) -> None:
        if message.get("is") == "failed":
            slot.why = str(message.get("why"))
        elif message.get("is") == "ready" and slot.process is not None:
            slot.ready = True
            slot.restarts.ready()
            self.started = message.get("started", self.started)
            if not slot.first:
                data = {"process": slot.title, "pid": slot.process.pid}
                self._tell(Event(WORKER_REPLACED, self._clock.now(), data))
            if all(one.ready for one in (self.control, *self.workers)):
                self._all_ready.set()

    def _fail(self, why: str) -> None:
        self._failure = self._failure or why
        self._stop.set()

    def _tell(self, event: Event) -> None:
        control = self.control.process
        said = {"do": "event", "name": event.name, "at": event.at, "data": event.data}
        if control is None or not self.control.ready or not control.say(said):
            self._log(event)

    def _connect(self, slot: Slot) -> None:
        """Give the control process and a worker the two ends of a channel, as soon as both are there."""
        control = self.control.process
        for worker in [slot] if slot.role == WORKER else self.workers:
            if control is not None and worker.process is not None:
                one, other = socket.socketpair()
                with one, other:
                    control.say({"do": "channel", "worker": worker.number, "pid": worker.process.pid}, [one])
                    worker.process.say({"do": "channel"}, [other])

    # -- the end -----------------------------------------------------------------------------------------------------

    async def _end(self, control: asyncio.Task[None], workers: list[asyncio.Task[None]]) -> bool:
        """Workers first, so that the control process hears everything; tells whether nobody had to be hurried."""
        self._stop.set()
        self.on_stop()
        self._say(self.workers, "stop")
        hurried = asyncio.create_task(self._hurry.wait())
        all_ended = asyncio.gather(*workers, return_exceptions=True)
        await asyncio.wait((all_ended, hurried), timeout=self._grace_s + _MARGIN_S, return_when=asyncio.FIRST_COMPLETED)
        hurried.cancel()
        in_time = all_ended.done()
        await self._force(self.workers, workers, _HURRIED_S)
        self._say([self.control], "stop")
        await self._force([self.control], [control], _CONTROL_S if in_time else _HURRIED_S)
        return in_time

    async def _force(self, slots: list[Slot], tasks: list[asyncio.Task[None]], patience_s: float) -> None:
        """Wait for processes to end: a little, and then without asking."""
        if any(not task.done() for task in tasks):
            self._say([slot for slot in slots if slot.role == WORKER], "hurry")
            await asyncio.wait(tasks, timeout=patience_s)
        for slot in slots:
            if slot.process is not None:
                slot.process.kill()
        await asyncio.wait(tasks)

    @staticmethod
    def _say(slots: list[Slot], what: str) -> None:
        for slot in slots:
            if slot.process is not None:
                slot.process.say({"do": what})
