"""The control process: what happens once for all workers. It watches the bundle source and delivers valid bundles, logs
events, and adds up metrics and activity. With operations, it also runs the history, alerts and admin server
(`AdminRuntime`). It handles no request."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from breakloop.app import build
from breakloop.app.build import Job, aside, bundle_source, forever
from breakloop.app.runtime import Runtime, poll_or_reload
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
from breakloop.app.workers.worker import bundle_text
from breakloop.clock import SystemClock
from breakloop.errors import BundleError, SettingsError
from breakloop.model.events import Activity, AgentUse, Event, LoopUse, Publish, TreeNodeUse, add_use
from breakloop.observe.log import INTERVAL_S, EventSink, LogAndBus, LogEvents, log
from breakloop.observe.metrics import MetricValues, WorkerTotals
from breakloop.policy.compile import compile_loaded
from breakloop.policy.compiled import CompiledBundle
from breakloop.policy.descriptors import Descriptors
from breakloop.policy.load import LoadedBundle
from breakloop.policy.watch import BundleFeed, BundleSource
from breakloop.store.data_dir import DataDir

if TYPE_CHECKING:
    from breakloop.app.operations import Operations


@dataclass(slots=True, eq=False)
class WorkerEntry:
    number: int
    pid: int
    channel: Channel | None = None
    sent: tuple[BundleText | None, int] = (None, 0)  # the last delivered bundle and number of workers
    applied: int = 0
    dropped: int = 0


class WorkerRegistry:
    """The connected workers. `bundle` is delivered to each as soon as its channel has room."""

    def __init__(self, publish: Publish) -> None:
        self._publish = publish
        self._entries: list[WorkerEntry] = []
        self._opening: set[asyncio.Task[None]] = set()
        self._empty = asyncio.Event()
        self._empty.set()
        self._state: tuple[object, ...] = ()
        self._dropped = 0  # events that workers dropped, not logged yet
        self._dropped_logged_at = 0.0
        self.bundle: BundleText | None = None
        self.on_applied: Callable[[], None] = lambda: None
        self.totals = WorkerTotals()
        self._activity = Activity()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def applied(self) -> list[int]:
        """The number of the bundle that is active in each worker."""
        return [entry.applied for entry in self._entries]

    def join(self, number: int, pid: int, end: socket.socket) -> None:
        """Connect a worker; `end` is our end of its channel."""
        entry = WorkerEntry(number, pid)
        self._entries.append(entry)
        self._empty.clear()
        task = asyncio.get_running_loop().create_task(self._open(entry, end))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    def deliver(self, source: BundleSource) -> None:
        """Send the active bundle and the state of its source to all workers, if it changed."""
        state = (source.loaded, source.rejected, source.problems)
        if state == self._state:
            return
        self._state = state
        loaded = source.current
        self.bundle = BundleText(
            number=self.bundle.number + 1 if self.bundle else 1,
            name=source.name,
            origin=source.origin,
            rejected=source.rejected,
            problems=source.problems,
            digest=loaded.digest if loaded else "",
            text=bundle_text(loaded) if loaded else None,
        )
        self._update_all()

    def flush(self, now: float, *, everything: bool = False) -> None:
        """Log how many events were dropped, at most once an interval. Called every second, and at the end."""
        if self._dropped and (everything or not 0 <= now - self._dropped_logged_at < INTERVAL_S):
            log(logging.WARNING, "events.dropped", {"dropped": self._dropped})
            self._dropped, self._dropped_logged_at = 0, now

    async def all_gone(self, timeout_s: float) -> None:
        """Wait until the last worker has sent everything and disconnected."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._empty.wait(), timeout_s)

    async def _open(self, entry: WorkerEntry, end: socket.socket) -> None:
        channel = Channel(partial(self._received, entry), partial(self._left, entry), partial(self._update, entry))
        try:
            await open_channel(end, channel)
        except OSError:
            self._left(entry)
            return
        entry.channel = channel
        self._update_all()

    def _left(self, entry: WorkerEntry) -> None:
        if entry in self._entries:
            self._entries.remove(entry)
            self.totals.end(entry.pid)
            self._update_all()
        if not self._entries:
            self._empty.set()

    def _update_all(self) -> None:
        for entry in self._entries:
            self._update(entry)

    def _update(self, entry: WorkerEntry) -> None:
        """Send a worker what is new; if its channel is full, this is repeated when it has room."""
        if entry.channel is None:
            return
        bundle, workers = entry.sent
        if self.bundle is not bundle and self.bundle is not None and entry.channel.send(self.bundle):
            bundle = self.bundle
        if workers != len(self) and entry.channel.send(WorkerCount(len(self))):
            workers = len(self)
        entry.sent = (bundle, workers)

    def _received(self, entry: WorkerEntry, message: Message) -> None:
        match message:
            case EventBatch():
                for event in message.events:
                    self._publish(event)
                self._dropped += message.dropped - entry.dropped
                entry.dropped = message.dropped
            case ActivityReport():
                self._add_activity(message)
            case MetricsReport():
                self.totals.update(entry.pid, message.values)
            case BundleApplied():
                self._note_applied(entry, message)
            case _:
                pass

    def take_activity(self) -> Activity:
        """Return what agents did on all workers since the last call."""
        taken, self._activity = self._activity, Activity()
        return taken

    def _add_activity(self, report: ActivityReport) -> None:
        for who, use in report.agents:
            add_use(self._activity.agents.setdefault(who, AgentUse()), use)
        for key, loop in report.loops:
            add_use(self._activity.loops.setdefault(key, LoopUse()), loop)
        for key, count in report.shadow:
            self._activity.shadow[key] = self._activity.shadow.get(key, 0) + count
        for key, node in report.trees:
            add_use(self._activity.trees.setdefault(key, TreeNodeUse()), node)

    def _note_applied(self, entry: WorkerEntry, applied: BundleApplied) -> None:
        entry.applied = applied.number
        if applied.problem:
            fields = {"worker": entry.number, "problem": applied.problem, "meanwhile": "it keeps the previous bundle"}
            log(logging.ERROR, "bundle.not_applied", fields)
        self.on_applied()


