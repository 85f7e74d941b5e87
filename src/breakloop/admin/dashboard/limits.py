"""Limits: breakers, kill switches and overrides, and a look at what is counted under a key."""

from __future__ import annotations

from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from breakloop.admin.dashboard.act_limits import OVERRIDES
from breakloop.admin.dashboard.page import Pages
from breakloop.admin.dashboard.views import counters
from breakloop.errors import StateError

PREFIX_MAX: Final = 300


class Limits:
    """The page of limits."""

    def __init__(self, pages: Pages) -> None:
        self._pages = pages

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [self._pages.get("/limits", self.page)]

    async def page(self, request: Request) -> Response:
        """Show what limits there are; a store that is away is said, and the rest is shown."""
        services, prefix = self._pages.services, request.query_params.get("prefix", "")[:PREFIX_MAX].strip()
        trouble, breakers, found = "", [], []
        try:
            breakers = await services.breakers()
            found = await services.counters(prefix) if prefix else []
        except StateError as error:
            trouble = str(error)
        columns, rows = counters.table(found)
        on = {one.name: one for one in services.operator.overrides()}
        values: dict[str, Any] = {
            "prefix": prefix,
            "trouble": trouble,
            "breakers": breakers,
            "switches": services.operator.switches(),
            "overrides": [(name, says, on.get(name)) for name, says in OVERRIDES.items()],
            "columns": columns,
            "rows": rows,
        }
        return await self._pages.show(request, "limits.html", **values)
