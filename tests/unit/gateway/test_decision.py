"""The decision service, asked with requests as the server hands them over."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any

import pytest

from breakloop.gateway.http_request import Reply, Request
from breakloop.policy.client import CallerKeys
from breakloop.policy.descriptors import ContextSettings
from breakloop.store.memory import MemoryStore
from tests.builders import (
    CHAT,
    SECRET,
    FailingStore,
    Json,
    World,
    about,
    at,
    bucket,
    bundle,
    chat_body,
    exact,
    header,
    lines,
    policy,
    request,
    tail,
    user,
    world,
)
from tests.each import each

JSON = "Content-Type: application/json"


def ask_chat(text: str = "again", headers: dict[str, str] | None = None) -> Request:
    """A question about an LLM call, with its body."""
    fields = {"authorization": "Bearer sk-one", **(headers or {})}
    return about(CHAT, "POST", fields, body=chat_body(user(text)))


def content(reply: Reply) -> Json:
    found: Json = json.loads(reply.body)
    return found


SEED_LOOP = {"enabled": True, "window_seconds": 45, "threshold_identical_requests": 4}
SEED_RULE = {
    "name": "base-rps",
    "limit_keys": ["header:x-org", "header:x-tool-name"],
    "algorithm": "token_bucket",
    "algorithm_config": {"rps": 20, "burst": 40},
}
SEED_ASKED = about("/v1/tools/search?q=x", "POST", {"x-org": "o", "x-tool-name": "search"}, body=b'{"q":"x"}')


def test_the_loop_pages_example_throttles() -> None:
    """The 3rd identical request is not delayed; the 4th by 400 ms, and the header says so (LD-1, LD-5)."""
    here = world(
        bundle(policy("agent-tools", SEED_RULE, prefix="/v1/tools/", loop={**SEED_LOOP, "action": "throttle"}))
    )
    third = here.ask(SEED_ASKED, 3)
    assert (third.status, third.delay_s) == (200, 0.0)
    assert header(third, "X-Breakloop-Loop-Delay") is None
    fourth = here.ask(SEED_ASKED)
    assert (fourth.status, fourth.delay_s, fourth.body) == (200, 0.4, b"")
    assert lines(fourth) == [
        'RateLimit-Policy: "agent-tools";q=40;w=2',
        "RateLimit-Limit: 40",
        'RateLimit: "agent-tools";r=36;t=1',
        "RateLimit-Remaining: 36",
        "RateLimit-Reset: 1",
        "X-Breakloop-Warning: loop_detected",
        "X-Breakloop-Loop-Count: 4",
        "X-Breakloop-Loop-Delay: 400",
    ]


def test_the_loop_pages_example_rejects() -> None:
    """The same with reject: 429, `Retry-After: 45` exactly, reason `loop_detected` (LD-1, A-1, A-2)."""
    here = world(bundle(policy("agent-tools", SEED_RULE, prefix="/v1/tools/", loop=SEED_LOOP)))
    assert here.ask(SEED_ASKED, 3).status == 200
    reply = here.ask(SEED_ASKED)
    assert (reply.status, reply.delay_s) == (429, 0.0)
    assert lines(reply) == [
        "X-Breakloop-Reason: loop_detected",
        "X-Breakloop-Stop-Reason: loop",
        "Retry-After: 45",
        "x-should-retry: false",
        'RateLimit: "agent-tools";r=0;t=45',
        "RateLimit-Reset: 45",
        JSON,
    ]
    detail = content(reply)["detail"]
    loop = ["fingerprint", "hit_count", "cooldown_seconds", "kind", "evidence"]
    assert list(detail) == ["error", "message", *loop, "stop_reason"]
    assert (detail["error"], detail["hit_count"], detail["kind"]) == ("recursive_loop_detected", 4, "exact")
    assert "error" not in content(reply)  # no LLM dialect, no error object beside it


def test_a_tail_denial_speaks_openai() -> None:
    """The OpenAI error object stands beside `detail`, with our text, so that SDKs raise their own error (A-3)."""
    here = world()
    reply = here.ask(ask_chat(), 6)
    assert reply.status == 429
    detail, error = content(reply)["detail"], content(reply)["error"]
    assert detail["message"].startswith("Blocked: identical request sent 6 times in 60 seconds.")
    assert (detail["hit_count"], detail["cooldown_seconds"], detail["kind"]) == (6, 30, "tail")
    assert len(detail["fingerprint"]) == 32
    assert error == {
        "message": detail["message"] + " (recursive_loop_detected)",
        "type": "rate_limit_error",
        "param": None,
        "code": "recursive_loop_detected",
    }
    assert header(reply, "Retry-After") == "30"


def test_a_streaming_request_gets_the_same_denial() -> None:
    """The same status and body, not a broken stream (A-3)."""
    replies = []
    for stream in (False, True):
        asked = about(CHAT, "POST", {"authorization": "Bearer sk-one"}, body=chat_body(user("again"), stream=stream))
        replies.append(world().ask(asked, 6))
    assert replies[0].status == replies[1].status == 429
    assert replies[0].body == replies[1].body
    assert lines(replies[0]) == lines(replies[1])


def test_a_limit_denial_in_full() -> None:
    """Every header line, and the body in the same shape with the reason as its error (A-1, A-4)."""
    here = world(bundle(policy("p", bucket(rate=10, burst=10))))
    assert here.ask(about(), 10).status == 200
    reply = here.ask(about())
    assert reply.status == 429
    wait = header(reply, "Retry-After")
    assert wait in {"1", "2"}
    assert lines(reply) == [
        "X-Breakloop-Reason: token_bucket_exceeded",
        "X-Breakloop-Stop-Reason: limit",
        f"Retry-After: {wait}",
        'RateLimit-Policy: "p";q=10;w=1',
        "RateLimit-Limit: 10",
        'RateLimit: "p";r=0;t=1',
        "RateLimit-Remaining: 0",
        "RateLimit-Reset: 1",
        JSON,
    ]
    message = "Rate limit exceeded: 10 a second, burst 10."
    assert content(reply) == {"detail": {"error": "token_bucket_exceeded", "message": message, "stop_reason": "limit"}}


def test_an_allowed_answer_carries_nothing_else() -> None:
    """The request id, and the limits if there are any (A-5)."""
    plain = world(bundle()).door(about())
    assert (plain.status, plain.body, plain.head) == (200, b"", b"X-Breakloop-Request-Id: t-0\r\n")
    limited = world(bundle(policy("p", bucket(rate=10, burst=10)))).door(about())
    assert limited.head.split(b"\r\n")[0] == b"X-Breakloop-Request-Id: t-0"
    assert lines(limited) == [
        'RateLimit-Policy: "p";q=10;w=1',
        "RateLimit-Limit: 10",
        'RateLimit: "p";r=9;t=1',
        "RateLimit-Remaining: 9",
        "RateLimit-Reset: 1",
    ]


def test_the_tightest_limit_is_shown() -> None:
    """Of several limits the one that will bite first (A-5)."""
    here = world(
        bundle(policy("wide", bucket(burst=1000)), policy("narrow", bucket(burst=20)), policy("mid", bucket(burst=50)))
    )
    assert header(here.ask(about()), "RateLimit-Policy") == '"narrow";q=20;w=2'


def test_request_ids_differ() -> None:
    """Every answer has its own, denials and allowed ones (A-5)."""
    here = world(bundle(policy("p", bucket(rate=1, burst=1))))
    heads = [here.door(about()).head.split(b"\r\n")[0] for _ in range(3)]
    assert heads == [b"X-Breakloop-Request-Id: t-0", b"X-Breakloop-Request-Id: t-1", b"X-Breakloop-Request-Id: t-2"]


def test_no_bundle_is_503() -> None:
    """With its reason and when to come back (E-0)."""
    reply = world(load=False).door(about())
    assert reply.status == 503
    assert lines(reply) == ["X-Breakloop-Reason: no_bundle_loaded", "Retry-After: 1", JSON]
    assert content(reply)["detail"]["error"] == "no_bundle_loaded"


def test_a_kill_switch_denial() -> None:
    """429, an hour or less, and no retry (K-2, A-1)."""
    switch = {"scope_key": "header:x-agent", "scope_value": "a", "expires_at": at(90), "reason": "bad\r\nX-Evil: 1"}
    here = world(bundle(kill_switches=[switch]))
    reply = here.door(about(headers={"x-agent": "a"}))
    assert reply.status == 429
    why = ["X-Breakloop-Reason: kill_switch", "X-Breakloop-Stop-Reason: killed"]
    assert lines(reply) == [*why, "Retry-After: 90", "x-should-retry: false", JSON]
    assert content(reply)["detail"]["error"] == "kill_switch"
    nginx = here.door(request("/v1/decision/nginx", {"x-agent": "a"}))
    assert b"\r\nX-Evil" not in nginx.head


def test_deny_status_of_the_policy() -> None:
    """`deny_status` changes the status of that policy's denials (A-1)."""
    here = world(bundle(policy("p", bucket(rate=1, burst=1), deny_status=402)))
    assert here.ask(about(), 2).status == 402


