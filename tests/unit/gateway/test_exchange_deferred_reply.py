"""Replies that wait for a decision: forwarded, denied, throttled, left, and in their order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from breakloop.errors import RequestError
from breakloop.gateway.admission import DebugSessions
from breakloop.gateway.connection import Phase
from breakloop.gateway.exchange import DeferredReply
from breakloop.model.call import CLIENT_LEFT, Answer, Call
from breakloop.model.verdict import Verdict
from tests.builders import World, about, bundle, exact, header, policy, world
from tests.unit.gateway.fake_client import get, read_replies
from tests.unit.gateway.fake_upstream import Proxy, ok


class Held:
    """Decides when the test says so, with what the engine says."""

    def __init__(self, here: World) -> None:
        self.here = here
        self.waiting: list[tuple[Call, Callable[[Verdict], None]]] = []
        self.at_once = False

    def decide(self, call: Call, then: Callable[[Verdict], None]) -> None:
        self.waiting.append((call, then))
        if self.at_once:
            self.decided()

    def decided(self, verdict: Verdict | None = None) -> None:
        call, then = self.waiting.pop(0)
        then(verdict or self.here.engine.decide(call))


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with Proxy(bundle(policy("p", loop=exact(2)))) as made:
        remote: Any = Held(made.world)
        made.door.admission.remote = remote
        yield made


def held(proxy: Proxy) -> Held:
    remote: Any = proxy.door.admission.remote
    assert isinstance(remote, Held)
    return remote


def statuses(proxy: Proxy) -> list[int]:
    return [status for status, _, _ in read_replies(proxy.sent())]


def test_a_request_is_forwarded_once_it_is_decided(proxy: Proxy) -> None:
    """Nothing reaches the upstream before (S-2, D-1)."""
    proxy.send(get("/v1/models"))
    assert (proxy.phase(), proxy.pools["up"].made) == (Phase.WAITING, [])
    held(proxy).decided()
    proxy.loop.turn(3)
    proxy.upstream().says(ok())
    assert statuses(proxy) == [200]


def test_a_decision_that_is_there_at_once_is_not_waited_for(proxy: Proxy) -> None:
    """As without the store (S-3)."""
    held(proxy).at_once = True
    proxy.exchange()
    proxy.send(get("/v1/models"))
    assert statuses(proxy) == [200, 429]


def test_pipelined_requests_keep_their_order(proxy: Proxy) -> None:
    """The second is not looked at before the first has its answer."""
    proxy.send(get("/v1/a") + get("/v1/a"))
    assert len(held(proxy).waiting) == 1
    held(proxy).decided()
    proxy.loop.turn(3)
    proxy.upstream().says(ok())
    proxy.loop.turn(3)
    held(proxy).decided()
    assert statuses(proxy) == [200, 429]
    assert proxy.phase() is Phase.IDLE


def test_a_client_that_left_is_settled_as_such(proxy: Proxy, settled: list[Answer]) -> None:
    """It was counted and charged; nobody is connected to for it (E-6, L-3)."""
    proxy.send(get("/v1/models"))
    proxy.connection.eof_received()
    assert proxy.server.abandoned == 1
    held(proxy).decided()
    proxy.loop.turn(3)
    assert [answer.status for answer in settled] == [CLIENT_LEFT]
    assert proxy.pools["up"].made == []


def test_a_denial_that_nobody_waits_for(proxy: Proxy, settled: list[Answer]) -> None:
    """There is nothing to settle."""
    proxy.send(get("/v1/models"))
    proxy.connection.eof_received()
    held(proxy).decided(Verdict(allowed=False, reason="kill_switch", status=429))
    assert settled == []


def test_throttled_after_it_was_waited_for(proxy: Proxy) -> None:
    """The delay begins when it is decided (E-6)."""
    verdict = Verdict()
    verdict.delay_ms = 200
    proxy.send(get("/v1/models"))
    held(proxy).decided(verdict)
    proxy.loop.turn(3)
    assert proxy.pools["up"].made == []


def test_a_body_in_pieces_waits_for_the_decision(proxy: Proxy) -> None:
    """Nobody needs to see it, and still it is not sent before (D-1)."""
    big = b"x" * 3_000_000
    head = get("/v1/files", f"Content-Length: {12 * 1024 * 1024}", method="POST")
    proxy.send(head, big)
    assert len(held(proxy).waiting) == 1
    held(proxy).decided()
    proxy.loop.turn(3)
    assert proxy.upstream().wire.sent.count(b"x") >= len(big)


def test_a_fault_while_making_the_reply_is_answered(proxy: Proxy) -> None:
    """The store's answer came in for others, too: they must not suffer."""

    def handler(_request: object) -> DeferredReply:
        pending = DeferredReply()
        made.append(pending)
        return pending

    made: list[DeferredReply] = []
    proxy.connection._handle = handler
    proxy.send(get("/a"))
    made[0].resolve(lambda: 1 / 0)  # type: ignore[arg-type, return-value]
    proxy.send(get("/b"))
    made[1].resolve(lambda: (_ for _ in ()).throw(RequestError(400, "no")))
    assert statuses(proxy) == [500, 400]


def test_the_decision_service_waits_too() -> None:
    """For nginx the status travels in a header field then as ever (D-3)."""
    here = world(bundle(policy("p", loop=exact(2))))
    remote: Any = Held(here)
    here.door._admission.remote = remote
    replies: list[Any] = []
    for _ in range(2):
        asked = about("/x")
        asked.target = b"/v1/decision/nginx"
        pending = here.door(asked)
        assert isinstance(pending, DeferredReply)
        pending.wait(lambda make: replies.append(make()))
        remote.decided()
    assert [reply.status for reply in replies] == [200, 403]
    assert header(replies[1], "X-Breakloop-Status") == "429"


def test_a_debug_session_sees_what_it_sees_without(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the time that the decision took (A-6)."""
    here = world(bundle(policy("p", loop=exact(2))))
    door = here.make_door(debug_secret="a secret for debugging")
    judging = door._admission
    monkeypatch.setattr(DebugSessions, "is_active", lambda _self, _request: True)
    remote: Any = Held(here)
    judging.remote = remote
    pending = door(about("/x"))
    remote.decided()
    reply = pending.make()
    assert header(reply, "X-Breakloop-Debug-Decision") is not None
    assert header(reply, "X-Breakloop-Debug-Latency-Us") is not None
