"""`Event`: something worth telling a person or a machine about (SPEC G-2). Made by the engine and the bundle source,
handed to a `publish` function; who listens is not their business. Carries hashes and counts, never prompts.

What agents did since it was last asked, summed: the source of every sum in history and dashboard. Filled on the hot
path (a dictionary lookup and some additions a request), taken away once a second.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import TypeVar

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


Who = tuple[str, str, str]  # project, caller, agent
LoopKey = tuple[str, str, str, str]  # and fingerprint


@dataclass(slots=True)
class AgentUse:
    """One agent's."""

    requests: int = 0
    denied: int = 0
    failed: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost_microusd: int = 0
    last_at: float = 0.0
    model: str = ""


@dataclass(slots=True)
class LoopUse:
    """One loop's: what passed within it, and what was stopped."""

    passed: int = 0
    passed_tokens: int = 0
    passed_microusd: int = 0
    stopped: int = 0
    stopped_tokens: int = 0  # as estimated: the requests, and the answers they would have had
    stopped_microusd: int = 0


@dataclass(slots=True)
class Activity:
    """Sums since the last time. Bounded: beyond `MOST` new agents are summed under the name `*`."""

    agents: dict[Who, AgentUse] = field(default_factory=dict)
    loops: dict[LoopKey, LoopUse] = field(default_factory=dict)
    shadow: dict[tuple[str, str, str, str], int] = field(default_factory=dict)  # project, policy, rule, reason


Use = TypeVar("Use", AgentUse, LoopUse)


def add_use(total: Use, more: Use) -> None:
    """Add one sum to another: numbers add up, of names and times the later stays."""
    for field_ in fields(total):
        ours, theirs = getattr(total, field_.name), getattr(more, field_.name)
        if isinstance(theirs, str):
            setattr(total, field_.name, theirs or ours)
        elif isinstance(theirs, float):
            setattr(total, field_.name, max(ours, theirs))
        else:
            setattr(total, field_.name, ours + theirs)
