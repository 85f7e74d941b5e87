"""Metrics in Prometheus' text form (SPEC G-5): writes `Figures` by the table of `metric_table`, when it is asked.
Nothing is counted here, and how many values a label may have is `bounded`'s business.

What is counted off the path of a request: events by their names, loops by kind, denials by policy, and money by
project and model. Listens to `bus.Fan` and to the sums that history gets; bounded, for names come from outside.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from breakloop.model.counters import HistogramData, Labels, ProcessFigures, Series
from breakloop.model.events import LIMIT_EXCEEDED, LOOP_DETECTED, SHADOW_WOULD_REJECT, Activity, Event
from breakloop.observe.metric_table import COUNTER, HISTOGRAM, METRICS, OTHER, LabelLimiter, Metric

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class Metrics(Collector):
    """What `/metrics` answers. `gathered` returns the figures of every process."""

    def __init__(self, gathered: Callable[[], Iterable[ProcessFigures]]) -> None:
        self._gathered = gathered
        self._bounded = LabelLimiter()

    def text(self) -> bytes:
        """Return all of them, now."""
        return generate_latest(self)

    def collect(self) -> Iterator[Family]:
        """Yield each metric of the table that has a value."""
        total = ProcessFigures()
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


def _histogram(metric: Metric, spreads: dict[Labels, HistogramData]) -> Family:
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


KEPT: Final = 2_000  # combinations of one metric; more are counted under `other`
_BY_POLICY: Final = {
    LIMIT_EXCEEDED: "breakloop_limit_denials_total",
    SHADOW_WOULD_REJECT: "breakloop_shadow_rejects_total",
}


class EventCounters:
    """Counts since start."""

    __slots__ = ("_figures", "_kept")

    def __init__(self, kept: int = KEPT) -> None:
        self._figures = ProcessFigures()
        self._kept = kept

    def take(self, events: Sequence[Event]) -> None:
        """Count events; a listener of `bus.Fan`."""
        for event in events:
            self._add("breakloop_events_total", 1, event.name)
            if event.name == LOOP_DETECTED:
                labels = _texts(event, "kind", "action")
                shadow = "true" if event.data.get("shadow") else "false"
                self._add("breakloop_loops_total", 1, *labels, shadow)
            elif event.name in _BY_POLICY:
                self._add(_BY_POLICY[event.name], 1, *_texts(event, "policy", "reason"))

    def spent(self, activity: Activity) -> None:
        """Count what agents spent, and what was saved."""
        for (project, _, _), use in activity.agents.items():
            if use.cost_microusd:
                self._add("breakloop_spend_microusd_total", use.cost_microusd, project)
                self._add("breakloop_model_spend_microusd_total", use.cost_microusd, use.model)
        for (project, _, _, _), loop in activity.loops.items():
            if loop.stopped:
                self._add("breakloop_saved_requests_total", loop.stopped, project)
                self._add("breakloop_saved_microusd_total", loop.stopped_microusd, project)

    def breakers(self, is_open: int) -> None:
        """Take down how many circuit breakers are open now."""
        self._figures.highest["breakloop_breakers_open"] = {(): is_open}

    def figures(self) -> ProcessFigures:
        """Return what was counted."""
        return self._figures

    def _add(self, name: str, value: float, *labels: str) -> None:
        known = self._figures.counters.get(name, {})
        bounded: Labels = labels if labels in known or len(known) < self._kept else (OTHER,) * len(labels)
        self._figures.count(name, value, *bounded)


def _texts(event: Event, *names: str) -> list[str]:
    return [str(event.data.get(name, "")) for name in names]
