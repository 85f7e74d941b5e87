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


async def agents(asked: OperationRequest) -> AgentsResponse:
    """Return the agents that match, of one project or of all; then those that are quarantined and were never seen."""
    query, history, stops = asked.query, asked.services.history, asked.services.operator.stops
    found = await asked.services.in_thread(lambda: history.agents(query.project, query.find, query.most))
    holds = _holds(asked)
    seen = [agent_view(one, _of(holds, one.project, one.agent), stops(one.agent)) for one in found]
    return AgentsResponse((seen + await _unseen(asked, holds))[: query.most])


async def agent(asked: OperationRequest) -> AgentView:
    """Return an agent, also one that is quarantined and was never seen."""
    name, project, history = asked.path["id"], asked.project, asked.services.history
    found = await asked.services.in_thread(lambda: history.agent(project, name))
    holds = _of(_holds(asked), project, name)
    if found is not None:
        return agent_view(found, holds, asked.services.operator.stops(name))
    if not holds:
        raise ApiError(404, "there is no such agent in this project", code="unknown_agent")
    return AgentView(project=project, agent=name, holds=holds)


async def change(asked: OperationRequest) -> AgentSettings:
    name = asked.path["id"]
    settings = await asked.actions.set_agent(asked.project, name, asked.body)
    return AgentSettings(asked.project, name, settings)


async def kill(asked: OperationRequest) -> KillResponse:
    until = ends(asked.body.expires_at)
    name, actions = asked.path["id"], asked.actions
    hold, shared = await actions.kill(asked.project, name, asked.body.reason, until)
    seen, meant = await actions.seen(asked.project, name)
    return KillResponse(hold_view(hold), shared, seen, meant)


async def release(asked: OperationRequest) -> ReleaseResponse:
    ended, loops, shared = await asked.actions.release(asked.project, agent=_named(asked.path["id"]))
    return ReleaseResponse([hold_view(one) for one in ended], loops, shared)


async def quarantine(asked: OperationRequest) -> HoldsResponse:
    wanted = asked.query.project
    return HoldsResponse([one for one in _holds(asked) if wanted in {"", one.project}])


async def release_any(asked: OperationRequest) -> ReleaseResponse:
    body, release = asked.body, asked.actions.release
    ended, loops, shared = await release(asked.project, agent=body.agent, caller=body.caller, run=body.run)
    return ReleaseResponse([hold_view(one) for one in ended], loops, shared)


async def _unseen(asked: OperationRequest, holds: list[HoldView]) -> list[AgentView]:
    """Return agents that are quarantined by name and were never seen: a mistyped name shows up here."""
    query, history = asked.query, asked.services.history
    find = query.find.lower()
    held = {(one.project, one.agent) for one in holds if one.agent and one.binds != CALLER}
    wanted = sorted(who for who in held if query.project in {"", who[0]} and find in who[1].lower())
    found = await asked.services.in_thread(lambda: [who for who in wanted if history.agent(*who) is None])
    return [AgentView(project=who[0], agent=who[1], holds=_of(holds, *who)) for who in found]


def _named(agent: str) -> str:
    if not agent:
        raise ApiError(400, "must not be empty", field="id")
    return agent


def _holds(asked: OperationRequest) -> list[HoldView]:
    return [hold_view(hold) for hold in asked.services.operator.holds()]


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