NO_LOOPS: Final = "none"  # there is no bundle
LOOPS_OFF: Final = "off"
LOOPS_BUILTIN: Final = "builtin"
LOOPS_BUNDLE: Final = "bundle"


@dataclass(frozen=True, slots=True)
class StartupSummary:
    """What `breakloop serve` prints when it is ready. Without `source`, no bundle is configured; without `origin`, none
    is valid."""

    url: str = ""
    workers: int = 1
    source: str = ""
    origin: str = ""
    version: int = 0
    policies: int = 0
    problem: str = ""
    loops: str = NO_LOOPS
    own_loops: int = 0  # policies with their own `loop_detection`
    admin_url: str = ""
    admin_token: str = ""  # if it was just generated; shown once


def startup_summary(source: BundleFeed | None, bundle: CompiledBundle | None, url: str = "") -> StartupSummary:
    seen = StartupSummary(url=url, loops=_loops(bundle))
    if source is None:
        return seen
    seen = replace(seen, source=source.name, problem=str(source.problems[0]) if source.problems else "")
    if source.current is None:
        return seen
    return replace(
        seen,
        origin=source.origin,
        version=source.current.bundle.bundle_version,
        policies=len(source.current.bundle.policies),
        own_loops=sum(one.decides_loops and not one.shadow for one in bundle.policies) if bundle else 0,
    )


def _loops(bundle: CompiledBundle | None) -> str:
    if bundle is None:
        return NO_LOOPS
    if not bundle.default_loops:
        return LOOPS_OFF
    return LOOPS_BUILTIN if bundle.default_loops[0].config.policy == "builtin" else LOOPS_BUNDLE


