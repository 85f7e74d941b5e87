"""What can go wrong on the way to an upstream and back, and what a client sees of it (D-1)."""

from __future__ import annotations

import json

import pytest

from breakloop.clock import FakeClock
from breakloop.config import settings
from breakloop.gateway.upstream import UpstreamFaults
from breakloop.model.events import Event
from tests.builders import bundle, chat_body, policy, tail, user
from tests.unit.gateway.fake_client import get, post, read_replies
from tests.unit.gateway.fake_upstream import Proxy, answer, ok


def error_of(sent: bytes) -> tuple[int, str]:
    """Status and code of an error of ours."""
    [(status, body, _)] = read_replies(sent)
    return status, json.loads(body)["detail"]["error"]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ConnectionRefusedError(), "refused the connection"),
        (OSError("no such host"), "could not be reached"),
        (ValueError("a fault of ours"), "could not be reached"),
    ],
)
def test_an_upstream_that_cannot_be_reached(error: Exception, said: str) -> None:
    with Proxy() as proxy:
        proxy.pools["up"].refuses.append(error)
        [(status, body, fields)] = read_replies(proxy.send(post(chat_body(user("x")))))
        assert (status, json.loads(body)["detail"]["error"]) == (502, "upstream_failed")
        assert json.loads(body)["detail"]["message"] == f"The upstream up {said}."
        assert fields[b"x-breakloop-request-id"] == b"t-0"
        assert not proxy.closed()
        assert read_replies(proxy.exchange())[0][0] == 200


def test_a_failure_is_told() -> None:
    """Which upstream, why, and what the client got; not once for each request (G-2)."""
    events: list[Event] = []
    with Proxy(faults=UpstreamFaults(events.append, FakeClock())) as proxy:
        for _ in range(3):
            proxy.pools["up"].refuses.append(ConnectionRefusedError())
            assert read_replies(proxy.send(post(chat_body(user("x")))))[-1][0] == 502
    assert [(one.name, dict(one.data)) for one in events] == [
        ("upstream.failed", {"upstream": "up", "cause": "refused the connection", "status": 502})
    ]
    assert events[0].request_id == "t-0"


def test_an_answer_that_is_cut_is_told_too() -> None:
    """The client sees an aborted connection; people see why (G-2)."""
    events: list[Event] = []
    with Proxy(faults=UpstreamFaults(events.append, FakeClock())) as proxy:
        proxy.send(get("/a"))
        proxy.upstream().says(answer("Content-Length: 9") + b"123")
        proxy.upstream().goes(ConnectionResetError())
        assert proxy.transport.aborted
    assert [dict(one.data) for one in events] == [{"upstream": "up", "cause": "reset the connection", "status": 502}]


def test_errors_speak_the_clients_dialect() -> None:
    """502 in the dialect's error shape, with the request id (D-1)."""
    with Proxy() as proxy:
        proxy.pools["anthropic"].refuses.append(ConnectionRefusedError())
        sent = get("/v1/messages", "Content-Length: 57", method="POST")
        body = b'{"model":"m","messages":[{"role":"user","content":"abc"}]}'
        proxy.send(sent.replace(b"57", b"%d" % len(body)) + body)
        [(status, got, _)] = read_replies(proxy.sent())
        content = json.loads(got)
        assert (status, content["type"], content["error"]["type"]) == (502, "error", "api_error")
        assert content["request_id"] == "t-0"


@pytest.mark.parametrize("error", [None, ConnectionResetError()])
def test_a_fresh_connection_that_dies_is_not_tried_again(error: Exception | None) -> None:
    """Whoever got the request may have acted on it."""
    with Proxy() as proxy:
        proxy.send(get("/a"))
        proxy.upstream().goes(error)
        assert error_of(proxy.sent()) == (502, "upstream_failed")
        assert proxy.pools["up"].opened == 1


def test_a_reused_connection_that_died_unheard_is_tried_again_once() -> None:
    """Retry only on a reused connection with zero bytes received."""
    with Proxy() as proxy:
        proxy.exchange()
        proxy.send(post(b"body"))
        proxy.upstream(0).goes()
        proxy.loop.turn(3)
        assert proxy.upstream(1).wire.sent.endswith(b"\r\n\r\nbody")
        proxy.upstream(1).goes()
        proxy.loop.turn(3)
        assert [status for status, _, _ in read_replies(proxy.sent())] == [200, 502]
        assert proxy.pools["up"].opened == 2


