"""What a page says once after an action: kept in a cookie over the redirect, shown, and forgotten."""

from __future__ import annotations

from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from starlette.requests import Request
from starlette.responses import Response

COOKIE: Final = "breakloop_notice"
TEXT_MAX: Final = 400
TONES: Final = ("good", "warn", "bad")


class Notice(NamedTuple):
    """A line at the top of the page."""

    tone: str
    text: str


def put(response: Response, text: str, tone: str = "good") -> None:
    """Let the next page say this."""
    value = f"{tone}:{quote(text[:TEXT_MAX], safe='')}"
    response.set_cookie(COOKIE, value, max_age=30, path="/", httponly=True, samesite="strict")


def read(request: Request) -> Notice | None:
    """Return what is to be said, if anything is."""
    tone, _, text = request.cookies.get(COOKIE, "").partition(":")
    if tone not in TONES or not text:
        return None
    return Notice(tone, unquote(text)[:TEXT_MAX])


def clear(response: Response) -> None:
    """It was said."""
    response.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")
