"""Who asks, and whether they may (SPEC X-1, Y-3): a bearer token, or a session's cookie. What comes with a cookie and
changes something must show that it comes from our own pages. Everything behind `guard` has `identity(request)`; tokens
are `tokens`' business, cookies `sessions`', forms and pages the dashboard's."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from hmac import compare_digest
from ipaddress import ip_address
from typing import Final
from urllib.parse import parse_qs

from starlette.requests import Request

from breakloop.admin.faults import Fault
from breakloop.admin.services import OPERATOR
from breakloop.admin.sessions import COOKIE, CSRF_FIELD, CSRF_HEADER, Sessions
from breakloop.admin.slowdown import LONGEST_S, SlowDown
from breakloop.admin.tokens import Token, Tokens
from breakloop.clock import Clock

SAFE_METHODS: Final = frozenset({"GET", "HEAD"})
_OWN_SITES: Final = frozenset({"same-origin", "none"})
_FORM: Final = "application/x-www-form-urlencoded"
_FIELDS_MAX: Final = 200
_FORWARDED: Final = ("forwarded", "x-forwarded-for", "x-real-ip")


@dataclass(frozen=True, slots=True)
class Identity:
    """Who asks. `csrf` is what forms and scripts of a session send back; empty for a bearer token."""

    name: str
    role: str
    csrf: str = ""

    @property
    def may_act(self) -> bool:
        """Whether it may change anything."""
        return self.role == OPERATOR


class Auth:
    """Finds out who asks."""

    def __init__(
        self,
        tokens: Tokens,
        secret: bytes,
        clock: Clock,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.sessions = Sessions(secret, tokens, clock)
        self._tokens = tokens
        self._slow = SlowDown(clock)
        self._sleep = sleep

    async def identify(self, request: Request) -> Identity:
        """Return who asks; raises `Fault` 401 where that is nobody, 403 where a form may be forged."""
        header = request.headers.get("authorization")
        if header is not None:
            scheme, _, presented = header.partition(" ")
            who = peer(request)
            await self.wait(who)
            token = self.known(presented.strip(), who) if scheme.lower() == "bearer" else None
            if token is None:
                raise unauthenticated("the token is not valid")
            return Identity(token.name, token.role)
        session = self.sessions.find(request.cookies.get(COOKIE, ""))
        if session is None:
            raise unauthenticated("a token is needed: Authorization: Bearer TOKEN, or log in at /login")
        if request.method not in SAFE_METHODS:
            check_own_site(request)
            await _check_csrf(request, session.csrf)
        return Identity(session.token.name, session.token.role, session.csrf)

    async def wait(self, who: str) -> None:
        """Hold up whoever has tried many wrong tokens, before another is looked at."""
        wait_s = self._slow.wait_s(who)
        if wait_s is None:
            retry = {"Retry-After": str(math.ceil(LONGEST_S))}
            raise Fault(429, "too many wrong tokens came from your address", headers=retry)
        if wait_s:
            await self._sleep(wait_s)

    def known(self, presented: str, who: str) -> Token | None:
        """Return the token that somebody shows, or None, which is remembered of him."""
        token = self._tokens.find(presented)
        if token is None:
            self._slow.wrong(who)
        return token


def unauthenticated(message: str) -> Fault:
    """Return the answer to somebody who is nobody."""
    return Fault(401, message, headers={"WWW-Authenticate": 'Bearer realm="breakloop"'})


def identity(request: Request) -> Identity:
    """Return who asks, behind the guard."""
    found = request.state.user
    assert isinstance(found, Identity)  # noqa: S101 - the guard has put it there
    return found


def peer(request: Request) -> str:
    """Return the address that the request came from."""
    return request.client.host if request.client else ""


def is_local(request: Request) -> bool:
    """Tell whether this machine asks for itself, not for somebody behind a proxy on it."""
    if any(name in request.headers for name in _FORWARDED):
        return False
    try:
        return ip_address(peer(request)).is_loopback
    except ValueError:
        return False


def check_own_site(request: Request) -> None:
    """Raise `Fault` for what another site's page sends: browsers say where a request comes from."""
    site = request.headers.get("sec-fetch-site")
    origin = request.headers.get("origin")
    host = request.headers.get("host", "")
    own = {None, f"http://{host}", f"https://{host}"}  # TLS may end at a proxy in front
    if (site is not None and site not in _OWN_SITES) or origin not in own:
        raise Fault(403, "this comes from another site", code="cross_site")


async def _check_csrf(request: Request, wanted: str) -> None:
    given = request.headers.get(CSRF_HEADER, "")
    if not given and is_form(request):
        given = form_field(await request.body(), CSRF_FIELD)
    if not compare_digest(given.encode("utf-8", "replace"), wanted.encode()):
        raise Fault(403, f"the {CSRF_HEADER} header, or the field {CSRF_FIELD}, is missing or wrong", code="csrf")


def is_form(request: Request) -> bool:
    """Tell whether a page's form was sent."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower() == _FORM


def form_field(body: bytes, name: str) -> str:
    """Return one field of a form, or an empty text."""
    try:
        found = parse_qs(body.decode("utf-8", "replace"), max_num_fields=_FIELDS_MAX)
    except ValueError:
        return ""
    return found.get(name, [""])[0]
