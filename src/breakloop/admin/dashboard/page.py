"""`Pages`: what every page has in common. Renders templates for whoever looks, keeps actions for operators, and turns
errors into pages. Who looks is known before (`admin.guard`), and header fields come after (`admin.shield`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from breakloop.admin.auth import Identity, identity
from breakloop.admin.dashboard import notice
from breakloop.admin.dashboard.form import own_path, read_form
from breakloop.admin.dashboard.templating import environment, theme_of
from breakloop.admin.faults import Fault, fault_of
from breakloop.admin.services import Services
from breakloop.errors import BreakloopError
from breakloop.history.api import History

# path, name, icon, the key that follows `g`
NAV: Final = (
    ("/", "Overview", "overview", "o"),
    ("/incidents", "Incidents", "loop", "i"),
    ("/agents", "Agents", "agents", "a"),
    ("/policies", "Policies", "policy", "p"),
    ("/limits", "Limits", "limits", "l"),
    ("/events", "Events", "events", "e"),
    ("/alerts", "Alerts", "alerts", "t"),
    ("/audit", "Audit log", "audit", "u"),
    ("/settings", "Settings", "settings", "s"),
)
_TITLES: Final = {
    403: "Only operators may do this",
    404: "There is nothing here",
    503: "This cannot be shown now",
}

Handler = Callable[[Request], Awaitable[Response]]
ActHandler = Callable[[Request, Identity, dict[str, str]], Awaitable[Response]]


class Pages:
    """Renders pages for one set of services."""

    def __init__(self, services: Services) -> None:
        self.services = services
        self._templates = environment()

    async def past(self, ask: Callable[[History], Any]) -> Any:
        """Return what history says; asked in a thread, for it may wait for a disk."""
        return await self.services.aside(lambda: ask(self.services.history))

    def get(self, path: str, handler: Handler) -> Route:
        """Return the route of a page."""

        async def page(request: Request) -> Response:
            try:
                return await handler(request)
            except BreakloopError as error:
                return await self.problem(request, fault_of(error))

        return Route(path, page, methods=["GET"])

    def post(self, path: str, handler: ActHandler, *, anybody: bool = False) -> Route:
        """Return the route of an action: for operators only, unless it is for `anybody`."""

        async def action(request: Request) -> Response:
            who = identity(request)
            try:
                if not anybody:
                    check_acts(who)
                return await handler(request, who, await read_form(request))
            except BreakloopError as error:
                return await self.problem(request, fault_of(error))

        return Route(path, action, methods=["POST"])

    async def show(self, request: Request, template: str, status: int = 200, **values: Any) -> Response:
        """Return a page, or a part of one."""
        who, said = identity(request), notice.read(request)
        part = request.headers.get("hx-request") == "true"
        shell = {
            "user": who,
            "acts": who.may_act,
            "csrf": who.csrf,
            "path": request.url.path,
            "here": here(request),
            "nav": NAV,
            "theme": theme_of(request),
            "notice": said,
            "now": self.services.clock.now(),
            "status": self.services.status(),
            "partial": part,
        }
        text = self._templates.get_template(template).render(shell | values)
        response = HTMLResponse(text, status, headers={"cache-control": "no-store", "vary": "hx-request"})
        if said is not None and not part:
            notice.clear(response)
        return response

    def bare(self, request: Request, template: str, status: int, **values: Any) -> Response:
        """Return a page for somebody who has not signed in: nothing of the server is on it."""
        text = self._templates.get_template(template).render(values | {"theme": theme_of(request)})
        return HTMLResponse(text, status, headers={"cache-control": "no-store"})

    async def problem(self, request: Request, fault: Fault) -> Response:
        """Return a page that says what is wrong."""
        title = _TITLES.get(fault.status, "That could not be done")
        return await self.show(request, "problem.html", fault.status, title=title, text=str(fault))

    def go(self, path: str, said: str, tone: str = "good") -> Response:
        """Go on to a page after an action, with a notice."""
        response = RedirectResponse(own_path(path), 303)
        notice.put(response, said, tone)
        return response


def check_acts(who: Identity) -> None:
    """Raise `Fault` for whoever may only look."""
    if not who.may_act:
        raise Fault(403, "You are signed in as a viewer: you can look, but not act.")


def here(request: Request) -> str:
    """Return where a page is, to come back to."""
    return request.url.path + (f"?{request.url.query}" if request.url.query else "")
