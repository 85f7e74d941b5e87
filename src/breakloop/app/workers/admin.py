"""The operations of a fleet, in its control process: a runtime that serves nobody, but has an engine to give orders
through, the events and sums of all workers, and the admin plane (SPEC S-5)."""

from __future__ import annotations

from typing import Protocol

from breakloop.app.runtime import Runtime
from breakloop.app.state import StateConnection
from breakloop.app.workers.control import WorkerRegistry
from breakloop.config.settings import Settings
from breakloop.model.counters import ProcessFigures
from breakloop.model.events import Activity, Event
from breakloop.observe.log import EventSink
from breakloop.policy.compiled import CompiledBundle
from breakloop.policy.watch import BundleFeed
from breakloop.store.data_dir import DataDir


class ControlPort(Protocol):
    """What the control process has."""

    settings: Settings
    data: DataDir
    members: WorkerRegistry

    @property
    def source(self) -> BundleFeed | None:
        """Where bundles come from, if anywhere."""
        ...

    def publish(self, event: Event) -> None:
        """Tell everybody who listens."""
        ...


class _Published:
    """An `EventSink` that tells the control process, which has its own listeners."""

    __slots__ = ("_chief",)

    def __init__(self, chief: ControlPort) -> None:
        self._chief = chief

    def __call__(self, event: Event) -> None:
        self._chief.publish(event)

    def flush(self, now: float, *, everything: bool = False) -> None:
        """The control process flushes its listeners itself."""


class AdminRuntime(Runtime):
    """`Runtime` without a door."""

    def __init__(self, chief: ControlPort, opened: StateConnection) -> None:
        self._chief = chief
        super().__init__(chief.settings, opened=opened)

    def make_events(self) -> EventSink:
        """Whatever happens here is told like what happens to a worker."""
        return _Published(self._chief)

    def make_data_dir(self) -> DataDir:
        """The control process has one."""
        return self._chief.data

    def make_source(self) -> BundleFeed | None:
        """The control process watches it."""
        return self._chief.source

    def activity(self) -> Activity:
        """What agents did, wherever their requests went."""
        return self._chief.members.did()

    def others(self) -> ProcessFigures:
        """What all workers have to show together, those that are gone included."""
        return self._chief.members.totals.sum()

    def readiness(self) -> tuple[int, dict[str, object]]:
        """How many workers there are."""
        status, content = super().readiness()
        return status, {**content, "workers": len(self._chief.members)}

    async def open(self, bundle: CompiledBundle | None) -> None:
        """Bring back what was kept, and open the admin plane. Raises `SettingsError`."""
        self.state.load()
        self.operations.load()
        if bundle is not None:
            self.engine.set_bundle(bundle)
        await self.state.listen()
        await self.operations.start()

    async def close(self) -> None:
        """Write what is left, and let go."""
        await self.operations.finish()
        await self.state.finish()