def test_store_errors() -> None:
    """Allowed without a store; refused where the policy says so, and worth a retry (LD-7, S-3)."""
    allow = world(bundle(policy("p", bucket())), store=FailingStore())
    assert (allow.door(about()).status, lines(allow.door(about()))) == (200, [""] * 0)
    deny = world(bundle(policy("p", bucket(), on_store_error="deny", deny_status=503)), store=FailingStore())
    reply = deny.door(about())
    assert reply.status == 503
    assert header(reply, "X-Breakloop-Reason") == "store_unavailable"
    assert header(reply, "Retry-After") in {"1", "2"}
    assert header(reply, "x-should-retry") is None


def test_problem_json_by_accept() -> None:
    """Asked for it, the decision service answers with `application/problem+json`, same head otherwise (A-4)."""
    here = world(bundle(policy("p", bucket(rate=1, burst=1))))
    here.ask(about())
    reply = here.ask(about(headers={"accept": "text/html, application/problem+json;q=0.9"}))
    assert lines(reply)[-1] == "Content-Type: application/problem+json"
    assert content(reply) == {
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "Limit exceeded",
        "status": 429,
        "detail": "Rate limit exceeded: 1 a second, burst 1.",
        "error": "token_bucket_exceeded",
        "stop_reason": "limit",
        "violated-policies": ["p"],
    }
    assert lines(here.ask(about(headers={"accept": "*/*"})))[-1] == JSON


