"""A worker: serves traffic like a single process, except for what happens once. It accepts connections from shared
sockets, gets its bundles from the control process, sends its events, activity and metrics there, and stops when the
supervisor stops it or dies."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, Final

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
    PipeMessage,
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
    """Serialise a bundle as JSON: every worker parses it, and YAML takes ten times as long."""
    plain = loaded.bundle.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return json.dumps(plain, separators=(",", ":")).encode()


class PushedBundleSource:
    """The bundle source of a worker: what the control process delivered. `use` activates a bundle and `acknowledge`
    confirms it; both may be called in any thread."""

    def __init__(self, acknowledge: Callable[[BundleApplied], None]) -> None:
        self._acknowledge = acknowledge
        self._next: BundleText | None = None
        self.name = ""  # where the bundle comes from, for display
        self.wait_s = _NEVER_S  # bundles are pushed, so there is nothing to poll
        self.use: Callable[[LoadedBundle], None] | None = None
        self.current: LoadedBundle | None = None
        self.origin = ""
        self.problems: list[Problem] = []
        self.rejected = 0
        self.loaded_at = 0.0  # the control process reports it

    def put(self, policy: BundleText) -> None:
        """Store a delivery; `reload` activates it."""
        self._next = policy

    def start(self) -> bool:
        """Activate the last delivery; returns whether a bundle is active."""
        self.reload()
        return self.current is not None

    def poll(self) -> None:
        """Activate the last delivery, if that was missed."""
        self.reload()

    def reload(self) -> None:
        policy, self._next = self._next, None
        if policy is None:
            return
        problem = ""
        if policy.text is not None:
            try:
                self._take(policy, policy.text)
            except Exception as error:  # noqa: BLE001 - whatever is wrong, the active bundle stays
                problem = f"{type(error).__name__}: {error}"
        self.name, self.problems, self.rejected = policy.name, policy.problems, policy.rejected
        self._acknowledge(BundleApplied(policy.number, problem))

    def finish(self) -> None:
        """The control process saves the bundles."""

    def _take(self, policy: BundleText, text: bytes) -> None:
        if self.current is None or policy.digest != self.current.digest:
            loaded = replace(load_text(text, policy.name + ".json"), digest=policy.digest, notes=[])
            if self.use is not None:
                self.use(loaded)
            self.current = loaded
        self.origin = policy.origin


EVENTS_MAX: Final = 4096  # waiting to be sent
_BATCH: Final = 256  # events in one message
_BATCH_S: Final = 0.02  # how long events are collected for one message


class EventSender:
    """An `EventSink` that sends events to the control process, and once a second activity and metrics. It never waits:
    events beyond the limit are dropped and counted. Thread-safe."""

    def __init__(self, send: Callable[[Message], bool]) -> None:
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Event] = deque()
        self._scheduled = False
        self.metrics: Callable[[], MetricValues] | None = None  # these two: if the control process has operations
        self.activity: Callable[[], Activity] | None = None
        self.dropped = 0

    def __call__(self, event: Event) -> None:
        if len(self._waiting) >= EVENTS_MAX:
            self.dropped += 1
            return
        self._waiting.append(event)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon_threadsafe(self._schedule)

    def flush(self, now: float, *, everything: bool = False) -> None:  # noqa: ARG002 - of `EventSink`
        self.send()
        if self.metrics is not None:
            self._send(MetricsReport(self.metrics()))
        if self.activity is not None:
            activity = self.activity()
            if activity.agents or activity.shadow:
                self._send(ActivityReport.of(activity))

    def send(self) -> None:
        """Send the waiting events, as far as the channel has room."""
        self._scheduled = False
        waiting = self._waiting
        while waiting:
            batch = [waiting.popleft() for _ in range(min(len(waiting), _BATCH))]
            if not self._send(EventBatch(batch, self.dropped)):
                waiting.extendleft(reversed(batch))  # retried with the next event, or in a second
                return

    def _schedule(self) -> None:
        self._loop.call_later(_BATCH_S, self.send)


_FLUSH_S: Final = 1.0


class Worker:
    def __init__(self, config: ChildConfig) -> None:
        self.config = config
        self.source = PushedBundleSource(self._acknowledge)
        self.outbox = EventSender(self._send)
        self.workers = config.workers
        self._loop = asyncio.get_running_loop()
        self._runtime: WorkerRuntime | None = None
        self._channel: Channel | None = None
        self._bundle_known = asyncio.Event()  # a bundle was delivered, or there is none
        self._stopped = False
        self._tasks: set[asyncio.Task[None]] = set()
        if not config.settings.policy:
            self._bundle_known.set()
        self._pipe = SupervisorPipe(socket.socket(fileno=config.pipe), self._received_order, self.stop)

    async def run(self) -> int:
        """Serve until the supervisor stops it. Returns the exit code."""
        self._take_signals()
        code = 1
        try:
            await self._bundle_known.wait()
            if self._stopped:
                return 0
            self._runtime = WorkerRuntime(self, await open_state(self.config.settings))
            code = await self._runtime.run(self._ready)
        except (SettingsError, BundleError) as error:
            self._pipe.send({"is": "failed", "why": str(error)})
        finally:
            await self._disconnect()
        return code

    def stop(self) -> None:
        """Finish the running requests and exit. Also called when the supervisor has died."""
        self._stopped = True
        self._bundle_known.set()
        if self._runtime is not None:
            self._runtime.stop()

    def _ready(self, _url: str) -> None:
        tune()
        self._pipe.send({"is": "ready"})
        if self._stopped and self._runtime is not None:  # while it was starting
            self._runtime.stop()

    def _take_signals(self) -> None:
        """Stop on SIGTERM, which service managers send to all processes. The supervisor handles SIGINT and SIGHUP."""
        self._loop.add_signal_handler(signal.SIGTERM, self.stop)
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)

    # -- the supervisor --------------------------------------------------------------------------------------------

    def _received_order(self, message: PipeMessage, sockets: list[socket.socket]) -> None:
        match message.get("do"):
            case "channel":
                self._start_task(self._open(sockets[0]))
            case "ping":
                self._pipe.send({"is": "alive"})
            case "stop":
                self.stop()
            case "hurry":
                self.stop()
                if self._runtime is not None:
                    self._runtime.stop(hurry=True)
            case _:
                pass

    def _start_task(self, job: Coroutine[Any, Any, None]) -> None:
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
        self.outbox.flush(0.0)  # a new control process needs the metrics at once

    def _send(self, message: Message) -> bool:
        return self._channel is not None and self._channel.send(message)

    def _received(self, message: Message) -> None:
        if isinstance(message, WorkerCount):
            self.workers = message.workers
        elif isinstance(message, BundleText):
            self.source.put(message)
            self._bundle_known.set()
            if self._runtime is not None:
                self._runtime.reload()

    def _acknowledge(self, applied: BundleApplied) -> None:
        self._loop.call_soon_threadsafe(self._send, applied)

    async def _disconnect(self) -> None:
        """Send the last events and metrics, if the control process is connected."""
        self.outbox.flush(0.0, everything=True)
        channel = self._channel
        if channel is not None:
            await channel.finish(_FLUSH_S)
        self._pipe.close()


class WorkerRuntime(Runtime):
    """A `Runtime` with the parts that workers share or get from the control process."""

    def __init__(self, worker: Worker, opened: StateConnection) -> None:
        self._worker = worker
        self.mark = worker.config.mark
        self._label_limiter = LabelLimiter()
        super().__init__(worker.config.settings, opened=opened)

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
        """Workers write the orders only, to a file made for several writers. The control process logs the warnings."""
        data = super().make_data_dir()
        data.warnings.clear()
        return data

    def make_source(self) -> BundleFeed | None:
        """The control process delivers the bundles."""
        if not self.settings.policy:
            return None
        self._worker.source.use = self.use
        return self._worker.source

    def take_signals(self) -> None:
        """`Worker` handles signals."""

    async def listen(self, server: Server) -> int:
        """Accept connections from the sockets of the supervisor."""
        config = self._worker.config
        counts = ConnectionCounts(config.connection_counts, config.workers)
        tls, port = build.own_tls(self.settings), 0
        for fd in config.listeners:
            shared = socket.socket(fileno=fd)
            port = port or shared.getsockname()[1]
            server.share(shared, counts, config.number - 1, tls)
        return port

    def readiness(self) -> tuple[int, dict[str, object]]:
        """Add the number of this worker, and the number of workers."""
        status, content = super().readiness()
        if status == 200:
            content |= {"worker": self._worker.config.number, "workers": self._worker.workers}
        return status, content
