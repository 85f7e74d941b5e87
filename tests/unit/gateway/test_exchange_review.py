"""Faults that a review of the proxy found, each with what was wrong; they must not come back."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest

from breakloop.dialects.registry import reader
from breakloop.gateway.connection import Connection
from breakloop.gateway.http_request import HeadParser, RequestLimits
from breakloop.gateway.upstream import UpstreamConnection
from breakloop.policy.paths import normalise_host
from tests.builders import CHAT, bundle, chat_body, policy, user
from tests.unit.gateway.fake_client import FakeTransport, get, post, read_replies
from tests.unit.gateway.fake_upstream import FakeConnection, FakePool, Proxy, answer, ok

BUILTIN = {"bundle_version": 1, "policies": []}
LOOPS = bundle(policy("p", loop={"enabled": True, "window_seconds": 60, "threshold_identical_requests": 5}))


def sent_to(target: str, body: bytes, *fields: str) -> bytes:
    return get(target, f"Content-Length: {len(body)}", *fields, method="POST") + body


def another(proxy: Proxy) -> tuple[Connection, FakeTransport]:
    """One more client of the same proxy."""
    transport, connection = FakeTransport(), Connection(proxy.server)
    connection.connection_made(transport)
    return connection, transport


# -- hangs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["closes", "resets", "speaks first"])
def test_a_connection_that_dies_before_the_request_is_on_it(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """Between the making of a connection and the request on it lie turns of the loop in which it can die (a port that
    is forwarded to nobody accepts and closes; 73 of 100 on a real socket). Nobody tells the exchange, what it writes
    goes nowhere, and its client waits for `answer_s`, ten minutes (D-1)."""
    connect = FakePool.connect

    async def dies(pool: FakePool) -> UpstreamConnection:
        made = await connect(pool)
        assert isinstance(made, FakeConnection)
        if how == "speaks first":
            made.says(b"220 ready\r\n")
        else:
            made.goes(ConnectionResetError() if how == "resets" else None)
        return made

    monkeypatch.setattr(FakePool, "connect", dies)
    with Proxy() as proxy:
        proxy.send(get("/a"))
        assert [status for status, _, _ in read_replies(proxy.sent())] == [502]


def test_a_fault_in_an_error_reply_leaves_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault of ours in `ProxyDoor.failed` (reading the dialect a second time, say) escapes from `Exchange._fail`: the
    exchange is over, so no time-out looks at it again, and the client waits for ever. The text of the exception, which
    may quote the request, reaches the loop's own log (Y-1)."""

    def fails(*_: object) -> Any:
        raise ValueError("canary")

    with Proxy() as proxy:
        logged: list[Any] = []
        proxy.loop.set_exception_handler(lambda _, context: logged.append(context))
        monkeypatch.setattr(type(proxy.door), "error_reply", fails)
        proxy.pools["up"].refuses.append(ConnectionRefusedError())
        proxy.send(get("/a"))
        assert proxy.sent().startswith(b"HTTP/1.1 50") or proxy.closed()
        assert not logged


def test_a_fault_in_giving_up_takes_nobody_elses_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """`Hub.answer` calls `abort` outside of its `try`: what that raises ends the loop over the inbox, and the requests
    of all others that came in the same turn are gone, without an answer and without a time-out."""

    def fails(*_: object) -> Any:
        raise ValueError("a fault of ours")

    with Proxy() as proxy:
        other, transport = another(proxy)
        proxy.send(get("/a"))
        monkeypatch.setattr(proxy.door.admission, "read_response", fails)
        monkeypatch.setattr(type(proxy.door), "error_reply", fails)
        proxy.upstream().data_received(ok())
        other.data_received(get("/livez"))
        try:
            proxy.server.process_reads()
        except ValueError:
            proxy.server.process_reads()
        assert transport.sent.startswith(b"HTTP/1.1 200 ")
        other.connection_lost(None)


# -- back-pressure ---------------------------------------------------------------------------------------------------


def test_a_blocked_client_stops_an_upstream_that_is_still_being_connected() -> None:
    """`Exchange.pause` is lost while there is no connection yet. The transport says "full" once, so the answer of an
    upstream that never stops is then kept whole: 800 MB in a second on real sockets (20 pipelined requests of 200 KB
    each, and one to another upstream) (D-1)."""
    with Proxy() as proxy:
        proxy.send(get("/a") + get("/anthropic/b"))
        proxy.transport.on_write = proxy.connection.pause_writing
        proxy.upstream().says(ok())
        proxy.transport.on_write = None
        proxy.loop.turn(3)
        assert not proxy.upstream(name="anthropic").wire.reading
        proxy.connection.resume_writing()
        assert proxy.upstream(name="anthropic").wire.reading


