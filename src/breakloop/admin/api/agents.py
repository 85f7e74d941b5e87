"""Operations on agents: list, change settings, quarantine and release. An agent's name may contain slashes."""

from __future__ import annotations

from typing import Annotated

import msgspec

from breakloop.admin.api.operations import AgentChanges, Ends, Most, Name, Operation, OperationRequest, ends
from breakloop.admin.api.responses import (
    AgentSettings,
    AgentsResponse,
    AgentView,
    HoldsResponse,
    HoldView,
    KillResponse,
    ReleaseResponse,
    agent_view,
    hold_view,
)
from breakloop.admin.errors import ApiError
from breakloop.engine.quarantine import CALLER

Reason = Annotated[str, msgspec.Meta(min_length=1, max_length=256, description="Reason, shown to people.")]


class ProjectQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which project."""

    project: Name = ""


class AgentsQuery(ProjectQuery, forbid_unknown_fields=True, kw_only=True):
    """Which agents."""

    find: Annotated[str, msgspec.Meta(max_length=256, description="Part of the name.")] = ""
    most: Most = 200


class KillBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Quarantine an agent by its name, for all callers."""

    reason: Reason
    expires_at: Ends = None


class EmptyBody(msgspec.Struct, forbid_unknown_fields=True):
    """An empty body."""


class ReleaseBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Whose holds to end; at least one of these."""

    agent: Name = ""
    caller: Name = ""
    run: Name = ""


async def agents(request: OperationRequest) -> AgentsResponse:
    """Return the agents that match, of one project or of all; then those that are quarantined and were never seen."""
    query, history, stops = request.query, request.services.history, request.services.operator.stops
    found = await request.services.in_thread(lambda: history.agents(query.project, query.find, query.most))
    holds = _holds(request)
    seen = [agent_view(one, _of(holds, one.project, one.agent), stops(one.agent)) for one in found]
    return AgentsResponse((seen + await _unseen(request, holds))[: query.most])


async def agent(request: OperationRequest) -> AgentView:
    """Return an agent, also one that is quarantined and was never seen."""
    name, project, history = request.path["id"], request.project, request.services.history
    found = await request.services.in_thread(lambda: history.agent(project, name))
    holds = _of(_holds(request), project, name)
    if found is not None:
        return agent_view(found, holds, request.services.operator.stops(name))
    if not holds:
        raise ApiError(404, "there is no such agent in this project", code="unknown_agent")
    return AgentView(project=project, agent=name, holds=holds)


async def change(request: OperationRequest) -> AgentSettings:
    name = request.path["id"]
    settings = await request.actions.set_agent(request.project, name, request.body)
    return AgentSettings(request.project, name, settings)


async def kill(request: OperationRequest) -> KillResponse:
    until = ends(request.body.expires_at)
    name, actions = request.path["id"], request.actions
    hold, shared = await actions.kill(request.project, name, request.body.reason, until)
    seen, meant = await actions.seen(request.project, name)
    return KillResponse(hold_view(hold), shared, seen, meant)


async def release(request: OperationRequest) -> ReleaseResponse:
    ended, loops, shared = await request.actions.release(request.project, agent=_named(request.path["id"]))
    return ReleaseResponse([hold_view(one) for one in ended], loops, shared)


async def quarantine(request: OperationRequest) -> HoldsResponse:
    wanted = request.query.project
    return HoldsResponse([one for one in _holds(request) if wanted in {"", one.project}])


async def release_any(request: OperationRequest) -> ReleaseResponse:
    body, release = request.body, request.actions.release
    ended, loops, shared = await release(request.project, agent=body.agent, caller=body.caller, run=body.run)
    return ReleaseResponse([hold_view(one) for one in ended], loops, shared)


async def _unseen(request: OperationRequest, holds: list[HoldView]) -> list[AgentView]:
    """Return agents that are quarantined by name and were never seen: a mistyped name shows up here."""
    query, history = request.query, request.services.history
    find = query.find.lower()
    held = {(one.project, one.agent) for one in holds if one.agent and one.binds != CALLER}
    wanted = sorted(who for who in held if query.project in {"", who[0]} and find in who[1].lower())
    found = await request.services.in_thread(lambda: [who for who in wanted if history.agent(*who) is None])
    return [AgentView(project=who[0], agent=who[1], holds=_of(holds, *who)) for who in found]


def _named(agent: str) -> str:
    if not agent:
        raise ApiError(400, "must not be empty", field="id")
    return agent


def _holds(request: OperationRequest) -> list[HoldView]:
    return [hold_view(hold) for hold in request.services.operator.holds()]


def _of(holds: list[HoldView], project: str, agent: str) -> list[HoldView]:
    return [one for one in holds if one.project == project and one.agent == agent and one.binds != CALLER]


OPERATIONS = (
    Operation("GET", "/agents", "listAgents", "List agents, the last seen first", agents, AgentsResponse, AgentsQuery),
    Operation("GET", "/agents/{id}", "getAgent", "Show one agent", agent, AgentView, ProjectQuery),
    Operation(
        "PATCH",
        "/agents/{id}",
        "setAgent",
        "Change an agent's settings, as in the bundle's `agents`; null removes a setting",
        change,
        AgentSettings,
        ProjectQuery,
        AgentChanges,
        acts=True,
    ),
    Operation(
        "POST",
        "/agents/{id}/kill",
        "killAgent",
        "Quarantine an agent by its name, until released or until it expires",
        kill,
        KillResponse,
        ProjectQuery,
        KillBody,
        acts=True,
    ),
    Operation(
        "POST",
        "/agents/{id}/release",
        "releaseAgent",
        "End all holds on an agent, and clear its loops",
        release,
        ReleaseResponse,
        ProjectQuery,
        EmptyBody,
        acts=True,
    ),
    Operation("GET", "/quarantine", "listHolds", "List all holds", quarantine, HoldsResponse, ProjectQuery),
    Operation(
        "POST",
        "/quarantine/release",
        "releaseHolds",
        "End the holds on an agent, a caller or a run",
        release_any,
        ReleaseResponse,
        ProjectQuery,
        ReleaseBody,
        acts=True,
    ),
)