# -- the three ways to ask -------------------------------------------------------------------------------------------


def only(path: str = "/v1/x", **selector: Any) -> Json:
    """A policy that denies every request to one place, to see what is being judged."""
    spec = {"pathExact": path, **selector}
    return bundle(policy("p", bucket(keys=["header:x-none"], on_missing="reject"), selector=spec))


@pytest.mark.parametrize("method", ["GET", "POST", "HEAD"])
def test_generic_takes_get_post_and_head(method: str) -> None:
    """The gateway's own method is not that of the request being judged (D-3)."""
    here = world(only(methods=["DELETE"]))
    fields = {"x-original-method": "DELETE", "x-original-uri": "/v1/x"}
    assert here.door(request("/v1/decision", fields, method)).status == 429
    assert here.door(request("/v1/decision", {**fields, "x-original-method": "PUT"}, method)).status == 200


@pytest.mark.parametrize("method", ["PUT", "DELETE", "OPTIONS", "PATCH"])
def test_generic_refuses_other_methods(method: str) -> None:
    """405 with `Allow`, so that a misconfigured gateway is found (D-3)."""
    reply = world(only()).door(request("/v1/decision", method=method))
    assert (reply.status, reply.head) == (405, b"Allow: GET, HEAD, POST\r\n")


@pytest.mark.parametrize(
    "fields",
    [
        {"x-original-uri": "/v1/x?a=1", "x-original-method": "POST", "x-original-host": "API.example:443"},
        {"x-forwarded-uri": "/v1/x?a=1", "x-forwarded-method": "POST", "x-forwarded-host": "api.example."},
        {"X_Original_URI": "https://api.example/v1/x?a=1", "x-original-method": "POST", "host": "api.example"},
        {"x-original-uri": "/v1/x", "x-forwarded-uri": "/v1/x", "x-forwarded-method": "POST", "host": "api.example"},
        {"x-original-uri": "//v1/./y/../%78", "x-original-method": "POST", "x-original-host": "api.example"},
    ],
)
def test_generic_reads_what_gateways_send(fields: dict[str, str]) -> None:
    """`X-Original-*` or `X-Forwarded-*`, whole URLs, the query split off, host and path normalised (D-3, C-1, R-3)."""
    here = world(only(hosts=["api.example"], methods=["POST"]))
    assert here.door(request("/v1/decision", fields)).status == 429


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"x-original-uri": "/v1/x"}, {"x-forwarded-uri": "/v1/y"}),
        ({"x-original-method": "GET"}, {"x-forwarded-method": "POST"}),
        ({"x-original-host": "a"}, {"x-forwarded-host": "b"}),
    ],
)
def test_generic_refuses_contradictions(one: dict[str, str], other: dict[str, str]) -> None:
    """One of them was made up by the client; which one cannot be known (D-3)."""
    reply = world(only()).door(request("/v1/decision", {**one, **other}))
    assert reply.status == 400
    assert content(reply)["detail"]["error"] == "bad_request"
    assert world(only()).door(request("/v1/decision", one)).status in {200, 429}