def test_a_request_of_a_client_that_is_blocked_already() -> None:
    """The short way in `Receiving.take` does not look at `_blocked`: an exchange that begins then is never told
    (D-1)."""
    with Proxy() as proxy:
        proxy.exchange()
        proxy.connection.pause_writing()
        proxy.send(get("/b"))
        began = b"GET /b " in proxy.upstream().wire.sent
        assert not began or not proxy.upstream().wire.reading


def test_a_second_try_for_a_blocked_client() -> None:
    """The connection of a second try does not know that the first one was paused (D-1)."""
    with Proxy() as proxy:
        proxy.exchange()
        proxy.send(get("/b"))
        proxy.connection.pause_writing()
        proxy.upstream(0).goes()
        proxy.loop.turn(3)
        assert not proxy.upstream(1).wire.reading


class SlowWire(FakeTransport):
    """Is full after some bytes, and says so at once, as transports do."""

    def __init__(self, protocol: UpstreamConnection) -> None:
        super().__init__()
        self.protocol = protocol
        self.full = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        super().write(data)
        if not self.full and len(self.sent) > 1000:
            self.full = True
            self.protocol.pause_writing()


def test_an_upload_that_fills_the_upstream_at_once_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """`Exchange._send` first sends what has been collected (10 MB), which makes the upstream say "full", and then tells
    the client's connection to go on, which undoes that: the rest of the upload, of any size, is kept (D-1, Y-2)."""

    async def slow(pool: FakePool) -> UpstreamConnection:
        made = FakeConnection(pool.server, pool)
        made.connection_made(SlowWire(made))
        pool.made.append(made)
        return made

    monkeypatch.setattr(FakePool, "connect", slow)
    piece = b"bb8\r\n" + b"x" * 3000 + b"\r\n"
    with Proxy(LOOPS, limits=RequestLimits(body_bytes=2000)) as proxy:
        proxy.send(get("/c", "Transfer-Encoding: chunked", method="POST") + piece)
        before = len(proxy.upstream().wire.sent)
        proxy.send(*[piece] * 10)
        assert len(proxy.upstream().wire.sent) == before


def test_an_upstream_that_does_not_read_is_to_blame_and_not_the_client() -> None:
    """While an upload is held because the upstream does not read, its time-out says 408 and that the client's body does
    not arrive; it is settled as a client that left (D-1)."""
    with Proxy(limits=RequestLimits(body_bytes=100)) as proxy:
        proxy.send(get("/c", "Content-Length: 5000", method="POST") + b"x" * 1000)
        proxy.upstream().pause_writing()
        proxy.send(b"x" * 3000)
        for _ in range(700):
            proxy.server.sweep()
        assert read_replies(proxy.sent())[0][0] == 504


def test_an_early_answer_is_not_destroyed_by_what_was_not_read() -> None:
    """Lingering is for reading on; but where reading was paused (a held upload) nobody resumes it, and the close after
    two seconds is a reset that destroys the answer."""
    small = RequestLimits(body_bytes=100, backlog_bytes=1000, head_bytes=1000)
    with Proxy(limits=small) as proxy:
        proxy.send(get("/c", "Content-Length: 50000", method="POST") + b"x" * 1000)
        proxy.upstream().pause_writing()
        proxy.send(b"x" * 3000)
        assert not proxy.reading()
        proxy.upstream().says(ok(b"too much", status="413 Content Too Large"))
        assert proxy.transport.eof
        assert proxy.reading()


# -- whose answer it is ------------------------------------------------------------------------------------------------


def test_bytes_that_came_before_a_request_are_not_its_answer() -> None:
    """Bytes on an idle upstream connection discard it. Where they come in the same turn of the loop as a
    client's request, and behind it, they wait in the inbox while the request takes that very connection, and are then
    taken for its answer (servers that close idle connections with a 408 do this)."""
    with Proxy() as proxy:
        proxy.exchange()
        proxy.connection.data_received(get("/mine"))
        proxy.upstream().data_received(ok(b"not yours", status="408 Request Timeout"))
        proxy.server.process_reads()
        proxy.loop.turn(3)
        assert b"not yours" not in proxy.sent()


