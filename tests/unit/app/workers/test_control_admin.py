"""The admin port of the control process: it shows what workers did and counted, and passes orders on to them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

from breakloop.app.state import StateConnection
from breakloop.app.workers.control import AdminRuntime, WorkerEntry, WorkerRegistry
from breakloop.app.workers.ipc import ActivityReport, MetricsReport, decode, encode
from breakloop.clock import SystemClock
from breakloop.config.settings import Settings
from breakloop.model.events import Activity, AgentUse, Event, LoopUse, TreeNodeUse
from breakloop.observe.metrics import HistogramData, MetricValues
from breakloop.policy.watch import BundleFeed
from breakloop.store.data_dir import DataDir
from tests.redis_servers import free_port
from tests.unit.observe.test_metrics_prometheus import samples


class ControlProcess:
    """A control process without workers."""

    def __init__(self, folder: Path) -> None:
        given = {"data_dir": str(folder), "admin_port": free_port(), "admin_token": "bl_token"}
        self.settings = Settings.model_validate(given)
        self.data = DataDir(folder)
        self.told: list[Event] = []
        self.workers = WorkerRegistry(self.publish)
        self.source: BundleFeed | None = None

    def publish(self, event: Event) -> None:
        self.told.append(event)


@asynccontextmanager
async def admin(folder: Path) -> AsyncIterator[tuple[ControlProcess, AdminRuntime]]:
    control = ControlProcess(folder)
    runtime = AdminRuntime(cast("Any", control), StateConnection(SystemClock()))
    await runtime.open(None)
    try:
        yield control, runtime
    finally:
        await runtime.close()


def did(requests: int, at: float, model: str = "") -> ActivityReport:
    activity = Activity()
    activity.agents["p", "c", "a"] = AgentUse(requests=requests, denied=1, last_at=at, model=model)
    activity.loops["p", "c", "a", "f"] = LoopUse(stopped=2, stopped_microusd=50)
    activity.shadow["p", "x", "r", "loop_detected"] = 3
    activity.trees["p", "c", "root", "s"] = TreeNodeUse(requests, 1, 10, 20, at, "a", "root")
    return ActivityReport.of(activity)


def counted() -> MetricsReport:
    """What a worker tells once a second."""
    made = MetricValues()
    made.add("breakloop_decisions_total", 5, "allowed", "ok")
    made.add("breakloop_decisions_total", 1, "denied", "loop_detected")
    made.add_histogram("breakloop_overhead_seconds", HistogramData([0] * 21 + [6], 0.5), "decision")
    made.add("breakloop_processes", 1)
    return MetricsReport(made)


def hear(members: WorkerRegistry, message: Any, pid: int = 7) -> None:
    members._received(WorkerEntry(1, pid), decode(encode(message)))


def test_what_workers_did_is_summed_once(tmp_path: Path) -> None:
    """Over all of them, and taken away (S-5, G-1)."""
    members = ControlProcess(tmp_path).workers
    hear(members, did(3, 10.0, "m-1"))
    hear(members, did(4, 9.0), pid=8)
    taken = members.take_activity()
    assert taken.agents == {("p", "c", "a"): AgentUse(requests=7, denied=2, last_at=10.0, model="m-1")}
    assert taken.loops == {("p", "c", "a", "f"): LoopUse(stopped=4, stopped_microusd=100)}
    assert taken.shadow == {("p", "x", "r", "loop_detected"): 6}
    assert taken.trees == {("p", "c", "root", "s"): TreeNodeUse(7, 2, 20, 40, 10.0, "a", "root")}
    assert members.take_activity() == Activity()


def test_the_admin_port_shows_all_workers(tmp_path: Path) -> None:
    """Counts of all, orders through its own engine, events told like those of a worker (S-5, X-1)."""

    async def test() -> None:
        async with admin(tmp_path) as (control, runtime):
            for pid in (7, 8):
                hear(control.workers, counted(), pid)
            status = runtime.operations.status()
            assert (status["requests"], status["workers"]) == (12, 0)
            assert (status["allowed"], status["denied"]) == ({"ok": 10}, {"loop_detected": 2})
            runtime.operator.kill("default", "bot", "too loud", "ann")
            assert [event.name for event in control.told] == ["agent.killed"]
            hear(control.workers, did(3, 10.0))
            assert runtime.activity().agents["p", "c", "a"].requests == 3
            assert runtime.operations.admin_url.endswith(str(control.settings.admin_port))

    asyncio.run(test())


def test_metrics_are_those_of_the_workers(tmp_path: Path) -> None:
    """Live and gone ones together, nothing twice; the control process does not serve (G-5, S-5)."""

    async def test() -> None:
        async with admin(tmp_path) as (control, runtime):
            for pid in (7, 8):
                for _ in range(2):  # all of it, every second
                    hear(control.workers, counted(), pid)
            control.workers.totals.end(8)
            found = samples(runtime.operations.services().metrics())
            assert found["breakloop_overhead_seconds_count", (("door", "decision"),)] == 12
            assert found["breakloop_overhead_seconds_sum", (("door", "decision"),)] == 1.0
            assert found["breakloop_decisions_total", (("reason", "ok"), ("verdict", "allowed"))] == 10
            assert found["breakloop_processes", ()] == 1

    asyncio.run(test())
