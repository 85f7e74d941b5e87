"""`GET /metrics`: the values of the metric table in the Prometheus text format."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from breakloop.observe.metrics import COUNTER, METRICS, Histograms, LabelLimiter, Metric, MetricValues, Series

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class PrometheusPage(Collector):
    """Renders the sum of the values that `collect_all` returns, one item a process."""

    def __init__(self, collect_all: Callable[[], Iterable[MetricValues]]) -> None:
        self._collect_all = collect_all
        self._limiter = LabelLimiter()

    def text(self) -> bytes:
        return generate_latest(self)

    def collect(self) -> Iterator[Family]:
        """Yield the metrics that have a value, in the order of the table."""
        total = MetricValues()
        for values in self._collect_all():
            total.merge(values)
        total = self._limiter.limit(total)
        for metric in METRICS.values():
            if series := total.values.get(metric.name):
                yield _plain(metric, series)
            elif histograms := total.histograms.get(metric.name):
                yield _histogram(metric, histograms)


def _plain(metric: Metric, series: Series) -> Family:
    make = CounterMetricFamily if metric.kind == COUNTER else GaugeMetricFamily
    family = make(metric.name, metric.help, labels=metric.labels)
    for labels, value in series.items():
        family.add_metric(labels, value)
    return family


def _histogram(metric: Metric, histograms: Histograms) -> Family:
    family = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
    for labels, data in histograms.items():
        family.add_metric(labels, _cumulative(metric.bounds, data.counts), data.total)
    return family


def _cumulative(bounds: tuple[float, ...], counts: list[int]) -> list[tuple[str, float]]:
    buckets: list[tuple[str, float]] = []
    so_far = 0
    for bound, count in zip((*bounds, math.inf), counts, strict=True):
        so_far += count
        buckets.append(("+Inf" if bound == math.inf else repr(bound), so_far))
    return buckets
