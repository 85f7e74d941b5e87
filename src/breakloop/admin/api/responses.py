"""The response types of the API, from which the OpenAPI document is derived.

Records of the history are returned as they are (`model.records`). A time that never comes is null.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from breakloop.engine.breakers import BreakerState
from breakloop.engine.operator import OverrideOrder, SwitchOrder
from breakloop.engine.quarantine import Hold
from breakloop.model.records import AgentRecord, AuditRecord, EventRecord, Incident, Point, TotalsRecord
from breakloop.policy.compiled import CompiledKillSwitch


class HoldView(msgspec.Struct, kw_only=True):
    """A hold: an agent, a caller or a run in quarantine."""

    binds: str
    project: str
    caller: str
    agent: str
    run: str
    since: float
    until: float | None
    reason: str
    by: str


class AgentView(msgspec.Struct, kw_only=True):
    """An agent and its holds; `stopped_by` is the kill switch that denies all its requests."""

    project: str
    agent: str
    callers: int = 0
    first_at: float | None = None
    last_at: float | None = None
    requests: int = 0
    denied: int = 0
    loops: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost_microusd: int = 0
    today_microusd: int = 0
    saved_microusd: int = 0
    model: str = ""
    settings: dict[str, Any] = {}
    holds: list[HoldView] = []
    stopped_by: str = ""


class AgentsResponse(msgspec.Struct):
    """Agents, the last seen first."""

    agents: list[AgentView]


class AgentSettings(msgspec.Struct):
    """The run-time settings of an agent after the change."""

    project: str
    agent: str
    settings: dict[str, Any]


class SharedOrder(msgspec.Struct):
    """An order that was carried out."""

    shared: bool  # every instance has it, and it is stored


class KillResponse(msgspec.Struct):
    """An agent that is quarantined. If it was never seen, `did_you_mean` is a known agent with a similar name."""

    hold: HoldView
    shared: bool
    seen: bool
    did_you_mean: str


class ReleaseResponse(msgspec.Struct):
    """The holds that ended, and how many loops are no longer blocked."""

    released: list[HoldView]
    loops: int
    shared: bool


class HoldsResponse(msgspec.Struct):
    """All holds."""

    holds: list[HoldView]


class SwitchView(msgspec.Struct, kw_only=True):
    """A kill switch."""

    id: str
    scope_key: str
    scope_value: str
    route: str
    reason: str
    expires_at: float | None
    by: str
    since: float


class SwitchesResponse(msgspec.Struct):
    """Kill switches that were set at run time, without those of the bundle."""

    kill_switches: list[SwitchView]


class SwitchResponse(msgspec.Struct):
    """A kill switch that was set."""

    id: str
    shared: bool


class OverrideView(msgspec.Struct, kw_only=True):
    """An override."""

    name: str
    reason: str
    expires_at: float | None
    by: str
    since: float


class OverridesResponse(msgspec.Struct):
    """Overrides that were set at run time, without those of the bundle."""

    overrides: list[OverrideView]


class SnoozeResponse(msgspec.Struct):
    """A fingerprint that is ignored for some time."""

    fingerprint: str
    until: float


class BreakersResponse(msgspec.Struct):
    """Circuit breakers, open ones first."""

    breakers: list[BreakerState]


class IncidentsResponse(msgspec.Struct):
    """A page of incidents; `next` is the `cursor` of the next page, null on the last one."""

    incidents: list[Incident]
    next: str | None


class EventsResponse(msgspec.Struct):
    """A page of events; `next` is the `before` of the next page, null on the last one."""

    events: list[EventRecord]
    next: int | None


class AuditResponse(msgspec.Struct):
    """A page of the audit log; `next` is the `before` of the next page, null on the last one."""

    audit: list[AuditRecord]
    next: int | None


class CurveResponse(msgspec.Struct):
    """Sums by interval."""

    points: list[Point]


class OverviewResponse(msgspec.Struct):
    """Sums over a span of time."""

    since: float
    totals: TotalsRecord


class ShadowCount(msgspec.Struct):
    """Requests that a policy in shadow mode would have denied."""

    policy: str
    rule: str
    reason: str
    count: int


class ShadowReport(msgspec.Struct):
    """Requests that policies in shadow mode would have denied."""

    shadow: list[ShadowCount]


def hold_view(hold: Hold) -> HoldView:
    return HoldView(
        binds=hold.binds,
        project=hold.project,
        caller=hold.caller,
        agent=hold.agent,
        run=hold.run,
        since=hold.since,
        until=_end(hold.until),
        reason=hold.why,
        by=hold.by,
    )


def switch_view(switch: SwitchOrder) -> SwitchView:
    return SwitchView(**{**switch._asdict(), "expires_at": _end(switch.expires_at)})


def override_view(override: OverrideOrder) -> OverrideView:
    return OverrideView(**{**override._asdict(), "expires_at": _end(override.expires_at)})


def agent_view(agent: AgentRecord, holds: list[HoldView], stops: CompiledKillSwitch | None) -> AgentView:
    seen = {name: getattr(agent, name) for name in AgentRecord.__dataclass_fields__}
    stopped_by = "" if stops is None else stops.name
    return AgentView(**{**seen, "settings": dict(agent.settings), "holds": holds, "stopped_by": stopped_by})


def plain(rows: list[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [dict(row) for row in rows]


def _end(moment: float) -> float | None:
    return None if moment == math.inf else moment
