"""Metrics in Prometheus' text form (SPEC G-5): writes `Figures` by the table of `metric_table`, when it is asked.
Nothing is counted here. Labels whose values come from outside are bounded: the first ones keep their names, the rest
are `other`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from breakloop.model.figures import Figures, Labels, Series, Spread
from breakloop.observe.metric_table import COUNTER, HISTOGRAM, LABELS, METRICS, OTHER, Metric

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_TEXT_MAX: Final = 120  # of a label's value


class Metrics(Collector):
    """What `/metrics` answers. `gathered` returns the figures of every process."""

    def __init__(self, gathered: Callable[[], Iterable[Figures]]) -> None:
        self._gathered = gathered
        self._names: dict[str, set[str]] = {}  # label -> the values that keep their names

    def text(self) -> bytes:
        """Return all of them, now."""
        return generate_latest(self)

    def collect(self) -> Iterator[Family]:
        """Yield each metric of the table that has a value."""
        total = Figures()
        for figures in self._gathered():
            total.add(figures)
        for metric in METRICS.values():
            if metric.kind == HISTOGRAM:
                if spreads := total.spreads.get(metric.name):
                    yield self._histogram(metric, spreads)
            else:
                values = total.counters if metric.kind == COUNTER else total.sums | total.highest
                if series := values.get(metric.name):
                    yield self._plain(metric, series)

    def _plain(self, metric: Metric, series: Series) -> Family:
        bounded: Series = {}
        for labels, value in series.items():
            key = self._bounded(metric, labels)
            bounded[key] = bounded.get(key, 0) + value
        make = CounterMetricFamily if metric.kind == COUNTER else GaugeMetricFamily
        family = make(metric.name, metric.help, labels=metric.labels)
        for labels, value in bounded.items():
            family.add_metric(labels, value)
        return family

    def _histogram(self, metric: Metric, spreads: dict[Labels, Spread]) -> Family:
        bounded = Figures()
        for labels, spread in spreads.items():
            bounded.spread(metric.name, spread.counts, spread.total, *self._bounded(metric, labels))
        family = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
        for labels, spread in bounded.spreads[metric.name].items():
            family.add_metric(labels, _cumulative(metric.bounds, spread.counts), spread.total)
        return family

    def _bounded(self, metric: Metric, labels: Labels) -> Labels:
        return tuple(self._value(name, value) for name, value in zip(metric.labels, labels, strict=True))

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


def _cumulative(bounds: tuple[float, ...], counts: list[int]) -> list[tuple[str, float]]:
    buckets: list[tuple[str, float]] = []
    so_far = 0
    for bound, count in zip((*bounds, math.inf), counts, strict=True):
        so_far += count
        buckets.append(("+Inf" if bound == math.inf else repr(bound), so_far))
    return buckets
