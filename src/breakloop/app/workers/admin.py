"""The operations of several workers, in the control process: a runtime that serves no traffic, but has an engine for
operator orders, the events and activity of all workers, and the admin server."""

from __future__ import annotations

from breakloop.app.operations import Operations
from breakloop.app.runtime import Runtime
from breakloop.app.state import StateConnection
from breakloop.app.workers.control import WorkerRegistry
from breakloop.config.settings import Settings
from breakloop.model.events import Activity, Event, Publish
from breakloop.observe.events import EventBus
from breakloop.observe.log import EventSink
from breakloop.observe.metrics import MetricValues
from breakloop.policy.compiled import CompiledBundle
from breakloop.policy.watch import BundleFeed
from breakloop.store.data_dir import DataDir


class _Forward:
    """An `EventSink` that passes events to the control process, which flushes its own sinks."""

    __slots__ = ("_publish",)

    def __init__(self, publish: Publish) -> None:
        self._publish = publish

    def __call__(self, event: Event) -> None:
        self._publish(event)

    def flush(self, now: float, *, everything: bool = False) -> None: ...


class AdminRuntime(Runtime):
    """A `Runtime` that does not listen. `source` is polled by the control process."""

    operations: Operations

    def __init__(
        self,
        settings: Settings,
        opened: StateConnection,
        *,
        data: DataDir,
        source: BundleFeed | None,
        workers: WorkerRegistry,
        publish: Publish,
    ) -> None:
        self._data = data
        self._source = source
        self._workers = workers
        self._publish = publish
        super().__init__(settings, opened=opened)

    def make_events(self) -> EventSink:
        """Events are published like those of a worker."""
        return _Forward(self._publish)

    def make_operations(self) -> Operations:
        """Return the operations: without them there is no `AdminRuntime`."""
        return Operations(self, self.bus or EventBus())

    def make_data_dir(self) -> DataDir:
        """Share the data directory of the control process."""
        return self._data

    def make_source(self) -> BundleFeed | None:
        """Share the bundle source of the control process."""
        return self._source

    def activity(self) -> Activity:
        """Return what agents did on all workers since the last call."""
        return self._workers.take_activity()

    def worker_metrics(self) -> MetricValues:
        """Return the totals of all workers, including those that have ended."""
        return self._workers.totals.total()

    def readiness(self) -> tuple[int, dict[str, object]]:
        status, content = super().readiness()
        return status, {**content, "workers": len(self._workers)}

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
