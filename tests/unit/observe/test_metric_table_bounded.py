"""Figures of a size that nobody outside can change."""

from __future__ import annotations

from breakloop.model.counters import HistogramData, ProcessFigures
from breakloop.observe.metric_table import LABELS, LabelLimiter

SPENT, UPSTREAM = "breakloop_model_spend_microusd_total", "breakloop_upstream_seconds"


def test_the_first_names_stay_and_the_rest_are_one() -> None:
    """Also when others come later; nothing of a sum is lost (G-5)."""
    bounded, figures = LabelLimiter(), ProcessFigures()
    most = LABELS["model"].most
    for number in range(most - 1):
        figures.count(SPENT, 1, f"m{number}")
    bounded.figures(figures)
    figures = ProcessFigures()
    for number in range(3):
        figures.count(SPENT, 2, f"n{number}")
    figures.count(SPENT, 5, "m7")
    assert bounded.figures(figures).counters == {SPENT: {("n0",): 2, ("other",): 4, ("m7",): 5}}


def test_histograms_and_gauges_beyond_the_bound_are_one_too() -> None:
    """Each in the way of its kind (G-5)."""
    bounded, figures = LabelLimiter(), ProcessFigures()
    most = LABELS["upstream"].most
    for number in range(most + 2):
        figures.spread(UPSTREAM, [1, 2], 0.5, f"u{number}")
        figures.level("breakloop_upstream_connections_open", 3, f"u{number}")
    found = bounded.figures(figures)
    assert len(found.spreads[UPSTREAM]) == most + 1
    assert found.spreads[UPSTREAM]["other",] == HistogramData([2, 4], 1.0)
    assert found.sums["breakloop_upstream_connections_open"]["other",] == 6


def test_long_names_are_cut_and_unknown_metrics_left_out() -> None:
    """Long names are cut and unknown metrics left out (G-5, Y-1)."""
    figures = ProcessFigures()
    figures.count(SPENT, 1, "x" * 500)
    figures.count("breakloop_secret_total", 1)
    figures.spread("breakloop_secret_seconds", [1], 1.0)
    figures.mark("breakloop_holds", 4)
    found = LabelLimiter().figures(figures)
    assert found == ProcessFigures(counters={SPENT: {("x" * 120,): 1}}, highest={"breakloop_holds": {(): 4}})
