"""Tests of `admin.auth`: who asks, over the whole application."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from hashlib import sha256

import pytest
from starlette.requests import Request
from starlette.responses import Response

from breakloop.admin.auth import (
    FREE,
    OPERATOR,
    AdminToken,
    AdminTokens,
    Auth,
    DeniedAttempts,
    LoginThrottle,
    form_field,
    is_local,
    peer,
)
from breakloop.admin.errors import ApiError
from tests.admin_client import LOOKS, OWN, auth_of, browser, client
from tests.admin_world import World, full

KILL = "/api/v1/agents/planner/kill"
WHY = {"reason": "spins"}


@pytest.fixture
def world() -> World:
    return full()


def _request(headers: dict[str, str] | None = None, peer_: str | None = "127.0.0.1", method: str = "GET") -> Request:
    raw = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
    given = None if peer_ is None else (peer_, 1)
    return Request({"type": "http", "method": method, "path": "/", "headers": raw, "client": given, "scheme": "http", "server": ("127.0.0.1", 8788), "query_string": b""})  # fmt: skip


@pytest.mark.parametrize("given", [{}, {"authorization": "Bearer wrong"}, {"authorization": "Bearer"}, {"authorization": f"Basic {OWN}"}, {"authorization": ""}, {"authorization": OWN}, {"cookie": "breakloop_session=x"}])  # fmt: skip
def test_without_a_token_nobody_is_known(world: World, given: dict[str, str]) -> None:
    """401, and the way to do it better (X-1)."""
    answer = client(world, "").get("/api/v1/status", headers=given)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == 'Bearer realm="breakloop"'
    assert answer.json()["error"]["code"] == "unauthenticated"


def test_a_token_has_a_name_and_a_role(world: World) -> None:
    assert client(world).get("/api/v1/status").json()["you"] == {"name": "ada", "role": "operator"}
    assert client(world, LOOKS).get("/api/v1/status").json()["you"] == {"name": "grace", "role": "viewer"}
    assert client(world, "").get("/api/v1/status", headers={"authorization": f"bearer  {OWN} "}).status_code == 200


def test_a_wrong_token_is_not_made_good_by_a_cookie(world: World) -> None:
    made, _ = browser(world)
    assert made.get("/api/v1/status").status_code == 200
    assert made.get("/api/v1/status", headers={"authorization": "Bearer wrong"}).status_code == 401


def test_a_session_reads_without_and_acts_only_with_its_csrf_text(world: World) -> None:
    """A session reads without and acts only with its CSRF text: CSRF-safe (Y-3)."""
    made, csrf = browser(world)
    assert made.get("/api/v1/agents").status_code == 200
    for text in (b"", b"x", csrf.encode() + b"0", b"\xe9"):
        headers = {b"x-csrf-token": text} if text else {}
        refused = made.post(KILL, json=WHY, headers=headers)
        assert refused.status_code == 403
        assert refused.json()["error"]["code"] == "csrf"
    assert all(hold.agent != "planner" for hold in world.operator.holds())
    assert made.post(KILL, json=WHY, headers={"x-csrf-token": csrf}).status_code == 200
    other, _ = browser(world)
    assert other.post(KILL, json=WHY, headers={"x-csrf-token": csrf}).status_code == 403


@pytest.mark.parametrize("headers", [{"origin": "http://evil.example"}, {"origin": "null"}, {"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"}])  # fmt: skip
def test_another_site_cannot_act_even_with_the_text(world: World, headers: dict[str, str]) -> None:
    made, csrf = browser(world)
    refused = made.post(KILL, json=WHY, headers={"x-csrf-token": csrf, **headers})
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "cross_site")
    for own_origin in ("http://127.0.0.1:8788", "https://127.0.0.1:8788"):  # the second one behind a proxy with TLS
        own = {"origin": own_origin, "sec-fetch-site": "same-origin"}
        assert made.post(KILL, json=WHY, headers={"x-csrf-token": csrf, **own}).status_code == 200


def test_a_bearer_token_needs_no_csrf_text(world: World) -> None:
    assert client(world).post(KILL, json=WHY, headers={"origin": "http://elsewhere.example"}).status_code == 200


def test_a_forms_field_is_as_good_as_the_header(world: World) -> None:
    made, csrf = browser(world)
    assert made.post("/theme", data={"theme": "dark"}).status_code == 403
    assert made.post("/theme", data={"theme": "dark", "csrf": csrf}).status_code == 303
    assert made.post("/theme", data={"theme": "dark"}, headers={"x-csrf-token": csrf}).status_code == 303
    assert form_field(b"a=1&csrf=%C3%A9&csrf=2", "csrf") == "é"
    assert form_field(b"&".join(b"a=%d" % n for n in range(500)), "a") == ""


def test_wrong_tokens_are_slowed_down(world: World) -> None:
    """Brute force; everybody still gets 401, only later (Y-3)."""
    made, began = client(world, "wrong"), world.clock.now()
    assert {made.get("/api/v1/status").status_code for _ in range(FREE + 5)} == {401}
    assert world.clock.now() - began == pytest.approx(0.8)
    right = client(world, app=made.app)
    assert right.get("/api/v1/status").status_code == 200
    assert client(world, app=made.app, peer="10.0.0.9").get("/api/v1/status").status_code == 200


def test_too_many_at_once_are_refused(world: World) -> None:
    auth = auth_of(world)
    auth._sleep = lambda _seconds: asyncio.sleep(0)

    async def flood() -> ApiError:
        for _ in range(FREE + 100):
            try:
                await auth.sign_in(_request(), "wrong", Response())
            except ApiError as fault:
                return fault
        raise AssertionError

    refused = asyncio.run(flood())
    assert (refused.status, refused.headers) == (429, {"Retry-After": "5"})


def test_a_long_token_does_not_wait_for_the_wrong_ones_of_others(world: World) -> None:
    """It cannot be guessed, and an operator who shares an address with an attacker must be able to act (Y-3)."""
    long, short = "x" * 32, "x" * 31
    known = [
        AdminToken(name, OPERATOR, sha256(token.encode()).digest()) for name, token in (("ada", long), ("b", short))
    ]
    auth = Auth(AdminTokens(known), b"s", world.clock)
    auth._sleep = lambda _seconds: asyncio.sleep(0)

    async def run() -> tuple[int, bool, str]:
        refused = 0
        for _ in range(FREE + 100):
            try:
                await auth.sign_in(_request(), "wrong" * 10, Response())
            except ApiError:
                refused += 1
        with pytest.raises(ApiError):
            await auth.sign_in(_request(), short, Response())
        who = await auth.identify(_request({"authorization": f"Bearer {long}"}))
        return refused, await auth.sign_in(_request(), long, Response()), who.name

    refused, signed_in, name = asyncio.run(run())
    assert refused > 50
    assert (signed_in, name) == (True, "ada")


def test_wrong_tokens_are_logged(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """The first of an address, the tenth, the hundredth: an attack shows, and does not fill the disk (Y-3)."""
    slow = LoginThrottle(world.clock)
    with caplog.at_level("WARNING"):
        for _ in range(120):
            slow.wrong("10.0.0.7")
    assert [record.getMessage() for record in caplog.records] == ["admin.denied"] * 3
    assert [record.fields["wrong_tokens"] for record in caplog.records] == [1, 10, 100]  # type: ignore[attr-defined]


def test_denied_attempts_are_counted_and_audited(world: World) -> None:
    """The audit log gets the first at once and one entry an hour, however many there are; login counts, too (Y-3)."""
    auth = auth_of(world)
    auth._sleep = lambda _seconds: asyncio.sleep(0)

    async def attempt(peer_: str, times: int) -> None:
        for number in range(times):
            with suppress(ApiError):
                if number % 2:
                    await auth.sign_in(_request(peer_=peer_), "wrong", Response())
                else:
                    await auth.identify(_request({"authorization": "Bearer wrong"}, peer_))

    denied = auth.denied
    assert denied.report() is None
    asyncio.run(attempt("10.0.0.7", 1))
    assert denied.report() == ("10.0.0.7", {"attempts": 1, "addresses": "10.0.0.7 (1)"})
    asyncio.run(attempt("10.0.0.7", 300))
    assert denied.report() is None
    asyncio.run(attempt("10.0.0.8", 2))
    world.clock.advance(3599)
    assert denied.report() is None
    world.clock.advance(1)
    assert denied.report() == ("2 addresses", {"attempts": 302, "addresses": "10.0.0.7 (300), 10.0.0.8 (2)"})
    world.clock.advance(7200)
    assert denied.report() is None
    asyncio.run(attempt("10.0.0.9", 1))
    assert denied.report() is not None
    asyncio.run(attempt("10.0.0.9", 1))
    assert denied.report(everything=True) is not None
    assert denied.total == 305


def test_denied_attempts_of_many_addresses_are_bounded(world: World) -> None:
    denied = DeniedAttempts(world.clock)
    for number in range(5000):
        denied.add(f"10.0.{number // 250}.{number % 250}")
    assert len(denied._by_peer) == 1001
    found = denied.report()
    assert found is not None
    target, detail = found
    assert (target, detail["attempts"]) == ("1001 addresses", 5000)
    assert str(detail["addresses"]).startswith("other (4000), ")
    assert str(detail["addresses"]).count("(") == 10


def test_this_machine_is_whoever_connects_from_it_for_itself() -> None:
    assert is_local(_request())
    assert is_local(_request(peer_="::1"))
    assert not is_local(_request(peer_="10.0.0.1"))
    assert not is_local(_request(peer_=None))
    assert not is_local(_request({"x-forwarded-for": "10.0.0.1"}))
    assert peer(_request(peer_=None)) == ""
