"""Events: what happened, with filters, page by page, and live."""

from __future__ import annotations

from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from breakloop.admin.dashboard.page import Pages
from breakloop.admin.dashboard.views import words
from breakloop.history.api import EventFilter

LISTED: Final = 50


class Events:
    """The page of events."""

    def __init__(self, pages: Pages) -> None:
        self._pages = pages

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [self._pages.get("/events", self.page), self._pages.get("/parts/events", self.part)]

    async def page(self, request: Request) -> Response:
        """Show the events that are asked for."""
        return await self._pages.show(request, "events.html", **await self._found(request))

    async def part(self, request: Request) -> Response:
        """Show the newest again."""
        return await self._pages.show(request, "parts/events.html", **await self._found(request))

    async def _found(self, request: Request) -> dict[str, Any]:
        asked = request.query_params
        chosen = {name: asked.get(name, "").strip()[:200] for name in ("name", "agent", "incident")}
        given = asked.get("before", "")
        before = int(given) if given.isdecimal() and len(given) < 19 else 0
        names = (chosen["name"],) if chosen["name"] else ()
        wanted = EventFilter(
            names=names, agent=chosen["agent"], incident=chosen["incident"], before=before, most=LISTED
        )
        found = await self._pages.past(lambda h: h.events(wanted))
        more = {**chosen, "before": str(found[-1].id)} if len(found) == LISTED else None
        return {
            "events": found,
            "chosen": chosen,
            "names": words.EVENT_NAMES,
            "more": more,
            "paged": bool(before),
            "filtered": any(chosen.values()),
        }
