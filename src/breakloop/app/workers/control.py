"""The control process: what happens once for all workers. It watches the bundle's source and delivers what is valid,
logs the events of all, and adds up what they count. Further duties are jobs (`_jobs`); a request is never
among them.

The workers as the control process knows them: what each is told, has acknowledged, has counted and lets know.

What a person is told about an instance that has just started; how it is said is the command line's.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from breakloop.app import build
from breakloop.app.build import bundle_source
from breakloop.app.jobs import aside, forever
from breakloop.app.state import open_state
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
from breakloop.app.workers.worker import bundle_text
from breakloop.clock import SystemClock
from breakloop.errors import BundleError, SettingsError
from breakloop.model.events import Activity, AgentUse, Event, LoopUse, Publish, add_use
from breakloop.observe.log import INTERVAL_S, EventSink, LogAndBus, LogEvents, log
from breakloop.observe.metrics import WorkerTotals
from breakloop.policy.compile import compile_bundle
from breakloop.policy.compiled import CompiledBundle
from breakloop.policy.descriptors import Descriptors
from breakloop.policy.load import LoadedBundle
from breakloop.policy.watch import BundleSource
from breakloop.store.data_dir import DataDir

if TYPE_CHECKING:
    from breakloop.app.workers.admin import AdminRuntime
    from breakloop.policy.watch import BundleFeed


class WorkerEntry:
    """One worker."""

    __slots__ = ("applied", "channel", "dropped", "number", "pid", "sent")

    def __init__(self, number: int, pid: int) -> None:
        self.number = number
        self.pid = pid
        self.channel: Channel | None = None
        self.sent: tuple[BundleText | None, int] = (None, 0)  # what it was told last: policy, number of workers
        self.applied = 0
        self.dropped = 0


class WorkerRegistry:
    """All of them. `policy` is what each has or gets as soon as there is room on its channel."""

    def __init__(self, publish: Publish) -> None:
        self._publish = publish
        self._members: list[WorkerEntry] = []
        self._opening: set[asyncio.Task[None]] = set()
        self._empty = asyncio.Event()
        self._empty.set()
        self._state: tuple[object, ...] = ()
        self._dropped = 0  # events that workers had no room for, and nobody was told of yet
        self._dropped_told_at = 0.0
        self.policy: BundleText | None = None
        self.totals = WorkerTotals()
        self._did = Activity()

    def __len__(self) -> int:
        return len(self._members)

    @property
    def applied(self) -> list[int]:
        """The number of the policy that each has in force."""
        return [member.applied for member in self._members]

    def join(self, number: int, pid: int, end: socket.socket) -> None:
        """A worker has come; `end` leads to it."""
        member = WorkerEntry(number, pid)
        self._members.append(member)
        self._empty.clear()
        task = asyncio.get_running_loop().create_task(self._open(member, end))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    def deliver(self, source: BundleSource) -> None:
        """Tell everybody what is in force, and how its source is, if that has changed."""
        state = (source.loaded, source.rejected, source.problems)
        if state == self._state:
            return
        self._state = state
        loaded = source.current
        self.policy = BundleText(
            number=self.policy.number + 1 if self.policy else 1,
            name=source.name,
            origin=source.origin,
            rejected=source.rejected,
            problems=source.problems,
            digest=loaded.digest if loaded else "",
            text=bundle_text(loaded) if loaded else None,
        )
        self._tell_all()

    def flush(self, now: float, *, everything: bool = False) -> None:
        """Tell of events that got lost, at most once an interval; called every second, and at the end."""
        if self._dropped and (everything or now - self._dropped_told_at >= INTERVAL_S):
            log(logging.WARNING, "events.dropped", {"dropped": self._dropped})
            self._dropped, self._dropped_told_at = 0, now

    async def all_gone(self, timeout_s: float) -> None:
        """Wait until the last one has told everything and left."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._empty.wait(), timeout_s)

    async def _open(self, member: WorkerEntry, end: socket.socket) -> None:
        channel = Channel(partial(self._received, member), partial(self._left, member), partial(self._tell, member))
        try:
            await open_channel(end, channel)
        except OSError:
            self._left(member)
            return
        member.channel = channel
        self._tell_all()

    def _left(self, member: WorkerEntry) -> None:
        if member in self._members:
            self._members.remove(member)
            self.totals.end(member.pid)
            self._tell_all()
        if not self._members:
            self._empty.set()

    def _tell_all(self) -> None:
        for member in self._members:
            self._tell(member)

    def _tell(self, member: WorkerEntry) -> None:
        """Bring a worker up to date; without room it is told when there is some."""
        if member.channel is None:
            return
        policy, workers = member.sent
        if self.policy is not policy and self.policy is not None and member.channel.send(self.policy):
            policy = self.policy
        if workers != len(self) and member.channel.send(WorkerCount(len(self))):
            workers = len(self)
        member.sent = (policy, workers)

    def _received(self, member: WorkerEntry, message: Message) -> None:
        match message:
            case EventBatch():
                for event in message.events:
                    self._publish(event)
                self._dropped += message.dropped - member.dropped
                member.dropped = message.dropped
            case ActivityReport():
                self._add(message)
            case MetricsReport():
                self.totals.update(member.pid, message.values)
            case BundleApplied():
                self._note_applied(member, message)
            case _:
                pass

    def did(self) -> Activity:
        """Return what agents did since it was last asked, wherever their requests went."""
        taken, self._did = self._did, Activity()
        return taken

    def _add(self, told: ActivityReport) -> None:
        for who, use in told.agents:
            add_use(self._did.agents.setdefault(who, AgentUse()), use)
        for key, loop in told.loops:
            add_use(self._did.loops.setdefault(key, LoopUse()), loop)
        for key, count in told.shadow:
            self._did.shadow[key] = self._did.shadow.get(key, 0) + count

    def _note_applied(self, member: WorkerEntry, applied: BundleApplied) -> None:
        member.applied = applied.number
        if applied.problem:
            fields = {"worker": member.number, "problem": applied.problem, "meanwhile": "it goes on with the old one"}
            log(logging.ERROR, "bundle.not_applied", fields)


