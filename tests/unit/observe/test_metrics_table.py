"""The table of metrics keeps its own rules."""

from __future__ import annotations

import re

from breakloop.observe.metrics import COUNTER, GAUGE, HISTOGRAM, LABELS, METRICS, Metric
from tests.each import each

UNITS = ("_seconds", "_ratio")


@each("metric", METRICS)
def test_names_say_what_is_counted_and_in_which_unit(metric: Metric) -> None:
    """Prometheus' own rules for names (G-5)."""
    assert re.fullmatch(r"breakloop(_[a-z0-9]+)+", metric.name)
    assert metric.kind in (COUNTER, GAUGE, HISTOGRAM)
    assert metric.name.endswith("_total") == (metric.kind == COUNTER)
    assert metric.kind != HISTOGRAM or metric.name.endswith(UNITS)
    assert metric.help.endswith(".")


def test_labels_are_bounded() -> None:
    """Nothing that everybody can make up is a label without a bound; of some, not at all (G-5)."""
    used = {label for metric in METRICS.values() for label in metric.labels}
    assert used == set(LABELS)
    assert used & {"agent", "caller", "path", "key", "session", "request_id"} == set()
    closed = {name for name, label in LABELS.items() if not label.most}
    assert closed == {"verdict", "door", "direction", "shadow"}
    assert max(label.most for label in LABELS.values()) == 200
    assert LABELS["model"].most == 50


def test_histograms_have_bounds_that_grow() -> None:
    for metric in METRICS.values():
        assert bool(metric.bounds) == (metric.kind == HISTOGRAM)
        assert list(metric.bounds) == sorted(set(metric.bounds))
