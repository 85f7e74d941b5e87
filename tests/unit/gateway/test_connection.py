"""One connection: replies in order, refusals, waiting, back-pressure, time limits, the end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest

from breakloop.errors import RequestError
from breakloop.gateway.connection import Connection, Phase
from breakloop.gateway.http_request import Reply, Request, RequestLimits
from breakloop.gateway.server import Server
from tests.each import each
from tests.unit.gateway.fake_client import Client, FakeTransport, chunked, get, post, read_replies


def fixed(reply: Reply) -> Callable[[Request], Reply]:
    return lambda _: reply


def test_one_write_per_reply() -> None:
    with Client() as client:
        client.send(get("/a"), post(b"body"))
        assert client.replies() == [(200, b"GET /a "), (200, b"POST /p body")]
        assert (client.transport.writes, client.server.requests, client.server.connections) == (2, 2, 1)
        assert [request.peer for request in client.seen] == ["192.0.2.7"] * 2


def test_a_body_that_ends_like_a_head_is_a_body() -> None:
    """One read that ends with an empty line is usually a request without a body."""
    with Client() as client:
        client.send(post(b"one\r\n\r\n"), post(b"X: y\r\n\r\n"), get("/a") + get("/b"))
        assert client.replies() == [
            (200, b"POST /p one\r\n\r\n"),
            (200, b"POST /p X: y\r\n\r\n"),
            (200, b"GET /a "),
            (200, b"GET /b "),
        ]


def test_what_follows_a_head_is_not_part_of_it() -> None:
    with Client() as client:
        client.send(get("/a") + b"Authorization: Bearer x\r\n\r\n")
        assert [status for status, _ in client.replies()] == [200, 400]
        assert "authorization" not in client.seen[0].headers


def test_trailers_never_enter_the_request() -> None:
    """An Authorization in the trailer is not the request's (Y-3)."""
    with Client() as client:
        client.send(chunked(b"abc", trailers=b"Authorization: Bearer x\r\n"), get("/next"))
        assert client.replies() == [(200, b"POST /c abc"), (200, b"GET /next ")]
        assert "authorization" not in client.seen[0].headers
        assert b"Authorization" not in client.seen[0].raw


def test_h2c_is_ignored_with_the_body_intact() -> None:
    """Java's client offers h2c on its first request, with or without a body."""
    offer = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMA")
    with Client() as client:
        client.send(get("/a", *offer), post(b"body", *offer), chunked(b"bo", b"dy", fields=offer) + get("/b"))
        assert client.replies() == [
            (200, b"GET /a "),
            (200, b"POST /p body"),
            (200, b"POST /c body"),
            (200, b"GET /b "),
        ]


def test_websockets_are_refused_with_an_answer() -> None:
    with Client() as client:
        client.send(get("/ws", "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"))
        ((status, body, _),) = read_replies(client.sent())
        assert (status, json.loads(body)["detail"]["error"]) == (426, "upgrade_refused")
        assert client.seen == []


@each(
    "data, status, code",
    [
        (b"\x16\x03\x01", 400, "bad_request"),
        (b"GET / HTTP/1.1\r\n\r\n", 400, "bad_request"),
        (b"GET / HTTP/1.1\nHost: a\n\n", 400, "bad_request"),
        (get(method="FOO"), 501, "method_not_implemented"),
        (get(version="2.0"), 505, "version_not_supported"),
        (get("/" + "x" * 17_000), 414, "target_too_long"),
        (get("/", "X: " + "x" * 70_000), 431, "head_too_large"),
        (get("/", *["X: y"] * 200), 431, "head_too_large"),
        (get("/", "Expect: tea"), 417, "expectation_failed"),
        (get("/", "Content-Length: 10485761", method="POST"), 413, "body_too_large"),
        (chunked()[:-5] + b"a00001\r\n", 413, "body_too_large"),
        (chunked()[:-5] + b"x\r\n", 400, "bad_request"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 65_536, 431, "head_too_large"),
    ],
)
def test_refusals_answer_and_close(data: bytes, status: int, code: str) -> None:
    """A small JSON body, Connection: close, and nothing after it is looked at (Y-2, Y-3)."""
    with Client() as client:
        client.send(get("/first"), data, get("/smuggled"))
        assert [request.target for request in client.seen] == [b"/first"]
        _, (got, body, head) = read_replies(client.sent())
        assert (got, json.loads(body)["detail"]["error"], head[b"connection"].split(b", ")[0]) == (
            status,
            code,
            b"close",
        )
        assert client.transport.eof
        assert client.server.bad_requests == 1


