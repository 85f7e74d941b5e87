"""A data directory for tests of kept state: stores that are filled, saved, ended in any way, and loaded again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from breakloop.clock import Clock, FakeClock
from breakloop.store.limit_ops import BucketSpec, BudgetSpec, ChargeBudget, TakeTokens
from breakloop.store.memory import MemoryStore
from breakloop.store.ops import WindowWrite
from breakloop.store.snapshot import Snapshotter
from breakloop.store.snapshot_file import FILE
from tests.stores import NO_LIMITER, NO_RULE

T = TypeVar("T")

SPEND = BudgetSpec(1_000_000)
SLOW = BucketSpec(0.001, 100.0)


async def at_once(function: Callable[[], T]) -> T:
    """Instead of a thread."""
    return function()


class Life:
    """A process that keeps its state in `folder`; the next one is another."""

    def __init__(self, folder: Path | None, clock: Clock | None = None, max_entries: int = 100_000) -> None:
        self.clock = clock or FakeClock()
        self.store = MemoryStore(max_entries)
        self.told: list[str] = []
        self.durable = Snapshotter(self.store, folder, self.clock, self.told.append)
        self.loaded = self.durable.load()

    def save(self) -> None:
        asyncio.run(self.durable.save(at_once))

    def end(self) -> None:
        self.durable.finish()

    def kill(self) -> None:
        """End without a word, as far as that is possible within a process."""
        file, lock = self.durable._file, self.durable._lock
        assert file is not None
        assert lock is not None
        file.close()
        lock.release()

    def spend(self, key: str, cost: int = 1, seconds: float = 86_400.0) -> int:
        now = self.clock.steady()
        used = self.store.commit([ChargeBudget(SPEND, key, cost, now + seconds, NO_LIMITER, NO_RULE)], now).results[0]
        assert isinstance(used, int)
        return used

    def take(self, key: str, cost: float = 1.0) -> float:
        left = self.store.commit([TakeTokens(SLOW, key, cost, NO_LIMITER, NO_RULE)], self.clock.steady()).results[0]
        assert isinstance(left, float)
        return left

    def write(self, key: str, data: bytes, ttl_s: float = 3600.0) -> None:
        now = self.clock.steady()
        version = self.store.read_window(key, now).version
        assert self.store.commit([], now, [WindowWrite(key, version, data, ttl_s)]).conflict is None

    def tables(self) -> dict[str, dict[str, object]]:
        """Everything that is kept, in its order."""
        return {name: dict(table) for name, table in self.store.kept().items()}


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != "state.lock")


def state_file(folder: Path) -> Path:
    return folder / FILE