def test_generic_judges_bodies_that_are_sent_along() -> None:
    """With a body if the gateway forwards it; without, it is not judged as if it were empty (D-3, LD-1)."""
    here = world(bundle(policy("p", loop=exact(2))))
    assert here.ask(about("/x", "POST", body=b"one")).status == 200
    assert here.ask(about("/x", "POST", body=b"two")).status == 200
    assert here.ask(about("/x", "POST", body=b"two")).status == 429
    unseen = about("/y", "POST", {"x-original-content-length": "12"})
    assert here.ask(unseen, 10).status == 200
    assert here.ask(about("/z", "POST", {"x-original-content-length": "0"}), 2).status == 429


def test_nginx_denies_with_403_and_carries_the_rest() -> None:
    """nginx turns a 429 into a 500 and drops bodies, so the real status and the body travel in header fields (D-3)."""
    here = world(bundle(policy("p", loop=exact(3))))
    fields = {"x-original-uri": "/v1/x?a=1", "x-original-method": "POST", "x-original-host": "h"}
    asked = request("/v1/decision/nginx", fields, "GET")
    assert here.ask(asked, 2).status == 200
    reply = here.ask(asked)
    assert reply.status == 403
    assert header(reply, "X-Breakloop-Status") == "429"
    assert header(reply, "X-Breakloop-Reason") == "loop_detected"
    assert header(reply, "Retry-After") == "60"
    assert json.loads(header(reply, "X-Breakloop-Body") or "")["detail"]["hit_count"] == 3
    assert reply.body == b""  # nginx would drop it, and its connection with it
    allowed = here.ask(request("/v1/decision/nginx", {**fields, "x-original-uri": "/other"}))
    assert header(allowed, "X-Breakloop-Status") is None


def test_nginx_reads_only_what_nginx_sets() -> None:
    """What a client put into `X-Forwarded-*` does not count there, and is no contradiction (D-3)."""
    here = world(only(hosts=["real"], methods=["POST"]))
    real = {"x-original-uri": "/v1/x", "x-original-method": "POST", "x-original-host": "real"}
    made_up = {"x-forwarded-uri": "/free", "x-forwarded-method": "GET", "x-forwarded-host": "other"}
    reply = here.door(request("/v1/decision/nginx", {**real, **made_up}))
    assert (reply.status, header(reply, "X-Breakloop-Status")) == (403, "429")


def test_nginx_bodies_fit_a_header_field() -> None:
    """One line of ASCII, whatever the texts in it (D-3)."""
    here = world(bundle(kill_switches=[{"scope_key": "header:a", "scope_value": "1", "reason": "Stöp\x7f\u2028\n"}]))
    reply = here.door(request("/v1/decision/nginx", {"a": "1"}))
    line = header(reply, "X-Breakloop-Body")
    assert line is not None
    assert line.isascii()
    assert line.isprintable()
    assert "Stöp\x7f\u2028\n" in json.loads(line)["detail"]["message"]


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "PATCH"])
def test_envoy_appends_the_original_path(method: str) -> None:
    """Any method; path, method and host are its own (D-3)."""
    here = world(only(hosts=["api.example"], methods=[method]))
    asked = request("/v1/decision/envoy/v1/x?a=1", {"host": "API.example:8080", "x-original-uri": "/free"}, method)
    assert here.door(asked).status == 429
    assert here.door(request("/v1/decision/envoy/v1/x", {"host": "other"}, method)).status == 200


