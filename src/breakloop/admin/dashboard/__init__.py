"""The dashboard: pages for people, rendered here, on the admin port.

`dashboard_routes`: all pages, parts and actions of the dashboard, for the admin app to serve behind its guard.
"""

from __future__ import annotations

from starlette.routing import BaseRoute

from breakloop.admin.auth import SessionCookies
from breakloop.admin.dashboard import actions
from breakloop.admin.dashboard.actions import DashboardActions
from breakloop.admin.dashboard.pages import (
    AgentsPages,
    AlertsPage,
    EventsPage,
    IncidentsPages,
    LimitsPage,
    LiveUpdates,
    LoginPage,
    OverviewPage,
    PoliciesPage,
    RecordsPages,
)
from breakloop.admin.dashboard.render import STATIC, PageRenderer, mounted
from breakloop.admin.services import AdminServices

_PARTS = (
    OverviewPage,
    AgentsPages,
    IncidentsPages,
    PoliciesPage,
    LimitsPage,
    EventsPage,
    AlertsPage,
    RecordsPages,
    LiveUpdates,
)
_ACTS = (
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


def dashboard_routes(services: AdminServices, sessions: SessionCookies) -> list[BaseRoute]:
    """Return the routes; `admin.guard` has found out who asks before any of them is reached, but for the login
    and static files."""
    pages = PageRenderer(services)
    found: list[BaseRoute] = [mounted(STATIC)]
    for part in _PARTS:
        found += part(pages).routes()
    return [
        *found,
        *LoginPage(pages, sessions).routes(),
        *DashboardActions(pages, [act(services) for act in _ACTS]).routes(),
    ]
