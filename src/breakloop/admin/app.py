"""The admin plane as one ASGI application: shield around guard around routes. What is asked of it goes to `services`;
serving it is `server`'s business."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from breakloop.admin.api import api_routes, body_bounds
from breakloop.admin.auth import Auth
from breakloop.admin.dashboard.page import Pages
from breakloop.admin.dashboard.routes import dashboard_routes
from breakloop.admin.door import SessionDoor
from breakloop.admin.faults import CODES, Fault, fault_of
from breakloop.admin.guard import METRICS, Guard
from breakloop.admin.services import Services
from breakloop.admin.shield import Hosts, Shield
from breakloop.errors import BreakloopError

PROMETHEUS: Final = "text/plain; version=0.0.4; charset=utf-8"
THIS_PLANE: Final = {"X-Breakloop-Plane": "admin"}


def admin_app(services: Services, auth: Auth, *, host: str = "127.0.0.1", hosts: Collection[str] = ()) -> ASGIApp:
    """Return the application. `host` is where it listens, `hosts` are further names it may be called by."""
    routes: list[BaseRoute] = [
        Route("/livez", livez, methods=["GET"]),
        Route(METRICS, _metrics(services), methods=["GET"]),
        *api_routes(services),
        *dashboard_routes(services, SessionDoor(auth)),
    ]
    handlers = {HTTPException: _http_error(Pages(services)), BreakloopError: _own_error}
    inner = ExceptionMiddleware(_routed(Router(routes, redirect_slashes=False)), handlers)
    return Shield(Guard(inner, auth), Hosts(host, hosts), body_bounds())


def _routed(router: Router) -> ASGIApp:
    """Without Starlette's outermost layer, which would answer our mistakes in its own words; that is `shield`'s."""

    async def routed(scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = router  # what the router looks at to raise, instead of answering by itself
        await router(scope, receive, send)

    return routed


async def livez(_request: Request) -> Response:
    """Say that the process is up, and which of its ports this is: who has a token asks here before showing it."""
    return Response("ok\n", media_type="text/plain", headers=THIS_PLANE)


def _metrics(services: Services) -> Any:
    async def metrics(_request: Request) -> Response:
        return Response(services.metrics(), media_type=PROMETHEUS)

    return metrics


def _http_error(pages: Pages) -> Any:
    async def http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)  # noqa: S101 - it is registered for these
        status = error.status_code if error.status_code in CODES else 400
        message = "there is nothing here" if status == 404 else error.detail
        if status == 404 and _wants_page(request):
            return await pages.problem(request, Fault(404, "The address may be mistyped, or the page is gone."))
        return Fault(status, message, headers=error.headers).response()

    return http_error


def _wants_page(request: Request) -> bool:
    """Whether a person looks, who has signed in; programs get JSON."""
    looks = request.method == "GET" and "text/html" in request.headers.get("accept", "")
    return looks and not request.url.path.startswith(("/api/", "/static/"))


async def _own_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, BreakloopError)  # noqa: S101 - it is registered for these
    return fault_of(error).response()