def test_envoy_takes_no_denial_for_a_failure() -> None:
    """A 5xx would let the request pass where Envoy fails open; without a bundle that is what is meant (D-3)."""
    here = world(bundle(policy("p", bucket(rate=1, burst=1), deny_status=503)))
    asked = request("/v1/decision/envoy/x", {})
    denied = here.ask(asked, 2)
    assert (denied.status, header(denied, "X-Breakloop-Status")) == (429, "503")
    assert here.door(about("/y")).status == 503
    assert world(load=False).door(asked).status == 503


def test_envoy_judges_the_root() -> None:
    """The path behind the prefix may be just a slash (D-3)."""
    here = world(only("/"))
    assert here.door(request("/v1/decision/envoy/", {})).status == 429
    assert here.door(request("/v1/decision/envoyx/", {})).status == 404


def test_the_agent_in_the_path() -> None:
    """`/agents/x` names the agent and is not part of the path (C-7, R-3)."""
    switch = {"scope_key": "agent:id", "scope_value": "x", "route": "/v1/y"}
    here = world(bundle(kill_switches=[switch]))
    assert here.door(about("/agents/x/v1/y")).status == 429
    assert here.door(about("/agents/z/v1/y")).status == 200


@each("uri", ["/a%2fb", "/a%2Fb", "/a%5cb", "/a%00b", "/a\\b", "/a%", "v1/x", "ftp://h/x"])
@each("door", ["/v1/decision", "/v1/decision/nginx"])
def test_ambiguous_paths_are_refused(uri: str, door: str) -> None:
    """An encoded slash, a backslash, NUL: 400, whichever way it is asked (R-3)."""
    reply = world(bundle()).door(request(door, {"x-original-uri": uri}))
    assert (header(reply, "X-Breakloop-Status") if door.endswith("nginx") else str(reply.status)) == "400"


@pytest.mark.parametrize("path", ["/", "/v1/decision/", "/v1/decisions", "/v1/chat/completions", "/v1/debug/session"])
def test_other_paths_are_404(path: str) -> None:
    """And the answer says where to ask; without a debug secret there is no debug endpoint (D-3)."""
    reply = world(bundle()).door(request(path))
    assert (reply.status, reply.head) == (404, b"Content-Type: application/json\r\n")
    assert content(reply)["detail"]["error"] == "not_found"


def test_health() -> None:
    """Alive without a bundle; readiness is what the runtime says, also with a query (D-5)."""
    here = world(load=False)
    alive = here.door(request("/livez", method="GET"))
    assert (alive.status, alive.body) == (200, b'{"status":"ok"}')
    ready = here.door(request("/readyz?verbose", method="GET"))
    assert (ready.status, ready.body) == (200, b'{"status":"ready"}')
    here.door._ready = lambda: (503, {"error": "no_bundle_loaded"})
    assert here.door(request("/readyz")).status == 503


def test_header_prefix() -> None:
    """Every field of ours carries the configured prefix (A-1)."""
    here = world(bundle(policy("p", loop=exact(2, action="throttle")), policy("q", loop=exact(3))))
    door = here.make_door("X-Edge-", debug_secret="s")
    replies = [door(request("/v1/decision/nginx")) for _ in range(3)]
    text = b"".join(reply.head for reply in replies).decode()
    assert "Breakloop" not in text
    for name in ("Request-Id", "Warning", "Loop-Count", "Loop-Delay", "Reason", "Status", "Body"):
        assert f"X-Edge-{name}: " in text


def test_prompts_and_keys_stay_out_of_answers() -> None:
    """Neither what was said nor who said it with which key comes back (Y-1)."""
    here = world(bundle(policy("p", bucket(rate=1, burst=9, keys=["header:authorization"]), loop=tail())))
    for _ in range(12):
        reply = here.door(ask_chat("canary-prompt", {"authorization": "Bearer canary-key"}))
        assert b"canary" not in reply.head + reply.body
    assert all("canary" not in str(event) for event in here.events)


def test_a_caller_with_odd_characters_gets_an_answer() -> None:
    """Whatever a token's subject holds, its owner is told to wait (A-2)."""
    import base64

    from breakloop.policy.jwt import JwtKeys

    secret = "a secret of at least thirty-two bytes"
    import hmac

    def b64(data: bytes) -> str:
        return base64.urlsafe_b64encode(data).rstrip(b"=").decode()

    signed = (
        f"{b64(json.dumps({'alg': 'HS256', 'typ': 'JWT'}).encode())}.{b64(json.dumps({'sub': chr(0xD800)}).encode())}"
    )
    token = f"{signed}.{b64(hmac.digest(secret.encode(), signed.encode(), 'sha256'))}"
    here = world(bundle(policy("p", bucket(rate=1, burst=1))), settings=ContextSettings(jwt=JwtKeys(secret=secret)))
    asked = about(headers={"authorization": f"Bearer {token}"})
    assert here.ask(asked, 2).status == 429


