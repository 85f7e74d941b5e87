"""Whether a process has `operations` (history, alerts, admin plane), and what it gives to them. Where nobody wants to
know of anything, nothing of it is imported: a database and a web framework take their time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from breakloop.clock import Clock
from breakloop.engine import Engine
from breakloop.gateway.judging import Judging
from breakloop.gateway.proxy import ProxyDoor
from breakloop.gateway.server import Server
from breakloop.model.activity import Activity
from breakloop.model.figures import Figures
from breakloop.observe.figures import Sources, UpstreamCounts
from breakloop.observe.log import Events
from breakloop.operator import Operator
from breakloop.policy.load import LoadedBundle
from breakloop.policy.source import BundleSource, Watched
from breakloop.settings import Settings
from breakloop.settings_checks import HISTORY_OFF
from breakloop.state.data_dir import DataDir
from breakloop.state_parts import StateParts

if TYPE_CHECKING:
    from breakloop.shared_state import SharedState

Job = tuple[str, Callable[[], Awaitable[None]]]


class Process(Protocol):
    """What a process has that its operations need."""

    settings: Settings
    clock: Clock
    data: DataDir
    secret: bytes
    engine: Engine
    operator: Operator
    state: StateParts
    judging: Judging
    server: Server | None
    source: Watched | None
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

    def others(self) -> Figures:
        """Return what other processes have to show, where this one speaks for them."""
        ...


class Seated(Protocol):
    """Operations, or none."""

    @property
    def admin_url(self) -> str:
        """Where the admin plane is, or ""."""
        ...

    @property
    def new_token(self) -> str:
        """The operator's token, where it was made just now: to be shown once."""
        ...

    def listening(self, events: Events) -> Events:
        """Return who is to be told of events: `events`, and whoever is behind this."""
        ...

    def seat(self, process: Process, shared: SharedState | None) -> None:
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


class Nobody:
    """Nobody wants to know."""

    admin_url = ""
    new_token = ""

    def listening(self, events: Events) -> Events:
        """Return `events`."""
        return events

    def seat(self, process: Process, shared: SharedState | None) -> None:
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
    process: Process, shared: SharedState | None, started_at: float, dropped: Callable[[], Mapping[str, int]]
) -> Sources:
    """Return the parts of a process that count."""
    return Sources(
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


def _upstreams(process: Process) -> list[UpstreamCounts]:
    door = None if process.server is None else process.server.handler
    if not isinstance(door, ProxyDoor):
        return []
    return [UpstreamCounts(name, pool.opened, len(pool.live)) for name, pool in door.pools.items()]


def wanted(settings: Settings) -> bool:
    """Tell whether there is an admin plane, a history that was asked for, or somebody to be alerted."""
    return bool(settings.admin_port or settings.alerts or settings.history not in {"", HISTORY_OFF})
