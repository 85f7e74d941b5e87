"""What there is to read, and nothing to press: the audit log, and the settings in force."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from breakloop.admin.dashboard.page import Pages

LISTED: Final = 100


class Records:
    """The pages of the audit log and of settings."""

    def __init__(self, pages: Pages) -> None:
        self._pages = pages

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [self._pages.get("/audit", self.audit), self._pages.get("/settings", self.settings)]

    async def audit(self, request: Request) -> Response:
        """Show who did what."""
        given = request.query_params.get("before", "")
        before = int(given) if given.isdecimal() and len(given) < 19 else 0
        found = await self._pages.past(lambda h: h.audit(before, LISTED))
        more = {"before": str(found[-1].id)} if len(found) == LISTED else None
        return await self._pages.show(request, "audit.html", entries=found, more=more, paged=bool(before))

    async def settings(self, request: Request) -> Response:
        """Show each value and where it comes from; secrets are masked before they come here."""
        return await self._pages.show(request, "settings.html", settings=list(self._pages.services.settings()))
