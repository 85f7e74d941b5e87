"""Figures of a size that nobody outside can change."""

from __future__ import annotations

from breakloop.observe.metrics import LABELS, HistogramData, LabelLimiter, MetricValues

SPENT, UPSTREAM = "breakloop_model_spend_microusd_total", "breakloop_upstream_seconds"


def test_the_first_names_stay_and_the_rest_are_one() -> None:
    """Also when others come later; nothing of a sum is lost (G-5)."""
    limiter, values = LabelLimiter(), MetricValues()
    most = LABELS["model"].most
    for number in range(most - 1):
        values.add(SPENT, 1, f"m{number}")
    limiter.limit(values)
    values = MetricValues()
    for number in range(3):
        values.add(SPENT, 2, f"n{number}")
    values.add(SPENT, 5, "m7")
    assert limiter.limit(values).values == {SPENT: {("n0",): 2, ("other",): 4, ("m7",): 5}}


def test_histograms_and_gauges_beyond_the_bound_are_one_too() -> None:
    """Each in the way of its kind (G-5)."""
    limiter, values = LabelLimiter(), MetricValues()
    most = LABELS["upstream"].most
    for number in range(most + 2):
        values.add_histogram(UPSTREAM, HistogramData([1, 2], 0.5), f"u{number}")
        values.add("breakloop_upstream_connections_open", 3, f"u{number}")
    found = limiter.limit(values)
    assert len(found.histograms[UPSTREAM]) == most + 1
    assert found.histograms[UPSTREAM]["other",] == HistogramData([2, 4], 1.0)
    assert found.values["breakloop_upstream_connections_open"]["other",] == 6


def test_long_names_are_cut_and_unknown_metrics_left_out() -> None:
    """Long names are cut and unknown metrics left out (G-5, Y-1)."""
    values = MetricValues()
    values.add(SPENT, 1, "x" * 500)
    values.add("breakloop_secret_total", 1)
    values.add_histogram("breakloop_secret_seconds", HistogramData([1], 1.0))
    values.add("breakloop_holds", 4)
    found = LabelLimiter().limit(values)
    assert found == MetricValues({SPENT: {("x" * 120,): 1}, "breakloop_holds": {(): 4}})
