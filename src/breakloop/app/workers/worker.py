"""A worker: a process that serves, as one alone would, but for what its fleet does once: it accepts from a socket that
it shares, has its bundles delivered, sends its events, and ends when the supervisor says so or is gone.

A worker's source of bundles: what the control process has fetched, verified and validated is delivered here, put in
force, and acknowledged. Keeping a copy and telling about it are done there, once.

What a worker has to tell the control process: events, gathered for a moment, and once a second what it has counted.
Room is bounded and nobody waits: what finds none is counted and gone. `LogEvents` does the rest there, once for all.

"""

from __future__ import annotations

import asyncio
import json
import signal
import socket
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, Final

import uvloop

from breakloop.app import build
from breakloop.app.build import tune
from breakloop.app.runtime import Runtime
from breakloop.app.state import StateConnection, open_state
from breakloop.app.workers.ipc import (
    ActivityReport,
    BundleApplied,
    BundleText,
    Channel,
    ChildConfig,
    EventBatch,
    Message,
    MetricsReport,
    Say,
    SupervisorPipe,
    WorkerCount,
    open_channel,
)
from breakloop.errors import BundleError, Problem, SettingsError
from breakloop.gateway.server import ConnectionCounts, Server
from breakloop.model.events import Activity, Event
from breakloop.observe.log import EventSink
from breakloop.observe.metrics import LabelLimiter, MetricValues, collect
from breakloop.policy.load import LoadedBundle, load_text
from breakloop.policy.watch import BundleFeed
from breakloop.store.data_dir import DataDir

_NEVER_S: Final = 3600.0


def bundle_text(loaded: LoadedBundle) -> bytes:
    """Return a bundle as JSON: every worker reads it, and YAML takes ten times as long."""
    plain = loaded.bundle.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return json.dumps(plain, separators=(",", ":")).encode()


class PushedBundleSource:
    """Has the newest that was delivered. `use` puts a bundle in force, `acknowledge` is told; both in any thread."""

    def __init__(self, acknowledge: Callable[[BundleApplied], None]) -> None:
        self._acknowledge = acknowledge
        self._next: BundleText | None = None
        self._name = ""
        self.use: Callable[[LoadedBundle], None] | None = None
        self.current: LoadedBundle | None = None
        self.origin = ""
        self.problems: list[Problem] = []
        self.rejected = 0
        self.loaded_at = 0.0  # the control process reports it

    @property
    def name(self) -> str:
        """Where the bundle comes from, as people know it."""
        return self._name

    @property
    def wait_s(self) -> float:
        """Nothing is looked for: it comes."""
        return _NEVER_S

    def put(self, policy: BundleText) -> None:
        """This was delivered; `reload` acts on it."""
        self._next = policy

    def start(self) -> bool:
        """Put in force what was delivered so far; tells whether a bundle is in force."""
        self.reload()
        return self.current is not None

    def poll(self) -> None:
        """Act on what was delivered, if that was missed."""
        self.reload()

    def reload(self) -> None:
        """Act on what was delivered."""
        policy, self._next = self._next, None
        if policy is None:
            return
        problem = ""
        if policy.text is not None:
            try:
                self._take(policy, policy.text)
            except Exception as error:  # noqa: BLE001 - the edge: whatever is wrong, the bundle in force stays so
                problem = f"{type(error).__name__}: {error}"
        self._name, self.problems, self.rejected = policy.name, policy.problems, policy.rejected
        self._acknowledge(BundleApplied(policy.number, problem))

    def _take(self, policy: BundleText, text: bytes) -> None:
        if self.current is None or policy.digest != self.current.digest:
            loaded = replace(load_text(text, policy.name + ".json"), digest=policy.digest, notes=[])
            if self.use is not None:
                self.use(loaded)
            self.current = loaded
        self.origin = policy.origin


ROOM: Final = 4096
_AT_ONCE: Final = 256  # events in one message
_GATHER_S: Final = 0.02


class EventSender:
    """An `EventSink` that sends. Events may come from any thread."""

    def __init__(self, send: Callable[[Message], bool]) -> None:
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Event] = deque()
        self._armed = False
        self.metrics: Callable[[], MetricValues] | None = None  # these two: if the control process has operations
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

    def flush(self, now: float, *, everything: bool = False) -> None:  # noqa: ARG002 - as `EventSink` says
        """Send what waits, and what was counted."""
        self.send()
        if self.metrics is not None:
            self._send(MetricsReport(self.metrics()))
        if self.activity is not None:
            did = self.activity()
            if did.agents or did.shadow:
                self._send(ActivityReport.of(did))

    def send(self) -> None:
        """Send what waits, as far as there is room for it."""
        self._armed = False
        waiting = self._waiting
        while waiting:
            some = [waiting.popleft() for _ in range(min(len(waiting), _AT_ONCE))]
            if not self._send(EventBatch(some, self.dropped)):
                waiting.extendleft(reversed(some))  # the next event, or the next second, tries again
                return

    def _arm(self) -> None:
        self._loop.call_later(_GATHER_S, self.send)


_FLUSH_S: Final = 1.0


