"""What a worker reports, and how large that can become."""

from __future__ import annotations

import asyncio
from pathlib import Path

from breakloop.app.operations_base import OperationsPort
from breakloop.app.runtime import Runtime
from breakloop.app.workers.ipc import MetricsReport, encode
from breakloop.app.workers.worker import EventSender, MetricsReporter
from breakloop.clock import FakeClock
from breakloop.config.settings import Settings

_MESSAGE_MAX = 128 * 1024


class Reports(Runtime):
    """A process that reports."""

    def __init__(self, folder: Path) -> None:
        self.outbox = EventSender(lambda _message: True)
        super().__init__(Settings.model_validate({"data_dir": str(folder), "secret": "s"}), clock=FakeClock())

    def make_operations(self) -> OperationsPort:
        return MetricsReporter(self.outbox)


def reports(folder: Path) -> Reports:
    async def make() -> Reports:
        return Reports(folder)

    return asyncio.run(make())


def test_it_says_what_there_is_to_show(tmp_path: Path) -> None:
    """What was counted until it is asked, and what agents did (G-5, S-5)."""
    runtime = reports(tmp_path)
    assert runtime.outbox.figures is not None
    assert runtime.outbox.activity == runtime.activity
    runtime.judging.timings.decision.note(5_000)
    runtime.outbox.dropped = 3
    found = runtime.outbox.figures()
    assert sum(found.spreads["breakloop_overhead_seconds"]["decision",].counts) == 1
    assert found.counters["breakloop_events_dropped_total"] == {("worker",): 3}
    assert found.highest["breakloop_start_timestamp_seconds"] == {(): runtime.clock.now()}


def test_a_message_stays_small(tmp_path: Path) -> None:
    """Whatever names come from outside (S-5, G-5)."""
    runtime = reports(tmp_path)
    tally, figures = runtime.engine.tally, runtime.outbox.figures
    assert figures is not None
    assert len(encode(MetricsReport(figures()))) < 4096
    for number in range(5_000):
        name = f"{number}-" + "x" * 1_000
        tally.missing[name] = tally.not_read[name] = tally.denied[name] = 2**40
        runtime.judging.timings.upstream(name).note(2**34)
    assert len(encode(MetricsReport(figures()))) < _MESSAGE_MAX
    assert figures().counters["breakloop_descriptors_missing_total"]["other",] == 2**40 * 4_900
