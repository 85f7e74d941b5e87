"""`breakloop serve` with several workers: binds the port, starts the control process and the workers, connects them,
restarts those that die, and stops them in order. The supervisor holds the listening sockets and handles no request."""

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
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from breakloop.app.build import check_ports
from breakloop.app.state import open_state
from breakloop.app.workers.control import StartupSummary
from breakloop.app.workers.ipc import CONTROL, WORKER, ChildConfig, PipeMessage, SupervisorPipe, pair, write_config
from breakloop.clock import Clock, SystemClock
from breakloop.config.settings import Settings
from breakloop.errors import FleetError, SettingsError
from breakloop.gateway.server import ConnectionCounts, bind, url, why_not
from breakloop.model.events import WORKER_DIED, WORKER_REPLACED, Event, Publish
from breakloop.observe.log import LogEvents, Logging, log
from breakloop.store.data_dir import DataDir

Receive = Callable[[PipeMessage], None]


class Child:
    def __init__(self, process: asyncio.subprocess.Process, pipe: SupervisorPipe) -> None:
        self._process = process
        self._pipe = pipe

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: PipeMessage, sockets: Sequence[socket.socket] = ()) -> bool:
        return self._pipe.send(message, sockets)

    async def wait(self) -> int:
        """Wait for its exit, handle its last messages, and return the exit code; negative for a signal."""
        code = await self._process.wait()
        self._pipe.read()
        self._pipe.close()
        return code

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            self._process.kill()

    @property
    def is_traced(self) -> bool:
        """Whether a debugger is attached to it."""
        with suppress(OSError):
            return "\nTracerPid:\t0\n" not in Path(f"/proc/{self.pid}/status").read_text(encoding="ascii")
        return False


async def launch(config: ChildConfig, receive: Receive) -> Child:
    """Start a child process: the same Python, in a session of its own, so that only the supervisor gets Ctrl-C."""
    ours, theirs = pair()
    memory = write_config(replace(config, pipe=theirs.fileno()))
    inherited = [memory, theirs.fileno(), *config.listeners]
    if config.connection_counts >= 0:
        inherited.append(config.connection_counts)
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *(["-P"] if _has_safe_path() else []),
            "-m",
            "breakloop.app.workers",
            config.role,
            str(config.number),
            str(memory),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            pass_fds=inherited,
            start_new_session=True,
        )
    finally:
        theirs.close()
        os.close(memory)
    return Child(process, SupervisorPipe(ours, lambda message, _sockets: receive(message), lambda: None))


def _has_safe_path() -> bool:
    """Return True if this process does not import from the working directory; then children must not either."""
    return bool(sys.flags.safe_path) or sys.path[:1] not in ([""], [str(Path.cwd())])


def describe_exit(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


STABLE_S: Final = 10.0  # a process that ran so long was healthy
FIRST_DELAY_S: Final = 0.25
DELAY_MAX_S: Final = 30.0
FAILED_STARTS_MAX: Final = 5  # in a row


class RestartPolicy:
    """When one process is restarted: at once after the first exit in a while, then with growing delays."""

    def __init__(self) -> None:
        self._started_at = 0.0
        self._early_exits = 0  # in a row, each soon after the start
        self._failed_starts = 0  # of these: before it was ready

    @property
    def gives_up(self) -> bool:
        """True if the process repeatedly fails to start."""
        return self._failed_starts >= FAILED_STARTS_MAX

    def started(self, now: float) -> None:
        self._started_at = now

    def ready(self) -> None:
        self._failed_starts = 0

    def exited(self, now: float, *, ready: bool) -> float:
        """Return how long to wait before the next start. `ready`: the process had become ready."""
        if ready and now - self._started_at >= STABLE_S:
            self._early_exits = 0
        self._failed_starts = 0 if ready else self._failed_starts + 1
        self._early_exits += 1
        return (
            0.0 if self._early_exits == 1 else min(DELAY_MAX_S, FIRST_DELAY_S * 2.0 ** min(self._early_exits - 2, 20))
        )


_MARGIN_S: Final = 3.0  # beyond the grace period, until a process is killed
_HURRIED_S: Final = 2.0
_CONTROL_S: Final = 5.0

_PING_S: Final = 5.0
_STALLED_PINGS: Final = 2  # unanswered, until the process is logged
_HUNG_PINGS: Final = 6  # until it is killed


@dataclass(slots=True, eq=False)
class WorkerSlot:
    """The slot of one process, which is replaced when it exits."""

    role: str
    number: int
    process: Child | None = None
    ready: bool = False
    first: bool = True
    problem: str = ""  # why it could not start, or was killed
    unanswered: int = 0  # pings since its last message
    restarts: RestartPolicy = field(default_factory=RestartPolicy)

    @property
    def title(self) -> str:
        return f"worker {self.number}" if self.role == WORKER else CONTROL


Launch = Callable[[WorkerSlot, Receive], Awaitable[Child]]
Pause = Callable[[asyncio.Event, float], Awaitable[None]]


async def until(event: asyncio.Event, timeout_s: float) -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), timeout_s)


