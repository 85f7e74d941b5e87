"""Every metric of breakloop, as one table.

A row declares a metric (name, kind, labels, help) and where its values come from: `read` takes them from the parts of
a process when metrics are collected, `count_event` counts events, and `sum_activity` adds up what agents did. To add a
metric, add a row. `/metrics` (`PrometheusPage`), the reference page and the tests of the Grafana dashboard all use this
table.

Nothing here runs on the request path. Labels are bounded: a closed list, or a maximum number of values after which
further values are counted as `other`. Agents, callers, paths and keys are never labels, so clients cannot change the
size of the page, nor of the message in which a worker reports its metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, cast

from breakloop._version import __version__
from breakloop.engine.engine import Engine
from breakloop.engine.remote import RemoteEngine
from breakloop.model.counters import Histogram, Timings, bounds_s
from breakloop.model.events import (
    LIMIT_EXCEEDED,
    LOOP_DETECTED,
    SHADOW_WOULD_REJECT,
    Activity,
    AgentUse,
    Event,
    LoopUse,
)
from breakloop.observe.log import lines_dropped
from breakloop.pricing.tokens import EstimateError
from breakloop.store.memory import ExpiringTable, MemoryStore

if TYPE_CHECKING:
    from prometheus_client import Metric as Family
    from prometheus_client.registry import Collector

    from breakloop.policy.watch import BundleFeed
    from breakloop.store.snapshot import Snapshotter

COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"
SUM, MAX = "sum", "max"  # how the values of several processes are combined
OTHER: Final = "other"
ALLOWED: Final = "allowed"
DENIED: Final = "denied"
DECISIONS: Final = "breakloop_decisions_total"

Labels = tuple[str, ...]  # values, in the order of the metric's labels

_OWN_POWERS: Final = (10, 30)  # bucket bounds in powers of two of a nanosecond: 1 us to 1 s
_UPSTREAM_POWERS: Final = (20, 40)  # 1 ms to 18 minutes
_LABEL_CHARS_MAX: Final = 120
_COMBINATIONS_MAX: Final = 2_000  # of labels, of one metric that counts events or activity


@dataclass(slots=True)
class HistogramData:
    """Observations per bucket, with those above the last bound at the end, and their sum."""

    counts: list[int]
    total: float


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of the table. Exactly one of `read`, `count_event` and `sum_activity` is set."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()  # of a histogram
    merge: str = SUM
    read: Read | None = None
    count_event: CountEvent | None = None
    sum_activity: SumActivity | None = None


@dataclass(frozen=True, slots=True)
class MetricLabel:
    """What a label means, and how many values it may have; 0: the values are a closed list."""

    help: str
    most: int = 0


class ServerCounts(Protocol):
    """The counters of the traffic port (`gateway.server.Server`)."""

    @property
    def live(self) -> Sized: ...

    connections: int
    refused: int
    refused_of_peer: int
    reclaimed: int

    @property
    def bodies_shed(self) -> int: ...

    requests: int
    bad_requests: int
    handler_errors: int
    timeouts: int
    abandoned: int


class UpstreamCounts(NamedTuple):
    name: str
    opened: int
    open: int


@dataclass(slots=True)
class MetricSources:
    """The parts of a process that have counters. Parts that are None have no metrics."""

    engine: Engine
    started_at: float
    store: MemoryStore | None = None
    timings: Timings = field(default_factory=Timings)
    server: ServerCounts | None = None
    upstreams: Sequence[UpstreamCounts] = ()
    bundles: BundleFeed | None = None
    snapshots: Snapshotter | None = None
    remote: RemoteEngine | None = None
    open_breakers: int | None = None
    admin_denied: int | None = None
    events_dropped: Mapping[str, int] = field(default_factory=dict)
    log_dropped: Callable[[], int] = lines_dropped
    clock_stepped_s: float = 0.0


# A number, or one for each value of the only label or of all labels together; None: the process has no value.
Reading = float | Mapping[str, float] | Mapping[Labels, float] | Mapping[str, HistogramData] | None
Read = Callable[[MetricSources], Reading]
CountEvent = Callable[[Event], Labels | None]  # None: the event is not counted
SumActivity = Callable[[Activity], Iterable[tuple[str, float]]]  # label and amount
Relabel = Callable[[str, Labels], Labels]  # name of the metric, and its labels


def _counter(name: str, text: str, read: Read, labels: Labels = ()) -> Metric:
    return Metric(name, COUNTER, text, labels, read=read)


def _events(name: str, text: str, count: CountEvent, labels: Labels) -> Metric:
    return Metric(name, COUNTER, text, labels, count_event=count)


def _activity(name: str, text: str, amounts: SumActivity, labels: Labels) -> Metric:
    return Metric(name, COUNTER, text, labels, sum_activity=amounts)


def _buckets(name: str, text: str, read: Read, labels: Labels, bounds: tuple[float, ...]) -> Metric:
    return Metric(name, HISTOGRAM, text, labels, bounds, read=read)


def _gauge(name: str, text: str, read: Read, labels: Labels = (), *, merge: str = SUM) -> Metric:
    return Metric(name, GAUGE, text, labels, merge=merge, read=read)


def _server(read: Callable[[ServerCounts], float]) -> Read:
    return lambda p: None if p.server is None else read(p.server)


def _remote(read: Callable[[RemoteEngine], float]) -> Read:
    return lambda p: None if p.remote is None else read(p.remote)


def _bundles(read: Callable[[BundleFeed], float | None]) -> Read:
    return lambda p: None if p.bundles is None else read(p.bundles)


def _snapshots(read: Callable[[Snapshotter], float | None]) -> Read:
    return lambda p: None if p.snapshots is None else read(p.snapshots)


def _tables(read: Callable[[ExpiringTable], float]) -> Read:
    return lambda p: None if p.store is None else {name: read(table) for name, table in p.store.kept().items()}


def _decisions(p: MetricSources) -> Mapping[Labels, float]:
    counts = ((ALLOWED, p.engine.tally.allowed), (DENIED, p.engine.tally.denied))
    return {(verdict, reason): count for verdict, reasons in counts for reason, count in list(reasons.items())}


def _estimates(read: Callable[[EstimateError], float]) -> Read:
    return lambda p: {name: read(error) for name, error in list(p.engine.meter.errors.items())}


def _estimate_ratios(p: MetricSources) -> Mapping[str, HistogramData]:
    errors = list(p.engine.meter.errors.items())
    return {name: HistogramData(list(error.buckets), error.total) for name, error in errors}


def _overhead(p: MetricSources) -> Mapping[str, HistogramData]:
    timings = {"proxy": p.timings.proxy, "decision": p.timings.decision}
    return {door: _histogram(histogram, _OWN_POWERS) for door, histogram in timings.items()}


def _upstream_times(p: MetricSources) -> Mapping[str, HistogramData]:
    return {name: _histogram(one, _UPSTREAM_POWERS) for name, one in list(p.timings.upstreams.items())}


def _histogram(histogram: Histogram, powers: tuple[int, int]) -> HistogramData:
    return HistogramData(histogram.buckets(*powers), histogram.total_ns / 1e9)


def _spend(label: Callable[[str, AgentUse], str]) -> SumActivity:
    return lambda activity: (
        (label(project, use), use.cost_microusd)
        for (project, _, _), use in activity.agents.items()
        if use.cost_microusd
    )


def _saved(amount: Callable[[LoopUse], int]) -> SumActivity:
    return lambda activity: (
        (project, amount(loop)) for (project, _, _, _), loop in activity.loops.items() if loop.stopped
    )


def _policy_and_reason(name: str) -> CountEvent:
    return lambda event: _texts(event, "policy", "reason") if event.name == name else None


def _loop_labels(event: Event) -> Labels | None:
    if event.name != LOOP_DETECTED:
        return None
    return (*_texts(event, "kind", "action"), "true" if event.data.get("shadow") else "false")


def _texts(event: Event, *names: str) -> Labels:
    return tuple([str(event.data.get(name, "")) for name in names])


LABELS: Final[dict[str, MetricLabel]] = {
    "verdict": MetricLabel("`allowed` or `denied`"),
    "reason": MetricLabel("one of the [reasons](reasons.md), or why the request was allowed", 60),
    "policy": MetricLabel("id of the policy", 200),
    "project": MetricLabel("name of the project", 200),
    "model": MetricLabel("name of the model, as in the request", 50),
    "upstream": MetricLabel("name of the upstream in the settings", 100),
    "door": MetricLabel("`proxy` (reverse proxy) or `decision` (decision service)"),
    "direction": MetricLabel("`input` or `output`"),
    "kind": MetricLabel("kind of loop, as in [`loop.detected`](events.md#loopdetected)", 60),
    "action": MetricLabel("action taken: `warn`, `steer`, `throttle`, `land`, `pause`, `reject`, `kill`, `cut`", 20),
    "shadow": MetricLabel("`true`: the policy is in shadow mode and the request was not affected"),
    "event": MetricLabel("name of the [event](events.md)", 60),
    "place": MetricLabel("where the event was dropped: in a `worker`, on the `bus`, or at a subscriber", 20),
    "why": MetricLabel("the cause, in one word", 20),
    "descriptor": MetricLabel("name of the missing descriptor", 100),
    "table": MetricLabel(
        "table of the memory store: `counts`, `cooldowns`, `buckets`, `accounts`, `spent`, `rates`, `open`, `windows`",
        20,
    ),
    "estimator": MetricLabel("the estimator, as in `token_source.estimator`", 20),
    "version": MetricLabel("version of breakloop", 20),
}

# fmt: off
_TABLE: Final = (
    # Decisions
    _counter(DECISIONS, "Decided requests.", _decisions, ("verdict", "reason")),
    _events("breakloop_limit_denials_total", "Requests denied by a limit.",
            _policy_and_reason(LIMIT_EXCEEDED), ("policy", "reason")),
    _events("breakloop_loops_total", "Detected loops.", _loop_labels, ("kind", "action", "shadow")),
    _counter("breakloop_shadowed_total", "Requests on which a policy in shadow mode would have acted.",
             lambda p: p.engine.tally.shadowed),
    _events("breakloop_shadow_rejects_total", "Requests that a policy in shadow mode would have denied.",
            _policy_and_reason(SHADOW_WOULD_REJECT), ("policy", "reason")),
    _counter("breakloop_steered_total", "Requests to which a note for the model was added.",
             lambda p: p.engine.tally.steered),
    _counter("breakloop_landed_total", "Requests whose tools were switched off, with a note for the model to finish.",
             lambda p: p.engine.tally.landed),
    _counter("breakloop_streams_cut_total",
             "Streamed answers that were cut: for repetition (`repeats`) or for their length (`length`).",
             lambda p: {"repeats": p.engine.tally.cut, "length": p.engine.tally.cut_long}, ("why",)),
    _counter("breakloop_descriptors_missing_total", "Rules skipped because the request lacks a descriptor.",
             lambda p: dict(p.engine.tally.missing), ("descriptor",)),
    _counter("breakloop_bodies_not_unpacked_total",
             "Compressed request bodies that could not be decompressed and were inspected as sent.",
             lambda p: dict(p.engine.tally.not_unpacked), ("why",)),
    _counter("breakloop_bodies_unjudged_total", "Requests whose body was too large to inspect, or without messages.",
             lambda p: p.engine.tally.unjudged),
    _counter("breakloop_unknown_api_requests_total",
             "Requests that look like those of an LLM API, but of none that is known: passed, and not judged.",
             lambda p: dict(p.engine.tally.unknown_apis), ("upstream",)),
    _counter("breakloop_faults_total", "Decisions that failed with an internal error; the request was allowed.",
             lambda p: p.engine.tally.faults),
    # Every process has the holds of all, so they are not added up.
    _gauge("breakloop_holds", "Agents, callers and runs in quarantine.", lambda p: len(p.engine.quarantine), merge=MAX),
    _gauge("breakloop_paused_runs", "Runs that wait for the answer of a person.", lambda p: p.engine.quarantine.paused,
           merge=MAX),
    _gauge("breakloop_breakers_open", "Open circuit breakers.", lambda p: p.open_breakers, merge=MAX),
    # Answers and cost
    _counter("breakloop_answers_total", "Answers that were read or reported.", lambda p: p.engine.tally.settled),
    _counter("breakloop_answers_failed_total", "Failed answers: status 429 or 5xx, or no response.",
             lambda p: p.engine.tally.failed),
    _counter("breakloop_answers_not_read_total", "Answers that were forwarded without being read.",
             lambda p: dict(p.engine.tally.not_read), ("why",)),
    _counter("breakloop_counts_joined_total",
             "Requests that were not counted because an identical request was in flight.",
             lambda p: p.engine.tally.joined),
    _counter("breakloop_counts_forgiven_total", "Counted requests that were uncounted because the answer failed.",
             lambda p: p.engine.tally.forgiven),
    _counter("breakloop_usage_asked_total",
             "Streamed requests to which breakloop added the option to include token usage.",
             lambda p: p.engine.tally.asked_usage),
    _counter("breakloop_usage_refused_total",
             "Streamed requests that were sent again without that option because the upstream rejected it.",
             lambda p: p.engine.tally.refused_usage),
    _counter("breakloop_tokens_total", "Tokens, as counted by providers.",
             lambda p: {"input": p.engine.tally.input_tokens, "output": p.engine.tally.output_tokens}, ("direction",)),
    _activity("breakloop_spend_microusd_total", "Cost of answers, in millionths of a US dollar.",
              _spend(lambda project, _use: project), ("project",)),
    _activity("breakloop_model_spend_microusd_total",
              "Cost of answers by model. Cost is attributed to the last model that the agent used within a second.",
              _spend(lambda _project, use: use.model), ("model",)),
    _activity("breakloop_saved_microusd_total",
              "Estimated cost of denied requests of loops, in millionths of a US dollar.",
              _saved(lambda loop: loop.stopped_microusd), ("project",)),
    _activity("breakloop_saved_requests_total", "Denied requests of loops.",
              _saved(lambda loop: loop.stopped), ("project",)),
    _buckets("breakloop_estimate_ratio", "Estimated prompt tokens divided by the provider's count.",
             _estimate_ratios, ("estimator",), EstimateError.BOUNDS),
    _counter("breakloop_estimate_error_tokens_total",
             "Absolute difference between estimated and counted prompt tokens.",
             _estimates(lambda e: e.absolute_tokens), ("estimator",)),
    # Time
    _buckets("breakloop_overhead_seconds",
             "Time spent in breakloop: from receiving a request to forwarding it, denying it, "
             "or returning the decision.",
             _overhead, ("door",), bounds_s(*_OWN_POWERS)),
    _buckets("breakloop_upstream_seconds",
             "Time spent waiting for the upstream: from forwarding a request to the end of the response.",
             _upstream_times, ("upstream",), bounds_s(*_UPSTREAM_POWERS)),
    # Connections
    _counter("breakloop_http_requests_total", "Requests on the traffic port, including health checks.",
             _server(lambda s: s.requests)),
    _counter("breakloop_http_bad_requests_total", "Requests rejected as malformed.",
             _server(lambda s: s.bad_requests)),
    _counter("breakloop_http_errors_total", "Requests answered with status 500 because of an internal error.",
             _server(lambda s: s.handler_errors)),
    _counter("breakloop_http_timeouts_total", "Clients that timed out while sending a request.",
             _server(lambda s: s.timeouts)),
    _counter("breakloop_http_abandoned_total", "Clients that disconnected before the response.",
             _server(lambda s: s.abandoned)),
    _counter("breakloop_connections_total", "Accepted client connections.", _server(lambda s: s.connections)),
    _counter("breakloop_connections_refused_total",
             "Client connections refused because of the limit on all (`full`), or on those of one address (`peer`).",
             lambda p: {} if p.server is None else {"full": p.server.refused, "peer": p.server.refused_of_peer},
             ("why",)),
    _counter("breakloop_connections_reclaimed_total", "Idle client connections closed to make room for new ones.",
             _server(lambda s: s.reclaimed)),
    _counter("breakloop_bodies_shed_total", "Request bodies refused because the memory limit was nearly reached.",
             _server(lambda s: s.bodies_shed)),
    _gauge("breakloop_connections_open", "Open client connections.", _server(lambda s: len(s.live))),
    _counter("breakloop_upstream_connections_total", "Connections opened to upstreams.",
             lambda p: {one.name: one.opened for one in p.upstreams}, ("upstream",)),
    _gauge("breakloop_upstream_connections_open", "Open connections to upstreams.",
           lambda p: {one.name: one.open for one in p.upstreams}, ("upstream",)),
    # State
    _gauge("breakloop_store_degraded",
           "1 if the shared store is unavailable and each instance counts on its own, else 0.",
           _remote(lambda r: int(not r.health.up)), merge=MAX),
    _counter("breakloop_store_changes_total", "Times that the shared store became unavailable or available again.",
             _remote(lambda r: r.health.changes)),
    _counter("breakloop_store_degraded_decisions_total", "Requests decided without the shared store.",
             _remote(lambda r: r.degraded)),
    _counter("breakloop_store_errors_total", "Failed store operations.", lambda p: p.engine.tally.store_errors),
    _counter("breakloop_store_conflicts_total",
             "Decisions that did not update their session because of too many concurrent updates.",
             lambda p: p.engine.tally.conflicts),
    _gauge("breakloop_memory_entries", "Entries of the memory store.", _tables(len), ("table",)),
    _counter("breakloop_memory_evicted_total", "Entries evicted from the memory store because a table was full.",
             _tables(lambda t: t.evicted), ("table",)),
    _counter("breakloop_state_problems_total",
             "Snapshots of the state that could not be written, and state files that could not be read.",
             _snapshots(lambda s: s.problems)),
    _gauge("breakloop_state_saved_timestamp_seconds", "When the state was last saved.",
           _snapshots(lambda s: s.saved_at or None), merge=MAX),
    # All processes on a port have the same clock, so its steps are not added up.
    Metric("breakloop_clock_step_seconds_total", COUNTER,
           "Seconds by which the system clock was set forward or back; with Redis, the clock of Redis.",
           merge=MAX, read=lambda p: p.clock_stepped_s),
    # Bundle
    _gauge("breakloop_bundle_version", "Version of the active bundle; 0 if there is none.",
           lambda p: 0 if p.engine.bundle is None else p.engine.bundle.version, merge=MAX),
    _gauge("breakloop_bundle_loaded_timestamp_seconds", "When the active bundle was loaded.",
           _bundles(lambda b: b.loaded_at or None), merge=MAX),
    _gauge("breakloop_bundle_problems", "Problems of the bundle at the source, if it was rejected.",
           _bundles(lambda b: len(b.problems)), merge=MAX),
    _counter("breakloop_bundles_rejected_total", "Rejected bundles.", _bundles(lambda b: b.rejected)),
    # breakloop itself
    _events("breakloop_events_total", "Published events.", lambda event: (event.name,), ("event",)),
    _counter("breakloop_events_dropped_total", "Events dropped because a queue was full.",
             lambda p: dict(p.events_dropped), ("place",)),
    _counter("breakloop_log_lines_dropped_total", "Log lines dropped because the queue was full.",
             lambda p: p.log_dropped()),
    _counter("breakloop_admin_denied_total",
             "Requests to the admin port that were denied because of a wrong token, or of too many before.",
             lambda p: p.admin_denied),
    _gauge("breakloop_processes", "Processes that serve traffic.", lambda p: int(p.server is not None)),
    _gauge("breakloop_start_timestamp_seconds", "Start time of the process that was started last.",
           lambda p: p.started_at, merge=MAX),
    _gauge("breakloop_info", "Always 1.", lambda _p: {__version__: 1}, ("version",), merge=MAX),
)
# fmt: on

METRICS: Final[dict[str, Metric]] = {metric.name: metric for metric in _TABLE}


@dataclass(slots=True)
class MetricValues:
    """Values by name of the metric: plain numbers, which a worker sends to the control process. Names that are not in
    the table are ignored."""

    values: dict[str, dict[Labels, float]] = field(default_factory=dict)
    histograms: dict[str, dict[Labels, HistogramData]] = field(default_factory=dict)

    def add(self, name: str, value: float, *labels: str) -> None:
        """Combine a value with the one under the same labels, as the table defines."""
        if name not in METRICS:
            return
        series = self.values.setdefault(name, {})
        old = series.get(labels)
        if old is not None:
            value = max(old, value) if METRICS[name].merge == MAX else old + value
        series[labels] = value

    def add_histogram(self, name: str, data: HistogramData, *labels: str) -> None:
        if name not in METRICS:
            return
        series = self.histograms.setdefault(name, {})
        old = series.get(labels)
        if old is None:
            series[labels] = HistogramData(list(data.counts), data.total)
        else:
            old.counts = [one + other for one, other in zip(old.counts, data.counts, strict=True)]
            old.total += data.total

    def merge(self, other: MetricValues, *, ended: bool = False, relabel: Relabel | None = None) -> None:
        """Add the values of another process. A process that has ended contributes its counters and histograms only.
        `relabel` replaces labels."""
        for name, series in other.values.items():
            if not ended or name not in METRICS or METRICS[name].kind == COUNTER:
                for labels, value in series.items():
                    self.add(name, value, *(relabel(name, labels) if relabel else labels))
        for name, histograms in other.histograms.items():
            for labels, data in histograms.items():
                self.add_histogram(name, data, *(relabel(name, labels) if relabel else labels))


def collect(sources: MetricSources) -> MetricValues:
    found = MetricValues()
    for metric in _TABLE:
        value = None if metric.read is None else metric.read(sources)
        if isinstance(value, Mapping):
            for label, one in value.items():
                labels = label if isinstance(label, tuple) else (label,)
                if isinstance(one, HistogramData):
                    found.add_histogram(metric.name, one, *labels)
                else:
                    found.add(metric.name, one, *labels)
        elif value is not None:
            found.add(metric.name, value)
    return found


class EventCounters:
    """The metrics that are counted from events and from the activity of agents."""

    def __init__(self, combinations_max: int = _COMBINATIONS_MAX) -> None:
        self.values = MetricValues()
        self._combinations_max = combinations_max

    def take(self, events: Sequence[Event]) -> None:
        """Count events. A listener of `EventDispatcher`."""
        for metric in _TABLE:
            if metric.count_event is not None:
                for event in events:
                    labels = metric.count_event(event)
                    if labels is not None:
                        self._add(metric.name, 1, labels)

    def take_activity(self, activity: Activity) -> None:
        for metric in _TABLE:
            if metric.sum_activity is not None:
                for label, amount in metric.sum_activity(activity):
                    self._add(metric.name, amount, (label,))

    def _add(self, name: str, value: float, labels: Labels) -> None:
        known = self.values.values.get(name, {})
        if labels not in known and len(known) >= self._combinations_max:
            labels = (OTHER,) * len(labels)
        self.values.add(name, value, *labels)


class LabelLimiter:
    """Limits the number of values of each label. The first values keep their names for the life of the process, so
    that a series never changes its name."""

    def __init__(self) -> None:
        self._names: dict[str, set[str]] = {}  # label -> the values that keep their names

    def limit(self, given: MetricValues) -> MetricValues:
        """Return the values with further label values combined as `other`."""
        limited = MetricValues()
        limited.merge(given, relabel=self._labels)
        return limited

    def _labels(self, metric: str, labels: Labels) -> Labels:
        if not labels:  # most metrics have none
            return labels
        return tuple([self._value(name, value) for name, value in zip(METRICS[metric].labels, labels, strict=True)])

    def _value(self, label: str, value: str) -> str:
        most = LABELS[label].most
        if not most or value == OTHER:
            return value
        value = value[:_LABEL_CHARS_MAX]
        known = self._names.setdefault(label, set())
        if value not in known:
            if len(known) >= most:
                return OTHER
            known.add(value)
        return value


class WorkerTotals:
    """The metrics of all workers together, including workers that have ended."""

    def __init__(self) -> None:
        self._live: dict[int, MetricValues] = {}  # by process id
        self._ended = MetricValues()

    def update(self, pid: int, values: MetricValues) -> None:
        """Replace the values of one worker; they count from its start."""
        self._live[pid] = values

    def end(self, pid: int) -> None:
        """Keep what a worker has counted; its gauges are gone."""
        values = self._live.pop(pid, None)
        if values is not None:
            self._ended.merge(values, ended=True)

    def total(self) -> MetricValues:
        total = MetricValues()
        for values in (self._ended, *self._live.values()):
            total.merge(values)
        return total


class PrometheusPage:
    """`GET /metrics`: the sum of the values that `collect_all` returns, one item a process, in Prometheus' format."""

    def __init__(self, collect_all: Callable[[], Iterable[MetricValues]]) -> None:
        self._collect_all = collect_all
        self._limiter = LabelLimiter()

    def text(self) -> bytes:
        from prometheus_client import generate_latest  # noqa: PLC0415 - only processes with an admin server need it

        return generate_latest(cast("Collector", self))

    def collect(self) -> Iterator[Family]:
        """Yield the metrics that have a value, in the order of the table. Called by `generate_latest`."""
        from prometheus_client import core  # noqa: PLC0415 - as in `text`

        total = MetricValues()
        for values in self._collect_all():
            total.merge(values)
        total = self._limiter.limit(total)
        for metric in METRICS.values():
            about = metric.name, metric.help
            if series := total.values.get(metric.name):
                kind = core.CounterMetricFamily if metric.kind == COUNTER else core.GaugeMetricFamily
                family = kind(*about, labels=metric.labels)
                for labels, value in series.items():
                    family.add_metric(labels, value)
                yield family
            elif histograms := total.histograms.get(metric.name):
                buckets = core.HistogramMetricFamily(*about, labels=metric.labels)
                bounds = [*map(repr, metric.bounds), "+Inf"]
                for labels, data in histograms.items():
                    buckets.add_metric(labels, list(zip(bounds, accumulate(data.counts), strict=True)), data.total)
                yield buckets
