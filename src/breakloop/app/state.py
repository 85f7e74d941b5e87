"""The state of a process: the memory store with snapshots in the data directory, or a Redis that instances share."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from breakloop.app.build import Job, aside
from breakloop.clock import Clock, SharedClock, SystemClock
from breakloop.config.settings import Settings
from breakloop.engine.breakers import LocalLimits, StoredLimits
from breakloop.engine.engine import Engine
from breakloop.engine.operator import Operator
from breakloop.errors import SettingsError
from breakloop.gateway.admission import Admission
from breakloop.model.events import Publish
from breakloop.observe.log import log
from breakloop.store.data_dir import DataDir
from breakloop.store.memory import MemoryStore
from breakloop.store.orders import FileOrderStore
from breakloop.store.redis.url import is_redis_url
from breakloop.store.snapshot import Snapshotter
from breakloop.store.sqlite import SqliteTrouble

if TYPE_CHECKING:
    from breakloop.app.shared_state import SharedState


_SAVE_EVERY_S = 0.75  # from begin to begin: with the time that a write takes, a crash loses about a second
_SAVE_REST_S = 0.1


class StateConnection(NamedTuple):
    """What is needed before the other parts: the clock, the connection to a shared store, and its secret."""

    clock: Clock
    shared: SharedState | None = None
    secret: str = ""  # of all instances; "": the one of this process


async def open_state(settings: Settings) -> StateConnection:
    """Connect to the Redis in the settings, if there is one. The process starts even if Redis is unreachable (S-3)."""
    if not is_redis_url(settings.state):
        return StateConnection(SystemClock())
    try:
        from breakloop.app.shared_state import SharedState  # noqa: PLC0415 - its packages are an extra
    except ImportError as error:
        problem = f'state: the package {error.name} is not installed: pip install "breakloop[redis]"'
        raise SettingsError(problem) from None
    clock = SharedClock(SystemClock())
    shared = SharedState(settings.state, clock, shard_by_agent=settings.shard_by == "agent")
    problem = await shared.open()
    if problem:
        log(logging.WARNING, "state.unreachable", {"error": problem, "meanwhile": "each instance counts on its own"})
    configured = settings.secret.get_secret_value() or settings.secret_file
    secret = "" if configured else await DataDir(Path(settings.data_dir)).agreed_secret(shared.secret)
    return StateConnection(clock, shared, secret)


class ProcessState:
    """The store, the orders, and their persistence. Created first, then joined with the engine, then loaded."""

    def __init__(self, directory: Path | None, max_entries: int, clock: Clock, shared: SharedState | None) -> None:
        self.store = MemoryStore(max_entries)
        self.shared = shared
        self._clock = clock
        self._directory = directory
        self._operator: Operator | None = None
        self._save_at = 0.0  # of the event loop's clock
        # With Redis, the memory store only bridges outages and needs no snapshots.
        self.snapshots = Snapshotter(self.store, directory, clock, _problem) if shared is None else None

    def join(self, engine: Engine, admission: Admission, publish: Publish) -> Operator:
        """Connect the engine with a shared store, and return the operator, which applies orders to the engine."""
        if self.shared is None:
            orders = FileOrderStore(self._directory, _report)
        else:
            admission.remote = self.shared.join(engine, self.store, admission.fail_open, publish, admission.descriptors)
            orders = self.shared.order_store(self._directory, _report)
        self._operator = Operator(engine, orders, self._clock, publish)
        return self._operator

    def load(self) -> None:
        """Load the saved state and orders. Called before the first request."""
        if self.snapshots is not None:
            self.snapshots.load()
        if self._operator is not None:
            self._operator.start()

    async def listen(self) -> None:
        if self.shared is not None:
            await self.shared.listen()
        if self._operator is not None:
            await self._operator.ready()

    def jobs(self) -> list[Job]:
        jobs: list[Job] = []
        if self._operator is not None:
            jobs.append(("orders", self._operator.watch))
        if self.snapshots is not None:
            jobs.append(("save", self._save))
        return jobs

    async def _save(self) -> None:
        assert self.snapshots is not None  # noqa: S101 - the job exists only with snapshots
        loop = asyncio.get_running_loop()
        await asyncio.sleep(max(_SAVE_REST_S, self._save_at - loop.time()))
        self._save_at = loop.time() + _SAVE_EVERY_S
        await self.snapshots.save(aside)

    @property
    def limits(self) -> StoredLimits:
        return LocalLimits(self.store, self._clock) if self.shared is None else self.shared.store

    def readiness(self) -> dict[str, object]:
        if self.shared is None or self.shared.remote is None:
            return {"state": "memory", "state_kept": self.snapshots is not None and self.snapshots.keeps}
        return {"state": "redis", "degraded": not self.shared.remote.health.up}

    async def finish(self) -> None:
        """Save the state and close the connections."""
        if self._operator is not None:
            await self._operator.close()
        if self.snapshots is not None:
            self.snapshots.finish()
        if self.shared is not None:
            await self.shared.close()


def _problem(text: str) -> None:
    log(logging.WARNING, "state.problem", {"problem": text})


def _report(trouble: SqliteTrouble) -> None:
    _problem(": ".join(part for part in trouble if part))
