"""Operations on agents: list, change settings, quarantine and release. An agent's name may contain slashes."""

from __future__ import annotations

import math
from typing import Annotated, Any

import msgspec

from breakloop.admin.actions import Stopped
from breakloop.admin.api.operations import AgentChanges, Ends, Most, Name, OperationRequest, Operations, Reason, ends
from breakloop.admin.errors import ApiError
from breakloop.engine.quarantine import CALLER, Hold
from breakloop.model.records import AgentRecord
from breakloop.policy.compiled import CompiledKillSwitch

OPERATIONS = Operations()


class ProjectQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which project."""

    project: Name = ""


class AgentsQuery(ProjectQuery, forbid_unknown_fields=True, kw_only=True):
    """Which agents."""

    find: Annotated[str, msgspec.Meta(max_length=256, description="Part of the name.")] = ""
    most: Most = 200


class KillBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Quarantine an agent by its name, of one caller or, without `caller`, of all."""

    reason: Reason
    expires_at: Ends = None
    caller: Name = ""


class EmptyBody(msgspec.Struct, forbid_unknown_fields=True):
    """An empty body."""


class ReleaseBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Whose holds to end; at least one of these."""

    agent: Name = ""
    caller: Name = ""
    run: Name = ""


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


class StoppedView(msgspec.Struct):
    """Calls in flight that were stopped, on all instances that answered within a second; streams are calls, too."""

    calls: int
    streams: int
    agents: list[str]


class KillResponse(msgspec.Struct):
    """An agent that is quarantined. If it was never seen, `did_you_mean` is a known agent with a similar name."""

    hold: HoldView
    shared: bool
    seen: bool
    did_you_mean: str
    stopped: StoppedView


class ReleaseResponse(msgspec.Struct):
    """The holds that ended, and how many loops are no longer blocked."""

    released: list[HoldView]
    loops: int
    shared: bool


class HoldsResponse(msgspec.Struct):
    """All holds."""

    holds: list[HoldView]


@OPERATIONS("GET", "/agents", "listAgents", query=AgentsQuery)
async def agents(request: OperationRequest) -> AgentsResponse:
    """List agents, the last seen first."""
    query, stops = request.query, request.services.operator.stops
    found = await request.past(lambda history: history.agents(query.project, query.find, query.most))
    holds = _holds(request)
    seen = [agent_view(one, _of(holds, one.project, one.agent), stops(one.agent)) for one in found]
    return AgentsResponse((seen + await _unseen(request, holds))[: query.most])


@OPERATIONS("GET", "/agents/{id}", "getAgent", query=ProjectQuery)
async def agent(request: OperationRequest) -> AgentView:
    """Show one agent."""
    name, project = request.path["id"], request.project
    found = await request.past(lambda history: history.agent(project, name))
    holds = _of(_holds(request), project, name)
    if found is not None:
        return agent_view(found, holds, request.services.operator.stops(name))
    if not holds:
        raise ApiError(404, "there is no such agent in this project", code="unknown_agent")
    return AgentView(project=project, agent=name, holds=holds)


@OPERATIONS("PATCH", "/agents/{id}", "setAgent", query=ProjectQuery, body=AgentChanges, acts=True)
async def change(request: OperationRequest) -> AgentSettings:
    """Change an agent's settings, as in the bundle's `agents`; null removes a setting."""
    name = request.path["id"]
    settings = await request.actions.set_agent(request.project, name, request.body)
    return AgentSettings(request.project, name, settings)


def stopped_view(stopped: Stopped) -> StoppedView:
    """Return what an order has stopped, for an answer."""
    return StoppedView(stopped.calls, stopped.streams, stopped.agents)


@OPERATIONS("POST", "/agents/{id}/kill", "killAgent", query=ProjectQuery, body=KillBody, acts=True)
async def kill(request: OperationRequest) -> KillResponse:
    """Quarantine an agent by its name and the sessions that it started, until released or until it expires, and stop
    their calls in flight."""
    until = ends(request.body.expires_at)
    name, actions = request.path["id"], request.actions
    hold, stopped = await actions.kill(request.project, name, request.body.reason, until, caller=request.body.caller)
    seen, meant = await actions.seen(request.project, name)
    return KillResponse(hold_view(hold), stopped.shared, seen, meant, stopped_view(stopped))


@OPERATIONS("POST", "/agents/{id}/release", "releaseAgent", query=ProjectQuery, body=EmptyBody, acts=True)
async def release(request: OperationRequest) -> ReleaseResponse:
    """End all holds on an agent, and clear its loops."""
    if not request.path["id"]:
        raise ApiError(400, "must not be empty", field="id")
    ended, loops, shared = await request.actions.release(request.project, agent=request.path["id"])
    return ReleaseResponse([hold_view(one) for one in ended], loops, shared)


@OPERATIONS("GET", "/quarantine", "listHolds", query=ProjectQuery)
async def quarantine(request: OperationRequest) -> HoldsResponse:
    """List all holds."""
    wanted = request.query.project
    return HoldsResponse([one for one in _holds(request) if wanted in {"", one.project}])


@OPERATIONS("POST", "/quarantine/release", "releaseHolds", query=ProjectQuery, body=ReleaseBody, acts=True)
async def release_any(request: OperationRequest) -> ReleaseResponse:
    """End the holds on an agent, a caller or a run."""
    body, release = request.body, request.actions.release
    ended, loops, shared = await release(request.project, agent=body.agent, caller=body.caller, run=body.run)
    return ReleaseResponse([hold_view(one) for one in ended], loops, shared)


async def _unseen(request: OperationRequest, holds: list[HoldView]) -> list[AgentView]:
    """Return agents that are quarantined by name and were never seen: a mistyped name shows up here."""
    query, find = request.query, request.query.find.lower()
    held = {(one.project, one.agent) for one in holds if one.agent and one.binds != CALLER}
    wanted = sorted(who for who in held if query.project in {"", who[0]} and find in who[1].lower())
    found = await request.past(lambda history: [who for who in wanted if history.agent(*who) is None])
    return [AgentView(project=who[0], agent=who[1], holds=_of(holds, *who)) for who in found]


def _holds(request: OperationRequest) -> list[HoldView]:
    return [hold_view(hold) for hold in request.services.operator.holds()]


def _of(holds: list[HoldView], project: str, agent: str) -> list[HoldView]:
    return [one for one in holds if one.project == project and one.agent == agent and one.binds != CALLER]


def hold_view(hold: Hold) -> HoldView:
    shown = {name: getattr(hold, name) for name in ("binds", "project", "caller", "agent", "run", "since", "by")}
    return HoldView(**shown, until=end(hold.until), reason=hold.why)


def agent_view(agent: AgentRecord, holds: list[HoldView], stops: CompiledKillSwitch | None) -> AgentView:
    seen = {name: getattr(agent, name) for name in AgentRecord.__dataclass_fields__}
    stopped_by = "" if stops is None else stops.name
    return AgentView(**{**seen, "settings": dict(agent.settings), "holds": holds, "stopped_by": stopped_by})


def end(moment: float) -> float | None:
    """Return a time; None for one that never comes."""
    return None if moment == math.inf else moment