_WORKERS_S: Final = 2.0  # how long a stop waits for the workers


class Control:
    def __init__(self, config: ChildConfig) -> None:
        self.config = config
        self.settings = settings = config.settings
        self.clock = SystemClock()
        self.events: EventSink = LogEvents()
        self.workers = WorkerRegistry(self.publish)
        self.workers.on_applied = self._announce_bundle
        self.data = DataDir(Path(settings.data_dir))
        self._secret = self.data.secret(settings.secret.get_secret_value(), settings.secret_file)
        self._descriptors = Descriptors(build.context(settings, self._secret), self.clock)
        self._compiled: CompiledBundle | None = None
        self._admin: AdminRuntime | None = None
        self.source = self._source()
        self._loop = asyncio.get_running_loop()
        self._reload = asyncio.Event()
        self._stop = asyncio.Event()
        self._without_bundle = False  # since the start
        self._workers_s = _WORKERS_S
        self._pipe = SupervisorPipe(socket.socket(fileno=config.pipe), self._received_order, self._orphaned)

    async def run(self) -> int:
        """Run until the supervisor stops it, or has died and no worker is left. Returns the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # the supervisor stops it, after the workers
        for warning in self.data.warnings:
            log(logging.WARNING, warning)
        started = asyncio.create_task(self._start())
        stopped = asyncio.create_task(self._stop.wait())  # a slow bundle source must not delay a stop
        await asyncio.wait((started, stopped), return_when=asyncio.FIRST_COMPLETED)
        if not started.done():
            started.cancel()
            return 0
        try:
            started.result()
        except (SettingsError, BundleError) as error:
            self._pipe.send({"is": "failed", "why": str(error)})
            return 1
        finally:
            stopped.cancel()
        return await self._work()

    async def _work(self) -> int:
        tasks = [asyncio.create_task(forever(name, job)) for name, job in self._jobs()]
        self._without_bundle = self._compiled is None
        self._pipe.send({"is": "ready", "started": asdict(self._summary())})
        await self._stop.wait()
        await self.workers.all_gone(self._workers_s)
        for task in tasks:
            task.cancel()
        if self.source is not None:
            await aside(self.source.finish)
        self._flush(everything=True)
        if self._admin is not None:
            await self._admin.close()
        return 0

    def publish(self, event: Event) -> None:
        """Publish an event. Call it on the thread of the loop only."""
        self.events(event)

    # -- the bundle --------------------------------------------------------------------------------------------------

    def _source(self) -> BundleSource | None:
        publish = self._publish_soon
        return bundle_source(self.settings, self.clock, self.data.path, on_bundle=self._check, publish=publish)

    def _publish_soon(self, event: Event) -> None:
        """Publish an event of the bundle source, which runs in a thread."""
        self._loop.call_soon_threadsafe(self.publish, event)

    def _check(self, loaded: LoadedBundle | None) -> None:
        """Compile a bundle. One that does not compile is rejected here and not delivered."""
        self._compiled = compile_loaded(loaded, self._descriptors, self._secret, build.loop_guard(self.settings))
        if self._admin is not None:
            self._loop.call_soon_threadsafe(self._admin.engine.set_bundle, self._compiled)
        for note in loaded.notes if loaded else ():
            log(logging.WARNING, "bundle.note", {"note": str(note)})

    async def _open_admin(self) -> None:
        if not build.operations_wanted(self.settings):
            return
        admin = self._admin = AdminRuntime(self, await open_state(self.settings))
        self.events = LogAndBus(self.events, admin.operations.bus)
        await admin.open(self._compiled)

    def _summary(self) -> StartupSummary:
        seen = startup_summary(self.source, self._compiled)
        if self._admin is None:
            return seen
        operations = self._admin.operations
        return replace(seen, admin_url=operations.admin_url, admin_token=operations.new_token)

    async def _start(self) -> None:
        if self.source is None:
            self._check(None)
            await self._open_admin()
            return
        in_force = await aside(self.source.start)
        self.workers.deliver(self.source)
        if not in_force and self.settings.strict and self.config.first:
            raise BundleError(self.source.problems)
        await self._open_admin()

    def _announce_bundle(self) -> None:
        """Report the first valid bundle when all workers use it, if there was none at the start."""
        bundle = self.workers.bundle
        if self._without_bundle and bundle and bundle.text and set(self.workers.applied) == {bundle.number}:
            self._without_bundle = False
            self._pipe.send({"is": "loaded", "started": asdict(self._summary())})

    async def _watch(self) -> None:
        assert self.source is not None  # noqa: S101 - only a job when there is one
        await poll_or_reload(self.source, self._reload)
        self.workers.deliver(self.source)

    # -- jobs --------------------------------------------------------------------------------------------------------

    def _jobs(self) -> list[Job]:
        jobs: list[Job] = [("log", self._flush_events)]
        if self.source is not None:
            jobs.append(("bundle", self._watch))
        if self._admin is not None:
            jobs += [*self._admin.state.jobs(), *self._admin.operations.jobs()]
        return jobs

    async def _flush_events(self) -> None:
        await asyncio.sleep(1.0)
        self._flush()

    def _flush(self, *, everything: bool = False) -> None:
        now = self.clock.now()
        self.workers.flush(now, everything=everything)
        self.events.flush(now, everything=everything)

    # -- the supervisor ----------------------------------------------------------------------------------------------

    def _received_order(self, message: PipeMessage, sockets: list[socket.socket]) -> None:
        match message.get("do"):
            case "channel":
                self.workers.join(message["worker"], message["pid"], sockets[0])
            case "event":
                self.publish(Event(message["name"], message["at"], message["data"]))
            case "reload":
                self._reload.set()
            case "ping":
                self._pipe.send({"is": "alive"})
            case "stop" | "hurry":
                self._stop.set()
            case _:
                pass

    def _orphaned(self) -> None:
        """The supervisor has died: the workers stop too, so wait for their last messages."""
        self._workers_s = self.settings.shutdown_grace_seconds + _WORKERS_S
        self._stop.set()


class _Forward:
    """An `EventSink` that passes events to the control process, which flushes its own sinks."""

    def __init__(self, publish: Publish) -> None:
        self._publish = publish

    def __call__(self, event: Event) -> None:
        self._publish(event)

    def flush(self, now: float, *, everything: bool = False) -> None: ...


class AdminRuntime(Runtime):
    """The operations of all workers: a `Runtime` that does not listen, but has an engine for operator orders, the
    events and activity of all workers, and the admin server. It shares the parts of the control process."""

    operations: Operations  # without them there is no `AdminRuntime`

    def __init__(self, control: Control, opened: StateConnection) -> None:
        self._control = control
        super().__init__(control.settings, opened=opened)

    def make_events(self) -> EventSink:
        """Events are published like those of a worker."""
        return _Forward(self._control.publish)

    def make_data_dir(self) -> DataDir:
        return self._control.data

    def make_source(self) -> BundleFeed | None:
        return self._control.source

    def activity(self) -> Activity:
        return self._control.workers.take_activity()

    def worker_metrics(self) -> MetricValues:
        """Return the totals of all workers, including those that have ended."""
        return self._control.workers.totals.total()

    def readiness(self) -> tuple[int, dict[str, object]]:
        status, content = super().readiness()
        return status, {**content, "workers": len(self._control.workers)}

    async def open(self, bundle: CompiledBundle | None) -> None:
        """Load the saved state and start the admin server. Raises `SettingsError`."""
        self.state.load()
        self.operations.load()
        if bundle is not None:
            self.engine.set_bundle(bundle)
        await self.state.listen()
        await self.operations.start()

    async def close(self) -> None:
        """Write what is left and close the connections."""
        await self.operations.finish()
        await self.state.finish()