class Worker:
    """One worker process, from its start to its exit code."""

    def __init__(self, handover: ChildConfig) -> None:
        self.handover = handover
        self.delivered = PushedBundleSource(self._acknowledge)
        self.outbox = EventSender(self._send)
        self.workers = handover.workers
        self._loop = asyncio.get_running_loop()
        self._runtime: WorkerRuntime | None = None
        self._channel: Channel | None = None
        self._begun = asyncio.Event()  # there is a bundle, or it is known that there is none
        self._stopped = False
        self._tasks: set[asyncio.Task[None]] = set()
        if not handover.settings.policy:
            self._begun.set()
        self._line = SupervisorPipe(socket.socket(fileno=handover.line), self._heard, self.stop)

    async def run(self) -> int:
        """Serve until it is told to stop."""
        self._take_signals()
        code = 1
        try:
            await self._begun.wait()
            if self._stopped:
                return 0
            self._runtime = WorkerRuntime(self, await open_state(self.handover.settings))
            code = await self._runtime.run(self._ready)
        except (SettingsError, BundleError) as error:
            self._line.say({"is": "failed", "why": str(error)})
        finally:
            await self._say_goodbye()
        return code

    def stop(self) -> None:
        """Finish what is under way and end; also when the supervisor is gone."""
        self._stopped = True
        self._begun.set()
        if self._runtime is not None:
            self._runtime.stop()

    def _ready(self, _url: str) -> None:
        tune()
        self._line.say({"is": "ready"})
        if self._stopped and self._runtime is not None:  # while it was being made
            self._runtime.stop()

    def _take_signals(self) -> None:
        """Who stops the fleet tells the supervisor. Service managers tell everybody, terminals send SIGINT around."""
        self._loop.add_signal_handler(signal.SIGTERM, self.stop)
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)

    # -- the supervisor --------------------------------------------------------------------------------------------

    def _heard(self, message: Say, sockets: list[socket.socket]) -> None:
        match message.get("do"):
            case "channel":
                self._keep(self._open(sockets[0]))
            case "stop":
                self.stop()
            case "hurry":
                self.stop()
                if self._runtime is not None:
                    self._runtime.stop(hurry=True)
            case _:
                pass

    def _keep(self, job: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(job)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- the control process ---------------------------------------------------------------------------------------

    async def _open(self, end: socket.socket) -> None:
        before, self._channel = self._channel, None
        if before is not None:
            before.close()
        channel = Channel(self._received, lambda: None, self.outbox.send)
        await open_channel(end, channel)
        self._channel = channel
        self.outbox.flush(0.0)  # a new control process is to show at once what was counted under the old one

    def _send(self, message: Message) -> bool:
        return self._channel is not None and self._channel.send(message)

    def _received(self, message: Message) -> None:
        if isinstance(message, WorkerCount):
            self.workers = message.workers
        elif isinstance(message, BundleText):
            self.delivered.put(message)
            self._begun.set()
            if self._runtime is not None:
                self._runtime.reload()

    def _acknowledge(self, applied: BundleApplied) -> None:
        self._loop.call_soon_threadsafe(self._send, applied)

    async def _say_goodbye(self) -> None:
        """What is left to tell is told, if somebody listens."""
        self.outbox.flush(0.0, everything=True)
        channel = self._channel
        if channel is not None:
            await channel.finish(_FLUSH_S)
        self._line.close()


class WorkerRuntime(Runtime):
    """`Runtime` with the fleet's parts in place of its own."""

    def __init__(self, worker: Worker, opened: StateConnection) -> None:
        self._worker = worker
        self.mark = worker.handover.mark
        self._label_limiter = LabelLimiter()
        super().__init__(worker.handover.settings, opened=opened)

    def make_events(self) -> EventSink:
        """Events go to the control process."""
        return self._worker.outbox

    def make_operations(self) -> None:
        """The control process has the operations; report activity and metrics to it, if it needs them."""
        if build.operations_wanted(self.settings):
            self.activity()  # the first call starts the recording
            self._worker.outbox.activity = self.activity
            self._worker.outbox.metrics = self._metrics

    def _metrics(self) -> MetricValues:
        sources = self.metric_sources()
        sources.bundles = None  # the control process reports its source: rejections would be counted once a worker
        sources.events_dropped = {"worker": self._worker.outbox.dropped}
        return self._label_limiter.limit(collect(sources))

    def make_data_dir(self) -> DataDir:
        """Workers write the orders, a file made for several writers; the rest is for the control process, and so is
        telling that the directory cannot be used."""
        data = super().make_data_dir()
        data.warnings.clear()
        return data

    def make_source(self) -> BundleFeed | None:
        """Bundles are delivered."""
        if not self.settings.policy:
            return None
        self._worker.delivered.use = self.use
        return self._worker.delivered

    def take_signals(self) -> None:
        """The worker has taken them already."""

    async def listen(self, server: Server) -> int:
        """Accept from the sockets of the supervisor."""
        handover = self._worker.handover
        shares = ConnectionCounts(handover.shares, handover.workers)
        tls, port = build.own_tls(self.settings), 0
        for fd in handover.listeners:
            shared = socket.socket(fileno=fd)
            port = port or shared.getsockname()[1]
            server.share(shared, shares, handover.number - 1, tls)
        return port

    def readiness(self) -> tuple[int, dict[str, object]]:
        """Which worker answers, and of how many."""
        status, content = super().readiness()
        if status == 200:
            content |= {"worker": self._worker.handover.number, "workers": self._worker.workers}
        return status, content


def run(handover: ChildConfig) -> int:
    """Be a worker; returns the exit code."""
    return uvloop.run(_run(handover))


async def _run(handover: ChildConfig) -> int:
    return await Worker(handover).run()
