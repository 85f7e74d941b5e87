"""Tests of `admin.shield`: Host names, sizes, header fields, mistakes of ours."""

from __future__ import annotations

import asyncio
import logging
import re
from typing import Any

import pytest
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient
from starlette.types import Message, Receive, Scope, Send

from breakloop.admin.api import OPERATIONS
from breakloop.admin.api.operations import BODY_MAX, PlainText
from breakloop.admin.app import HEADERS, AllowedHosts, SecurityMiddleware
from tests.admin_client import OWN, app_of, client
from tests.admin_world import World, full


@pytest.fixture
def world() -> World:
    return full()


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8788", "127.0.0.1", "127.0.0.1:8788", "[::1]:8788", "127.1.2.3", "localhost.", "a.localhost"])  # fmt: skip
def test_loopback_names_are_known(host: str) -> None:
    assert AllowedHosts("127.0.0.1").known(host)


@pytest.mark.parametrize("host", ["", "evil.example", "evil.example:8788", "127.0.0.1.evil.example", "10.0.0.5", "[::2]", "localhost@evil.example"])  # fmt: skip
def test_other_names_are_not(host: str) -> None:
    """A name that somebody makes lead here is refused (DNS rebinding) (Y-3)."""
    assert not AllowedHosts("127.0.0.1").known(host)


def test_the_configured_names_are_known() -> None:
    assert AllowedHosts("breakloop.internal").known("Breakloop.Internal:8788")
    assert AllowedHosts("10.0.0.5").known("10.0.0.5:8788")
    assert AllowedHosts("127.0.0.1", ["ops.example.com"]).known("ops.example.com")
    assert not AllowedHosts("10.0.0.5").known("10.0.0.6")


def test_listening_everywhere_an_address_is_enough_but_no_name() -> None:
    assert AllowedHosts("0.0.0.0").known("10.0.0.5:8788")
    assert AllowedHosts("::").known("[fe80::1]:8788")
    assert not AllowedHosts("0.0.0.0").known("evil.example")


@pytest.mark.parametrize("path", ["/livez", "/login", "/metrics", "/static/x.js", "/api/v1/status", "/"])
def test_a_foreign_host_gets_nothing(world: World, path: str) -> None:
    answer = client(world).get(path, headers={"host": "evil.example"})
    assert answer.status_code == 421
    assert answer.json()["error"]["code"] == "misdirected"


@pytest.mark.parametrize(("path", "token"), [("/livez", ""), ("/nope", OWN), ("/api/v1/agents", ""), ("/api/v1/agents", OWN), ("/metrics", ""), ("/static/nope", "")])  # fmt: skip
def test_every_answer_has_the_header_fields(world: World, path: str, token: str) -> None:
    """Security headers, no CORS (Y-3)."""
    answer = client(world, token).get(path, headers={"origin": "http://evil.example"})
    assert {name: answer.headers.get(name) for name in HEADERS} == HEADERS
    assert "no-store" in answer.headers["cache-control"]
    assert not [name for name in answer.headers if name.startswith("access-control")]
    assert "server" not in answer.headers


def test_a_preflight_is_refused(world: World) -> None:
    asked = {"origin": "http://evil.example", "access-control-request-method": "POST"}
    assert client(world, "").options("/api/v1/agents", headers=asked).status_code == 401
    assert client(world).options("/api/v1/agents", headers=asked).status_code == 405


def test_bodies_have_a_size(world: World) -> None:
    made = client(world)
    large = b'{"reason": "' + b"x" * BODY_MAX + b'"}'
    for given in ({"content": large}, {"content": iter([large[:1000], large[1000:]])}):
        answer = made.post("/api/v1/agents/a/kill", headers={"content-type": "application/json"}, **given)
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")
    assert made.post("/api/v1/bundle/validate", content=b"version" + b" " * BODY_MAX).json()["ok"] is True


@pytest.mark.parametrize("kind", ["application/json", "application/x-www-form-urlencoded"])
def test_the_bound_that_an_operation_declares_holds(world: World, kind: str) -> None:
    """For each of them, whatever its path begins with, and also where a form is read to see who sends it (X-1, Y-2)."""
    made = client(world)
    larger = b" " * (BODY_MAX + 1)
    writing = [one for one in OPERATIONS if one.method != "GET"]
    assert {one.body is PlainText for one in writing} == {True, False}
    for one in writing:
        path = "/api/v1" + re.sub(r"\{\w+\}", "1", one.path)
        answer = made.request(one.method, path, content=larger, headers={"content-type": kind})
        reads = one.body is not None or kind != "application/json"
        assert (answer.status_code == 413) is (reads and one.body is not PlainText), one.name


def test_a_body_that_says_it_is_huge_is_not_waited_for(world: World) -> None:
    answer = client(world).post("/api/v1/bundle/apply", content=b"x", headers={"content-length": str(1 << 40)})
    assert answer.status_code == 413


def _shielded(app: Any, **options: Any) -> TestClient:
    return TestClient(SecurityMiddleware(app, AllowedHosts("127.0.0.1")), "http://127.0.0.1", **options)


def test_a_mistake_of_ours_is_logged_and_answered(caplog: pytest.LogCaptureFixture) -> None:
    async def broken(_scope: Scope, _receive: Receive, _send: Send) -> None:
        raise ZeroDivisionError

    with caplog.at_level(logging.ERROR, "breakloop"):
        answer = _shielded(broken).get("/")
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal")
    assert {name: answer.headers.get(name) for name in HEADERS} == HEADERS
    assert caplog.records[0].exc_info is not None


def test_half_an_answer_is_broken_off(caplog: pytest.LogCaptureFixture) -> None:
    async def broken(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise ZeroDivisionError

    with caplog.at_level(logging.CRITICAL, "breakloop"), pytest.raises(ZeroDivisionError):
        _shielded(broken).get("/")


def test_over_tls_browsers_are_told_to_stay_there() -> None:
    made = TestClient(SecurityMiddleware(PlainTextResponse("x"), AllowedHosts("127.0.0.1")), "https://127.0.0.1")
    assert made.get("/").headers["strict-transport-security"] == "max-age=31536000"
    assert "strict-transport-security" not in _shielded(PlainTextResponse("x")).get("/").headers


@pytest.mark.parametrize(("peer", "said", "secure"), [("10.0.0.1", "https", True), ("10.0.0.1", "HTTPS, http", True), ("10.0.0.1", "http", False), ("10.0.0.1", "", False), ("10.0.0.2", "https", False)])  # fmt: skip
def test_a_trusted_proxy_may_end_tls(world: World, peer: str, said: str, secure: bool) -> None:
    """Its X-Forwarded-Proto counts: the cookie stays on TLS, and the browser, too; nobody else's does (Y-3)."""
    app = app_of(world, trusts=lambda address: address == "10.0.0.1")
    headers = {"x-forwarded-proto": said} if said else {}
    answer = client(world, "", app=app, peer=peer).post("/login", data={"token": OWN}, headers=headers)
    assert answer.status_code == 303
    assert ("secure" in answer.headers["set-cookie"].lower()) is secure
    assert ("strict-transport-security" in answer.headers) is secure


def test_there_are_no_websockets(world: World) -> None:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "websocket.connect"}

    async def run() -> None:
        await app_of(world)({"type": "websocket", "path": "/livez", "headers": []}, receive, send)

    asyncio.run(run())
    assert sent == []
