"""The supervisor (SPEC S-5, S-6): keeps the workers and the control process running, connects them with each other, and
ends them in order. It holds the listening sockets and touches no request. How a process is started is `child`'s, and
what stands around all this (sockets, settings, signals) `fleet`'s.

Starting a process of the fleet: the same Python, executed anew, with a line to the supervisor, its settings in
memory, and a session of its own, so that a terminal's Ctrl-C is the supervisor's business alone.

When a process that died is started again: at once, unless it dies again and again; and when that is hopeless.
Starting is `supervisor`'s.

`breakloop serve` with several workers: binds the port, agrees on the secret, and runs the supervisor until a signal
comes. What each process does is in `worker` and `control`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

from breakloop.app.build import check_ports
from breakloop.app.state import open_state
from breakloop.app.workers.control import StartupSummary
from breakloop.app.workers.ipc import CONTROL, WORKER, ChildConfig, Say, SupervisorPipe, pair, write
from breakloop.clock import Clock, SystemClock
from breakloop.config.settings import Settings
from breakloop.errors import FleetError, SettingsError
from breakloop.gateway.server import ConnectionCounts, bind, url, why_not
from breakloop.model.events import WORKER_DIED, WORKER_REPLACED, Event, Publish
from breakloop.observe.log import LogEvents, Logging, log
from breakloop.store.data_dir import DataDir

Heard = Callable[[Say], None]


class Child:
    """One process that was started."""

    def __init__(self, process: asyncio.subprocess.Process, line: SupervisorPipe) -> None:
        self._process = process
        self._line = line

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def say(self, message: Say, sockets: Sequence[socket.socket] = ()) -> bool:
        """Tell it something."""
        return self._line.say(message, sockets)

    async def wait(self) -> int:
        """Wait for its end, hear what it said last, and return its exit code; negative for a signal."""
        code = await self._process.wait()
        self._line.drain()
        self._line.close()
        return code

    def kill(self) -> None:
        """End it at once."""
        with suppress(ProcessLookupError):
            self._process.kill()


async def launch(handover: ChildConfig, heard: Heard) -> Child:
    """Start a process."""
    ours, theirs = pair()
    memory = write(replace(handover, line=theirs.fileno()))
    inherited = [memory, theirs.fileno(), *handover.listeners]
    if handover.shares >= 0:
        inherited.append(handover.shares)
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *(["-P"] if _is_safe() else []),
            "-m",
            "breakloop.app.workers",
            handover.role,
            str(handover.number),
            str(memory),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            pass_fds=inherited,
            start_new_session=True,
        )
    finally:
        theirs.close()
        os.close(memory)
    return Child(process, SupervisorPipe(ours, lambda message, _sockets: heard(message), lambda: None))


def _is_safe() -> bool:
    """Modules in the working directory are not looked for here, so they must not be there."""
    return bool(sys.flags.safe_path) or sys.path[:1] not in ([""], [str(Path.cwd())])


def how(code: int) -> str:
    """Return an exit code in words."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


STEADY_S: Final = 10.0  # whoever lived so long was well
FIRST_DELAY_S: Final = 0.25
DELAY_MAX_S: Final = 30.0
HOPELESS: Final = 5  # starts in a row that came to nothing


class RestartPolicy:
    """The starts and deaths of one process. The first death in a while costs no time, the next ones ever more."""

    __slots__ = ("_in_vain", "_quick", "_since")

    def __init__(self) -> None:
        self._since = 0.0
        self._quick = 0  # deaths in a row, each soon after its start
        self._in_vain = 0  # of these: before it was ready

    @property
    def hopeless(self) -> bool:
        """Tell whether it does not even start."""
        return self._in_vain >= HOPELESS

    def started(self, now: float) -> None:
        """It was started."""
        self._since = now

    def ready(self) -> None:
        """It serves."""
        self._in_vain = 0

    def died(self, now: float, *, ready: bool) -> float:
        """It is gone, and was ready or never came so far; returns how long to wait before the next start."""
        if ready and now - self._since >= STEADY_S:
            self._quick = 0
        self._in_vain = 0 if ready else self._in_vain + 1
        self._quick += 1
        return 0.0 if self._quick == 1 else min(DELAY_MAX_S, FIRST_DELAY_S * 2.0 ** min(self._quick - 2, 20))


_MARGIN_S: Final = 3.0  # beyond the grace, until a process that does not end is killed
_HURRIED_S: Final = 2.0
_CONTROL_S: Final = 5.0


class ChildProcess(Protocol):
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


