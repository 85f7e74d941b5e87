"""A notice: put, read once, harmless whoever writes the cookie."""

from __future__ import annotations

import pytest
from starlette.requests import Request
from starlette.responses import Response

from breakloop.admin.dashboard import render


def asked(cookie: str) -> Request:
    return Request({"type": "http", "headers": [(b"cookie", f"{render.COOKIE}={cookie}".encode())]})


def test_there_and_back() -> None:
    response = Response()
    render.put(response, "ü; is held, “now”" + "x" * 900, "warn")
    set_cookie = response.headers["set-cookie"]
    assert "HttpOnly" in set_cookie
    assert "SameSite=strict" in set_cookie
    found = render.read(asked(set_cookie.partition("=")[2].partition(";")[0]))
    assert found is not None
    assert found.tone == "warn"
    assert found.text.startswith("ü; is held, “now”")
    assert len(found.text) == render.TEXT_MAX


@pytest.mark.parametrize("cookie", ["", "good:", "odd:text", "text"])
def test_what_is_none(cookie: str) -> None:
    assert render.read(asked(cookie)) is None


def test_cleared() -> None:
    response = Response()
    render.clear(response)
    assert "Max-Age=0" in response.headers["set-cookie"]
