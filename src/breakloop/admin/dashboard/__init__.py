"""The dashboard: server-rendered pages on the admin port.

A page is one class in `pages` and one row in `PAGES`; an action is one class in `actions` and one row in `ACTIONS`.
"""

from __future__ import annotations

from typing import Final

from starlette.routing import BaseRoute

from breakloop.admin.actions import AdminServices
from breakloop.admin.auth import SessionCookies
from breakloop.admin.dashboard import actions, pages
from breakloop.admin.dashboard.render import STATIC, PageRenderer, mounted

# In the order of the navigation.
PAGES: Final[tuple[type[pages.Page], ...]] = (
    pages.OverviewPage,
    pages.IncidentsPages,
    pages.AgentsPages,
    pages.PoliciesPage,
    pages.LimitsPage,
    pages.EventsPage,
    pages.AlertsPage,
    pages.RecordsPages,
    pages.LiveUpdates,
)
ACTIONS: Final[tuple[type[actions.DashboardAction], ...]] = (
    actions.KillAction,
    actions.ReleaseAction,
    actions.SettingsAction,
    actions.SnoozeAction,
    actions.LiftOverrideAction,
    actions.LiftSwitchAction,
    actions.PromoteAction,
    actions.ResetBreakerAction,
    actions.SetOverrideAction,
    actions.SetSwitchAction,
    actions.AddWebhookAction,
    actions.RetryDeliveryAction,
    actions.RemoveWebhookAction,
    actions.RotateSecretAction,
    actions.TestAlertAction,
)


def page_renderer(services: AdminServices) -> PageRenderer:
    """Return a renderer with the navigation of all pages."""
    return PageRenderer(services, [entry for page in PAGES for entry in page.nav])


def dashboard_routes(renderer: PageRenderer, sessions: SessionCookies) -> list[BaseRoute]:
    """Return all routes. Except for the login form and static files they need an authenticated request."""
    routes: list[BaseRoute] = [mounted(STATIC)]
    for page in PAGES:
        routes += page(renderer).routes()
    routes += pages.LoginPage(renderer, sessions).routes()
    routes += actions.DashboardActions(renderer, [action(renderer.services) for action in ACTIONS]).routes()
    return routes