class WorkerSlot:
    """The place of one process; who is in it changes."""

    def __init__(self, role: str, number: int) -> None:
        self.role = role
        self.number = number
        self.process: ChildProcess | None = None
        self.ready = False
        self.first = True
        self.why = ""  # it cannot start
        self.restarts = RestartPolicy()

    @property
    def title(self) -> str:
        """What people call it."""
        return f"worker {self.number}" if self.role == WORKER else CONTROL


Launch = Callable[[WorkerSlot, Callable[[Say], None]], Awaitable[ChildProcess]]
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
        self.control = WorkerSlot(CONTROL, 0)
        self.workers = [WorkerSlot(WORKER, number) for number in range(1, workers + 1)]
        self.on_death: Callable[[WorkerSlot], None] = lambda _slot: None
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

    async def _keep(self, slot: WorkerSlot) -> None:
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

    async def _live(self, slot: WorkerSlot) -> tuple[int, int]:
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

    async def _mourn(self, slot: WorkerSlot, pid: int, code: int) -> None:
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

    def _heard(self, slot: WorkerSlot, message: Say) -> None:
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

    def _connect(self, slot: WorkerSlot) -> None:
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

    async def _force(self, slots: list[WorkerSlot], tasks: list[asyncio.Task[None]], patience_s: float) -> None:
        """Wait for processes to end: a little, and then without asking."""
        if any(not task.done() for task in tasks):
            self._say([slot for slot in slots if slot.role == WORKER], "hurry")
            await asyncio.wait(tasks, timeout=patience_s)
        for slot in slots:
            if slot.process is not None:
                slot.process.kill()
        await asyncio.wait(tasks)

    @staticmethod
    def _say(slots: list[WorkerSlot], what: str) -> None:
        for slot in slots:
            if slot.process is not None:
                slot.process.say({"do": what})


def serve(settings: Settings, ready: Callable[[StartupSummary], None], logging_: Logging) -> int:
    """Run a fleet until it is told to stop; returns the exit code."""
    logging_.start()
    try:
        return asyncio.run(_serve(settings, ready))
    finally:
        logging_.stop()


async def _serve(settings: Settings, ready: Callable[[StartupSummary], None]) -> int:
    check_ports(settings)
    with ExitStack() as stack:
        try:
            listeners = [stack.enter_context(one) for one in bind(settings.host, settings.port)]
        except OSError as error:
            raise SettingsError(why_not(settings.host, settings.port, error)) from None
        memory = os.memfd_create("breakloop-shares")
        stack.callback(os.close, memory)
        os.ftruncate(memory, 4 * settings.workers)
        basis = ChildConfig(
            role=WORKER,
            number=0,
            workers=settings.workers,
            settings=settings,
            secret=await fleet_secret(settings),
            listeners=tuple(one.fileno() for one in listeners),
            shares=memory,
            mark=secrets.token_hex(8),
        )
        address = url(settings.host, listeners[0].getsockname()[1], tls=bool(settings.tls.cert_file))
        supervisor = _supervisor(basis)
        supervisor.on_stop = partial(_close, listeners)
        return await supervisor.run(
            lambda: ready(replace(StartupSummary(**supervisor.started), url=address, workers=settings.workers))
        )


def _close(listeners: list[socket.socket]) -> None:
    """From now on nobody is let in: connections must not wait in a queue that nobody looks at."""
    for one in listeners:
        one.close()


def _supervisor(basis: ChildConfig) -> Supervisor:
    async def start(slot: WorkerSlot, heard: Callable[[Say], None]) -> Child:
        mine = replace(basis, role=slot.role, number=slot.number, first=slot.first)
        return await launch(mine if slot.role == WORKER else replace(mine, listeners=(), shares=-1), heard)

    shares = ConnectionCounts(basis.shares, basis.workers)
    supervisor = Supervisor(
        basis.workers, start, SystemClock(), LogEvents(), grace_s=basis.settings.shutdown_grace_seconds
    )
    for slot in supervisor.workers:
        shares.remove(slot.number - 1)
    supervisor.on_death = lambda slot: shares.remove(slot.number - 1) if slot.role == WORKER else None
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, supervisor.stop)
    loop.add_signal_handler(signal.SIGHUP, supervisor.reload)
    return supervisor


async def fleet_secret(settings: Settings) -> str:
    """Return the secret that all processes use, or nothing where the settings name one."""
    if settings.secret.get_secret_value() or settings.secret_file:
        return ""
    opened = await open_state(settings)
    if opened.shared is not None:
        await opened.shared.close()
    if opened.secret:
        return opened.secret
    data = DataDir(Path(settings.data_dir))
    told = len(data.warnings)  # by the control process
    secret = data.kept_secret().decode()
    for warning in data.warnings[told:]:
        log(logging.WARNING, warning)
    return secret
