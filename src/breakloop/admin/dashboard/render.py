"""Renders pages: templates, forms, flash messages, static files, and the routes of pages and actions.

Authentication runs before these routes and security headers are added after them. Templates escape everything, and
an undefined variable is an error. Static files are requested with a digest of their content, so browsers cache them
forever.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from hashlib import sha256
from os import PathLike, stat_result
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from breakloop.admin.actions import AdminServices
from breakloop.admin.auth import AdminIdentity, here, identity, is_form
from breakloop.admin.dashboard import views, words
from breakloop.admin.errors import ApiError, fault_of
from breakloop.errors import BreakloopError
from breakloop.formatting import duration, plural, timestamp

FIELDS_MAX: Final = 100


async def read_form(request: Request) -> dict[str, str]:
    """Return the fields of a URL-encoded form; of a repeated field the last value. Raises `ApiError`."""
    if not is_form(request):
        raise ApiError(415, "the form must be URL-encoded")
    body = await request.body()
    try:
        pairs = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=FIELDS_MAX, errors="strict")
    except ValueError:
        raise ApiError(400, "the form cannot be read") from None
    if any("\0" in text for pair in pairs for text in pair):
        raise ApiError(400, "the form contains a NUL character")
    return dict(pairs)


def own_path(given: str, default: str = "/") -> str:
    """Return a path on this server to redirect to; `default` for anything that leads elsewhere."""
    if not given.startswith("/") or given.startswith(("//", "/\\")) or not given.isprintable() or " " in given:
        return default
    return given


COOKIE: Final = "breakloop_notice"
TEXT_MAX: Final = 400
TONES: Final = ("good", "warn", "bad")


class FlashMessage(NamedTuple):
    """A line at the top of the next page."""

    tone: str
    text: str


def put(response: Response, text: str, tone: str = "good") -> None:
    """Set the flash message, in a cookie."""
    value = f"{tone}:{quote(text[:TEXT_MAX], safe='')}"
    response.set_cookie(COOKIE, value, max_age=30, path="/", httponly=True, samesite="strict")


def read(request: Request) -> FlashMessage | None:
    """Return the flash message, if there is one."""
    tone, _, text = request.cookies.get(COOKIE, "").partition(":")
    if tone not in TONES or not text:
        return None
    return FlashMessage(tone, unquote(text)[:TEXT_MAX])


def clear(response: Response) -> None:
    response.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")


FOR_EVER: Final = "public, max-age=31536000, immutable"


class DashboardFiles(StaticFiles):
    """Static files that browsers cache."""

    def file_response(
        self, full_path: str | PathLike[str], stat_result: stat_result, scope: Scope, status_code: int = 200
    ) -> Response:
        response = super().file_response(full_path, stat_result, scope, status_code)
        response.headers["cache-control"] = FOR_EVER
        return response


def digest(data: bytes) -> str:
    """Return a digest that identifies the version of a file."""
    return sha256(data).hexdigest()[:12]


HERE: Final = Path(__file__).parent
STATIC: Final = HERE / "static"
THEMES: Final = ("auto", "light", "dark")
THEME_COOKIE: Final = "breakloop_theme"


@cache
def environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for name in ("amount", "money", "count", "short", "ago", "stamp"):
        made.filters[name] = getattr(words, name)
    made.filters |= {"counted": plural, "lasted": duration, "moment": timestamp, "cut": words.shortened}
    made.filters["quoted"] = _quoted
    digests = {path.relative_to(STATIC).as_posix(): digest(path.read_bytes()) for path in STATIC.rglob("*.*")}
    made.globals |= {
        "asset": lambda name: f"/static/{name}?v={digests[name]}",
        "kind_meaning": words.kind_meaning,
        "event_words": words.event_words,
        "details": words.details,
        "state_said": views.state_said,
        "ends": views.ends,
        "tone": views.tone,
        "query": urlencode,
        "themes": THEMES,
    }
    return made


def theme_of(request: Request) -> str:
    """Return the chosen theme: light, dark, or auto."""
    chosen = request.cookies.get(THEME_COOKIE, "")
    return chosen if chosen in THEMES else THEMES[0]


def _quoted(text: object) -> str:
    return quote(str(text), safe="")


_TITLES: Final = {403: "Operators only", 404: "Page not found", 503: "This is not available now"}

Handler = Callable[[Request], Awaitable[Response]]
ActHandler = Callable[[Request, AdminIdentity, dict[str, str]], Awaitable[Response]]


class PageRenderer:
    def __init__(self, services: AdminServices, nav: Sequence[tuple[str, str, str, str]] = ()) -> None:
        """`nav` has the entries of the navigation: path, name, icon, key."""
        self.services = services
        self._nav = nav
        self._templates = environment()

    def get(self, path: str, handler: Handler) -> Route:
        """Return the route of a page. Errors are shown as pages."""
        return Route(path, self._guarded(handler), methods=["GET"])

    def post(self, path: str, handler: ActHandler, *, anybody: bool = False) -> Route:
        """Return the route of an action: for operators only, or for `anybody` who is signed in."""

        async def action(request: Request) -> Response:
            who = identity(request)
            if not anybody:
                check_acts(who)
            return await handler(request, who, await read_form(request))

        return Route(path, self._guarded(action), methods=["POST"])

    def _guarded(self, handler: Handler) -> Handler:
        async def guarded(request: Request) -> Response:
            try:
                return await handler(request)
            except BreakloopError as error:
                return await self.problem(request, fault_of(error))

        return guarded

    async def show(self, request: Request, template: str, status: int = 200, **values: Any) -> Response:
        """Render a page, or the part of it that htmx requests."""
        who, said = identity(request), read(request)
        part = request.headers.get("hx-request") == "true"
        shell = {
            "user": who,
            "acts": who.may_act,
            "csrf": who.csrf,
            "path": request.url.path,
            "here": here(request),
            "nav": self._nav,
            "theme": theme_of(request),
            "notice": said,
            "now": self.services.clock.now(),
            "status": self.services.status(),
            "partial": part,
        }
        text = self._templates.get_template(template).render(shell | values)
        response = HTMLResponse(text, status, headers={"cache-control": "no-store", "vary": "hx-request"})
        if said is not None and not part:
            clear(response)
        return response

    def bare(self, request: Request, template: str, status: int, **values: Any) -> Response:
        """Render a page without a session: it shows nothing about the server."""
        text = self._templates.get_template(template).render(values | {"theme": theme_of(request)})
        return HTMLResponse(text, status, headers={"cache-control": "no-store"})

    async def problem(self, request: Request, fault: ApiError) -> Response:
        title = _TITLES.get(fault.status, "The action failed")
        return await self.show(request, "problem.html", fault.status, title=title, text=str(fault))

    def go(self, path: str, said: str, tone: str = "good") -> Response:
        """Redirect to a page after an action, with a flash message."""
        response = RedirectResponse(own_path(path), 303)
        put(response, said, tone)
        return response


def check_acts(who: AdminIdentity) -> None:
    """Raise `ApiError` unless the role is operator."""
    if not who.may_act:
        raise ApiError(403, "You are signed in as a viewer. Actions need the role operator.")
