"""`dashboard_routes`: all pages, parts and actions of the dashboard, for the admin app to serve behind its guard."""

from __future__ import annotations

from starlette.routing import BaseRoute

from breakloop.admin.dashboard import act_agents, act_limits, act_webhooks
from breakloop.admin.dashboard.acts import Acts
from breakloop.admin.dashboard.agents import Agents
from breakloop.admin.dashboard.alerts import Alerts
from breakloop.admin.dashboard.events import Events
from breakloop.admin.dashboard.incidents import Incidents
from breakloop.admin.dashboard.limits import Limits
from breakloop.admin.dashboard.live import Live
from breakloop.admin.dashboard.login import Door, Login
from breakloop.admin.dashboard.overview import Overview
from breakloop.admin.dashboard.page import Pages
from breakloop.admin.dashboard.policies import Policies
from breakloop.admin.dashboard.records import Records
from breakloop.admin.dashboard.static import mounted
from breakloop.admin.dashboard.templating import STATIC
from breakloop.admin.services import Services

_PARTS = (Overview, Agents, Incidents, Policies, Limits, Events, Alerts, Records, Live)
_ACTS = (
    act_agents.Kill,
    act_agents.Release,
    act_agents.Settings,
    act_agents.Snooze,
    act_limits.LiftOverride,
    act_limits.LiftSwitch,
    act_limits.Promote,
    act_limits.ResetBreaker,
    act_limits.SetOverride,
    act_limits.SetSwitch,
    act_webhooks.Add,
    act_webhooks.Again,
    act_webhooks.Remove,
    act_webhooks.Rotate,
    act_webhooks.Try,
)


def dashboard_routes(services: Services, door: Door) -> list[BaseRoute]:
    """Return the routes; `admin.guard` has found out who asks before any of them is reached, but for the login
    and static files."""
    pages = Pages(services)
    found: list[BaseRoute] = [mounted(STATIC)]
    for part in _PARTS:
        found += part(pages).routes()
    return [*found, *Login(pages, door).routes(), *Acts(pages, [act(services) for act in _ACTS]).routes()]
