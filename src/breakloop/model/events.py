"""`Event`: something worth telling a person or a machine about (SPEC G-2). Made by the engine and the bundle source,
handed to a `publish` function; who listens is not their business. Carries hashes and counts, never prompts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

LOOP_DETECTED = "loop.detected"
LOOP_CLEARED = "loop.cleared"
AGENT_KILLED = "agent.killed"
AGENT_RELEASED = "agent.released"
KILL_SWITCH_CHANGED = "kill_switch.changed"
OVERRIDE_CHANGED = "override.changed"
BUDGET_THRESHOLD = "budget.threshold"
BREAKER_OPENED = "breaker.opened"
BREAKER_CLOSED = "breaker.closed"
MODEL_UNKNOWN = "model.unknown"
LIMIT_EXCEEDED = "limit.exceeded"
SHADOW_WOULD_REJECT = "shadow.would_reject"
BUNDLE_LOADED = "bundle.loaded"
BUNDLE_REJECTED = "bundle.rejected"
BUNDLE_EXPIRED = "bundle.expired"
STORE_DEGRADED = "store.degraded"
STORE_RECOVERED = "store.recovered"
DESCRIPTOR_MISSING = "descriptor.missing"
BODY_NOT_UNPACKED = "body.not_unpacked"
UPSTREAM_FAILED = "upstream.failed"
WORKER_DIED = "worker.died"
WORKER_REPLACED = "worker.replaced"


@dataclass(frozen=True, slots=True)
class Event:
    """`name` at time `at`; `data` is flat and JSON-safe."""

    name: str
    at: float
    data: Mapping[str, object]
    project: str = ""
    request_id: str = ""


Publish = Callable[[Event], None]


def nowhere(_event: Event) -> None:
    """Publish to nobody."""
