"""The shipped snippets of Caddy, HAProxy, Envoy and Traefik in the real programs, asking the real `breakloop serve` (D-3, P-4).
nginx has a file of its own, test_nginx."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.e2e import gateways
from tests.e2e.behind import Stack, stopped
from tests.e2e.gateways import EXAMPLES, Gateway, running

pytestmark = pytest.mark.e2e

LAND = """\
bundle_version: 1
policies:
  - id: landed
    spec:
      selector: {pathPrefix: /}
      loop_detection: {similarity: tail, max_hits: 1, action: ACTION}
      rules: []
"""
PAYMENT = """\
bundle_version: 1
policies:
  - id: paid
    spec:
      selector: {pathPrefix: /}
      deny_status: DENY
      rules:
        - {name: one, limit_keys: [], algorithm: token_bucket, algorithm_config: {tokens_per_second: 0.01, burst: 1}}
"""
THROTTLE = """\
bundle_version: 1
policies:
  - id: slow
    spec:
      selector: {pathPrefix: /}
      loop_detection: {enabled: true, window_seconds: 60, threshold_identical_requests: 2, action: throttle}
      rules: []
"""
CHAT = b'{"model": "m", "messages": [{"role": "user", "content": "%b"}]}'

Start = Callable[..., Stack]


@pytest.fixture(params=gateways.ALL, ids=lambda gateway: gateway.name)
def gateway(request: pytest.FixtureRequest) -> Gateway:
    chosen: Gateway = request.param
    return chosen


@pytest.fixture
def start(gateway: Gateway, tmp_path: Path) -> Iterator[Start]:
    """Return a function that starts the gateway, breakloop and the application."""
    with ExitStack() as started:

        def begin(policy: str = "", changes: dict[str, str] | None = None) -> Stack:
            file = EXAMPLES / gateway.folder / "policy.yaml"
            if policy:
                file = tmp_path / "policy.yaml"
                file.write_text(policy)
            return started.enter_context(running(gateway, tmp_path, file, changes or {}))

        yield begin


def test_a_looping_client_is_stopped(start: Start, gateway: Gateway) -> None:
    """The first requests reach the application; then the client gets 429, the reason and the JSON body. A stream passes
    as it comes, and a healthy client is never stopped (D-3, P-4)."""
    stack = start()
    answers = stopped(stack)
    assert ("ratelimit-remaining" in answers[0].headers) is gateway.tells_allowed
    assert stack.streamed() == ("data: one\n\n", "data: two\n\n")
    assert {stack.ask(f"/v1/page/{page}").status for page in range(20)} == {200}
    assert stack.application.seen[-1] == ("GET", "/v1/page/19", b"")


def test_bodies(start: Start, gateway: Gateway) -> None:
    """Where the gateway passes bodies on, a repeated chat is stopped and the application gets bodies whole; where it
    does not, no healthy POST is taken for a loop (LD-1, LD-2)."""
    stack = start()
    for number in range(8):
        body = CHAT % b"step %d" % number
        assert stack.ask("/v1/chat/completions", "POST", body).status == 200
        chunks = iter([body[:4], body[4:]])
        assert stack.ask("/v1/chunks", "POST", chunks, headers={"Transfer-Encoding": "chunked"}).status == 200
    assert stack.application.seen[-1] == ("POST", "/v1/chunks", CHAT % b"step 7")
    assert stack.application.seen[-2] == ("POST", "/v1/chat/completions", CHAT % b"step 7")
    again = [stack.ask("/v1/chat/completions", "POST", CHAT % b"same") for _ in range(5)]
    stopped = [200, 200, 200, 200, 429] if gateway.sees_bodies else [200] * 5
    assert [answer.status for answer in again] == stopped
    if gateway.sees_bodies:
        assert again[-1].json()["error"]["code"] == "recursive_loop_detected"  # the dialect's own error beside ours


def test_bodies_that_are_too_large(start: Start, gateway: Gateway) -> None:
    """Refused by the gateway, or passed on without being judged by a part of them: never taken for a loop
    (Y-2, LD-1)."""
    changes, status = gateway.large
    stack = start(changes=changes)
    assert [stack.ask("/large", "POST", b"x" * 150_000).status for _ in range(6)] == [status] * 6
    assert len(stack.application.seen) == (6 if status == 200 else 0)


def test_clients_are_told_apart_and_cannot_change_what_is_asked(start: Start) -> None:
    """Each address has its own count, and what the gateway says replaces what the client says about it (C-4, D-3)."""
    stack = start()
    assert [stack.ask(client="127.0.0.2").status for _ in range(5)] == [200, 200, 200, 200, 429]
    assert stack.ask(client="127.0.0.3").status == 200
    for number in (1, 2):
        forged = {
            "X-Forwarded-For": f"198.51.100.{number}",
            "X-Original-URI": f"/{number}",
            "X-Original-Method": "POST",
            "X-Original-Host": f"host-{number}",
            "X-Original-Content-Length": "9",
            "X-Forwarded-Uri": f"/{number}",
            "X-Envoy-Auth-Partial-Body": "true",
        }
        assert stack.ask(client="127.0.0.2", headers=forged).status == 429


@pytest.mark.parametrize("gateway", [gateways.ENVOY_PROCESSOR], indirect=True, ids=["envoy-ext-proc"])
@pytest.mark.parametrize("action", ["steer", "land"])
def test_envoy_forwards_what_breakloop_has_changed(start: Start, action: str) -> None:
    """Behind `ext_proc`, the note reaches the application in the body, and a landed agent has no tools (LD-5, LD-10)."""
    stack = start(LAND.replace("ACTION", action))
    tool = {"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}
    sent = {"model": "m", "messages": [{"role": "user", "content": "Read it."}], "tools": [tool]}
    answers = [stack.ask("/v1/chat/completions", "POST", json.dumps(sent).encode()) for _ in range(2)]
    assert [(answer.status, answer.body) for answer in answers] == [(200, "app")] * 2
    assert answers[1].headers.get("x-breakloop-action") == ("land" if action == "land" else None)
    first, second = [json.loads(body) for _, _, body in stack.application.seen]
    assert first == sent
    assert "[breakloop]" in json.dumps(second["messages"])
    assert second.get("tool_choice") == ("none" if action == "land" else None)


@pytest.mark.parametrize("status", [402, 503])
def test_deny_status_reaches_the_client(start: Start, gateway: Gateway, status: int) -> None:
    """The status that the policy sets is the client's. Envoy over HTTP takes a 5xx for a failure, so it gets 429
    (A-1)."""
    stack = start(PAYMENT.replace("DENY", str(status)))
    answers = [stack.ask(f"/{number}") for number in range(2)]
    expected = 429 if (gateway.name, status) == ("envoy", 503) else status
    assert [answer.status for answer in answers] == [200, expected]
    assert answers[1].headers["x-breakloop-reason"] == "token_bucket_exceeded"
    assert answers[1].headers["ratelimit-remaining"] == "0"
    assert answers[1].json()["detail"]["error"] == "token_bucket_exceeded"
    assert len(stack.application.seen) == 1


def test_a_throttled_request_is_held_back(start: Start, gateway: Gateway) -> None:
    """The gateway waits for the answer as long as breakloop holds it (LD-5)."""
    stack = start(THROTTLE)
    first, second = stack.ask(), stack.ask()
    assert (first.status, second.status) == (200, 200)
    assert second.seconds >= 0.2
    if gateway.tells_allowed:
        assert second.headers["x-breakloop-loop-delay"] == "200"


@pytest.mark.parametrize(
    "gateway", [one for one in gateways.ALL if one.fail_closed], indirect=True, ids=lambda one: str(one.name)
)
def test_without_breakloop_requests_pass(start: Start) -> None:
    """The shipped snippets fail open, where the gateway can: with breakloop gone, traffic passes, unjudged, with its
    body (P-4)."""
    stack = start()
    assert stack.ask().status == 200
    stack.stop_breakloop()
    answers = [stack.ask("/after", "POST", b'{"n": 1}') for _ in range(6)]
    assert [answer.status for answer in answers] == [200] * 6
    assert stack.application.seen[1:] == [("POST", "/after", b'{"n": 1}')] * 6


def test_what_fails_in_the_application_is_not_sent_again(start: Start) -> None:
    """Failing open is for a breakloop that is gone; an application that breaks off may have done its work (P-4)."""
    stack = start()
    assert stack.ask("/broken", "POST", b"{}").status >= 500
    assert stack.application.seen == [("POST", "/broken", b"{}")]


def test_failing_closed(start: Start, gateway: Gateway) -> None:
    """Changed as their comments say, nothing passes while breakloop is gone (P-4)."""
    stack = start(changes=gateway.fail_closed or {})
    assert stack.ask().status == 200
    stack.stop_breakloop()
    assert stack.ask().status == gateway.closed_status
    assert len(stack.application.seen) == 1
