"""The shipped nginx snippet in a real nginx, asking the real `breakloop serve` (D-3, P-4)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.e2e.behind import Stack, stopped
from tests.e2e.nginx import EXAMPLE, running_stack

pytestmark = pytest.mark.e2e

FAIL_OPEN = "    error_page 500 502 503 504 = @breakloop_absent;\n"
THROTTLE = """\
bundle_version: 1
policies:
  - id: slow
    spec:
      selector: {pathPrefix: /}
      loop_detection: {enabled: true, window_seconds: 60, threshold_identical_requests: 2, action: throttle}
      rules: []
"""
PAYMENT = """\
bundle_version: 1
policies:
  - id: paid
    spec:
      selector: {pathPrefix: /}
      deny_status: 402
      rules:
        - {name: one, limit_keys: [], algorithm: token_bucket, algorithm_config: {tokens_per_second: 0.01, burst: 1}}
"""

Start = Callable[..., Stack]


@pytest.fixture
def start(nginx_path: str, tmp_path: Path) -> Iterator[Start]:
    """Return a function that starts nginx, breakloop and the application with a policy and changed lines."""
    with ExitStack() as started:

        def begin(policy: str = "", changes: dict[str, str] | None = None) -> Stack:
            file = EXAMPLE / "policy.yaml"
            if policy:
                file = tmp_path / "policy.yaml"
                file.write_text(policy)
            return started.enter_context(running_stack(nginx_path, tmp_path, file, changes or {}))

        yield begin


def test_a_looping_client_is_stopped(start: Start) -> None:
    """The first requests reach the application; then the client gets 429, the reason and the JSON body. A stream passes
    as it comes (D-3)."""
    stack = start()
    detail = stopped(stack)[4].json()["detail"]
    assert stack.streamed() == ("data: one\n\n", "data: two\n\n")
    assert detail["message"].startswith("Blocked: identical request sent 5 times, never more than 60 seconds apart.")


def test_allowed_answers_tell_what_is_left(start: Start) -> None:
    """The RateLimit fields and the request id reach the client, once each (A-5)."""
    answer = start().ask()
    assert answer.status == 200
    assert answer.headers["ratelimit-limit"] == "40"
    assert answer.headers["ratelimit-remaining"] == "39"
    assert answer.headers["x-breakloop-request-id"]
    assert "x-breakloop-reason" not in answer.headers


def test_a_healthy_client_is_never_stopped(start: Start) -> None:
    """Requests that change are no loop, however many come (LD-1)."""
    stack = start()
    answers = [stack.ask(f"/v1/tools/search?page={page}") for page in range(35)]
    assert {answer.status for answer in answers} == {200}
    assert [path for _, path, _ in stack.application.seen][-1] == "/v1/tools/search?page=34"


def test_connections_to_breakloop_are_kept(start: Start) -> None:
    """nginx asks over one connection and not over one per request; denials do not cost it either (D-1)."""
    stack = start()
    for page in range(20):
        assert stack.ask(f"/page/{page}").status == 200
    assert stack.relay.connections == 1
    statuses = [stack.ask().status for _ in range(10)]
    assert statuses.count(429) == 6
    assert stack.relay.connections == 1


def test_clients_are_told_apart(start: Start) -> None:
    """Each address has its own count, and a client cannot take another one by saying so (C-4)."""
    stack = start()
    assert [stack.ask(client="127.0.0.2").status for _ in range(5)] == [200, 200, 200, 200, 429]
    assert stack.ask(client="127.0.0.3").status == 200
    for number in (1, 2):
        forged = {"X-Forwarded-For": f"198.51.100.{number}", "Forwarded": f"for=198.51.100.{number}"}
        assert stack.ask(client="127.0.0.2", headers=forged).status == 429


def test_a_client_cannot_change_what_is_asked(start: Start) -> None:
    """What nginx says about the request replaces what the client says about it (D-3)."""
    stack = start()
    statuses = []
    for number in range(5):
        forged = {
            "X-Original-URI": f"/{number}",
            "X_Original_URI": f"/{number}",
            "X-Original-Method": "POST",
            "X-Original-Host": f"host-{number}",
            "X-Original-Content-Length": "9",
            "X-Forwarded-Uri": f"/{number}",
        }
        statuses.append(stack.ask(headers=forged).status)
    assert statuses == [200, 200, 200, 200, 429]


def test_unseen_bodies_are_no_loop(start: Start) -> None:
    """nginx does not pass bodies on; POSTs that look the same without theirs are left alone, with and without a length.
    A POST that has none is judged (LD-1)."""
    stack = start()
    for number in range(8):
        body = b'{"step": %d}' % number
        assert stack.ask("/v1/run", "POST", body).status == 200
        chunks = iter([body[:4], body[4:]])
        assert stack.ask("/v1/chunks", "POST", chunks, headers={"Transfer-Encoding": "chunked"}).status == 200
    assert stack.application.seen[-1] == ("POST", "/v1/chunks", b'{"step": 7}')
    assert [stack.ask("/v1/run", "POST", b"").status for _ in range(5)] == [200, 200, 200, 200, 429]


def test_a_throttled_request_is_held_back(start: Start) -> None:
    """nginx waits for the answer as long as breakloop holds it, and the client is told why (LD-5)."""
    stack = start(THROTTLE)
    first, second = stack.ask(), stack.ask()
    assert first.status == second.status == 200
    assert "x-breakloop-loop-delay" not in first.headers
    assert second.headers["x-breakloop-loop-delay"] == "200"
    assert second.headers["x-breakloop-warning"] == "loop_detected"
    assert second.headers["x-breakloop-loop-count"] == "2"
    assert second.seconds >= 0.2


def test_deny_status_reaches_the_client(start: Start) -> None:
    """The status that the policy sets is the client's, although nginx knows only 403 (A-1)."""
    stack = start(PAYMENT)
    answers = [stack.ask(f"/{number}") for number in range(2)]
    assert [answer.status for answer in answers] == [200, 402]
    assert answers[1].headers["x-breakloop-reason"] == "token_bucket_exceeded"
    assert answers[1].headers["ratelimit-remaining"] == "0"
    assert answers[1].json()["detail"]["error"] == "token_bucket_exceeded"


