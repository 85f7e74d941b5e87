"""Lets nobody pass whom `auth` does not know (SPEC X-1): everything behind it asks with an identity, but what is open
to all. A browser that asks for a page is led to the login form, under the same status as everybody else."""

from __future__ import annotations

from html import escape
from typing import Final
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from breakloop.admin.auth import SAFE_METHODS, Auth, check_own_site, is_form, is_local, peer
from breakloop.admin.faults import Fault

OPEN: Final = frozenset({"/livez", "/login"})
STATIC: Final = "/static/"
METRICS: Final = "/metrics"

_LED: Final = (
    '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Sign in - breakloop</title>'
    '<meta http-equiv="refresh" content="0; url={form}"></head><body><a href="{form}">Sign in</a></body></html>'
)


class Guard:
    """Stands before the routes."""

    def __init__(self, app: ASGIApp, auth: Auth) -> None:
        self._app = app
        self._auth = auth

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Find out who asks, or answer 401."""
        request = Request(scope, receive)
        if is_open(request):
            await self._open(request, scope, receive, send)
            return
        if request.method not in SAFE_METHODS and is_form(request):
            receive = _again(await request.body(), receive)  # it is read here and by the page
        try:
            request.state.user = await self._auth.identify(request)
        except Fault as fault:
            await _refusal(request, fault)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    async def _open(self, request: Request, scope: Scope, receive: Receive, send: Send) -> None:
        """A token that is shown in the form is an attempt like any other."""
        if request.method not in SAFE_METHODS:
            check_own_site(request)
            await self._auth.wait(peer(request))
        await self._app(scope, receive, send)


def _refusal(request: Request, fault: Fault) -> Response:
    """A browser is led to the form, with the status that everybody gets."""
    browser = "text/html" in request.headers.get("accept", "") and not request.url.path.startswith("/api/")
    if fault.status != 401 or "authorization" in request.headers:
        return fault.response()
    if "hx-request" in request.headers:  # a part of a page: the whole page has to go to the form
        fault.headers["HX-Redirect"] = "/login"
        return fault.response()
    if not browser or request.method not in SAFE_METHODS:
        return fault.response()
    here = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    form = escape("/login" + ("" if here == "/" else f"?{urlencode({'next': here})}"))
    return HTMLResponse(_LED.format(form=form), 401, fault.headers)


def is_open(request: Request) -> bool:
    """Tell whether everybody may have this."""
    path = request.url.path
    return path in OPEN or path.startswith(STATIC) or (path == METRICS and is_local(request))


def _again(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that hands over a body that was read already."""
    handed = False

    async def replayed() -> Message:
        nonlocal handed
        if handed:
            return await receive()
        handed = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replayed
