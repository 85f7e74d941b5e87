"""Templates escape everything, and fail on what is not there."""

from __future__ import annotations

import re

import pytest
from jinja2 import UndefinedError
from starlette.requests import Request

from breakloop.admin.dashboard.render import HERE, environment, theme_of


def test_everything_is_escaped() -> None:
    made = environment()
    assert made.from_string("{{ text }}").render(text="<b>'\"") == "&lt;b&gt;&#39;&#34;"
    with pytest.raises(UndefinedError):
        made.from_string("{{ nothing }}").render()


def test_safe_is_said_of_our_own_drawings_only() -> None:
    """`|safe` turns escaping off: once, for the paths of icons."""
    used = [
        path.name
        for path in (HERE / "templates").rglob("*.html")
        for _ in re.findall(r"\|\s*safe\b", path.read_text("utf-8"))
    ]
    assert used == ["ui.html"]


def test_files_are_asked_for_by_digest() -> None:
    made = environment()
    found = made.from_string("{{ asset('style.css') }}").render()
    assert re.fullmatch(r"/static/style\.css\?v=[0-9a-f]{12}", found)
    assert made.from_string("{{ 'a/b c'|quoted }}").render() == "a%2Fb%20c"


@pytest.mark.parametrize(("cookie", "theme"), [("dark", "dark"), ("light", "light"), ("pink", "auto"), ("", "auto")])
def test_theme(cookie: str, theme: str) -> None:
    assert theme_of(Request({"type": "http", "headers": [(b"cookie", f"breakloop_theme={cookie}".encode())]})) == theme