def test_a_refused_client_can_read_the_answer_before_the_connection_goes() -> None:
    """Closing on unread bytes would reset the connection and destroy the answer: read on, but not for long.

    However much the client sends: it may have sent megabytes before it looks."""
    with Client(limits=RequestLimits(body_bytes=10)) as client:
        client.send(get("/", "Content-Length: 99999999", method="POST"), *[b"x" * 500_000] * 8)
        for _ in range(3):
            assert not client.closed()
            client.server.sweep()
            client.send(b"x" * 500_000)
        assert client.closed()
        assert len(client.replies()) == 1


def is_read(client: Client) -> bool:
    return client.transport.reading


def test_a_refused_client_that_never_stops_sending_is_not_read_for_ever() -> None:
    """More than a large upload is left to the kernel, which makes the client wait (Y-2)."""
    with Client() as client:
        client.send(b"\x00", *[bytes(2**20)] * 64)
        assert is_read(client)
        client.send(b"\x00")
        assert not is_read(client)
        assert not client.closed()  # it can still read the answer
        assert len(client.replies()) == 1


def test_long_heads_in_small_pieces_are_refused_without_parsing() -> None:
    """Counted in data_received; the parser never sees it (Y-2)."""
    with Client() as client:
        client.send(b"GET / HTTP/1.1\r\nHost: a\r\nX: ", *[b"x" * 100] * 700)
        assert [status for status, _ in client.replies()] == [431]