def test_one_byte_heard_is_one_too_many_for_a_retry() -> None:
    with Proxy() as proxy:
        proxy.exchange()
        proxy.send(post(b"body"))
        proxy.upstream().says(b"H")
        proxy.upstream().goes()
        proxy.loop.turn(3)
        assert [status for status, _, _ in read_replies(proxy.sent())] == [200, 502]
        assert proxy.pools["up"].opened == 1


@pytest.mark.parametrize(
    "nonsense",
    [
        b"SSH-2.0-OpenSSH\r\n",
        b"\x16\x03\x01\x02",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" * 20,
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 200_000,
    ],
)
def test_an_upstream_that_answers_nonsense(nonsense: bytes) -> None:
    with Proxy() as proxy:
        proxy.send(get("/a"))
        proxy.upstream().says(nonsense)
        assert error_of(proxy.sent()) == (502, "upstream_failed")
        assert proxy.upstream().wire.aborted


@pytest.mark.parametrize(
    "given", [answer("Content-Length: 9") + b"123", answer("Transfer-Encoding: chunked") + b"3\r\nab"]
)
@pytest.mark.parametrize("how", ["close", "reset"])
def test_an_answer_cut_short_is_never_a_clean_end(given: bytes, how: str) -> None:
    """The client is aborted; no final chunk, no error page in the stream (D-1)."""
    with Proxy() as proxy:
        proxy.send(get("/a"))
        proxy.upstream().says(given)
        before = proxy.sent()
        if how == "close":
            proxy.upstream().ends()
        else:
            proxy.upstream().goes(ConnectionResetError())
        assert proxy.transport.aborted
        assert proxy.sent() == before


def test_an_answer_without_length_that_is_reset_is_aborted() -> None:
    with Proxy() as proxy:
        proxy.send(get("/a"))
        proxy.upstream().says(answer(), b"one")
        proxy.upstream().goes(ConnectionResetError())
        assert proxy.transport.aborted


def test_bad_chunks_in_the_middle_abort_the_client() -> None:
    with Proxy() as proxy:
        proxy.send(get("/a"))
        proxy.upstream().says(answer("Transfer-Encoding: chunked"), b"zz\r\n")
        assert proxy.transport.aborted
        assert b"zz" not in proxy.sent()


def test_bytes_behind_an_answer_end_the_connection() -> None:
    """They would be taken for the next answer."""
    with Proxy() as proxy:
        proxy.exchange(answer=ok(b"1") + ok(b"evil"))
        assert [body for _, body, _ in read_replies(proxy.sent())] == [b"1"]
        assert proxy.upstream().wire.aborted
        proxy.exchange()
        proxy.upstream(1).says(ok(b"evil"))
        assert proxy.upstream(1).wire.aborted
        proxy.exchange()
        assert [body for _, body, _ in read_replies(proxy.sent())] == [b"1", b"fine", b"fine"]


def test_an_upstream_that_does_not_take_the_connection() -> None:
    with Proxy(times=settings.Proxy(connect_seconds=3)) as proxy:
        proxy.pools["up"].never = True
        proxy.send(get("/a"))
        for _ in range(3):
            proxy.server.sweep()
        assert proxy.sent() == b""
        proxy.server.sweep()
        assert error_of(proxy.sent()) == (504, "upstream_timeout")


def test_an_upstream_that_does_not_answer() -> None:
    with Proxy(times=settings.Proxy(answer_seconds=5)) as proxy:
        proxy.send(get("/a"))
        for _ in range(6):
            proxy.server.sweep()
        assert error_of(proxy.sent()) == (504, "upstream_timeout")
        assert proxy.upstream().wire.aborted
        assert not proxy.closed()


def test_an_upstream_that_stalls_in_its_answer() -> None:
    """Every piece gives it time again; then the client is aborted."""
    with Proxy(times=settings.Proxy(answer_seconds=5)) as proxy:
        proxy.send(get("/a"))
        proxy.upstream().says(answer("Transfer-Encoding: chunked"))
        for _ in range(3):
            for _ in range(5):
                proxy.server.sweep()
            proxy.upstream().says(b"1\r\nx\r\n")
        assert not proxy.closed()
        for _ in range(6):
            proxy.server.sweep()
        assert proxy.transport.aborted
        assert proxy.upstream().wire.aborted


