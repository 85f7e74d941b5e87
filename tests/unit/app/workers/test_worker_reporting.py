"""What a worker reports, and how large that can become."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from breakloop.app.state import StateConnection
from breakloop.app.workers.ipc import WORKER, ChildConfig, MetricsReport, encode
from breakloop.app.workers.worker import EventSender, WorkerRuntime
from breakloop.clock import FakeClock
from breakloop.config.settings import Settings

_MESSAGE_MAX = 128 * 1024


class FakeWorker:
    """A worker without a supervisor."""

    def __init__(self, folder: Path) -> None:
        settings = Settings.model_validate({"data_dir": str(folder), "secret": "s"})
        self.config = ChildConfig(WORKER, 1, 1, settings)
        self.outbox = EventSender(lambda _message: True)


def reports(folder: Path) -> tuple[WorkerRuntime, EventSender]:
    async def make() -> tuple[WorkerRuntime, EventSender]:
        worker: Any = FakeWorker(folder)
        return WorkerRuntime(worker, StateConnection(FakeClock())), worker.outbox

    return asyncio.run(make())


def test_it_says_what_there_is_to_show(tmp_path: Path) -> None:
    """What was counted until it is asked, and what agents did (G-5, S-5)."""
    runtime, outbox = reports(tmp_path)
    assert outbox.metrics is not None
    assert outbox.activity == runtime.activity
    assert runtime.operations is None
    runtime.admission.timings.decision.note(5_000)
    outbox.dropped = 3
    found = outbox.metrics()
    assert sum(found.histograms["breakloop_overhead_seconds"]["decision",].counts) == 1
    assert found.values["breakloop_events_dropped_total"] == {("worker",): 3}
    assert found.values["breakloop_start_timestamp_seconds"] == {(): runtime.clock.now()}


def test_a_message_stays_small(tmp_path: Path) -> None:
    """Whatever names come from outside (S-5, G-5)."""
    runtime, outbox = reports(tmp_path)
    tally, metrics = runtime.engine.tally, outbox.metrics
    assert metrics is not None
    assert len(encode(MetricsReport(metrics()))) < 4096
    for number in range(5_000):
        name = f"{number}-" + "x" * 1_000
        tally.missing[name] = tally.not_read[name] = tally.denied[name] = 2**40
        runtime.admission.timings.upstreams[name].note(2**34)
    assert len(encode(MetricsReport(metrics()))) < _MESSAGE_MAX
    assert metrics().values["breakloop_descriptors_missing_total"]["other",] == 2**40 * 4_900
