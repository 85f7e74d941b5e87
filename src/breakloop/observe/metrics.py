"""Metrics in Prometheus' text form (SPEC G-5): writes `Figures` by the table of `metric_table`, when it is asked.
Nothing is counted here, and how many values a label may have is `bounded`'s business."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from breakloop.model.figures import Figures, Labels, Series, Spread
from breakloop.observe.bounded import Bounded
from breakloop.observe.metric_table import COUNTER, HISTOGRAM, METRICS, Metric

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class Metrics(Collector):
    """What `/metrics` answers. `gathered` returns the figures of every process."""

    def __init__(self, gathered: Callable[[], Iterable[Figures]]) -> None:
        self._gathered = gathered
        self._bounded = Bounded()

    def text(self) -> bytes:
        """Return all of them, now."""
        return generate_latest(self)

    def collect(self) -> Iterator[Family]:
        """Yield each metric of the table that has a value."""
        total = Figures()
        for figures in self._gathered():
            total.add(figures)
        total = self._bounded.figures(total)
        for metric in METRICS.values():
            if metric.kind == HISTOGRAM:
                if spreads := total.spreads.get(metric.name):
                    yield _histogram(metric, spreads)
            else:
                values = total.counters if metric.kind == COUNTER else total.sums | total.highest
                if series := values.get(metric.name):
                    yield _plain(metric, series)


def _plain(metric: Metric, series: Series) -> Family:
    make = CounterMetricFamily if metric.kind == COUNTER else GaugeMetricFamily
    family = make(metric.name, metric.help, labels=metric.labels)
    for labels, value in series.items():
        family.add_metric(labels, value)
    return family


def _histogram(metric: Metric, spreads: dict[Labels, Spread]) -> Family:
    family = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
    for labels, spread in spreads.items():
        family.add_metric(labels, _cumulative(metric.bounds, spread.counts), spread.total)
    return family


def _cumulative(bounds: tuple[float, ...], counts: list[int]) -> list[tuple[str, float]]:
    buckets: list[tuple[str, float]] = []
    so_far = 0
    for bound, count in zip((*bounds, math.inf), counts, strict=True):
        so_far += count
        buckets.append(("+Inf" if bound == math.inf else repr(bound), so_far))
    return buckets