def test_a_path_that_cannot_be_read_is_a_bad_request(start: Start) -> None:
    """An encoded slash is 400 for the client too, with the reason in the body (R-3)."""
    answer = start().ask("/a%2Fb")
    assert answer.status == 400
    assert answer.json()["detail"]["error"] == "bad_request"


def test_a_request_breakloop_refuses_to_read_is_refused(start: Start) -> None:
    """More fields than breakloop takes is a clean 403, and not an open door (Y-2)."""
    stack = start()
    answer = stack.ask(headers={f"X-Filler-{number}": "x" for number in range(250)})
    assert answer.status == 403
    assert stack.application.seen == []


def test_without_breakloop_requests_pass(start: Start) -> None:
    """The shipped snippet fails open: with breakloop gone, traffic passes, unjudged."""
    stack = start()
    assert stack.ask().headers["x-breakloop-request-id"]
    stack.stop_breakloop()
    answers = [stack.ask() for _ in range(8)]
    assert {answer.status for answer in answers} == {200}
    assert all("x-breakloop-request-id" not in answer.headers for answer in answers)


def test_a_hanging_breakloop_costs_its_time_limit(start: Start) -> None:
    """The shipped snippet fails open after proxy_read_timeout when breakloop hangs, and after nothing else: nginx's own
    60 seconds are longer than a client here waits."""
    stack = start(changes={"proxy_read_timeout 35s;": "proxy_read_timeout 1s;"})
    assert stack.ask().status == 200
    stack.hang_breakloop()
    answer = stack.ask(timeout_s=50)
    assert answer.status == 200
    assert answer.seconds >= 0.9


def test_failing_closed(start: Start) -> None:
    """Without the fail-open line nothing passes while breakloop is gone, as the snippet's comment says."""
    stack = start(changes={FAIL_OPEN: ""})
    assert stack.ask().status == 200
    stack.stop_breakloop()
    assert stack.ask().status == 500
    assert len(stack.application.seen) == 1