NO_LOOPS: Final = "none"  # nothing is judged at all
LOOPS_OFF: Final = "off"
LOOPS_BUILTIN: Final = "builtin"
LOOPS_BUNDLE: Final = "bundle"


@dataclass(frozen=True, slots=True)
class StartupSummary:
    """The bundle, and the loop protection. Without `source` none is set; without `origin` none is valid."""

    url: str = ""
    workers: int = 1
    source: str = ""
    origin: str = ""
    version: int = 0
    policies: int = 0
    problem: str = ""
    loops: str = NO_LOOPS
    own_loops: int = 0  # policies whose own `loop_detection` holds instead
    admin_url: str = ""
    admin_token: str = ""  # where it was made just now: to be shown once


def started(source: BundleFeed | None, bundle: CompiledBundle | None, url: str = "") -> StartupSummary:
    """Look at what is in force."""
    if source is None:
        return StartupSummary(url=url, loops=_loops(bundle))
    current, problem = source.current, str(source.problems[0]) if source.problems else ""
    if current is None:
        return StartupSummary(url=url, source=source.name, problem=problem, loops=_loops(bundle))
    return StartupSummary(
        url=url,
        source=source.name,
        origin=source.origin,
        version=current.bundle.bundle_version,
        policies=len(current.bundle.policies),
        problem=problem,
        loops=_loops(bundle),
        own_loops=sum(one.decides_loops and not one.shadow for one in bundle.policies) if bundle else 0,
    )


def _loops(bundle: CompiledBundle | None) -> str:
    if bundle is None:
        return NO_LOOPS
    if not bundle.default_loops:
        return LOOPS_OFF
    return LOOPS_BUILTIN if bundle.default_loops[0].config.policy == "builtin" else LOOPS_BUNDLE


_GOODBYE_S: Final = 2.0

Job = tuple[str, Callable[[], Awaitable[None]]]


