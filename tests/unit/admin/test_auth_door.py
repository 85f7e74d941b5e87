"""Tests of `admin.door`: a token for a cookie."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import Response

from breakloop.admin.auth import FREE
from tests.admin_client import OWN, auth_of
from tests.admin_world import empty


def _request(cookie: str = "", scheme: str = "http") -> Request:
    headers = [(b"cookie", cookie.encode())] if cookie else []
    return Request({"type": "http", "method": "POST", "path": "/login", "scheme": scheme, "query_string": b"", "headers": headers, "client": ("10.0.0.1", 1), "server": ("h", 1)})  # fmt: skip


def test_a_known_token_gets_a_cookie_that_opens() -> None:
    auth = auth_of(empty())
    response = Response()
    assert asyncio.run(auth.sign_in(_request(), OWN, response)) is True
    cookie = response.headers["set-cookie"].partition(";")[0]
    value = cookie.partition("=")[2].strip('"')
    assert auth.sessions.find(value) is not None
    assert "secure" not in response.headers["set-cookie"].lower()
    over = Response()
    auth.sign_out(_request(cookie), over)
    assert auth.sessions.find(value) is None
    assert "max-age=0" in over.headers["set-cookie"].lower()


def test_over_tls_the_cookie_stays_there() -> None:
    response = Response()
    assert asyncio.run(auth_of(empty()).sign_in(_request(scheme="https"), OWN, response))
    assert "secure" in response.headers["set-cookie"].lower()


def test_an_unknown_token_gets_nothing_and_is_remembered() -> None:
    auth = auth_of(empty())
    response = Response()
    for _ in range(FREE):
        assert asyncio.run(auth.sign_in(_request(), "wrong", response)) is False
    assert "set-cookie" not in response.headers
    assert auth._slow.wait_s("10.0.0.1") == 0.0
    assert auth._slow.wait_s("10.0.0.1") != 0.0