class Supervisor:
    """Keeps one process running in each slot. Events go to the control process, or to `log` while there is none."""

    def __init__(
        self, workers: int, launch: Launch, clock: Clock, log: Publish, *, grace_s: float, pause: Pause = until
    ) -> None:
        self.control = WorkerSlot(CONTROL, 0)
        self.workers = [WorkerSlot(WORKER, number) for number in range(1, workers + 1)]
        self.on_exit: Callable[[WorkerSlot], None] = lambda _slot: None
        self.on_stop: Callable[[], None] = lambda: None
        self.on_loaded: Callable[[], None] = lambda: None  # the first valid bundle, if there was none at the start
        self.started: dict[str, Any] = {}  # the summary of the control process
        self._launch = launch
        self._clock = clock
        self._log = log
        self._grace_s = grace_s
        self._pause = pause
        self._serving = False
        self._failure = ""
        self._codes: list[int] = []
        self._all_ready = asyncio.Event()
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()

    async def run(self, ready: Callable[[], None]) -> int:
        """Start all processes, call `ready`, and keep them running until `stop`. Returns the exit code. Raises
        `FleetError` if a process cannot be started."""
        control = asyncio.create_task(self._run_slot(self.control))
        workers = [asyncio.create_task(self._run_slot(slot)) for slot in self.workers]
        watch = asyncio.create_task(self._watch())
        all_ready = asyncio.create_task(self._all_ready.wait())
        stopped = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait((all_ready, stopped, control, *workers), return_when=asyncio.FIRST_COMPLETED)
            if self._all_ready.is_set() and not self._stop.is_set():
                self._serving = True
                ready()
                await asyncio.wait((stopped, control, *workers), return_when=asyncio.FIRST_COMPLETED)
        finally:
            all_ready.cancel()
            stopped.cancel()
            watch.cancel()
            in_time = await self._shut_down(control, workers)
        for task in (control, *workers):
            task.result()  # raises programming errors
        if self._failure:
            raise FleetError(self._failure)
        return 0 if in_time and not any(self._codes) else 1

    def stop(self) -> None:
        """Stop all processes gracefully; the second call stops them at once."""
        (self._hurry if self._stop.is_set() else self._stop).set()

    async def _watch(self) -> None:
        while not self._stop.is_set():
            await until(self._stop, _PING_S)
            self.ping()

    def ping(self) -> None:
        """Ping every process, and kill those that did not answer several pings: they hang, and their clients with them.
        Pings are counted rather than time, which also passes while the machine is suspended. A process that is being
        debugged is left alone.
        """
        for slot in (self.control, *self.workers):
            process = slot.process
            if process is None or not slot.ready:
                continue
            fields = {"process": slot.title, "pid": process.pid, "seconds": int(slot.unanswered * _PING_S)}
            if slot.unanswered == _STALLED_PINGS:
                log(logging.WARNING, "worker.stalled", fields)
            elif slot.unanswered >= _HUNG_PINGS and not process.is_traced:
                slot.problem = f"it did not respond for {fields['seconds']} seconds, and was killed"
                process.kill()
            slot.unanswered += 1
            process.send({"do": "ping"})

    def reload(self) -> None:
        if self.control.process is not None:
            self.control.process.send({"do": "reload"})

    # -- one slot ----------------------------------------------------------------------------------------------------

    async def _run_slot(self, slot: WorkerSlot) -> None:
        while not self._stop.is_set():
            slot.ready, slot.problem, slot.unanswered = False, "", 0
            slot.restarts.started(self._clock.steady())
            pid, code = await self._run_once(slot)
            if self._stop.is_set():
                self._codes.append(code)
            elif not self._serving:
                self._fail(slot.problem or f"{slot.title} exited during startup: {describe_exit(code)}")
            else:
                await self._handle_exit(slot, pid, code)
            slot.first = False

    async def _run_once(self, slot: WorkerSlot) -> tuple[int, int]:
        """Start a process and wait for its exit; returns its process id and exit code."""
        try:
            process = slot.process = await self._launch(slot, partial(self._received, slot))
        except OSError as error:  # no memory, or too many processes: may be temporary
            slot.problem = f"{slot.title} cannot be started: {error.strerror}"
            return 0, 1
        self._connect(slot)
        if self._stop.is_set():  # the others have been told already
            process.send({"do": "stop"})
        code = await process.wait()
        slot.process = None
        self.on_exit(slot)
        return process.pid, code

    async def _handle_exit(self, slot: WorkerSlot, pid: int, code: int) -> None:
        """Publish the exit, and wait before the next start if the process exits repeatedly."""
        now = self._clock.now()
        wait_s = slot.restarts.exited(self._clock.steady(), ready=slot.ready)
        slot.ready = False
        if slot.restarts.gives_up and not any(worker.ready for worker in self.workers):
            self._fail(slot.problem or f"{slot.title} cannot be started: {describe_exit(code)}")
            return
        data: dict[str, object] = {
            "process": slot.title,
            "pid": pid,
            "ended": describe_exit(code),
            "restart_in_seconds": wait_s,
        }
        if slot.problem:
            data["problem"] = slot.problem
        self._publish(Event(WORKER_DIED, now, data))
        if wait_s:
            await self._pause(self._stop, wait_s)

    def _received(self, slot: WorkerSlot, message: PipeMessage) -> None:
        slot.unanswered = 0
        if message.get("is") == "failed":
            slot.problem = str(message.get("why"))
        elif message.get("is") == "ready" and slot.process is not None:
            slot.ready = True
            slot.restarts.ready()
            self.started = message.get("started", self.started)
            if not slot.first:
                data = {"process": slot.title, "pid": slot.process.pid}
                self._publish(Event(WORKER_REPLACED, self._clock.now(), data))
            if all(one.ready for one in (self.control, *self.workers)):
                self._all_ready.set()
        elif message.get("is") == "loaded":
            self.started = message["started"]
            if self._serving:
                self.on_loaded()

    def _fail(self, why: str) -> None:
        self._failure = self._failure or why
        self._stop.set()

    def _publish(self, event: Event) -> None:
        control = self.control.process
        message = {"do": "event", "name": event.name, "at": event.at, "data": event.data}
        if control is None or not self.control.ready or not control.send(message):
            self._log(event)

    def _connect(self, slot: WorkerSlot) -> None:
        """Connect the control process and each worker with a channel, once both are running."""
        control = self.control.process
        for worker in [slot] if slot.role == WORKER else self.workers:
            if control is not None and worker.process is not None:
                one, other = socket.socketpair()
                with one, other:
                    control.send({"do": "channel", "worker": worker.number, "pid": worker.process.pid}, [one])
                    worker.process.send({"do": "channel"}, [other])

    # -- shutdown ----------------------------------------------------------------------------------------------------

    async def _shut_down(self, control: asyncio.Task[None], workers: list[asyncio.Task[None]]) -> bool:
        """Stop the workers, then the control process, which receives their last messages. Returns False if the workers
        did not exit in time."""
        self._stop.set()
        self.on_stop()
        self._send_all(self.workers, "stop")
        hurried = asyncio.create_task(self._hurry.wait())
        all_ended = asyncio.gather(*workers, return_exceptions=True)
        await asyncio.wait((all_ended, hurried), timeout=self._grace_s + _MARGIN_S, return_when=asyncio.FIRST_COMPLETED)
        hurried.cancel()
        in_time = all_ended.done()
        await self._force(self.workers, workers, _HURRIED_S)
        self._send_all([self.control], "stop")
        await self._force([self.control], [control], _CONTROL_S if in_time else _HURRIED_S)
        return in_time

    async def _force(self, slots: list[WorkerSlot], tasks: list[asyncio.Task[None]], patience_s: float) -> None:
        """Wait for processes to exit, and kill those that do not."""
        if any(not task.done() for task in tasks):
            self._send_all([slot for slot in slots if slot.role == WORKER], "hurry")
            await asyncio.wait(tasks, timeout=patience_s)
        for slot in slots:
            if slot.process is not None:
                slot.process.kill()
        await asyncio.wait(tasks)

    @staticmethod
    def _send_all(slots: list[WorkerSlot], command: str) -> None:
        for slot in slots:
            if slot.process is not None:
                slot.process.send({"do": command})


