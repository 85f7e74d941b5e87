"""The overview: what was saved, what goes on, what needs a look. Its parts are asked for again as things happen."""

from __future__ import annotations

from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from breakloop.admin.dashboard.page import Pages
from breakloop.admin.dashboard.views import agents, curves, incidents
from breakloop.history.api import History, IncidentFilter
from breakloop.model.records import OPEN, STOPPED

INCIDENTS: Final = 6
HELD: Final = 4


class Overview:
    """The first page."""

    def __init__(self, pages: Pages) -> None:
        self._pages = pages

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            self._pages.get("/", self.page),
            self._pages.get("/parts/overview", self.part),
            self._pages.get("/parts/curve", self.curve),
        ]

    async def page(self, request: Request) -> Response:
        """Show everything."""
        values = await self._sums(request) | await self._points(request)
        return await self._pages.show(request, "overview.html", **values)

    async def part(self, request: Request) -> Response:
        """Show the numbers, incidents and agents again."""
        return await self._pages.show(request, "parts/overview.html", **await self._sums(request))

    async def curve(self, request: Request) -> Response:
        """Show the numbers of the curve again."""
        return await self._pages.show(request, "parts/curve.html", **await self._points(request))

    async def _sums(self, request: Request) -> dict[str, Any]:
        now, span = self._pages.services.clock.now(), curves.span(request.query_params.get("span", ""))

        def ask(history: History) -> dict[str, Any]:
            found = {one.id: one for one in history.incidents(IncidentFilter(most=INCIDENTS))}
            for state in (OPEN, STOPPED):
                found |= {one.id: one for one in history.incidents(IncidentFilter(state=state, most=INCIDENTS))}
            return {
                "totals": history.totals(span.since(now)),
                "minute": history.totals(now - 60),
                "incidents": incidents.first_open(found.values())[:INCIDENTS],
                "dearest": agents.dearest(history.agents()),
            }

        holds = self._pages.services.operator.holds()
        found: dict[str, Any] = await self._pages.past(ask)
        return found | {"span": span, "spans": curves.SPANS, "held": len(holds), "holds": holds[-HELD:][::-1]}

    async def _points(self, request: Request) -> dict[str, Any]:
        span = curves.span(request.query_params.get("span", ""))
        return await points(self._pages, span)


async def points(pages: Pages, span: curves.Span, project: str = "", agent: str = "") -> dict[str, Any]:
    """Return what the template of a curve needs."""
    now = pages.services.clock.now()
    found = await pages.past(lambda h: h.curve(span.since(now), now, span.step_s, project, agent))
    return {
        "span": span,
        "spans": curves.SPANS,
        "chart": curves.chart(found),
        "chart_rows": curves.table(found),
        "chart_any": curves.anything(found),
        "chart_query": {"span": span.name} | ({"project": project, "name": agent} if agent else {}),
    }
