"""Events, and sums of what agents used.

The engine and the bundle source pass each `Event` to a `publish` function and do not depend on its subscribers.
`Activity` is the source of all sums in the history and the dashboard: it is updated on every request (one dictionary
lookup and a few additions) and collected once a second. Both contain hashes and counts, never prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import TypeVar

LOOP_DETECTED = "loop.detected"
LOOP_CLEARED = "loop.cleared"
AGENT_KILLED = "agent.killed"
AGENT_RELEASED = "agent.released"
RUN_PAUSED = "run.paused"
RUN_ANSWERED = "run.answered"
KILL_SWITCH_CHANGED = "kill_switch.changed"
OVERRIDE_CHANGED = "override.changed"
BUDGET_THRESHOLD = "budget.threshold"
BREAKER_OPENED = "breaker.opened"
BREAKER_CLOSED = "breaker.closed"
MODEL_UNKNOWN = "model.unknown"
API_UNKNOWN = "api.unknown"
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
    """An event. `data` is flat and can be serialized as JSON."""

    name: str
    at: float
    data: Mapping[str, object]
    project: str = ""
    request_id: str = ""


Publish = Callable[[Event], None]


def nowhere(_event: Event) -> None: ...


Who = tuple[str, str, str]  # project, caller, agent
LoopKey = tuple[str, str, str, str]  # project, caller, agent, fingerprint


@dataclass(slots=True)
class AgentUse:
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
    """Usage of one loop: requests allowed and requests denied within it."""

    passed: int = 0
    passed_tokens: int = 0
    passed_microusd: int = 0
    stopped: int = 0
    stopped_tokens: int = 0  # estimated: the requests and the answers that they would have had
    stopped_microusd: int = 0


TreeNodeKey = tuple[str, str, str, str]  # project, caller, root, session


@dataclass(slots=True)
class TreeNodeUse:
    requests: int = 0
    denied: int = 0
    tokens: int = 0
    cost_microusd: int = 0
    last_at: float = 0.0
    agent: str = ""
    parent: str = ""  # session that started it; "" for the root, or if it is not known


@dataclass(slots=True)
class Activity:
    """Sums since they were last collected. Their number is limited by `engine.activity`: further agents are summed as
    `*`.
    """

    agents: dict[Who, AgentUse] = field(default_factory=dict)
    loops: dict[LoopKey, LoopUse] = field(default_factory=dict)
    shadow: dict[tuple[str, str, str, str], int] = field(default_factory=dict)  # project, policy, rule, reason
    trees: dict[TreeNodeKey, TreeNodeUse] = field(default_factory=dict)


Use = TypeVar("Use", AgentUse, LoopUse, TreeNodeUse)


def add_use(total: Use, more: Use) -> None:
    """Add `more` to `total`. Numbers are added; the later time and the newer name are kept."""
    for field_ in fields(total):
        ours, theirs = getattr(total, field_.name), getattr(more, field_.name)
        if isinstance(theirs, str):
            setattr(total, field_.name, theirs or ours)
        elif isinstance(theirs, float):
            setattr(total, field_.name, max(ours, theirs))
        else:
            setattr(total, field_.name, ours + theirs)