class Control:
    """The control process, from its start to its exit code."""

    def __init__(self, handover: ChildConfig) -> None:
        self.handover = handover
        self.settings = settings = handover.settings
        self.clock = SystemClock()
        self.events: EventSink = LogEvents()
        self.members = WorkerRegistry(self.publish)
        self.data = DataDir(Path(settings.data_dir))
        self._secret = self.data.secret(settings.secret.get_secret_value(), settings.secret_file)
        self._descriptors = Descriptors(build.context(settings, self._secret), self.clock)
        self._compiled: CompiledBundle | None = None
        self._admin: AdminRuntime | None = None
        self.source = self._source()
        self._loop = asyncio.get_running_loop()
        self._reload = asyncio.Event()
        self._stop = asyncio.Event()
        self._patience_s = _GOODBYE_S
        self._line = SupervisorPipe(socket.socket(fileno=handover.line), self._heard, self._orphaned)

    async def run(self) -> int:
        """Do everything that happens once, until the supervisor says stop or is gone and no worker is left."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # workers may still have something to tell; see `worker`
        for warning in self.data.warnings:
            log(logging.WARNING, warning)
        begun = asyncio.create_task(self._begin())
        stopped = asyncio.create_task(self._stop.wait())  # a source that is slow does not hold up the end
        await asyncio.wait((begun, stopped), return_when=asyncio.FIRST_COMPLETED)
        if not begun.done():
            begun.cancel()
            return 0
        try:
            begun.result()
        except (SettingsError, BundleError) as error:
            self._line.say({"is": "failed", "why": str(error)})
            return 1
        finally:
            stopped.cancel()
        return await self._work()

    async def _work(self) -> int:
        tasks = [asyncio.create_task(forever(name, job)) for name, job in self._jobs()]
        self._line.say({"is": "ready", "started": asdict(self._started())})
        await self._stop.wait()
        await self.members.all_gone(self._patience_s)
        for task in tasks:
            task.cancel()
        self._flush(everything=True)
        if self._admin is not None:
            await self._admin.close()
        return 0

    def publish(self, event: Event) -> None:
        """Tell everybody who listens. On the loop's thread only."""
        self.events(event)

    # -- the bundle --------------------------------------------------------------------------------------------------

    def _source(self) -> BundleSource | None:
        publish = self._publish_soon
        return bundle_source(self.settings, self.clock, self.data.path, on_bundle=self._check, publish=publish)

    def _publish_soon(self, event: Event) -> None:
        """The source runs in a thread."""
        self._loop.call_soon_threadsafe(self.publish, event)

    def _check(self, loaded: LoadedBundle | None) -> None:
        """Compile it: what cannot be compiled is refused here, and no worker hears of it."""
        bundle, digest = (loaded.bundle, loaded.digest) if loaded else (None, "builtin")
        guard = build.loop_guard(self.settings)
        self._compiled = compile_bundle(bundle, digest, self._descriptors, self._secret, guard)
        if self._admin is not None:
            self._loop.call_soon_threadsafe(self._admin.engine.set_bundle, self._compiled)
        for note in loaded.notes if loaded else ():
            log(logging.WARNING, "bundle.note", {"note": str(note)})

    async def _open_admin(self) -> None:
        """Start the operations, if the settings ask for them."""
        if not build.operations_wanted(self.settings):
            return
        from breakloop.app.workers.admin import AdminRuntime  # noqa: PLC0415 - a database and a web framework: 0.5 s

        admin = self._admin = AdminRuntime(
            self.settings,
            await open_state(self.settings),
            data=self.data,
            source=self.source,
            workers=self.members,
            publish=self.publish,
        )
        self.events = LogAndBus(self.events, admin.operations.bus)
        await admin.open(self._compiled)

    def _started(self) -> StartupSummary:
        seen = started(self.source, self._compiled)
        if self._admin is None:
            return seen
        operations = self._admin.operations
        return replace(seen, admin_url=operations.admin_url, admin_token=operations.new_token)

    async def _begin(self) -> None:
        if self.source is None:
            self._check(None)
            await self._open_admin()
            return
        in_force = await aside(self.source.start)
        self.members.deliver(self.source)
        if not in_force and self.settings.strict and self.handover.first:
            raise BundleError(self.source.problems)
        await self._open_admin()

    async def _watch(self) -> None:
        """Look at the bundle's source, at once when somebody asks for it, and deliver what is new."""
        assert self.source is not None  # noqa: S101 - only a job when there is one
        with suppress(TimeoutError):
            await asyncio.wait_for(self._reload.wait(), self.source.wait_s)
        asked = self._reload.is_set()
        self._reload.clear()
        await aside(self.source.reload if asked else self.source.poll)
        self.members.deliver(self.source)

    # -- jobs --------------------------------------------------------------------------------------------------------

    def _jobs(self) -> list[Job]:
        """What goes on all the time. Whatever else is to happen once for all workers is added here."""
        jobs: list[Job] = [("log", self._tell)]
        if self.source is not None:
            jobs.append(("bundle", self._watch))
        if self._admin is not None:
            jobs += [*self._admin.state.jobs(), *self._admin.operations.jobs()]
        return jobs

    async def _tell(self) -> None:
        await asyncio.sleep(1.0)
        self._flush()

    def _flush(self, *, everything: bool = False) -> None:
        now = self.clock.now()
        self.members.flush(now, everything=everything)
        self.events.flush(now, everything=everything)

    # -- the supervisor ----------------------------------------------------------------------------------------------

    def _heard(self, message: Say, sockets: list[socket.socket]) -> None:
        match message.get("do"):
            case "channel":
                self.members.join(message["worker"], message["pid"], sockets[0])
            case "event":
                self.publish(Event(message["name"], message["at"], message["data"]))
            case "reload":
                self._reload.set()
            case "stop" | "hurry":
                self._stop.set()
            case _:
                pass

    def _orphaned(self) -> None:
        """Without a supervisor the workers end, too; what they have to tell is waited for."""
        self._patience_s = self.settings.shutdown_grace_seconds + _GOODBYE_S
        self._stop.set()


def run(handover: ChildConfig) -> int:
    """Be the control process; returns the exit code."""
    return asyncio.run(_run(handover))


async def _run(handover: ChildConfig) -> int:
    return await Control(handover).run()
