"""What connections share: here, what is said about a handler's failure."""

from __future__ import annotations

import json

import pytest

from breakloop.gateway.connection import Connection, Phase
from breakloop.gateway.http_request import HeadParser, Request, RequestLimits
from tests.unit.gateway.fake_client import Client, FakeTransport, get, post


def test_a_failure_is_logged_without_its_text(caplog: pytest.LogCaptureFixture) -> None:
    """The text of an exception may quote the request (Y-1)."""
    with Client() as client:
        with pytest.raises(ValueError) as caught:
            raise ValueError("secret prompt")
        reply = client.server.handler_failed(caught.value)
        assert (reply.status, json.loads(reply.body)["detail"]["error"]) == (500, "internal_error")
        assert client.server.handler_errors == 1
    (record,) = caplog.records
    assert record.name == "breakloop.gateway"
    assert "ValueError in test_a_failure_is_logged_without_its_text" in record.getMessage()
    assert "secret" not in caplog.text


def test_phases_from_waiting_on_do_not_look_at_input() -> None:
    assert [phase for phase in Phase if phase < Phase.WAITING] == [Phase.IDLE, Phase.HEAD, Phase.BODY]


def test_what_arrives_in_one_turn_is_answered_together() -> None:
    """All is decided before anything is written, so that a burst of answers wakes a client once (Q-1)."""
    with Client() as client:
        other = FakeTransport()
        second = Connection(client.server)
        second.connection_made(other)
        client.transport.on_write = lambda: client.seen.append("written")  # type: ignore[arg-type]
        client.connection.data_received(get("/1"))
        second.data_received(get("/2"))
        assert (client.seen, client.sent(), other.sent) == ([], b"", b"")
        client.loop.turn()
        assert [getattr(item, "target", item) for item in client.seen] == [b"/1", b"/2", "written"]
        assert b"GET /2" in other.sent


def test_a_burst_is_bounded() -> None:
    """Nobody waits for more than so many others."""
    with Client() as client:
        client.server.max_batched_writes = 2
        transports = [FakeTransport() for _ in range(5)]
        seen_at_write: list[int] = []
        for transport in transports:
            connection = Connection(client.server)
            connection.connection_made(transport)
            transport.on_write = lambda: seen_at_write.append(len(client.seen))
            connection.data_received(get())
        client.server.process_reads()
        assert seen_at_write == [2, 2, 4, 4, 5]


def test_a_long_piece_is_used_at_once() -> None:
    """What is kept for a turn of the loop stays small, and in order (Y-2)."""
    with Client() as client:
        client.connection.data_received(get("/first"))
        client.connection.data_received(post(b"x" * client.server.large_read))
        assert [request.target for request in client.seen] == [b"/first", b"/p"]


def test_a_refusal_does_not_overtake_an_answer() -> None:
    """Answers keep the order of the requests, whatever they are (Y-3)."""
    with Client() as client:
        client.connection.data_received(get("/good"))
        client.connection.data_received(b"BAD\r\n\r\n")
        client.server.process_reads()
        assert [status for status, _ in client.replies()] == [200, 400]


def test_what_was_sent_before_half_closing_is_answered() -> None:
    """A client that sends its request and closes its side gets the answer (D-1)."""
    with Client() as client:
        client.connection.data_received(get())
        client.connection.eof_received()
        assert [status for status, _ in client.replies()] == [200]


def test_a_broken_connection_does_not_cost_the_others_their_answers() -> None:
    """The outermost edge: a fault in one connection ends that one."""
    with Client() as client:
        broken = Connection(client.server)
        transport = FakeTransport()
        broken.connection_made(transport)
        broken._reader = None  # type: ignore[assignment]
        broken.phase = Phase.HEAD
        broken.data_received(b"x")
        client.connection.data_received(get())
        client.server.process_reads()
        assert transport.aborted
        assert [status for status, _ in client.replies()] == [200]
        assert client.server.handler_errors == 1


