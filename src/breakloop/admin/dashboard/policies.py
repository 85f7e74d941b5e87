"""Policies: what is in force, in words, and what those in shadow mode would have blocked."""

from __future__ import annotations

from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from breakloop.admin.dashboard.page import Pages
from breakloop.admin.dashboard.views import policies
from breakloop.history.api import EventFilter, History
from breakloop.model.events import SHADOW_WOULD_REJECT

SHADOW_S: Final = 7 * 86_400
SHADOW_EVENTS: Final = 200


class Policies:
    """The page of policies."""

    def __init__(self, pages: Pages) -> None:
        self._pages = pages

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [self._pages.get("/policies", self.page)]

    async def page(self, request: Request) -> Response:
        """Show the policies of the bundle in force."""
        services = self._pages.services
        since = services.clock.now() - SHADOW_S

        def ask(history: History) -> tuple[Any, Any]:
            wanted = EventFilter(names=(SHADOW_WOULD_REJECT,), since=since, most=SHADOW_EVENTS)
            return history.shadow(since), history.events(wanted)

        counts, events = await self._pages.past(ask)
        values: dict[str, Any] = {
            "bundle": dict(services.bundles.current()),
            "earlier": services.bundles.earlier(),
            "policies": policies.policies(services.bundles.policies(), counts, events),
            "overrides": services.operator.overrides(),
        }
        return await self._pages.show(request, "policies.html", **values)
