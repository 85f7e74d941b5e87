"""Figures of several processes are one."""

from __future__ import annotations

import msgspec

from breakloop.model.counters import FleetTotals, HistogramData, ProcessFigures


def _process(requests: int) -> ProcessFigures:
    made = ProcessFigures()
    made.count("requests", requests, "a")
    made.level("open", 2)
    made.mark("degraded", 1 if requests > 5 else 0)
    made.spread("took", [requests, 1], 0.5, "a")
    return made


def test_counts_are_added_and_marks_are_the_highest() -> None:
    """What several processes show together (G-5)."""
    total = _process(3)
    total.add(_process(7))
    assert total.counters == {"requests": {("a",): 10}}
    assert total.sums == {"open": {(): 4}}
    assert total.highest == {"degraded": {(): 1}}
    assert total.spreads == {"took": {("a",): HistogramData([10, 2], 1.0)}}


def test_the_same_labels_are_added() -> None:
    made = _process(1)
    made.count("requests", 4, "a")
    made.count("requests", 2, "b")
    made.spread("took", [0, 1], 0.5, "a")
    assert made.counters["requests"] == {("a",): 5, ("b",): 2}
    assert made.spreads["took"][("a",)] == HistogramData([1, 2], 1.0)


def test_adding_leaves_the_other_as_it_was() -> None:
    one, total = _process(1), ProcessFigures()
    total.add(one)
    total.add(_process(2))
    assert one == _process(1)


def test_what_a_process_counted_outlives_it() -> None:
    """Counters never fall when a worker is replaced; what it held open is gone (G-5)."""
    totals = FleetTotals()
    totals.heard(1, _process(3))
    totals.heard(2, _process(7))
    totals.heard(1, _process(4))
    totals.ended(2)
    totals.ended(9)
    found = totals.sum()
    assert found.counters == {"requests": {("a",): 11}}
    assert found.spreads["took"][("a",)].counts == [11, 2]
    assert found.sums == {"open": {(): 2}}
    assert found.highest == {"degraded": {(): 0}}


def test_they_can_be_sent() -> None:
    """A worker sends them to the control process."""
    sent = msgspec.msgpack.encode(_process(3))
    assert msgspec.msgpack.decode(sent, type=ProcessFigures) == _process(3)
