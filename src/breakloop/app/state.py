"""What a process remembers, and where: in memory with its files in the data directory (SPEC S-1), or in a Redis that
several share (S-2). `runtime` runs it; what is kept in which form is `state`'s."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from breakloop.app.jobs import Job, aside
from breakloop.clock import Clock, SharedClock, SystemClock
from breakloop.config.settings import Settings
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


_SAVE_EVERY_S = 1.0


class StateConnection(NamedTuple):
    """What has to be known before anything else is made: the clock, the way to a shared store, and its secret."""

    clock: Clock
    shared: SharedState | None = None
    secret: str = ""  # that a fleet has agreed on; "": one's own


async def open_state(settings: Settings) -> StateConnection:
    """Reach for what the settings say. A Redis that is not there is no reason not to start (SPEC S-3)."""
    if not is_redis_url(settings.state):
        return StateConnection(SystemClock())
    try:
        from breakloop.app.shared_state import SharedState  # noqa: PLC0415 - its packages are an extra
    except ImportError as error:
        why = f"state: needs a package that is not installed ({error.name}): pip install 'breakloop[redis]'"
        raise SettingsError(why) from None
    clock = SharedClock(SystemClock())
    shared = SharedState(settings.state, clock, shard_by_agent=settings.shard_by == "agent")
    why = await shared.open()
    if why:
        log(logging.WARNING, "state.unreachable", {"error": why, "meanwhile": "each instance counts for itself"})
    given = settings.secret.get_secret_value() or settings.secret_file
    secret = "" if given else await DataDir(Path(settings.data_dir)).agreed_secret(shared.secret)
    return StateConnection(clock, shared, secret)


class ProcessState:
    """Store, orders, and what keeps them. Made first, joined with the engine, loaded before traffic."""

    def __init__(self, directory: Path | None, max_entries: int, clock: Clock, shared: SharedState | None) -> None:
        self.store = MemoryStore(max_entries)
        self.shared = shared
        self._clock = clock
        self._directory = directory
        self._operator: Operator | None = None
        # What Redis keeps needs no file here: what is in memory then is for the time without it.
        self._durable = Snapshotter(self.store, directory, clock, _problem) if shared is None else None

    def join(self, engine: Engine, judging: Admission, publish: Publish) -> Operator:
        """Let the engine decide with it."""
        book = FileOrderStore(self._directory, _trouble)
        if self.shared is None:
            self._operator = Operator(engine, book, self._clock, publish)
        else:
            judging.remote = self.shared.join(
                engine, self.store, judging.fail_open, publish, judging.descriptors.sessions
            )
            self._operator = Operator(engine, self.shared.book(book, _trouble), self._clock, publish)
        return self._operator

    def load(self) -> None:
        """Bring back what was kept, before the first request."""
        if self._durable is not None:
            self._durable.load()
        if self._operator is not None:
            self._operator.start()

    async def listen(self) -> None:
        """Hear of what other instances order."""
        if self.shared is not None:
            await self.shared.listen()
        if self._operator is not None:
            await self._operator.ready()

    def jobs(self) -> list[Job]:
        """Return what goes on beside the traffic."""
        jobs: list[Job] = []
        if self._operator is not None:
            jobs.append(("orders", self._operator.watch))
        if self._durable is not None:
            jobs.append(("save", self._save))
        return jobs

    async def _save(self) -> None:
        assert self._durable is not None  # noqa: S101 - only a job when there is one
        await asyncio.sleep(_SAVE_EVERY_S)
        await self._durable.save(aside)

    @property
    def saved(self) -> Snapshotter | None:
        """What keeps the counters on disk, where nobody else does."""
        return self._durable

    def readiness(self) -> dict[str, object]:
        """Return what `/readyz` says about it."""
        if self.shared is None or self.shared.remote is None:
            return {"state": "memory", "state_kept": self._durable is not None and self._durable.keeps}
        return {"state": "redis", "degraded": not self.shared.remote.health.up}

    async def finish(self) -> None:
        """Write what is left, and let go."""
        if self._operator is not None:
            await self._operator.close()
        if self._durable is not None:
            self._durable.finish()
        if self.shared is not None:
            await self.shared.close()


def _problem(text: str) -> None:
    log(logging.WARNING, "state.problem", {"problem": text})


def _trouble(trouble: SqliteTrouble) -> None:
    _problem(": ".join(part for part in trouble if part))
