"""Debug sessions: who gets one, how long it holds, what it shows, and that nothing can be smuggled through it."""

from __future__ import annotations

import pytest

from breakloop.gateway.decision import DecisionHandler
from breakloop.gateway.http_request import Reply
from tests.builders import Fields, World, about, at, bucket, bundle, exact, header, lines, policy, request, world
from tests.each import each

SECRET = "open sesame"
SESSION = "/v1/debug/session"


def debugged(*policies: dict[str, object], **top: object) -> tuple[World, DecisionHandler]:
    here = world(bundle(*policies, **top))
    return here, here.make_door(debug_secret=SECRET)


def cookie_of(reply: Reply) -> str:
    line = header(reply, "Set-Cookie")
    assert line is not None
    return line.partition(";")[0]


def open_session(door: DecisionHandler) -> str:
    return cookie_of(door(request(SESSION, {"X-Breakloop-Debug-Secret": SECRET})))


def shown(reply: Reply) -> dict[str, str]:
    found = [line.partition(": ") for line in lines(reply)]
    start = "X-Breakloop-Debug-"
    return {name.removeprefix(start): value for name, _, value in found if name.startswith(start)}


def test_the_cookie_flow() -> None:
    """The secret gives a signed cookie for 15 minutes, which scripts and other sites cannot read or send (A-6)."""
    here, door = debugged()
    reply = door(request(SESSION, {"X-Breakloop-Debug-Secret": SECRET}))
    assert (reply.status, reply.body) == (204, b"")
    line = header(reply, "Set-Cookie")
    assert line is not None
    assert line.startswith("breakloop_debug=")
    assert line.endswith("; Max-Age=900; Path=/; HttpOnly; Secure; SameSite=Strict")
    assert header(reply, "Cache-Control") == "no-store"
    assert SECRET not in line
    assert shown(door(about())) == {}
    assert shown(door(about(headers={"cookie": cookie_of(reply)})))["Decision"] == "allow"
    assert shown(door(about(headers={"cookie": f"a=b; {cookie_of(reply)}; c=d"})))["Decision"] == "allow"
    assert here.clock.now() == 1_800_000_000.0


@pytest.mark.parametrize("given", [{}, {"x-breakloop-debug-secret": "wrong"}, {"x-breakloop-debug-secret": ""}])
def test_a_wrong_secret_is_403(given: Fields) -> None:
    """Without a cookie (A-6)."""
    _, door = debugged()
    reply = door(request(SESSION, given))
    assert reply.status == 403
    assert header(reply, "Set-Cookie") is None
    assert b"open sesame" not in reply.body


@pytest.mark.parametrize("path", [SESSION, "/v1/debug/logout"])
def test_without_a_secret_the_endpoint_does_not_exist(path: str) -> None:
    """404, as for any other path; and a cookie means nothing (A-6)."""
    here = world(bundle())
    assert here.door(request(path)).status == 404
    _, door = debugged()
    assert shown(here.door(about(headers={"cookie": open_session(door)}))) == {}


@pytest.mark.parametrize("path", [SESSION, "/v1/debug/logout"])
def test_only_post(path: str) -> None:
    """405 with `Allow` (A-6)."""
    _, door = debugged()
    reply = door(request(path, {"X-Breakloop-Debug-Secret": SECRET}, "GET"))
    assert (reply.status, reply.head) == (405, b"Allow: POST\r\n")


def test_a_cookie_expires_after_15_minutes() -> None:
    """Just before it holds, at the time it does not (A-6)."""
    here, door = debugged()
    cookie = open_session(door)
    here.clock.advance(899)
    assert shown(door(about(headers={"cookie": cookie})))
    here.clock.advance(1)
    assert not shown(door(about(headers={"cookie": cookie})))


@each(
    "tamper",
    [
        lambda c: c[:-1] + ("A" if c[-1] != "A" else "B"),
        lambda c: c.replace("=18", "=19", 1),
        lambda c: c.partition(".")[0],
        lambda c: c.partition(".")[0] + ".",
        lambda c: "breakloop_debug=",
        lambda c: "breakloop_debug=.",
        lambda c: "breakloop_debug=9999999999999999999999." + c.partition(".")[2],
        lambda c: "breakloop_debug=-1." + c.partition(".")[2],
        lambda c: "breakloop_debug=²." + c.partition(".")[2],
        lambda c: c + "ü",
        lambda c: "x" + c,
    ],
)
def test_a_tampered_cookie_is_none(tamper: object) -> None:
    """Signature, time and form are checked; nothing breaks (A-6)."""
    _, door = debugged()
    cookie = tamper(open_session(door))  # type: ignore[operator]
    assert shown(door(about(headers={"cookie": cookie}))) == {}


def test_another_secret_does_not_sign() -> None:
    """Changing the secret ends every session (A-6)."""
    here, door = debugged()
    other = here.make_door(debug_secret="another")
    assert shown(other(about(headers={"cookie": open_session(door)}))) == {}


def test_logout_takes_the_cookie_away() -> None:
    """An expired cookie of the same name (A-6)."""
    _, door = debugged()
    reply = door(request("/v1/debug/logout"))
    assert reply.status == 204
    assert header(reply, "Set-Cookie") == "breakloop_debug=; Max-Age=0; Path=/; HttpOnly; Secure; SameSite=Strict"


