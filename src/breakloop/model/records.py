"""What is kept of the past, as data: events, incidents, agents, and who did what. Made by `history`, shown by `admin`.
Carries names, digests and counts, never prompts (SPEC Y-1); money in integer micro-dollars, times in seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

OPEN, STOPPED, CLEARED = "open", "stopped", "cleared"  # an incident: warned only; denied or killed; over


@dataclass(frozen=True, slots=True)
class EventRecord:
    """An event that was kept. `id` grows with time, so that a reader can go on behind the last one it has."""

    id: int
    name: str
    at: float
    project: str
    agent: str
    request_id: str
    incident: str  # "" where it belongs to none
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class StepMark:
    """One step of a session as the picture of an incident shows it."""

    at: float
    tools: str  # names of the tools that were called, or "" for words alone
    step: str  # hex: equal marks are equal steps
    result: str  # hex: equal marks are equal results
    size: int  # bytes of the results
    failed: bool
    verdict: str  # "pass", "warn", "steer", "throttle", "deny"


@dataclass(frozen=True, slots=True)
class Incident:
    """All that belongs to one loop."""

    id: str
    state: str
    project: str
    agent: str
    caller: str
    model: str
    kind: str
    fingerprint: str
    policy: str
    action: str
    evidence: str
    shadow: bool
    first_at: float
    last_at: float
    ended_at: float | None
    detections: int
    hit_count: int
    cooldown_seconds: int
    spent_requests: int  # that passed within the loop
    spent_tokens: int
    spent_microusd: int
    saved_requests: int  # that were denied
    saved_tokens: int  # as estimated
    saved_microusd: int
    steps: tuple[StepMark, ...] = ()
    score: Mapping[str, Any] = field(default_factory=dict)  # of `simhash`: what added up


def is_blocked(incident: Incident, now: float) -> bool:
    """Tell whether the requests of a loop are being denied, as far as its last detection tells."""
    stopped = incident.state == STOPPED and not incident.shadow
    return stopped and now < incident.last_at + incident.cooldown_seconds


@dataclass(frozen=True, slots=True)
class AgentRecord:
    """An agent as it was seen (SPEC G-1): it appears by itself."""

    project: str
    agent: str
    callers: int
    first_at: float
    last_at: float
    requests: int
    denied: int
    loops: int
    input_tokens: int
    output_tokens: int
    cost_microusd: int
    today_microusd: int
    saved_microusd: int
    model: str  # the last one
    settings: Mapping[str, Any] = field(default_factory=dict)  # at run time, over the bundle's


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """Somebody did something."""

    id: int
    at: float
    who: str  # name of the token
    role: str
    action: str  # `agent.kill`, `bundle.apply`, ...
    target: str
    detail: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TotalsRecord:
    """Sums over a span of time, for the overview."""

    requests: int = 0
    denied: int = 0
    loops: int = 0
    incidents_open: int = 0
    agents: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost_microusd: int = 0
    saved_requests: int = 0
    saved_microusd: int = 0


@dataclass(frozen=True, slots=True)
class Point:
    """One interval of a curve."""

    at: float
    requests: int
    denied: int
    cost_microusd: int
    saved_microusd: int
