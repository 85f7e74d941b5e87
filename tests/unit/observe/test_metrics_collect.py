"""What a process has counted, gathered."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, cast

from breakloop.model.counters import Tally
from breakloop.observe.metrics import HISTOGRAM, METRICS, MetricSources, UpstreamCounts, collect
from breakloop.store.memory import MemoryStore
from tests.builders import World, bundle, chat, exact, policy, user, world


def sources(made: World, **more: Any) -> MetricSources:
    return MetricSources(made.engine, 100.0, **more)


def test_decisions_by_reason() -> None:
    """What was allowed and what was denied, and why (G-5)."""
    made = world(bundle(policy("p", loop=exact())))
    made.decide(chat(user("again")), times=5)
    found = collect(sources(made)).values
    assert found["breakloop_decisions_total"] == {
        ("allowed", "all_rules_passed"): 2,
        ("denied", "loop_detected"): 3,
    }


def test_every_count_of_the_tally_is_shown() -> None:
    """Whoever adds a count to the tally shows it (G-5)."""
    made = world()
    names = [field.name for field in fields(Tally)]
    for number, name in enumerate(names):
        value = 1000 + number
        setattr(made.engine.tally, name, {"x": value} if isinstance(getattr(Tally(), name), dict) else value)
    found = [value for series in collect(sources(made)).values.values() for value in series.values()]
    assert [name for number, name in enumerate(names) if found.count(1000 + number) != 1] == []


def test_everything_that_is_gathered_is_in_the_table() -> None:
    """No metric without a line in the table, of its kind, with its labels (G-5)."""
    found = collect(full())
    everything: dict[str, Any] = {**found.values, **found.histograms}
    for name, series in everything.items():
        metric = METRICS[name]
        assert all(len(labels) == len(metric.labels) for labels in series), name
        assert (metric.kind == HISTOGRAM) == (name in found.histograms)
    for name, histograms in found.histograms.items():
        assert all(len(data.counts) == len(METRICS[name].bounds) + 1 for data in histograms.values())


def test_everything_in_the_table_is_gathered_somewhere() -> None:
    """No line of the table that never has a value (G-5)."""
    found = collect(full())
    elsewhere = {name for name, metric in METRICS.items() if metric.count_event or metric.sum_activity}
    assert set(METRICS) - {*found.values, *found.histograms} == elsewhere
    assert len(elsewhere) == 8
    for metric in METRICS.values():
        assert [metric.read, metric.count_event, metric.sum_activity].count(None) == 2, metric.name


@dataclass
class FakeServer:
    live: tuple[int, ...] = (1, 2)
    connections: int = 11
    refused: int = 12
    reclaimed: int = 18
    bodies_shed: int = 20
    refused_of_peer: int = 19
    requests: int = 13
    bad_requests: int = 14
    handler_errors: int = 15
    timeouts: int = 16
    abandoned: int = 17


@dataclass
class FakeSource:
    problems: tuple[str, ...] = ("one", "two")
    rejected: int = 5
    loaded_at: float = 50.0


@dataclass
class FakeSnapshots:
    problems: int = 3
    saved_at: float = 99.0


@dataclass
class FakeHealth:
    up: bool = False
    changes: int = 21


class FakeRemote:
    health = FakeHealth()
    degraded = 22


def full() -> MetricSources:
    made = world(bundle(policy("p", loop=exact())))
    made.decide(chat(user("hello")))
    tally = made.engine.tally
    tally.conflicts = 4
    for counts in (tally.missing, tally.not_unpacked, tally.not_read, tally.unknown_apis):
        counts["x"] = 1
    made.engine.meter.errors.note("simple_word", 90, 100)
    remote: Any = FakeRemote()
    assert isinstance(made.store, MemoryStore)
    found = sources(
        made,
        store=made.store,
        server=FakeServer(),
        upstreams=[UpstreamCounts("openai", 6, 2)],
        bundles=cast("Any", FakeSource()),
        snapshots=cast("Any", FakeSnapshots()),
        remote=remote,
        open_breakers=1,
        admin_denied=1,
        events_dropped={"bus": 7},
        log_dropped=lambda: 8,
    )
    found.timings.proxy.note(50_000)
    found.timings.upstreams["openai"].note(2_000_000_000)
    return found


def test_what_the_parts_say() -> None:
    """Connections, upstreams, store, state, bundle, drops (G-5)."""
    found = collect(full())
    values = found.values
    assert values["breakloop_connections_open"] == {(): 2}
    assert values["breakloop_http_requests_total"] == {(): 13}
    assert values["breakloop_http_errors_total"] == {(): 15}
    assert values["breakloop_upstream_connections_total"] == {("openai",): 6}
    assert values["breakloop_upstream_connections_open"] == {("openai",): 2}
    assert values["breakloop_store_degraded"] == {(): 1}
    assert values["breakloop_store_degraded_decisions_total"] == {(): 22}
    assert values["breakloop_store_conflicts_total"] == {(): 4}
    assert values["breakloop_memory_entries"][("counts",)] == 1
    assert values["breakloop_state_problems_total"] == {(): 3}
    assert values["breakloop_bundle_version"] == {(): 1}
    assert values["breakloop_breakers_open"] == {(): 1}
    assert values["breakloop_bundle_loaded_timestamp_seconds"] == {(): 50.0}
    assert values["breakloop_bundle_problems"] == {(): 2}
    assert values["breakloop_bundles_rejected_total"] == {(): 5}
    assert values["breakloop_events_dropped_total"] == {("bus",): 7}
    assert values["breakloop_log_lines_dropped_total"] == {(): 8}
    assert values["breakloop_estimate_error_tokens_total"] == {("simple_word",): 10}
    assert found.histograms["breakloop_upstream_seconds"][("openai",)].total == 2.0
    assert found.histograms["breakloop_overhead_seconds"][("proxy",)].total == 5e-5


def test_holds_are_counted_once_over_all_processes() -> None:
    """Every process knows of every hold (G-1)."""
    one, other = collect(full()), collect(full())
    one.values["breakloop_holds"] = other.values["breakloop_holds"] = {(): 3}
    one.merge(other)
    assert one.values["breakloop_holds"] == {(): 3}
    assert one.values["breakloop_processes"] == {(): 2}


def test_before_anything_is_there() -> None:
    """A process without a bundle, and without the parts that are optional."""
    values = collect(sources(world(load=False))).values
    assert values["breakloop_bundle_version"] == {(): 0}
    assert not values.keys() & {"breakloop_store_degraded", "breakloop_connections_open", "breakloop_breakers_open"}


def test_who_serves_nobody_is_no_process_that_serves() -> None:
    """The control process of a fleet adds nothing to their number (S-5)."""
    assert collect(sources(world())).values["breakloop_processes"] == {(): 0}
    assert collect(full()).values["breakloop_processes"] == {(): 1}
