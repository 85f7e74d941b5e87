"""Gives a process its operations, where somebody wants them; they are imported only then.

Whether a process has `operations` (history, alerts, admin plane), and what it gives to them. Where nobody wants to
know of anything, nothing of it is imported: a database and a web framework take their time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from breakloop.app.state import ProcessState
from breakloop.clock import Clock
from breakloop.config.settings import Settings
from breakloop.config.validators import HISTORY_OFF
from breakloop.engine.engine import Engine
from breakloop.engine.operator import Operator
from breakloop.gateway.admission import Admission
from breakloop.gateway.proxy import ProxyHandler
from breakloop.gateway.server import Server
from breakloop.model.counters import ProcessFigures
from breakloop.model.events import Activity
from breakloop.observe.log import EventSink
from breakloop.observe.metric_table import MetricSources, UpstreamCounts
from breakloop.policy.load import LoadedBundle
from breakloop.policy.watch import BundleFeed, BundleSource
from breakloop.store.data_dir import DataDir

if TYPE_CHECKING:
    from breakloop.app.shared_state import SharedState


Job = tuple[str, Callable[[], Awaitable[None]]]


class ServingProcess(Protocol):
    """What a process has that its operations need."""

    settings: Settings
    clock: Clock
    data: DataDir
    secret: bytes
    engine: Engine
    operator: Operator
    state: ProcessState
    judging: Admission
    server: Server | None
    source: BundleFeed | None
    url: str

    def check(self, loaded: LoadedBundle) -> None:
        """Compile a bundle, to see whether that is possible."""
        ...

    def readiness(self) -> tuple[int, dict[str, object]]:
        """Return how it is."""
        ...

    def activity(self) -> Activity:
        """Return what agents did since it was last asked."""
        ...

    def others(self) -> ProcessFigures:
        """Return what other processes have to show, where this one speaks for them."""
        ...


class OperationsPort(Protocol):
    """Operations, or none."""

    @property
    def admin_url(self) -> str:
        """Where the admin plane is, or ""."""
        ...

    @property
    def new_token(self) -> str:
        """The operator's token, where it was made just now: to be shown once."""
        ...

    def listening(self, events: EventSink) -> EventSink:
        """Return who is to be told of events: `events`, and whoever is behind this."""
        ...

    def seat(self, process: ServingProcess, shared: SharedState | None) -> None:
        """Take what the process has; it is made by now."""
        ...

    def load(self) -> None:
        """Read what is kept."""
        ...

    def jobs(self) -> list[Job]:
        """Return what goes on beside the traffic."""
        ...

    async def start(self) -> None:
        """Open the admin plane."""
        ...

    async def finish(self) -> None:
        """Let go."""
        ...


class NoOperations:
    """Nobody wants to know."""

    admin_url = ""
    new_token = ""

    def listening(self, events: EventSink) -> EventSink:
        """Return `events`."""
        return events

    def seat(self, process: ServingProcess, shared: SharedState | None) -> None:
        """Take nothing."""

    def load(self) -> None:
        """Read nothing."""

    def jobs(self) -> list[Job]:
        """Return nothing."""
        return []

    async def start(self) -> None:
        """Open nothing."""

    async def finish(self) -> None:
        """Hold nothing."""


def sources_of(
    process: ServingProcess, shared: SharedState | None, started_at: float, dropped: Callable[[], Mapping[str, int]]
) -> MetricSources:
    """Return the parts of a process that count."""
    return MetricSources(
        engine=process.engine,
        started_at=started_at,
        store=process.state.store,
        timings=process.judging.timings,
        hub=process.server,
        upstreams=lambda: _upstreams(process),
        bundles=process.source,
        bundle_loaded_at=lambda: process.source.loaded_at if isinstance(process.source, BundleSource) else 0.0,
        saved=process.state.saved,
        remote=lambda: None if shared is None else shared.remote,
        dropped=dropped,
    )


def _upstreams(process: ServingProcess) -> list[UpstreamCounts]:
    door = None if process.server is None else process.server.handler
    if not isinstance(door, ProxyHandler):
        return []
    return [UpstreamCounts(name, pool.opened, len(pool.live)) for name, pool in door.pools.items()]


def wanted(settings: Settings) -> bool:
    """Tell whether there is an admin plane, a history that was asked for, or somebody to be alerted."""
    return bool(settings.admin_port or settings.alerts or settings.history not in {"", HISTORY_OFF})


def seated(settings: Settings) -> OperationsPort:
    """Return operations, or nobody."""
    if not wanted(settings):
        return NoOperations()
    from breakloop.app.operations import ProcessOperations as OperationsHere  # noqa: PLC0415 - a database and a web framework take their time

    return OperationsHere()
