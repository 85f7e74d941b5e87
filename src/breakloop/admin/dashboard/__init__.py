"""The dashboard: pages for people, rendered here, on the admin port.

`dashboard_routes`: all pages, parts and actions of the dashboard, for the admin app to serve behind its guard.
"""

from __future__ import annotations

from starlette.routing import BaseRoute

from breakloop.admin.dashboard import actions
from breakloop.admin.dashboard.actions import Acts
from breakloop.admin.dashboard.pages import (
    Agents,
    Alerts,
    Door,
    Events,
    Incidents,
    Limits,
    Live,
    Login,
    Overview,
    Policies,
    Records,
)
from breakloop.admin.dashboard.render import STATIC, Pages, mounted
from breakloop.admin.services import Services

_PARTS = (Overview, Agents, Incidents, Policies, Limits, Events, Alerts, Records, Live)
_ACTS = (
    actions.Kill,
    actions.Release,
    actions.Settings,
    actions.Snooze,
    actions.LiftOverride,
    actions.LiftSwitch,
    actions.Promote,
    actions.ResetBreaker,
    actions.SetOverride,
    actions.SetSwitch,
    actions.Add,
    actions.Again,
    actions.Remove,
    actions.Rotate,
    actions.Try,
)


def dashboard_routes(services: Services, door: Door) -> list[BaseRoute]:
    """Return the routes; `admin.guard` has found out who asks before any of them is reached, but for the login
    and static files."""
    pages = Pages(services)
    found: list[BaseRoute] = [mounted(STATIC)]
    for part in _PARTS:
        found += part(pages).routes()
    return [*found, *Login(pages, door).routes(), *Acts(pages, [act(services) for act in _ACTS]).routes()]
