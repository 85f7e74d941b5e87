"""Signing in and out, and the choice of light or dark. Tokens and sessions are the door's business, which paths are
open to everybody the guard's."""

from __future__ import annotations

from typing import Final, Protocol

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from breakloop.admin.auth import Identity
from breakloop.admin.dashboard.form import own_path, read_form
from breakloop.admin.dashboard.page import Pages
from breakloop.admin.dashboard.templating import THEME_COOKIE, THEMES
from breakloop.admin.faults import Fault

_YEAR_S: Final = 365 * 86_400
_WRONG: Final = "That is not a token of this server."


class Door(Protocol):
    """Lets people in and out: `admin.door`."""

    def sign_in(self, request: Request, token: str, response: Response) -> bool:
        """Begin a session on this response; False for a token that is not known."""
        ...

    def sign_out(self, request: Request, response: Response) -> None:
        """End the session."""
        ...


class Login:
    """The page before all others."""

    def __init__(self, pages: Pages, door: Door) -> None:
        self._pages = pages
        self._door = door

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("/login", self.page, methods=["GET"]),
            Route("/login", self.enter, methods=["POST"]),
            self._pages.post("/logout", self.leave, anybody=True),
            self._pages.post("/theme", self.theme, anybody=True),
        ]

    async def page(self, request: Request) -> Response:
        """Ask for the token."""
        return self._asked(request, 200, request.query_params.get("next", ""), "")

    async def enter(self, request: Request) -> Response:
        """Let somebody in, or say why not."""
        try:
            form = await read_form(request)
        except Fault as fault:
            return self._asked(request, fault.status, "", str(fault))
        going = own_path(form.get("next", ""))
        response = RedirectResponse(going, 303)
        if not self._door.sign_in(request, form.get("token", "").strip(), response):
            return self._asked(request, 401, going, _WRONG)
        return response

    async def leave(self, request: Request, _who: Identity, _form: dict[str, str]) -> Response:
        """Let somebody out."""
        response = RedirectResponse("/login", 303)
        self._door.sign_out(request, response)
        return response

    async def theme(self, _request: Request, _who: Identity, form: dict[str, str]) -> Response:
        """Keep what was chosen."""
        response = RedirectResponse(own_path(form.get("back", "")), 303)
        if form.get("theme") in THEMES:
            response.set_cookie(THEME_COOKIE, form["theme"], max_age=_YEAR_S, path="/", samesite="strict")
        return response

    def _asked(self, request: Request, status: int, going: str, wrong: str) -> Response:
        return self._pages.bare(request, "login.html", status, after=own_path(going), wrong=wrong)