def test_after_a_fault_nothing_more_of_the_connection_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """What follows may be the body of what could not be read, and not a request (Y-1)."""

    def fault(*_: object) -> None:
        raise ValueError("a fault of ours")

    with Client() as client:
        with monkeypatch.context() as patch:
            patch.setattr(client.server.head_parser, "parse_bodiless", fault)
            client.connection.data_received(get("/first"))
            client.server.process_reads()
        client.connection.data_received(get("/second"))
        client.server.process_reads()
        assert client.transport.aborted
        assert client.seen == []


def test_a_write_that_fails_does_not_cost_the_others_their_answers() -> None:
    """The outermost edge again: a fault in one transport ends that connection, and bursts go on as before."""
    with Client() as client:
        broken = Connection(client.server)
        transport = FakeTransport()
        broken.connection_made(transport)

        def fail() -> None:
            raise RuntimeError("no")

        transport.on_write = fail
        broken.data_received(get())
        client.connection.data_received(get())
        client.server.process_reads()
        assert transport.aborted
        assert [status for status, _ in client.replies()] == [200]
        assert not client.server.batching


def test_what_was_read_is_answered_before_the_server_stops() -> None:
    """A request that waits for its turn of the loop is no idle connection (S-6)."""
    with Client() as client:
        stopping = client.loop.create_task(client.server.stop(0))
        client.connection.data_received(get("/last"))
        client.loop.turn(5)
        assert [status for status, _ in client.replies()] == [200]
        assert client.closed()
        client.connection.connection_lost(None)
        client.loop.advance(1)
        assert stopping.done()


def large(client: Client, transport: FakeTransport | None = None, *, packed: bool = False) -> Connection:
    """Send a request whose body takes long to decide on."""
    connection = Connection(client.server)
    connection.connection_made(transport or FakeTransport())
    sent = get("/large", "Content-Length: 5000", "Content-Encoding: gzip", method="POST") + b"x" * 5000
    connection.data_received(sent if packed else post(b"x" * 300_000))
    client.server.process_reads()
    return connection


@pytest.mark.parametrize("packed", [False, True], ids=["large", "packed"])
def test_large_bodies_are_decided_in_a_turn_of_their_own(packed: bool) -> None:
    """Several that arrive at once do not hold up others for the sum of their times (Y-2)."""
    with Client() as client:
        transports = [FakeTransport() for _ in range(3)]
        for transport in transports:
            large(client, transport, packed=packed)
        client.send(get("/small"))
        assert [request.target for request in client.seen] == [b"/small"]
        answered = []
        for _ in range(3):
            client.loop.turn()
            answered.append(sum(b"200 OK" in transport.sent for transport in transports))
        assert answered == [1, 2, 3]
        assert client.server.body_memory.held == 0


def test_requests_behind_a_large_one_keep_their_order() -> None:
    with Client() as client:
        client.send(post(b"x" * 300_000) + get("/next"))
        client.loop.turn(2)
        assert [request.target for request in client.seen] == [b"/p", b"/next"]
        assert [status for status, _ in client.replies()] == [200, 200]


def test_nothing_is_decided_for_a_client_that_left() -> None:
    with Client() as client:
        gone = large(client)
        assert client.server.body_memory.held == 300_000
        gone.connection_lost(None)
        client.loop.turn(2)
        assert (client.seen, client.server.body_memory.held) == ([], 0)


def test_a_fault_of_the_parser_ends_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """The body of a request that was not understood is not read as the next request (Y-2)."""
    parse = HeadParser.parse

    def faulty(parser: HeadParser, head: bytes, peer: str) -> Request:
        if b"/fault" in head:
            raise KeyError(head)
        return parse(parser, head, peer)

    monkeypatch.setattr(HeadParser, "parse", faulty)
    with Client(limits=RequestLimits(pipelined=2)) as client:
        hidden = get("/hidden")
        fault = get("/fault", f"Content-Length: {len(hidden)}", method="POST") + hidden
        client.send(get("/ok") * 2 + fault)
        client.loop.turn(5)
        assert [request.target for request in client.seen] == [b"/ok"] * 2
        assert client.transport.aborted
        assert client.server.handler_errors == 1
        client.connection.data_received(get("/third"))
        client.loop.turn(5)
        assert len(client.seen) == 2