def serve(settings: Settings, ready: Callable[[StartupSummary], None], logging_: Logging) -> int:
    """Run all processes until a signal arrives; returns the exit code."""
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
        memory = os.memfd_create("breakloop-connections")
        stack.callback(os.close, memory)
        os.ftruncate(memory, 4 * settings.workers)
        basis = ChildConfig(
            role=WORKER,
            number=0,
            workers=settings.workers,
            settings=settings,
            secret=await common_secret(settings),
            listeners=tuple(one.fileno() for one in listeners),
            connection_counts=memory,
            mark=secrets.token_hex(8),
        )
        address = url(settings.host, listeners[0].getsockname()[1], tls=bool(settings.tls.cert_file))
        supervisor = _supervisor(basis)
        supervisor.on_stop = partial(_close, listeners)

        def announce() -> None:
            ready(replace(StartupSummary(**supervisor.started), url=address, workers=settings.workers))

        supervisor.on_loaded = announce
        return await supervisor.run(announce)


def _close(listeners: list[socket.socket]) -> None:
    """Close the listening sockets: connections must not wait in a queue that is no longer served."""
    for one in listeners:
        one.close()


def _supervisor(basis: ChildConfig) -> Supervisor:
    async def start(slot: WorkerSlot, receive: Receive) -> Child:
        config = replace(basis, role=slot.role, number=slot.number, first=slot.first)
        if slot.role == CONTROL:
            config = replace(config, listeners=(), connection_counts=-1)
        return await launch(config, receive)

    counts = ConnectionCounts(basis.connection_counts, basis.workers)
    supervisor = Supervisor(
        basis.workers, start, SystemClock(), LogEvents(), grace_s=basis.settings.shutdown_grace_seconds
    )
    for slot in supervisor.workers:
        counts.remove(slot.number - 1)
    supervisor.on_exit = lambda slot: counts.remove(slot.number - 1) if slot.role == WORKER else None
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, supervisor.stop)
    loop.add_signal_handler(signal.SIGHUP, supervisor.reload)
    return supervisor


async def common_secret(settings: Settings) -> str:
    """Return the secret for all processes, or "" if the settings have one."""
    if settings.secret.get_secret_value() or settings.secret_file:
        return ""
    opened = await open_state(settings)
    if opened.shared is not None:
        await opened.shared.close()
    if opened.secret:
        return opened.secret
    data = DataDir(Path(settings.data_dir))
    logged = len(data.warnings)  # by the control process
    secret = data.kept_secret().decode()
    for warning in data.warnings[logged:]:
        log(logging.WARNING, warning)
    return secret
