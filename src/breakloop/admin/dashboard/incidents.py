"""Incidents: the list with filters, and the page of one with the picture of its steps, evidence, money and buttons."""

from __future__ import annotations

import math
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from breakloop.admin.dashboard.page import Pages
from breakloop.admin.dashboard.views import incidents, timeline, words
from breakloop.admin.faults import Fault
from breakloop.detect.steps.kinds import ABOUT
from breakloop.history.api import EventFilter, History, IncidentFilter
from breakloop.model.records import is_blocked

LISTED: Final = 50
KINDS: Final = ("exact", "tail", "simhash", "stream", *ABOUT)


class Incidents:
    """The pages of incidents."""

    def __init__(self, pages: Pages) -> None:
        self._pages = pages

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            self._pages.get("/incidents", self.list),
            self._pages.get("/parts/incidents", self.part),
            self._pages.get("/incidents/{incident}", self.one),
        ]

    async def list(self, request: Request) -> Response:
        """Show the incidents that are asked for."""
        return await self._pages.show(request, "incidents.html", **await self._found(request))

    async def part(self, request: Request) -> Response:
        """Show the list again."""
        return await self._pages.show(request, "parts/incidents.html", **await self._found(request))

    async def _found(self, request: Request) -> dict[str, Any]:
        asked = request.query_params
        state, shadow = asked.get("state", ""), {"yes": True, "no": False}.get(asked.get("shadow", ""))
        agent, kind = asked.get("agent", "").strip()[:200], asked.get("kind", "")[:40]
        before = _number(asked.get("before", ""))
        state = state if state in incidents.STATES else ""
        wanted = IncidentFilter(state=state, agent=agent, kind=kind, shadow=shadow, before=before, most=LISTED)
        found = await self._pages.past(lambda h: h.incidents(wanted))
        chosen = {"state": state, "agent": agent, "kind": kind, "shadow": asked.get("shadow", "")}
        more = {**chosen, "before": repr(found[-1].last_at)} if len(found) == LISTED else None
        shown = found if state or math.isfinite(before) else incidents.first_open(found)
        values = {"chosen": chosen, "states": incidents.STATES, "kinds": KINDS, "more": more, "incidents": shown}
        return values | {"paged": math.isfinite(before), "filtered": any(chosen.values())}

    async def one(self, request: Request) -> Response:
        """Show one incident."""
        name = request.path_params["incident"]

        def ask(history: History) -> dict[str, Any]:
            incident = history.incident(name)
            related = history.events(EventFilter(incident=name, most=50)) if incident is not None else []
            return {"incident": incident, "events": related}

        found = await self._pages.past(ask)
        incident = found["incident"]
        if incident is None:
            raise Fault(404, "There is no such incident. It may be older than what is kept.")
        values = found | {
            "picture": timeline.picture(incident.steps),
            "small": timeline.picture(incident.steps, columns=10),
            "score": incidents.score(incident.score),
            "hold": incidents.held(incident, self._pages.services.operator.holds()),
            "blocked": is_blocked(incident, self._pages.services.clock.now()),
            "means": incidents.state_means(incident),
            "lasted": words.lasted(incident.last_at - incident.first_at),
        }
        return await self._pages.show(request, "incident.html", **values)


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        return math.inf
    return math.inf if math.isnan(value) else value
