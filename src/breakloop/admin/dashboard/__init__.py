"""The dashboard: server-rendered pages on the admin port.

A page is one function in `pages`, an action one function in `actions`; each has a template.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route

from breakloop.admin.actions import AdminServices
from breakloop.admin.auth import Auth
from breakloop.admin.dashboard import actions, pages
from breakloop.admin.dashboard.answers import AnswerPage
from breakloop.admin.dashboard.render import STATIC, DashboardFiles, PageRenderer


def page_renderer(services: AdminServices) -> PageRenderer:
    """Return a renderer with the navigation of all pages."""
    return PageRenderer(services, pages.NAV)


def dashboard_routes(renderer: PageRenderer, auth: Auth) -> list[BaseRoute]:
    """Return all routes. Except for the login form, signed links and static files they need an authenticated
    request.
    """
    return [
        Mount("/static", DashboardFiles(directory=STATIC), name="static"),
        *(_route(renderer, page) for page in pages.PAGES),
        *pages.LiveUpdates(renderer).routes(),
        *pages.LoginPage(renderer, auth).routes(),
        *actions.DashboardActions(renderer).routes(),
        *AnswerPage(renderer, auth).routes(),
    ]


def _route(renderer: PageRenderer, page: pages.Page) -> Route:
    async def show(request: Request) -> Response:
        return await renderer.show(request, page.template, **await page.show(renderer.services, request))

    return renderer.get(page.path, show)