def test_http_1_0() -> None:
    """Closed after the reply unless keep-alive was asked for; nginx's auth_request is such a client (D-1)."""
    with Client() as client:
        client.send(b"GET /a HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        assert b"\r\nconnection: keep-alive\r\n" in client.sent()
        client.send(b"GET /b HTTP/1.0\r\n\r\n" + get("/c"))
        assert [body for _, body in client.replies()] == [b"GET /a ", b"GET /b "]
        assert b"\r\nconnection: close\r\ncontent-length: 7\r\n" in client.sent()
        assert client.closed()


def test_head_requests() -> None:
    with Client() as client:
        client.send(get("/a", method="HEAD") + get("/b"))
        assert client.replies("HEAD", "GET") == [(200, b""), (200, b"GET /b ")]


def test_100_continue_is_sent_only_when_the_body_will_be_read() -> None:
    head, body = post(b"hello", "Expect: 100-continue")[:-5], b"hello"
    with Client() as client:
        assert client.send(head) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.send(body)
        assert client.sent().count(b"100 Continue") == 1
        assert client.replies() == [(200, b"POST /p hello")]
    with Client(limits=RequestLimits(body_bytes=4)) as client:
        assert client.send(head).startswith(b"HTTP/1.1 413 ")
    with Client() as client:
        assert client.send(head + body).startswith(b"HTTP/1.1 200 ")


def test_pipelined_requests_are_answered_in_order_and_take_turns() -> None:
    """At most 16 of one connection before others get their turn; the rest waits as bytes (Y-2)."""
    with Client() as client:
        client.connection.process(b"".join(get(f"/{n}") for n in range(50)))
        assert client.phase() is Phase.QUEUED
        assert len(client.seen) == 16
        client.loop.turn()
        assert len(client.seen) == 32
        client.send()
        assert [body for _, body in client.replies()] == [b"GET /%d " % n for n in range(50)]
        assert client.phase() is Phase.IDLE


def test_many_pipelined_requests_stop_reading() -> None:
    """One read can hold thousands of requests; reading pauses until they are worked off (Y-2)."""
    with Client() as client:
        client.connection.process(get() * 6000)
        assert not client.reading()
        client.send()
        assert client.reading()
        assert len(client.seen) == 6000


def test_a_throttled_reply_waits_without_a_task() -> None:
    """Sent after its delay; what the client sends meanwhile is answered after it, in order (E-6)."""
    with Client(lambda r: Reply(200, b"", r.target, 2.0 if r.target == b"/slow" else 0.0)) as client:
        client.send(get("/slow"), get("/quick"))
        client.loop.advance(1.9)
        assert client.sent() == b""
        client.loop.advance(0.2)
        assert [body for _, body in client.replies()] == [b"/slow", b"/quick"]


@pytest.mark.parametrize("end", ["eof", "lost"])
def test_a_client_that_leaves_frees_its_throttled_slot_at_once(end: str) -> None:
    """Also when it only closes its side (E-6)."""
    with Client(fixed(Reply(200, delay_s=30.0))) as client:
        client.send(get())
        handle = client.connection._pending
        assert isinstance(handle, asyncio.TimerHandle)
        if end == "eof":
            assert client.connection.eof_received() is False
        else:
            client.connection.connection_lost(None)
        assert handle.cancelled()
        assert client.connection._pending is None
        assert client.server.abandoned == 1
        client.loop.advance(60)
        assert client.sent() == b""


def test_a_client_that_sends_on_while_throttled_is_paused_at_a_bound() -> None:
    """Reading goes on, to notice a disconnect, but only into a small buffer (Y-2)."""
    with Client(fixed(Reply(200, delay_s=1.0))) as client:
        client.send(get(), post(b"x" * 60_000))
        assert client.reading()
        client.send(post(b"x" * 60_000))
        assert not client.reading()
        client.loop.advance(1.1)
        assert client.reading()
        client.loop.advance(1.1)
        client.loop.advance(1.1)
        assert len(client.replies()) == 3


def test_a_failing_handler_gives_500_and_one_log_line(caplog: pytest.LogCaptureFixture) -> None:
    """Without any content of the request; the connection and the process live on (Y-1)."""

    def handle(request: Request) -> Reply:
        if request.target == b"/ok":
            return Reply(200)
        raise ValueError(request.target)

    with Client(handle) as client:
        client.send(get("/secret?key=sk-1"), get("/ok"))
        statuses = [status for status, _ in client.replies()]
        assert (statuses, client.server.handler_errors) == ([500, 200], 1)
        assert json.loads(client.replies()[0][1])["detail"]["error"] == "internal_error"
    assert len(caplog.records) == 1
    assert "secret" not in caplog.text
    assert "sk-1" not in caplog.text


def test_a_handler_may_refuse_a_request() -> None:
    def refuse(_: Request) -> Reply:
        raise RequestError(400, "bad path")

    with Client(refuse) as client:
        client.send(get(), get())
        assert [(status, json.loads(body)["detail"]["message"]) for status, body in client.replies()] == [
            (400, "bad path")
        ] * 2


def test_nothing_is_written_after_close() -> None:
    """uvloop raises on such a write; the fake transport does too."""
    with Client(fixed(Reply(200, delay_s=1.0))) as client:
        client.send(get())
        client.transport.close()
        client.loop.advance(2)
        assert client.sent() == b""
    with Client() as client:
        client.transport.close()
        client.connection.process(get())
        client.connection.process(b"\x00")
        assert client.sent() == b""


def test_a_client_that_does_not_read_is_not_read_from() -> None:
    """Back-pressure: no request is looked at while answers pile up (D-1)."""
    with Client() as client:
        client.transport.on_write = client.connection.pause_writing
        client.send(get("/a") + get("/b") + get("/c"))
        assert not client.reading()
        assert len(client.seen) == 1
        client.transport.on_write = None
        client.connection.resume_writing()
        assert client.reading()
        assert [request.target for request in client.seen] == [b"/a", b"/b", b"/c"]
        client.connection.pause_writing()
        for _ in range(61):
            client.server.sweep()
        assert client.transport.aborted
        assert client.server.timeouts == 1


def sweeps_until_closed(client: Client) -> int:
    for count in range(200):
        if client.closed() or client.transport.eof:
            return count
        client.server.sweep()
    return -1


def test_idle_connections_end_after_75_seconds() -> None:
    """Counted from the last reply, by the one sweep (Y-2)."""
    with Client() as client:
        client.server.sweep()
        client.send(get())
        assert sweeps_until_closed(client) == 76
        assert len(client.replies()) == 1  # nothing is said to a client that asked nothing


def test_a_head_must_complete_within_10_seconds() -> None:
    """From its first byte, however many trickle in (Y-2)."""
    with Client() as client:
        client.send(get())
        for _ in range(11):
            client.send(b"G")
            client.server.sweep()
        assert [status for status, _ in client.replies()] == [200, 408]
        assert client.server.timeouts == 1


def test_a_body_may_take_long_but_not_stand_still() -> None:
    """60 seconds without progress (Y-2)."""
    with Client() as client:
        client.send(post(b"x" * 10)[:-10])
        for _ in range(5):
            for _ in range(59):
                client.server.sweep()
            client.send(b"x")
        assert client.sent() == b""
        assert sweeps_until_closed(client) == 61
        assert [status for status, _ in client.replies()] == [408]


def test_waiting_is_the_handlers_time() -> None:
    with Client(fixed(Reply(200, delay_s=500.0))) as client:
        client.send(get())
        assert sweeps_until_closed(client) == -1


def test_an_idle_connection_makes_room_for_a_new_one() -> None:
    """The longest idle one is closed: a thousand clients that send nothing keep nobody out (Y-2)."""
    with Client(limits=RequestLimits(connections=3)) as client:
        server = client.server
        client.send(get()[:10])  # it has begun a request
        others = [(Connection(server), FakeTransport()) for _ in range(4)]
        for connection, transport in others:
            server.sweep()
            connection.connection_made(transport)
        assert [transport.aborted for _, transport in others] == [True, True, False, False]
        assert (client.transport.aborted, server.refused, server.reclaimed, len(server.live)) == (False, 0, 2, 3)
        others[2][0].process(get())
        assert others[2][1].sent.startswith(b"HTTP/1.1 200 ")


def connect(server: Server, peer: str, sent: bytes = b"") -> FakeTransport:
    connection, transport = Connection(server), FakeTransport((peer, 4711))
    connection.connection_made(transport)
    if sent:
        connection.process(sent)
    return transport


def test_one_address_cannot_take_all_connections() -> None:
    """Three quarters by default; other addresses get the rest. Trusted proxies may have all of them (Y-2)."""
    half = get()[:10]
    with Client(limits=RequestLimits(connections=8)) as client:
        server = client.server
        server.exempts = lambda address: address == "10.0.0.1"
        assert [connect(server, "203.0.113.9", half).aborted for _ in range(8)] == [False] * 6 + [True] * 2
        assert not connect(server, "10.0.0.7").aborted
        assert (server.refused_of_peer, server.refused_peer, server.refused, server.reclaimed) == (
            2,
            "203.0.113.9",
            0,
            0,
        )
        assert len(server.live) == 8
    with Client(limits=RequestLimits(connections=8)) as client:
        client.server.exempts = lambda address: address == "10.0.0.1"
        assert [connect(client.server, "10.0.0.1", half).aborted for _ in range(7)] == [False] * 7


def test_an_address_at_its_limit_makes_room_among_its_own() -> None:
    """Its idle connections are closed, and nobody else's (Y-2)."""
    with Client(limits=RequestLimits(connections=100, connections_per_peer=2)) as client:
        server = client.server
        other = connect(server, "10.0.0.7")
        busy = connect(server, "203.0.113.9", get()[:10])
        idle = connect(server, "203.0.113.9")
        assert not connect(server, "203.0.113.9", get()[:10]).aborted
        assert (other.aborted, busy.aborted, idle.aborted, server.reclaimed) == (False, False, True, 1)
        assert connect(server, "203.0.113.9").aborted


def test_ipv6_addresses_count_by_their_network() -> None:
    """A client has 2**64 of them; a place that becomes free is given again (Y-2)."""
    with Client(limits=RequestLimits(connections=100, connections_per_peer=2)) as client:
        server = client.server
        first = Connection(server)
        first.connection_made(FakeTransport(("2001:db8::1", 1, 0, 0)))
        first.process(get()[:10])
        assert not connect(server, "2001:db8::2%eth0", get()[:10]).aborted
        assert connect(server, "2001:db8::3", get()[:10]).aborted
        assert not connect(server, "2001:db8:0:1::3", get()[:10]).aborted
        first.connection_lost(None)
        first.connection_lost(None)
        assert not connect(server, "2001:db8::3", get()[:10]).aborted


def test_full_limits_are_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    """With how many were refused or closed since, and the address that has too many (Y-2)."""
    with caplog.at_level("WARNING"), Client(limits=RequestLimits(connections=4, connections_per_peer=2)) as client:
        server = client.server
        for _ in range(5):
            connect(server, "203.0.113.9", get()[:10])
        for _ in range(60):
            server.sweep()
        connect(server, "203.0.113.8", get()[:10])
        connect(server, "203.0.113.7", get()[:10])
        for _ in range(60):
            server.sweep()
    fields = [record.fields for record in caplog.records]  # type: ignore[attr-defined]
    assert [record.getMessage() for record in caplog.records] == ["connections.limit"] * 2
    assert fields == [
        {"open": 3, "refused": 0, "idle_closed": 0, "refused_of_peer": 3, "peer": "203.0.113.9"},
        {"open": 4, "refused": 0, "idle_closed": 1},
    ]


def test_a_request_that_has_just_arrived_is_not_lost_for_a_new_connection() -> None:
    """It is answered first; then its connection may be the one that goes (Y-2)."""
    with Client(limits=RequestLimits(connections=1)) as client:
        client.connection.data_received(get())
        Connection(client.server).connection_made(FakeTransport())
        assert client.transport.sent.startswith(b"HTTP/1.1 200 ")


def test_more_connections_than_the_cap_are_closed_at_once() -> None:
    """And counted, if none is idle; a place that becomes free is given again (Y-2)."""
    with Client(limits=RequestLimits(connections=1)) as client:
        client.send(get()[:10])
        second, transport = Connection(client.server), FakeTransport()
        second.connection_made(transport)
        assert transport.aborted
        second.process(get())
        second.connection_lost(None)
        assert (client.server.refused, client.server.connections, len(client.server.live)) == (1, 1, 1)
        client.connection.connection_lost(None)
        third, transport = Connection(client.server), FakeTransport(peer="")
        third.connection_made(transport)
        third.process(get())
        assert transport.sent.startswith(b"HTTP/1.1 200 ")
        assert client.seen[-1].peer == ""
        third.connection_lost(None)


def test_draining() -> None:
    """Idle connections go, a running request is answered with Connection: close (S-6)."""
    with Client(fixed(Reply(200, delay_s=1.0))) as client:
        client.send(get())
        client.server.draining = True
        client.connection.drain()
        assert not client.closed()
        client.loop.advance(1.1)
        assert b"\r\nconnection: close\r\n" in client.sent()
        assert client.closed()
    with Client() as client:
        client.connection.drain()
        assert client.closed()


def test_cut_sends_a_throttled_reply_at_once() -> None:
    """Its verdict is known, so the client gets it even when the grace is over (S-6)."""
    with Client(fixed(Reply(200, delay_s=30.0))) as client:
        client.send(get())
        client.server.draining = True
        client.connection.stop()
        assert [status for status, _ in client.replies()] == [200]
        assert client.closed()
        client.loop.advance(60)
        assert client.transport.writes == 1


def test_the_short_and_the_long_way_hand_out_the_same() -> None:
    """One whole request in one segment is read without the buffer; in two, with it."""
    whole, pieces = Client(), Client()
    with whole, pieces:
        stream = post(b"body", "X-A: b")
        whole.send(stream)
        pieces.send(stream[:9], stream[9:])
        seen = [(r.method, r.target, r.headers, r.raw, r.body) for r in (whole.seen[0], pieces.seen[0])]
        assert seen[0] == seen[1]
        assert whole.sent() == pieces.sent()


def test_a_body_that_passes_in_pieces_is_handed_out_with_its_head() -> None:
    """The handler sees the request at once, and never its body (D-1)."""
    with Client(limits=RequestLimits(body_bytes=10)) as client:
        client.server.streams_body = lambda _request: False
        client.connection = type(client.connection)(client.server)
        client.connection.connection_made(client.transport)
        client.send(get("/up", "Content-Length: 100", method="POST"))
        assert [(request.streamed, request.body) for request in client.seen] == [(True, b"")]
        assert client.phase() is Phase.LINGERING  # the handler answered without reading it


def test_a_reply_goes_before_the_refusal_of_what_follows() -> None:
    """Nothing overtakes."""
    with Client(lambda _request: Reply(200, b"", b"first")) as client:
        client.send(get("/a") + b"BAD LINE\r\n\r\n")
        assert [status for status, _ in client.replies()] == [200, 400]
