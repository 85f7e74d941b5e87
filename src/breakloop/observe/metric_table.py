"""Every metric, as one table: name, kind, labels and meaning. `metrics` writes what is here and nothing else, the page
`docs/reference/metrics.md` is made of it, and tests hold the Grafana dashboard to it. Labels are bounded: closed lists,
or so many values and then `other`; never an agent, a caller, a path or a key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from breakloop.model.histogram import bounds_s
from breakloop.pricing.estimate import EstimateError

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
class Label:
    """What a label says, and how many values it may have; 0: they are a closed list."""

    help: str
    most: int = 0


LABELS: Final[dict[str, Label]] = {
    "verdict": Label("`allowed` or `denied`"),
    "reason": Label("one of the [reasons](reasons.md), or why it was allowed", 60),
    "policy": Label("id of the policy", 200),
    "project": Label("name of the project", 200),
    "model": Label("as requests name it", 50),
    "upstream": Label("name of the upstream, from the settings", 100),
    "door": Label("`proxy` or `decision`"),
    "direction": Label("`input` or `output`"),
    "kind": Label("of loop, as in [`loop.detected`](events.md#loopdetected)", 60),
    "action": Label("what was done: `warn`, `steer`, `throttle`, `reject`, `kill`, `cut`", 20),
    "shadow": Label("`true`: only counted, the client saw nothing"),
    "event": Label("name of the [event](events.md)", 60),
    "place": Label("where it was lost: in a `worker`, on the `bus`, or at the listener that was too slow", 20),
    "why": Label("the cause, in a word", 20),
    "descriptor": Label("the descriptor that requests lack", 100),
    "table": Label("what is remembered: `counts`, `cooldowns`, `buckets`, `accounts`, `rates`, `open`, `windows`", 20),
    "estimator": Label("which estimate: of `token_source.estimator`", 20),
    "version": Label("of breakloop", 20),
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
