"""Keeps figures small (SPEC G-5): what `metric_table` does not name is left out, and of a label's values the first ones
keep their names; the rest are `other`. So a page of metrics, and a worker's message of them, have a size that no client
can change."""

from __future__ import annotations

from typing import Final

from breakloop.model.figures import Figures, Labels
from breakloop.observe.metric_table import LABELS, METRICS, OTHER, Metric

_TEXT_MAX: Final = 120  # of a label's value


class Bounded:
    """Remembers which values were first, so that a series never changes its name."""

    __slots__ = ("_names",)

    def __init__(self) -> None:
        self._names: dict[str, set[str]] = {}  # label -> the values that keep their names

    def figures(self, given: Figures) -> Figures:
        """Return as much of them as may be shown."""
        made = Figures()
        plain = ((made.count, given.counters), (made.level, given.sums), (made.mark, given.highest))
        for take, by_name in plain:
            for name, series in by_name.items():
                if metric := METRICS.get(name):
                    for labels, value in series.items():
                        take(name, value, *self._labels(metric, labels))
        for name, spreads in given.spreads.items():
            if metric := METRICS.get(name):
                for labels, spread in spreads.items():
                    made.spread(name, spread.counts, spread.total, *self._labels(metric, labels))
        return made

    def _labels(self, metric: Metric, labels: Labels) -> Labels:
        if not labels:  # most have none
            return labels
        return tuple([self._value(name, value) for name, value in zip(metric.labels, labels, strict=True)])

    def _value(self, label: str, value: str) -> str:
        most = LABELS[label].most
        if not most or value == OTHER:
            return value
        value = value[:_TEXT_MAX]
        known = self._names.setdefault(label, set())
        if value not in known:
            if len(known) >= most:
                return OTHER
            known.add(value)
        return value
