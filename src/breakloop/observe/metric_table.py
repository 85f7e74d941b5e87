"""Every metric, as one table: name, kind, labels and meaning. `metrics` writes what is here and nothing else, the page
`docs/reference/metrics.md` is made of it, and tests hold the Grafana dashboard to it. Labels are bounded: closed lists,
or so many values and then `other`; never an agent, a caller, a path or a key.

Keeps figures small (SPEC G-5): what `metric_table` does not name is left out, and of a label's values the first ones
keep their names; the rest are `other`. So a page of metrics, and a worker's message of them, have a size that no client
can change.

Gathers what a process has counted into `Figures`, when somebody asks: never on the path of a request. Reads what the
parts count anyway; how it is written is `metrics`', what each name means `metric_table`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sized
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from breakloop._version import __version__
from breakloop.engine.engine import Engine
from breakloop.engine.remote import RemoteEngine
from breakloop.model.counters import Histogram, Labels, ProcessFigures, Tally, Timings, bounds_s
from breakloop.observe.log import lines_dropped
from breakloop.pricing.tokens import EstimateError, EstimateErrors
from breakloop.store.memory import MemoryStore

COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"
OTHER: Final = "other"

OWN_POWERS: Final = (10, 30)  # 1 us to 1 s, in powers of two of a nanosecond
UPSTREAM_POWERS: Final = (20, 40)  # 1 ms to 18 minutes


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric, by the name it is asked for."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()  # of a histogram


@dataclass(frozen=True, slots=True)
class MetricLabel:
    """What a label says, and how many values it may have; 0: they are a closed list."""

    help: str
    most: int = 0


LABELS: Final[dict[str, MetricLabel]] = {
    "verdict": MetricLabel("`allowed` or `denied`"),
    "reason": MetricLabel("one of the [reasons](reasons.md), or why it was allowed", 60),
    "policy": MetricLabel("id of the policy", 200),
    "project": MetricLabel("name of the project", 200),
    "model": MetricLabel("as requests name it", 50),
    "upstream": MetricLabel("name of the upstream, from the settings", 100),
    "door": MetricLabel("`proxy` or `decision`"),
    "direction": MetricLabel("`input` or `output`"),
    "kind": MetricLabel("of loop, as in [`loop.detected`](events.md#loopdetected)", 60),
    "action": MetricLabel("what was done: `warn`, `steer`, `throttle`, `reject`, `kill`, `cut`", 20),
    "shadow": MetricLabel("`true`: only counted, the client saw nothing"),
    "event": MetricLabel("name of the [event](events.md)", 60),
    "place": MetricLabel("where it was lost: in a `worker`, on the `bus`, or at the listener that was too slow", 20),
    "why": MetricLabel("the cause, in a word", 20),
    "descriptor": MetricLabel("the descriptor that requests lack", 100),
    "table": MetricLabel(
        "what is remembered: `counts`, `cooldowns`, `buckets`, `accounts`, `rates`, `open`, `windows`", 20
    ),
    "estimator": MetricLabel("which estimate: of `token_source.estimator`", 20),
    "version": MetricLabel("of breakloop", 20),
}


def _counter(name: str, meaning: str, *labels: str) -> Metric:
    return Metric(name, COUNTER, meaning, labels)


def _gauge(name: str, meaning: str, *labels: str) -> Metric:
    return Metric(name, GAUGE, meaning, labels)


_TABLE: Final = (
    # Decisions
    _counter("breakloop_decisions_total", "Requests that were decided.", "verdict", "reason"),
    _counter("breakloop_limit_denials_total", "Requests that a limit denied, by event.", "policy", "reason"),
    _counter("breakloop_loops_total", "Loops that were detected, by event.", "kind", "action", "shadow"),
    _counter("breakloop_shadowed_total", "Requests that a policy in shadow mode would have acted on."),
    _counter(
        "breakloop_shadow_rejects_total",
        "Requests that a policy in shadow mode would have denied, by event.",
        "policy",
        "reason",
    ),
    _counter("breakloop_steered_total", "Requests that carried a note for the model."),
    _counter(
        "breakloop_streams_cut_total",
        "Streamed answers that were ended: by `repeats` in them, or for their `length`.",
        "why",
    ),
    _counter("breakloop_descriptors_missing_total", "Rules that were skipped for lack of a descriptor.", "descriptor"),
    _counter(
        "breakloop_bodies_not_unpacked_total", "Compressed bodies that were judged as the bytes that came.", "why"
    ),
    _counter("breakloop_bodies_unjudged_total", "Requests whose body was too large to be judged."),
    _counter("breakloop_faults_total", "Decisions that failed for a mistake of ours, and were allowed."),
    _gauge("breakloop_holds", "Agents, callers and runs that are held now."),
    _gauge("breakloop_breakers_open", "Circuit breakers that are open now."),
    # Answers and money
    _counter("breakloop_answers_total", "Answers that were seen or reported."),
    _counter("breakloop_answers_failed_total", "Of these: 429, 5xx, none at all."),
    _counter("breakloop_answers_not_read_total", "Answers that passed unread.", "why"),
    _counter(
        "breakloop_counts_joined_total", "Requests that were not counted, because an identical one was in flight."
    ),
    _counter("breakloop_counts_forgiven_total", "Counts that were taken back, because the answer failed."),
    _counter("breakloop_usage_asked_total", "Streams that we asked for their count of tokens."),
    _counter("breakloop_usage_refused_total", "Of these: sent again, because the upstream does not know the question."),
    _counter("breakloop_tokens_total", "Tokens, as providers counted them.", "direction"),
    _counter("breakloop_spend_microusd_total", "What answers cost, in millionths of a dollar.", "project"),
    _counter(
        "breakloop_model_spend_microusd_total",
        "The same by model: the last one that the agent named within the second.",
        "model",
    ),
    _counter(
        "breakloop_saved_microusd_total",
        "What denied requests of loops would have cost, as estimated, in the same.",
        "project",
    ),
    _counter("breakloop_saved_requests_total", "Requests of loops that were denied.", "project"),
    Metric(
        "breakloop_estimate_ratio",
        HISTOGRAM,
        "Tokens of a prompt as estimated, divided by the provider's count.",
        ("estimator",),
        EstimateError.BOUNDS,
    ),
    _counter("breakloop_estimate_error_tokens_total", "Tokens by which estimates were wrong, either way.", "estimator"),
    # Time
    Metric(
        "breakloop_overhead_seconds",
        HISTOGRAM,
        "Our own time: from a request to its way upstream, its denial, or its answer.",
        ("door",),
        bounds_s(*OWN_POWERS),
    ),
    Metric(
        "breakloop_upstream_seconds",
        HISTOGRAM,
        "The upstream's time: from the way there to the end of its answer.",
        ("upstream",),
        bounds_s(*UPSTREAM_POWERS),
    ),
    # Connections
    _counter("breakloop_http_requests_total", "Requests on the traffic port, health checks included."),
    _counter("breakloop_http_bad_requests_total", "Requests that were refused for their form."),
    _counter("breakloop_http_errors_total", "Requests that were answered with 500 for a mistake of ours."),
    _counter("breakloop_http_timeouts_total", "Clients that took too long."),
    _counter("breakloop_http_abandoned_total", "Clients that left before their answer."),
    _counter("breakloop_connections_total", "Connections of clients that were taken."),
    _counter("breakloop_connections_refused_total", "Connections of clients beyond the limit."),
    _gauge("breakloop_connections_open", "Connections of clients now."),
    _counter("breakloop_upstream_connections_total", "Connections to upstreams that were made.", "upstream"),
    _gauge("breakloop_upstream_connections_open", "Connections to upstreams now.", "upstream"),
    # State
    _gauge("breakloop_store_degraded", "1: the shared store cannot be used, each instance counts for itself."),
    _counter("breakloop_store_changes_total", "Times that the shared store was lost or came back."),
    _counter("breakloop_store_degraded_decisions_total", "Requests that were decided without the shared store."),
    _counter("breakloop_store_errors_total", "Operations of the store that failed."),
    _counter("breakloop_store_conflicts_total", "Decisions whose session moved on meanwhile too often to be written."),
    _gauge("breakloop_memory_entries", "Entries in memory.", "table"),
    _counter("breakloop_memory_evicted_total", "Entries that had to go for lack of room.", "table"),
    _counter("breakloop_state_problems_total", "Saves of the state that failed, and files that could not be used."),
    _gauge("breakloop_state_saved_timestamp_seconds", "When the state was last saved."),
    # Bundle
    _gauge("breakloop_bundle_version", "Version of the bundle in force; 0 without one."),
    _gauge("breakloop_bundle_loaded_timestamp_seconds", "When it was put in force."),
    _gauge("breakloop_bundle_problems", "Problems of what the source holds now, where that is not in force."),
    _counter("breakloop_bundles_rejected_total", "Bundles that were refused."),
    # Ourselves
    _counter("breakloop_events_total", "Events that were handed on.", "event"),
    _counter("breakloop_events_dropped_total", "Events that were lost for lack of room.", "place"),
    _counter("breakloop_log_lines_dropped_total", "Log lines that were lost for lack of room."),
    _gauge("breakloop_processes", "Processes that serve."),
    _gauge("breakloop_start_timestamp_seconds", "When the youngest of them started."),
    _gauge("breakloop_info", "Always 1.", "version"),
)

METRICS: Final[dict[str, Metric]] = {metric.name: metric for metric in _TABLE}


_TEXT_MAX: Final = 120  # of a label's value


class LabelLimiter:
    """Remembers which values were first, so that a series never changes its name."""

    __slots__ = ("_names",)

    def __init__(self) -> None:
        self._names: dict[str, set[str]] = {}  # label -> the values that keep their names

    def figures(self, given: ProcessFigures) -> ProcessFigures:
        """Return as much of them as may be shown."""
        made = ProcessFigures()
        plain = ((made.count, given.counters), (made.level, given.sums), (made.mark, given.highest))
        for take, by_name in plain:
            for name, series in by_name.items():
                if metric := METRICS.get(name):
                    for labels, value in series.items():
                        take(name, value, *self._labels(metric, labels))
        for name, spreads in given.spreads.items():
            if metric := METRICS.get(name):
                for labels, spread in spreads.items():
                    made.spread(name, spread.counts, spread.total, *self._labels(metric, labels))
        return made

    def _labels(self, metric: Metric, labels: Labels) -> Labels:
        if not labels:  # most have none
            return labels
        return tuple([self._value(name, value) for name, value in zip(metric.labels, labels, strict=True)])

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


class SavedTotals(Protocol):
    """What keeps the state on disk."""

    problems: int
    saved_at: float


@dataclass(slots=True)
class MetricSources:
    """The parts of a process that count. What is None or empty is left out."""

    engine: Engine
    started_at: float
    store: MemoryStore | None = None
    timings: Timings = field(default_factory=Timings)
    hub: HubCounts | None = None
    upstreams: Callable[[], Iterable[UpstreamCounts]] = tuple
    bundles: BundleState | None = None
    bundle_loaded_at: Callable[[], float] = float
    saved: SavedTotals | None = None
    remote: Callable[[], RemoteEngine | None] = lambda: None
    dropped: Callable[[], Mapping[str, int]] = dict  # `bus.Fan.dropped`
    log_dropped: Callable[[], int] = lines_dropped


def gather(sources: MetricSources) -> ProcessFigures:
    """Return what a process has to show now."""
    figures, engine = ProcessFigures(), sources.engine
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


def _tally(figures: ProcessFigures, tally: Tally) -> None:
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


def _each(figures: ProcessFigures, name: str, counts: Mapping[str, int], *before: str) -> None:
    for label, count in list(counts.items()):
        figures.count(name, count, *before, label)


def _estimates(figures: ProcessFigures, errors: EstimateErrors) -> None:
    for name, error in list(errors.by_estimator.items()):
        figures.spread("breakloop_estimate_ratio", list(error.buckets), error.total, name)
        figures.count("breakloop_estimate_error_tokens_total", error.absolute_tokens, name)


def _times(figures: ProcessFigures, timings: Timings) -> None:
    _spread(figures, "breakloop_overhead_seconds", timings.proxy, OWN_POWERS, "proxy")
    _spread(figures, "breakloop_overhead_seconds", timings.decision, OWN_POWERS, "decision")
    for name, histogram in list(timings.upstreams.items()):
        _spread(figures, "breakloop_upstream_seconds", histogram, UPSTREAM_POWERS, name)


def _spread(figures: ProcessFigures, name: str, histogram: Histogram, powers: tuple[int, int], label: str) -> None:
    figures.spread(name, histogram.buckets(*powers), histogram.total_ns / 1e9, label)


def _connections(figures: ProcessFigures, hub: HubCounts | None, upstreams: Iterable[UpstreamCounts]) -> None:
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


def _bundle(figures: ProcessFigures, sources: MetricSources) -> None:
    bundle = sources.engine.bundle
    figures.mark("breakloop_bundle_version", 0 if bundle is None else bundle.version)
    loaded_at = sources.bundle_loaded_at()
    if loaded_at:
        figures.mark("breakloop_bundle_loaded_timestamp_seconds", loaded_at)
    if sources.bundles is not None:
        figures.count("breakloop_bundles_rejected_total", sources.bundles.rejected)
        figures.mark("breakloop_bundle_problems", len(sources.bundles.problems))


def _state(figures: ProcessFigures, sources: MetricSources) -> None:
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