def test_idle_connections_are_closed_before_the_upstream_does() -> None:
    """Uvicorn and Node close after 5 s."""
    with Proxy() as proxy:
        proxy.exchange()
        for _ in range(4):
            assert not proxy.upstream().wire.closed
            proxy.server.sweep()
        assert proxy.upstream().wire.closed


def test_a_throttled_request_waits_and_a_client_that_leaves_frees_it() -> None:
    """The delay comes before the upstream sees anything (E-6)."""
    data = bundle(policy("p", loop=tail(max_hits=1, action="throttle")))
    body = chat_body(user("again"))
    request = get("/v1/chat/completions", f"Content-Length: {len(body)}", method="POST") + body
    with Proxy(data) as proxy:
        proxy.exchange(request)
        proxy.send(request)
        assert proxy.upstream().wire.sent.count(b"POST") == 1
        proxy.loop.advance(0.19)
        assert proxy.upstream().wire.sent.count(b"POST") == 1
        proxy.loop.advance(0.02)
        assert proxy.upstream().wire.sent.count(b"POST") == 2
        proxy.upstream().says(ok())
        assert read_replies(proxy.sent())[1][2][b"x-breakloop-loop-delay"] == b"200"
        proxy.send(request)
        proxy.connection.eof_received()
        proxy.loop.advance(60)
        assert proxy.upstream().wire.sent.count(b"POST") == 2


# -- clients that leave, and those that do not read --------------------------------------------------------------------


@pytest.mark.parametrize("when", ["connecting", "waiting", "streaming"])
@pytest.mark.parametrize("end", ["half-close", "reset"])
def test_a_client_that_leaves_cancels_the_upstream_call(when: str, end: str) -> None:
    """The upstream's connection goes at once (D-1)."""
    with Proxy() as proxy:
        proxy.pools["up"].never = when == "connecting"
        proxy.send(get("/a"))
        if when == "streaming":
            proxy.upstream().says(answer("Transfer-Encoding: chunked"), b"1\r\nx\r\n")
        if end == "reset":
            proxy.connection.connection_lost(ConnectionResetError())
        else:
            proxy.connection.eof_received()
        proxy.loop.turn(3)
        assert all(connection.wire.aborted for connection in proxy.pools["up"].made)
        assert proxy.server.abandoned == 1
        assert proxy.world.engine.tally.settled == 1
        assert proxy.world.engine.tally.failed == 0


def test_a_connection_that_comes_too_late_is_kept_for_the_next() -> None:
    with Proxy() as proxy:
        super(Proxy, proxy).send(get("/a"))
        proxy.connection.eof_received()
        proxy.loop.turn(3)
        assert all(not connection.wire.sent for connection in proxy.pools["up"].made)


def test_a_client_that_does_not_read_stops_the_upstream() -> None:
    """Back-pressure; and the connection is readable again for the next exchange (D-1)."""
    with Proxy() as proxy:
        proxy.send(get("/a"))
        proxy.upstream().says(answer("Transfer-Encoding: chunked"), b"1\r\nx\r\n")
        proxy.connection.pause_writing()
        assert not proxy.upstream().wire.reading
        proxy.connection.resume_writing()
        assert proxy.upstream().wire.reading
        proxy.connection.pause_writing()
        proxy.upstream().says(b"0\r\n\r\n")
        assert proxy.upstream().wire.reading
        proxy.connection.resume_writing()
        proxy.exchange()
        assert [reply[1] for reply in read_replies(proxy.sent())] == [b"x", b"fine"]


def test_shutting_down_lets_an_answer_finish_and_closes() -> None:
    """Finish streams up to a limit (S-6)."""
    with Proxy() as proxy:
        proxy.send(get("/a"))
        proxy.server.draining = True
        proxy.connection.drain()
        assert not proxy.closed()
        proxy.upstream().says(ok())
        assert b"connection: close" in proxy.sent()
        assert proxy.closed()
        assert proxy.upstream().wire.closed


def test_the_end_of_the_grace_aborts_a_stream() -> None:
    """A clean end would make a cut answer look whole."""
    with Proxy() as proxy:
        proxy.send(get("/a"))
        proxy.upstream().says(answer("Transfer-Encoding: chunked"), b"1\r\nx\r\n")
        proxy.connection.stop()
        assert proxy.transport.aborted
        assert proxy.upstream().wire.aborted
