"""The metrics of several processes are combined."""

from __future__ import annotations

import msgspec

from breakloop.observe.metrics import HistogramData, MetricValues, WorkerTotals

COUNT, OPEN = "breakloop_answers_not_read_total", "breakloop_connections_open"
DEGRADED, TIME = "breakloop_store_degraded", "breakloop_upstream_seconds"


def _process(requests: int) -> MetricValues:
    made = MetricValues()
    made.add(COUNT, requests, "a")
    made.add(OPEN, 2)
    made.add(DEGRADED, 1 if requests > 5 else 0)
    made.add_histogram(TIME, HistogramData([requests, 1], 0.5), "a")
    return made


def test_values_are_combined_as_the_table_says() -> None:
    """Counters, histograms and most gauges are added; of some gauges the highest counts (G-5)."""
    total = _process(3)
    total.merge(_process(7))
    assert total.values == {COUNT: {("a",): 10}, OPEN: {(): 4}, DEGRADED: {(): 1}}
    assert total.histograms == {TIME: {("a",): HistogramData([10, 2], 1.0)}}


def test_the_same_labels_are_added() -> None:
    made = _process(1)
    made.add(COUNT, 4, "a")
    made.add(COUNT, 2, "b")
    made.add_histogram(TIME, HistogramData([0, 1], 0.5), "a")
    assert made.values[COUNT] == {("a",): 5, ("b",): 2}
    assert made.histograms[TIME]["a",] == HistogramData([1, 2], 1.0)


def test_merging_leaves_the_other_as_it_was() -> None:
    one, total = _process(1), MetricValues()
    total.merge(one)
    total.merge(_process(2))
    assert one == _process(1)


def test_counters_of_a_worker_outlive_it() -> None:
    """Counters never fall when a worker is replaced; its gauges are gone (G-5)."""
    totals = WorkerTotals()
    totals.update(1, _process(3))
    totals.update(2, _process(7))
    totals.update(1, _process(4))
    totals.end(2)
    totals.end(9)
    found = totals.total()
    assert found.values == {COUNT: {("a",): 11}, OPEN: {(): 2}, DEGRADED: {(): 0}}
    assert found.histograms[TIME]["a",].counts == [11, 2]


def test_they_can_be_sent() -> None:
    """A worker sends them to the control process."""
    sent = msgspec.msgpack.encode(_process(3))
    assert msgspec.msgpack.decode(sent, type=MetricValues) == _process(3)
