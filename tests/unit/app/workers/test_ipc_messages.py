"""Messages between workers and the control process."""

from __future__ import annotations

import pytest

from breakloop.app.workers.ipc import (
    BundleApplied,
    BundleText,
    EventBatch,
    Message,
    MetricsReport,
    WorkerCount,
    decode,
    encode,
)
from breakloop.errors import Problem
from breakloop.model.events import Event
from breakloop.observe.metrics import HistogramData, MetricValues

METRICS = MetricValues(
    values={"c": {("allowed", "ok"): 2.0}, "s": {(): 1.0}, "h": {(): 7.5}},
    histograms={"t": {("proxy",): HistogramData([0, 3], 0.25)}},
)
EVENT = Event("loop.detected", 1.5, {"hit_count": 6, "shadow": False, "x": None, "text": "é"}, "default", "r-1")


@pytest.mark.parametrize(
    "message",
    [
        BundleText(3, "b.yaml", "source", 2, [Problem("b.yaml", 1, 2, "a.b", "is wrong", "mend it")], "d1", b'{"a":1}'),
        BundleText(1, "b.yaml", "", 1, []),
        WorkerCount(4),
        EventBatch([EVENT], 3),
        MetricsReport(METRICS),
        BundleApplied(3, "does not fit"),
    ],
)
def test_they_arrive_as_they_were_sent(message: Message) -> None:
    """Every kind, with everything in it (S-5)."""
    assert decode(encode(message)) == message


def test_an_unusual_value_is_told_as_text() -> None:
    """An event never fails for what is in it (S-5)."""
    sent = EventBatch([Event("a", 1.0, {"path": ValueError("x")})])
    found = decode(encode(sent))
    assert isinstance(found, EventBatch)
    assert found.events[0].data == {"path": "x"}


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x81\xa4type\xa5other", encode(WorkerCount(1))[:-1]])
def test_anything_else_is_refused(data: bytes) -> None:
    """What cannot be read raises one kind of error (S-5)."""
    with pytest.raises(ValueError, match=r"."):
        decode(data)
