"""The templates: everything is escaped, what is not there is an error, and words and files are at hand."""

from __future__ import annotations

from pathlib import Path
from typing import Final
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request

from breakloop.admin.dashboard.static import digest
from breakloop.admin.dashboard.views import agents, alerts, incidents, words

HERE: Final = Path(__file__).parent
STATIC: Final = HERE / "static"
THEMES: Final = ("auto", "light", "dark")
THEME_COOKIE: Final = "breakloop_theme"


def environment() -> Environment:
    """Return the templates."""
    made = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for function in (
        words.amount,
        words.money,
        words.count,
        words.short,
        words.counted,
        words.lasted,
        words.ago,
        words.moment,
    ):
        made.filters[function.__name__] = function
    made.filters |= {"stamp": words.stamp, "cut": words.shortened, "listed": alerts.listed, "quoted": _quoted}
    digests = {path.relative_to(STATIC).as_posix(): digest(path.read_bytes()) for path in STATIC.rglob("*.*")}
    made.globals |= {
        "asset": lambda name: f"/static/{name}?v={digests[name]}",
        "kind_meaning": words.kind_meaning,
        "event_words": words.event_words,
        "details": words.details,
        "state_said": incidents.state_said,
        "ends": agents.ends,
        "tone": alerts.tone,
        "query": urlencode,
        "themes": THEMES,
    }
    return made


def theme_of(request: Request) -> str:
    """Return what was chosen: light, dark, or as the system is."""
    chosen = request.cookies.get(THEME_COOKIE, "")
    return chosen if chosen in THEMES else THEMES[0]


def _quoted(text: object) -> str:
    return quote(str(text), safe="")