def test_bytes_behind_an_answer_are_not_the_next_clients() -> None:
    """The same with two clients: what follows an answer in a piece of its own (a body after HEAD) reaches the other."""
    with Proxy() as proxy:
        other, transport = another(proxy)
        proxy.send(get("/a", method="HEAD"))
        proxy.upstream().data_received(answer("Content-Length: 60"))
        other.data_received(get("/b"))
        proxy.upstream().data_received(ok(b"the first one's"))
        proxy.server.process_reads()
        proxy.loop.turn(3)
        assert b"the first one's" not in transport.sent
        other.connection_lost(None)


# -- what is judged ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("split", [False, True])
def test_a_chat_is_judged_whatever_its_type_says_and_however_it_arrives(*, split: bool) -> None:
    """Readers go by the path, but `needs_body` by the type. So a chat that says `text/plain` (or what curl -d says) is
    judged if it comes in one segment with its head, and passes for ever if it does not (B-6, E-7)."""
    with Proxy(BUILTIN) as proxy:
        statuses = []
        body = chat_body(user("again"))
        for _ in range(7):
            before = len(proxy.sent())
            sent = sent_to(CHAT, body, "Content-Type: text/plain")
            proxy.send(*([sent[: -len(body)], body] if split else [sent]))
            if len(proxy.sent()) == before:
                proxy.upstream().says(ok())
            statuses.append(int(proxy.sent()[before:].split()[1]))
            proxy.world.clock.advance(2)
        assert statuses == [200] * 5 + [429] * 2


@pytest.mark.parametrize("data", [BUILTIN, bundle()])
def test_an_error_after_a_long_body_still_speaks_its_dialect(data: Any) -> None:
    """Bodies over 64 KB are forgotten once they are sent; the error made of what is left has no JSON-RPC id, or (where
    no detector has looked at the request) not even the dialect's shape (A-3)."""
    asked = {
        "jsonrpc": "2.0",
        "id": 7,
        "method": "tools/call",
        "params": {"name": "t", "arguments": {"a": "x" * 70_000}},
    }
    with Proxy(data) as proxy:
        proxy.send(sent_to("/mcp", json.dumps(asked).encode(), "Content-Type: application/json"))
        proxy.upstream().goes()
        said = json.loads(read_replies(proxy.sent())[0][1])
        assert (said.get("jsonrpc"), said.get("id")) == ("2.0", 7)


# -- heads and memory --------------------------------------------------------------------------------------------------


def test_connection_lines_of_an_answer_are_read_together() -> None:
    """RFC 9110, 7.6.1: of several Connection lines only the last is read: fields that another names reach the client,
    and a `close` in another is not seen."""
    with Proxy() as proxy:
        proxy.send(get("/a"))
        head = answer("Content-Length: 1", "Connection: x-private, close", "X-Private: s", "Connection: keep-alive")
        proxy.upstream().says(head + b"x")
        assert b"X-Private" not in proxy.sent()
        assert proxy.upstream().wire.aborted


def test_close_beats_keep_alive() -> None:
    """RFC 9112, 9.3: a connection that says both is closed."""
    with Proxy() as proxy:
        proxy.send(get("/a"))
        proxy.upstream().says(ok(b"x", "Connection: close, keep-alive"))
        assert proxy.upstream().wire.aborted


def test_long_names_and_hosts_are_not_remembered() -> None:
    """The caches of field names and hosts count entries and not bytes: a thousand requests with names of 60 KB leave
    118 MB behind, and as many with such a Host another 117 (Y-2)."""
    parser = HeadParser(RequestLimits())
    tracemalloc.start()
    try:
        for number in range(50):
            long = b"x%d" % number + b"y" * 60_000
            parser.parse(b"GET / HTTP/1.1\r\nHost: a\r\n" + long + b": 1\r\n\r\n", "")
            normalise_host(parser.parse(b"GET / HTTP/1.1\r\nHost: " + long + b"\r\n\r\n", "").headers["host"])
        assert tracemalloc.get_traced_memory()[0] < 1_000_000
    finally:
        tracemalloc.stop()


def test_an_answer_in_tiny_chunks_takes_no_more_memory_than_its_size() -> None:
    """`BodyReader` keeps each piece as an object of its own: 10 MB that come in chunks of two bytes take 207 (Y-2)."""
    collecting = reader("openai_chat", b"application/json")
    assert collecting is not None
    pieces = [json.dumps(number).encode() for number in range(100, 10_000)]
    tracemalloc.start()
    try:
        for piece in pieces:
            for _ in range(10):
                collecting.feed(bytes(bytearray(piece)))
        assert tracemalloc.get_traced_memory()[0] < 1_000_000
    finally:
        tracemalloc.stop()