def test_a_fault_of_ours_lets_the_request_pass(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever goes wrong inside, the gateway in front is told to go on; counted, logged without the request (S-4)."""
    here = world(bundle(policy("p", loop=exact(2))))

    def broken(*_: object) -> None:
        raise ZeroDivisionError("the prompt")

    monkeypatch.setattr(MemoryStore, "commit", broken)
    for target in ("/v1/decision", "/v1/decision/nginx"):
        reply = here.ask(request(target, {"x-original-uri": "/x"}))
        assert (reply.status, reply.body) == (200, b"")
    assert here.engine.tally.faults == 2
    assert "ZeroDivisionError in broken" in caplog.text
    assert "prompt" not in caplog.text


# -- callers -----------------------------------------------------------------------------------------------------------

CALLERS = CallerKeys([f"{name}={sha256(name.encode()).hexdigest()}" for name in ("nginx", "alice", "bob")])
GATEWAY = {"x-breakloop-key": "nginx"}


def guarded(*rules: Json) -> World:
    return world(bundle(policy("p", *rules)), settings=ContextSettings(secret=SECRET, callers=CALLERS))


@pytest.mark.parametrize("target", ["/v1/decision", "/v1/decision/envoy/x"])
@pytest.mark.parametrize(
    ("headers", "status", "error"),
    [
        ({}, 401, "unknown_caller"),
        ({"authorization": "Bearer nobody"}, 401, "unknown_caller"),
        ({"x-breakloop-key": "nobody"}, 401, "unknown_caller"),
        ({"authorization": "Bearer alice", "x-api-key": "bob"}, 400, "ambiguous_caller"),
        ({"authorization": "Bearer alice"}, 200, ""),
        (GATEWAY, 200, ""),
        ({**GATEWAY, "authorization": "Bearer of-a-provider"}, 200, ""),
    ],
)
def test_questions_need_the_key_of_a_caller(target: str, headers: dict[str, str], status: int, error: str) -> None:
    """That of the client, or that of the gateway that asks (Y-6)."""
    reply = guarded().ask(request(target, {"x-original-uri": "/x", **headers}))
    assert reply.status == status
    assert error in reply.body.decode()


def test_nginx_is_told_who_is_not_known() -> None:
    """As a 403 that carries the 401, like every denial (D-2, Y-6)."""
    reply = guarded().ask(request("/v1/decision/nginx", {"x-original-uri": "/x"}))
    assert (reply.status, header(reply, "X-Breakloop-Status")) == (403, "401")


def test_results_need_the_key_of_a_caller() -> None:
    """Whoever knows the id of a result still needs a key (Y-6)."""
    here = guarded()
    target = "/v1/decision/t-0.0123456789abcdef/result"
    assert here.ask(request(target, body=b'{"status": 200}')).status == 401
    assert here.ask(request(target, GATEWAY, body=b'{"status": 200}')).status == 404


def test_the_key_of_a_gateway_names_no_caller() -> None:
    """It asks for many clients: those are who is charged, each by its own key or address (C-7, Y-6)."""
    here = guarded(
        bucket(rate=0.001, burst=1, keys=["caller:key"]), bucket("ip", rate=0.001, burst=1, keys=["ip:address"])
    )
    asked = [
        {**GATEWAY, "authorization": "Bearer alice"},
        {"authorization": "Bearer alice"},
        {**GATEWAY, "authorization": "Bearer of-a-provider"},
        {**GATEWAY, "authorization": "Bearer of-a-provider"},
    ]
    replies = [here.ask(about("/x", headers=fields, peer=f"192.0.2.{at}")) for at, fields in enumerate(asked)]
    assert [reply.status for reply in replies] == [200, 429, 200, 429]
    by_address = [here.ask(about("/x", headers=GATEWAY, peer=f"192.0.2.{at}")) for at in (7, 8, 7)]
    assert [reply.status for reply in by_address] == [200, 200, 429]