def test_fields_of_an_allowed_answer() -> None:
    """Policy, rule, decision, mode, reason, latency, descriptors (A-6)."""
    _, door = debugged(policy("p", bucket(keys=["header:x-user"])), policy("q", mode="shadow"))
    reply = door(about(headers={"cookie": open_session(door), "x-user": "ann"}))
    found = shown(reply)
    assert found.pop("Latency-Us").isdigit()
    assert found == {
        "Decision": "allow",
        "Reason": "all_rules_passed",
        "Policy": "p",
        "Rule": "r",
        "Mode": "enforce",
        "Matched-Policies": "p,q",
        "Descriptor-0-Key": "header:x-user",
        "Descriptor-0-Value": "ann",
    }
    assert header(reply, "RateLimit-Limit") == "10"


def test_fields_of_a_denial() -> None:
    """Beside everything that a denial has anyway (A-6)."""
    _, door = debugged(policy("p", loop=exact(2)))
    asked = about(headers={"cookie": open_session(door)})
    door(asked)
    reply = door(asked)
    found = shown(reply)
    assert reply.status == 429
    assert (found["Decision"], found["Reason"], found["Policy"]) == ("deny", "loop_detected", "p")
    assert found["Rule"] == "loop_detection[0]"
    assert header(reply, "Retry-After") == "60"
    assert header(reply, "Content-Type") == "application/json"


@pytest.mark.parametrize(
    ("policies", "top", "mode"),
    [
        ([policy("p", bucket())], {}, "enforce"),
        ([policy("p", bucket(), mode="shadow")], {}, "shadow"),
        ([policy("p", mode="shadow"), policy("q")], {}, "enforce"),
        ([policy("p")], {"global_shadow": {"enabled": True, "reason": "r", "expires_at": at(9)}}, "shadow"),
        ([policy("p")], {"global_shadow": {"enabled": True, "reason": "r", "expires_at": at(-9)}}, "enforce"),
        ([], {}, "enforce"),
    ],
)
def test_the_mode(policies: list[dict[str, object]], top: dict[str, object], mode: str) -> None:
    """Shadow if nothing that matched is enforced, by itself or by the override (A-6, K-1)."""
    _, door = debugged(*policies, **top)
    assert shown(door(about(headers={"cookie": open_session(door)})))["Mode"] == mode


def test_what_shadow_would_have_done() -> None:
    """In a debug session the would-be verdict can be seen (A-6, E-1)."""
    _, door = debugged(policy("s", bucket(rate=1, burst=1), mode="shadow"))
    asked = about(headers={"cookie": open_session(door)})
    door(asked)
    assert shown(door(asked))["Shadow"] == "s/r deny token_bucket_exceeded"


def test_nobody_can_inject_a_header() -> None:
    """Whatever a client or a policy's author wrote, each field is one line of printable ASCII (A-6, Y-3)."""
    name = "p\r\nSet-Cookie: evil=1"
    _, door = debugged(policy(name, bucket("r\r\nX-Evil: 1", keys=["query:q", "header:h"]), prefix="/"))
    uri = "/x?q=a%0d%0aX-Evil:%201%C3%BC"
    reply = door(about(uri, headers={"cookie": open_session(door), "h": "ü\x01"}))
    assert reply.status == 200
    for line in lines(reply):
        assert line.isascii()
        assert line.isprintable()
        assert not line.startswith(("X-Evil", "Set-Cookie"))
    assert shown(reply)["Descriptor-1-Value"] == "a??X-Evil: 1?"


def test_values_are_cut_and_counted() -> None:
    """At most 16 descriptors of 256 characters, so that the head stays small (A-6, Y-2)."""
    keys = [f"header:h{number:02}" for number in range(20)]
    _, door = debugged(policy("p", bucket(keys=keys)))
    headers = {f"h{number:02}": "v" * 300 for number in range(20)}
    found = shown(door(about(headers={"cookie": open_session(door), **headers})))
    assert found["Descriptor-15-Value"] == "v" * 256
    assert "Descriptor-16-Key" not in found


def test_keys_are_not_shown() -> None:
    """Not in a debug session either (Y-1)."""
    _, door = debugged(policy("p", bucket(keys=["header:authorization", "query:key"])))
    headers = {"cookie": open_session(door), "authorization": "Bearer canary"}
    reply = door(about("/x?key=canary2", headers=headers))
    assert shown(reply)["Descriptor-0-Key"] == "header:authorization"
    assert b"canary" not in reply.head


def test_a_debug_session_changes_no_verdict() -> None:
    """With and without, the same calls are allowed (A-6, E-7)."""
    for cookie in (True, False):
        _, door = debugged(policy("p", bucket(rate=1, burst=3)))
        headers = {"cookie": open_session(door)} if cookie else {}
        assert [door(about(headers=headers)).status for _ in range(4)] == [200, 200, 200, 429]


def test_no_bundle_in_a_debug_session() -> None:
    """Nothing to match, and still an answer (E-0, A-6)."""
    here = world(load=False)
    door = here.make_door(debug_secret=SECRET)
    reply = door(about(headers={"cookie": open_session(door)}))
    assert reply.status == 503
    assert shown(reply)["Reason"] == "no_bundle_loaded"
