"""Gathers what a process has counted into `Figures`, when somebody asks: never on the path of a request. Reads what the
parts count anyway; how it is written is `metrics`', what each name means `metric_table`'s."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sized
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from breakloop._version import __version__
from breakloop.engine import Engine
from breakloop.model.figures import Figures
from breakloop.model.histogram import Histogram, Timings
from breakloop.model.tally import Tally
from breakloop.observe.log import lines_dropped
from breakloop.observe.metric_table import OWN_POWERS, UPSTREAM_POWERS
from breakloop.pricing.estimate import EstimateErrors
from breakloop.remote import Remote
from breakloop.state.memory import MemoryStore

DECISIONS: Final = "breakloop_decisions_total"
ALLOWED: Final = "allowed"
DENIED: Final = "denied"


class HubCounts(Protocol):
    """What a server counts."""

    @property
    def live(self) -> Sized:
        """The connections of clients."""
        ...

    connections: int
    refused: int
    requests: int
    bad_requests: int
    handler_errors: int
    timeouts: int
    abandoned: int


class UpstreamCounts(NamedTuple):
    """What is counted of one upstream."""

    name: str
    opened: int
    open: int


class BundleState(Protocol):
    """What a source of bundles knows of itself."""

    rejected: int

    @property
    def problems(self) -> Sized:
        """What is wrong with what it holds now."""
        ...


class Saved(Protocol):
    """What keeps the state on disk."""

    problems: int
    saved_at: float


@dataclass(slots=True)
class Sources:
    """The parts of a process that count. What is None or empty is left out."""

    engine: Engine
    started_at: float
    store: MemoryStore | None = None
    timings: Timings = field(default_factory=Timings)
    hub: HubCounts | None = None
    upstreams: Callable[[], Iterable[UpstreamCounts]] = tuple
    bundles: BundleState | None = None
    bundle_loaded_at: Callable[[], float] = float
    saved: Saved | None = None
    remote: Callable[[], Remote | None] = lambda: None
    dropped: Callable[[], Mapping[str, int]] = dict  # `bus.Fan.dropped`
    log_dropped: Callable[[], int] = lines_dropped


def gather(sources: Sources) -> Figures:
    """Return what a process has to show now."""
    figures, engine = Figures(), sources.engine
    _tally(figures, engine.tally)
    _estimates(figures, engine.meter.errors)
    _times(figures, sources.timings)
    _connections(figures, sources.hub, sources.upstreams())
    _bundle(figures, sources)
    _state(figures, sources)
    for place, count in sources.dropped().items():
        figures.count("breakloop_events_dropped_total", count, place)
    figures.count("breakloop_log_lines_dropped_total", sources.log_dropped())
    figures.level("breakloop_processes", 0 if sources.hub is None else 1)
    figures.mark("breakloop_start_timestamp_seconds", sources.started_at)
    figures.mark("breakloop_info", 1, __version__)
    return figures


def _tally(figures: Figures, tally: Tally) -> None:
    for verdict, reasons in ((ALLOWED, tally.allowed), (DENIED, tally.denied)):
        _each(figures, DECISIONS, reasons, verdict)
    _each(figures, "breakloop_descriptors_missing_total", tally.missing)
    _each(figures, "breakloop_bodies_not_unpacked_total", tally.not_unpacked)
    _each(figures, "breakloop_answers_not_read_total", tally.not_read)
    count = figures.count
    count("breakloop_streams_cut_total", tally.cut, "repeats")
    count("breakloop_streams_cut_total", tally.cut_long, "length")
    count("breakloop_tokens_total", tally.input_tokens, "input")
    count("breakloop_tokens_total", tally.output_tokens, "output")
    count("breakloop_bodies_unjudged_total", tally.unjudged)
    count("breakloop_store_errors_total", tally.store_errors)
    count("breakloop_steered_total", tally.steered)
    count("breakloop_usage_asked_total", tally.asked_usage)
    count("breakloop_usage_refused_total", tally.refused_usage)
    count("breakloop_faults_total", tally.faults)
    count("breakloop_shadowed_total", tally.shadowed)
    count("breakloop_answers_total", tally.settled)
    count("breakloop_answers_failed_total", tally.failed)
    count("breakloop_counts_joined_total", tally.joined)
    count("breakloop_counts_forgiven_total", tally.forgiven)


def _each(figures: Figures, name: str, counts: Mapping[str, int], *before: str) -> None:
    for label, count in list(counts.items()):
        figures.count(name, count, *before, label)


def _estimates(figures: Figures, errors: EstimateErrors) -> None:
    for name, error in list(errors.by_estimator.items()):
        figures.spread("breakloop_estimate_ratio", list(error.buckets), error.total, name)
        figures.count("breakloop_estimate_error_tokens_total", error.absolute_tokens, name)


def _times(figures: Figures, timings: Timings) -> None:
    _spread(figures, "breakloop_overhead_seconds", timings.proxy, OWN_POWERS, "proxy")
    _spread(figures, "breakloop_overhead_seconds", timings.decision, OWN_POWERS, "decision")
    for name, histogram in list(timings.upstreams.items()):
        _spread(figures, "breakloop_upstream_seconds", histogram, UPSTREAM_POWERS, name)


def _spread(figures: Figures, name: str, histogram: Histogram, powers: tuple[int, int], label: str) -> None:
    figures.spread(name, histogram.buckets(*powers), histogram.total_ns / 1e9, label)


def _connections(figures: Figures, hub: HubCounts | None, upstreams: Iterable[UpstreamCounts]) -> None:
    if hub is not None:
        figures.count("breakloop_http_requests_total", hub.requests)
        figures.count("breakloop_http_bad_requests_total", hub.bad_requests)
        figures.count("breakloop_http_errors_total", hub.handler_errors)
        figures.count("breakloop_http_timeouts_total", hub.timeouts)
        figures.count("breakloop_http_abandoned_total", hub.abandoned)
        figures.count("breakloop_connections_total", hub.connections)
        figures.count("breakloop_connections_refused_total", hub.refused)
        figures.level("breakloop_connections_open", len(hub.live))
    for upstream in upstreams:
        figures.count("breakloop_upstream_connections_total", upstream.opened, upstream.name)
        figures.level("breakloop_upstream_connections_open", upstream.open, upstream.name)


def _bundle(figures: Figures, sources: Sources) -> None:
    bundle = sources.engine.bundle
    figures.mark("breakloop_bundle_version", 0 if bundle is None else bundle.version)
    loaded_at = sources.bundle_loaded_at()
    if loaded_at:
        figures.mark("breakloop_bundle_loaded_timestamp_seconds", loaded_at)
    if sources.bundles is not None:
        figures.count("breakloop_bundles_rejected_total", sources.bundles.rejected)
        figures.mark("breakloop_bundle_problems", len(sources.bundles.problems))


def _state(figures: Figures, sources: Sources) -> None:
    engine, remote = sources.engine, sources.remote()
    figures.mark("breakloop_holds", len(engine.quarantine))  # every process knows of all of them
    conflicts = engine.local.windows.conflicts
    if remote is not None:
        conflicts += remote.conflicts
        figures.mark("breakloop_store_degraded", 0 if remote.health.up else 1)
        figures.count("breakloop_store_changes_total", remote.health.changes)
        figures.count("breakloop_store_degraded_decisions_total", remote.degraded)
    figures.count("breakloop_store_conflicts_total", conflicts)
    if sources.store is not None:
        for name, table in sources.store.kept().items():
            figures.level("breakloop_memory_entries", len(table), name)
            figures.count("breakloop_memory_evicted_total", table.evicted, name)
    if sources.saved is not None:
        figures.count("breakloop_state_problems_total", sources.saved.problems)
        if sources.saved.saved_at:
            figures.mark("breakloop_state_saved_timestamp_seconds", sources.saved.saved_at)
