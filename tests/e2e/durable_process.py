"""A process that counts and saves until it is killed: `python -m tests.e2e.durable_process FOLDER`. It says before and
after each save how far it has come."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from breakloop.app.build import aside
from breakloop.clock import SystemClock
from breakloop.store.limit_ops import BudgetSpec, ChargeBudget
from breakloop.store.memory import MemoryStore
from breakloop.store.ops import CountFingerprint, FingerprintSpec, Op, WindowWrite
from breakloop.store.snapshot import Snapshotter
from tests.stores import NO_LIMITER, NO_OWNER, NO_RULE

KEYS = 500
BUDGET = BudgetSpec(10**9)
COUNT = FingerprintSpec(3600.0, 10**6)


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


async def main(folder: str) -> None:
    clock, store = SystemClock(), MemoryStore()
    durable = Snapshotter(store, Path(folder), clock, lambda problem: say(f"problem {problem}"))
    say(f"loaded {durable.load()}")
    for _ in range(100_000):
        now = clock.now()
        for number in range(KEYS):
            window = store.read_window(f"win:{number}", now)
            write = WindowWrite(f"win:{number}", window.version, b"%d" % (window.version + 1), 3600.0)
            ops: list[Op] = [
                CountFingerprint(COUNT, f"ld:{number}", NO_OWNER),
                ChargeBudget(BUDGET, f"tpd:{number}", 1, now + 86_400.0, NO_LIMITER, NO_RULE),
            ]
            store.commit(ops, now, [write])
        version = store.read_window("win:0", now).version
        say(f"saving {version}")
        await durable.save(aside)
        say(f"saved {version}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
