"""Lets people into the dashboard and out again (SPEC X-2, Y-3): a token for a cookie that scripts cannot read and other
sites cannot use. The form is the dashboard's; who has waited before a token is looked at, `guard` knows."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from breakloop.admin.auth import Auth, peer
from breakloop.admin.sessions import COOKIE, LASTS_S


class SessionDoor:
    """What `dashboard.login.Door` asks for."""

    __slots__ = ("_auth",)

    def __init__(self, auth: Auth) -> None:
        self._auth = auth

    def sign_in(self, request: Request, token: str, response: Response) -> bool:
        """Begin a session on this response; False for a token that is not known."""
        found = self._auth.known(token, peer(request))
        if found is None:
            return False
        _set(response, request, self._auth.sessions.open(found), LASTS_S)
        return True

    def sign_out(self, request: Request, response: Response) -> None:
        """End the session."""
        self._auth.sessions.close(request.cookies.get(COOKIE, ""))
        _set(response, request, "", 0)


def _set(response: Response, request: Request, value: str, lasts_s: int) -> None:
    secure = request.url.scheme == "https"
    response.set_cookie(COOKIE, value, max_age=lasts_s, path="/", secure=secure, httponly=True, samesite="strict")
