"""Alerts: webhooks, what became of their deliveries, and the rules of the settings."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from breakloop.admin.dashboard.page import Pages
from breakloop.admin.dashboard.views import alerts
from breakloop.admin.services import Hooks


class Alerts:
    """The page of alerts."""

    def __init__(self, pages: Pages) -> None:
        self._pages = pages

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [self._pages.get("/alerts", self.page)]

    async def page(self, request: Request) -> Response:
        """Show who is told of what."""
        hooks: Hooks = self._pages.services.hooks
        webhooks, deliveries, rules = await self._pages.services.aside(
            lambda: (hooks.webhooks(), hooks.deliveries(50), hooks.rules())
        )
        values: dict[str, Any] = {
            "webhooks": [alerts.filled(one, alerts.WEBHOOK) for one in webhooks],
            "deliveries": [alerts.filled(one, alerts.DELIVERY) for one in deliveries],
            "rules": [alerts.filled(one, alerts.RULE) for one in rules],
            "endings": alerts.endings(deliveries),
        }
        return await self._pages.show(request, "alerts.html", **values)
