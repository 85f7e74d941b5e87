"""Metrics as Prometheus reads them."""

from __future__ import annotations

import subprocess
import sys

import pytest
from prometheus_client.parser import text_string_to_metric_families

from breakloop.observe.metrics import METRICS, HistogramData, MetricSources, MetricValues, PrometheusPage, collect
from tests.builders import bundle, chat, exact, policy, user, world


def samples(text: bytes) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def test_prometheus_reads_what_the_engine_counted() -> None:
    """Prometheus reads what the engine counted (G-5)."""
    made = world(bundle(policy("p", loop=exact())))
    made.decide(chat(user("again")), times=5)
    found = samples(PrometheusPage(lambda: [collect(MetricSources(made.engine, 1.0))]).text())
    assert found["breakloop_decisions_total", (("reason", "loop_detected"), ("verdict", "denied"))] == 3
    assert found["breakloop_bundle_version", ()] == 1
    assert {name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count") for name, _ in found} <= set(
        METRICS
    )


def test_processes_are_one() -> None:
    """Workers are scraped together (G-5)."""
    one, other = MetricValues(), MetricValues()
    one.add("breakloop_answers_total", 2)
    other.add("breakloop_answers_total", 3)
    one.add("breakloop_store_degraded", 0)
    other.add("breakloop_store_degraded", 1)
    found = samples(PrometheusPage(lambda: [one, other]).text())
    assert found == {("breakloop_answers_total", ()): 5, ("breakloop_store_degraded", ()): 1}


def test_a_histogram_adds_up() -> None:
    """Buckets are cumulative, and the last has all (G-5)."""
    made = world()
    sources = MetricSources(made.engine, 1.0)
    for took_ns in (1_500, 1_500, 3_000, 5_000_000_000):
        sources.timings.proxy.note(took_ns)
    found = samples(PrometheusPage(lambda: [collect(sources)]).text())
    door = ("door", "proxy")
    name = "breakloop_overhead_seconds"
    assert found[f"{name}_bucket", (door, ("le", "1.024e-06"))] == 0
    assert found[f"{name}_bucket", (door, ("le", "2.048e-06"))] == 2
    assert found[f"{name}_bucket", (door, ("le", "1.073741824"))] == 3
    assert found[f"{name}_bucket", (door, ("le", "+Inf"))] == 4
    assert found[f"{name}_count", (door,)] == 4
    assert found[f"{name}_sum", (door,)] == 5.000006


def test_the_first_names_stay_and_the_rest_are_one() -> None:
    """Bounded labels; a series never changes its name (G-5)."""
    values = MetricValues()
    metrics = PrometheusPage(lambda: [values])
    for number in range(50):
        values.add("breakloop_model_spend_microusd_total", 1, f"m{number}")
    first = samples(metrics.text())
    for number in range(100):
        values.add("breakloop_model_spend_microusd_total", 1, f"n{number}")
    values.add("breakloop_model_spend_microusd_total", 5, "m7")
    found = samples(metrics.text())
    assert len(found) == 51
    assert set(first) < set(found)
    assert found["breakloop_model_spend_microusd_total", (("model", "m7"),)] == 6
    assert found["breakloop_model_spend_microusd_total", (("model", "other"),)] == 100


def test_upstreams_beyond_the_bound_share_a_histogram() -> None:
    values = MetricValues()
    counts = [0] * 21 + [1]
    for number in range(103):
        values.add_histogram("breakloop_upstream_seconds", HistogramData(counts, 1.0), f"u{number}")
    found = samples(PrometheusPage(lambda: [values]).text())
    assert found["breakloop_upstream_seconds_count", (("upstream", "other"),)] == 3
    assert found["breakloop_upstream_seconds_sum", (("upstream", "other"),)] == 3.0


def test_odd_names_are_written_so_that_they_are_read() -> None:
    """What somebody calls his model can neither break the page nor fill it (Y-1)."""
    values = MetricValues()
    odd = 'a"\n\\{}' + "x" * 500
    values.add("breakloop_model_spend_microusd_total", 1, odd)
    found = samples(PrometheusPage(lambda: [values]).text())
    assert found == {("breakloop_model_spend_microusd_total", (("model", odd[:120]),)): 1}


def test_what_is_not_in_the_table_is_not_written() -> None:
    values = MetricValues()
    values.add("breakloop_secret_total", 1)
    assert PrometheusPage(lambda: [values]).text() == b""


@pytest.mark.slow
def test_the_path_of_a_request_does_not_import_it() -> None:
    """Who serves without an admin plane pays nothing for it (G-5)."""
    code = (
        "import sys, breakloop.app.runtime; print([n for n in sys.modules if n.startswith(('prometheus', 'opentel'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