def test_a_request_that_was_under_way_for_long_is_not_sent_twice() -> None:
    """A reused connection that dies unheard is taken for one that died idle, however long ago the request was sent: an
    upstream that restarts after minutes of work gets it again, and the client pays twice (D-1)."""
    with Proxy() as proxy:
        proxy.exchange()
        proxy.send(post(b"expensive"))
        for _ in range(120):
            proxy.server.sweep()
        proxy.upstream(0).goes()
        proxy.loop.turn(3)
        assert proxy.pools["up"].opened == 1


# -- what costs too much -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("line", [b"data: x\n\n", b"data: {\n\n"])
def test_a_stream_of_nonsense_is_not_read_for_long(line: bytes) -> None:
    """A quarter of a megabyte of gzip held 38 MB of such events, and blocked the loop for half a minute (Y-2)."""
    stream = reader("openai_chat", b"text/event-stream")
    assert stream is not None
    stream.feed(line * 200)
    given_up = stream.unreadable
    assert given_up < 150
    stream.feed(line * 200)
    assert stream.unreadable == given_up


def test_a_piece_that_no_network_brings_is_not_read() -> None:
    """The same with events that are well formed (Y-2)."""
    stream = reader("openai_chat", b"text/event-stream")
    assert stream is not None
    stream.feed(b'data: {"choices":[]}\n\n' * 60_000)
    assert stream.unreadable == 1


def test_bodies_under_way_count_as_room() -> None:
    """What arrived is kept until the upstream answers; an upstream that stalls must not fill the memory (Y-2)."""
    body = b"x" * 100_000
    with Proxy(LOOPS, limits=RequestLimits(all_bodies_bytes=250_000)) as proxy:
        clients = [another(proxy) for _ in range(3)]
        for connection, _ in clients:
            connection.data_received(post(body))
            proxy.server.process_reads()
        assert [transport.sent[:12] for _, transport in clients] == [b"", b"", b"HTTP/1.1 503"]
        proxy.loop.turn(3)
        proxy.upstream(0).says(ok())
        assert proxy.server.body_memory.held == 100_000
        for connection, _ in clients:
            connection.connection_lost(None)
        assert proxy.server.body_memory.held == 0


@pytest.mark.slow
def test_a_head_byte_by_byte_costs_no_more_than_its_size() -> None:
    """Searching and copying it from the beginning each time cost 4 s for 120 KB (Y-2)."""
    head = answer(*[f"X-{number}: {'y' * 1000}" for number in range(60)], "Content-Length: 0")
    with Proxy() as proxy:
        proxy.send(get("/a"))
        held = proxy.upstream()
        held.says(head[:10])
        kept = held._head
        for at in range(10, len(head) - 1):
            held.says(head[at : at + 1])
        assert held._head is kept  # one buffer, that grows
        held.says(head[-1:])
        assert read_replies(proxy.sent())[0][0] == 200


@pytest.mark.parametrize("name", ["Content-Length", "transfer_encoding", "Host"])
def test_trailers_that_are_about_framing_end_an_answer(name: str) -> None:
    """The other way round; nobody behind us may come to read them (Y-3)."""
    with Proxy() as proxy:
        proxy.send(get("/a"))
        proxy.upstream().says(answer("Transfer-Encoding: chunked"), f"0\r\n{name}: 5\r\n\r\n".encode())
        assert proxy.transport.aborted


def test_a_client_that_drains_slowly_is_not_cut_off() -> None:
    """Slow is not gone; only no progress for a minute is (Y-2)."""
    with Proxy() as proxy:
        left = [10_000]
        setattr(proxy.transport, "get_write_buffer_size", lambda: left[0])  # noqa: B010
        proxy.exchange()
        proxy.connection.pause_writing()
        for _ in range(300):
            left[0] -= 10
            proxy.server.sweep()
        assert not proxy.closed()
        for _ in range(62):
            proxy.server.sweep()
        assert proxy.transport.aborted


def test_one_fault_in_the_sweep_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with Proxy() as proxy:
        swept: list[int] = []

        def fails() -> None:
            raise ValueError("a fault of ours")

        proxy.server.on_sweep[:] = [fails, lambda: swept.append(1)]
        proxy.server.sweep()
        assert (swept, proxy.server.handler_errors) == ([1], 1)
