"""Agents: the list with a search, and the page of one with its incidents, curve, settings and buttons."""

from __future__ import annotations

from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from breakloop.admin.dashboard.overview import points
from breakloop.admin.dashboard.page import Pages
from breakloop.admin.dashboard.views import agents, curves
from breakloop.admin.faults import Fault
from breakloop.history.api import EventFilter, History, IncidentFilter
from breakloop.model.records import is_blocked

LISTED_MAX: Final = 200
FIND_MAX: Final = 200


class Agents:
    """The pages of agents."""

    def __init__(self, pages: Pages) -> None:
        self._pages = pages

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            self._pages.get("/agents", self.list),
            self._pages.get("/agent", self.one),
            self._pages.get("/parts/agent-curve", self.curve),
        ]

    async def list(self, request: Request) -> Response:
        """Show the agents."""
        asked, services = request.query_params, self._pages.services
        find, state = asked.get("find", "")[:FIND_MAX].strip(), asked.get("state", "")
        state = state if state in agents.STATES else ""
        seen = await self._pages.past(lambda h: h.agents(find=find, most=LISTED_MAX))
        holds = services.operator.holds()
        known = {(one.project, one.agent) for one in seen}
        others = [one for one in holds if not one.agent or one.run or (one.project, one.agent) not in known]
        values: dict[str, Any] = {
            "find": find,
            "state": state,
            "states": agents.STATES,
            "rows": agents.rows(seen, holds, services.operator.stops, services.clock.now(), state),
            "others": [] if find or state else others,
            "full": len(seen) >= LISTED_MAX,
        }
        return await self._pages.show(request, "agents.html", **values)

    async def one(self, request: Request) -> Response:
        """Show one agent."""
        project, name = _asked(request, self._pages.services.project)
        services = self._pages.services

        def ask(history: History) -> dict[str, Any]:
            return {
                "agent": history.agent(project, name),
                "incidents": history.incidents(IncidentFilter(project=project, agent=name, most=20)),
                "events": history.events(EventFilter(project=project, agent=name, most=15)),
            }

        found = await self._pages.past(ask)
        agent = found["agent"] or agents.unseen(project, name)
        held = agents.holds_of(agent, services.operator.holds())
        if found["agent"] is None and not held:
            text = f"No agent of the name {name[:100]} has been seen in project {project[:100]}."
            raise Fault(404, text)
        stops, now = services.operator.stops(name), services.clock.now()
        span = curves.span(request.query_params.get("span", ""))
        values = found | {
            "agent": agent,
            "holds": held,
            "stops": stops,
            "blocked": any(is_blocked(one, now) for one in found["incidents"]),
            "state": agents.state_of(agent, held, stops, now),
            "fields": agents.fields(agent.settings),
        }
        curve = await points(self._pages, span, project, name)
        return await self._pages.show(request, "agent.html", **values, **curve)

    async def curve(self, request: Request) -> Response:
        """Show the numbers of an agent's curve again."""
        project, name = _asked(request, self._pages.services.project)
        span = curves.span(request.query_params.get("span", ""))
        return await self._pages.show(request, "parts/curve.html", **await points(self._pages, span, project, name))


def _asked(request: Request, project: str) -> tuple[str, str]:
    return request.query_params.get("project", project), request.query_params.get("name", "")
