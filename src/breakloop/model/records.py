"""Records of the history: events, incidents, agents, totals and the audit log, and the filters of queries. Written by
`history`, shown by `admin`.

Records contain names, digests and counts, never prompts. Money is in integer micro-dollars, times are in seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

OPEN, STOPPED, CLEARED = "open", "stopped", "cleared"  # states of an incident: warned only; denied or killed; ended


@dataclass(frozen=True, slots=True)
class EventRecord:
    """A stored event. `id` increases with time, so a reader can continue after the last id that it has."""

    id: int
    name: str
    at: float
    project: str
    agent: str
    request_id: str
    incident: str  # "" if the event belongs to no incident
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class StepMark:
    """One step of a session, as shown in the timeline of an incident."""

    at: float
    tools: str  # names of the tools called; "" for text only
    step: str  # hex; equal for equal steps
    result: str  # hex; equal for equal results
    size: int  # size of the results in bytes
    failed: bool
    verdict: str  # "pass", "warn", "steer", "throttle", "land", "pause", "deny"


@dataclass(frozen=True, slots=True)
class Incident:
    """One loop, with its detections, cost and savings."""

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
    spent_requests: int  # requests allowed within the loop
    spent_tokens: int
    spent_microusd: int
    saved_requests: int  # requests denied
    saved_tokens: int  # estimated
    saved_microusd: int
    steps: tuple[StepMark, ...] = ()
    score: Mapping[str, Any] = field(default_factory=dict)  # for `simhash`: the components of the score


def is_blocked(incident: Incident, now: float) -> bool:
    """Return whether the requests of a loop are being denied, judging by its last detection."""
    stopped = incident.state == STOPPED and not incident.shadow
    return stopped and now < incident.last_at + incident.cooldown_seconds


@dataclass(frozen=True, slots=True)
class AgentRecord:
    """An agent, as observed. Agents are recorded on their first request and need no registration."""

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
    model: str  # most recently used
    settings: Mapping[str, Any] = field(default_factory=dict)  # set at run time; they override the bundle


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """One operator action."""

    id: int
    at: float
    who: str  # name of the API token
    role: str
    action: str  # `agent.kill`, `bundle.apply`, ...
    target: str
    detail: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TotalsRecord:
    """Sums over a time range, for the overview."""

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
    """One interval of a time series."""

    at: float
    requests: int
    denied: int
    cost_microusd: int
    saved_microusd: int


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Selects events, the newest first. With `after` they are the ones behind that id, the oldest first."""

    names: Sequence[str] = ()
    project: str = ""
    agent: str = ""
    incident: str = ""
    since: float = 0.0
    until: float = float("inf")
    before: int = 0  # the page behind this id
    after: int = 0
    most: int = 50


@dataclass(frozen=True, slots=True)
class IncidentFilter:
    """Selects incidents, the newest first."""

    state: str = ""
    project: str = ""
    agent: str = ""
    kind: str = ""
    shadow: bool | None = None
    policy: str = ""
    before: float = float("inf")  # the page behind this `last_at`
    before_id: str = (
        ""  # with `before`: the last incident of the previous page, so that none with the same time is skipped
    )
    most: int = 50
