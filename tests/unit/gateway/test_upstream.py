"""One connection to an upstream on its own; whole exchanges are in test_exchange and its neighbours."""

from __future__ import annotations

import zlib
from itertools import pairwise

from tests.unit.gateway.fake_client import Client, get, read_replies
from tests.unit.gateway.fake_upstream import Proxy, answer, chunks, ok
from tests.unit.gateway.repeating import CHUNKED_HEAD, POLICY, SSE, asked, chat


def test_reading_stops_and_goes_on_once_each() -> None:
    """A transport may be told twice of neither; the fake one would complain."""
    with Proxy() as proxy:
        proxy.send(get("/a"))
        upstream = proxy.upstream()
        for _ in range(2):
            upstream.pause()
        assert not upstream.wire.reading
        for _ in range(2):
            upstream.resume()
        assert upstream.wire.reading


def test_a_connection_with_something_left_is_not_clean() -> None:
    """Whatever it is: the next exchange would trip over it."""
    for spoil in ("unsent", "unread", "closing"):
        with Proxy() as proxy:
            proxy.send(get("/a"))
            upstream = proxy.upstream()
            if spoil == "unsent":
                setattr(upstream.wire, "get_write_buffer_size", lambda: 7)  # noqa: B010
            elif spoil == "unread":
                upstream._queued_reads += 1
            else:
                upstream.wire.closed = True
            upstream.says(ok())
            assert proxy.pools["up"].take() is None, spoil


def test_heads_that_are_cut_are_kept_until_they_are_whole() -> None:
    with Proxy() as proxy:
        proxy.send(get("/a"))
        for byte in answer("Content-Length: 0"):
            assert proxy.sent() == b""
            proxy.upstream().says(bytes((byte,)))
        assert proxy.sent().startswith(b"HTTP/1.1 200 OK\r\n")


def test_interim_responses_are_counted_for_each_exchange() -> None:
    """A connection that is kept serves any number of answers that a 100 precedes."""
    with Proxy() as proxy:
        used = set()
        for _ in range(20):
            proxy.send(get("/a"))
            used.add(proxy.upstream())
            proxy.upstream().says(b"HTTP/1.1 100 Continue\r\n\r\n", ok())
        assert [status for status, _, _ in read_replies(proxy.sent())] == [200] * 20
        assert len(used) == 1


def streams(proxy: Proxy, content: bytes, *fields: str) -> None:
    """Ask for a stream, and get all of it in one read."""
    proxy.send(asked())
    proxy.upstream().says(answer(SSE, *fields) + content)


def reading(proxy: Proxy) -> bool:
    return proxy.upstream().wire.reading


def test_a_fast_stream_is_read_in_several_turns_of_the_loop() -> None:
    """Thousands of small events would hold up everybody else; other connections are served in between (Y-2)."""
    content = b"".join(chat(f"word {number}") for number in range(2_000))
    with Proxy(POLICY) as proxy:
        other = Client(server=proxy.server, loop=proxy.loop)
        streams(proxy, content)
        passed = [len(proxy.sent())]
        assert not reading(proxy)
        other.connection.data_received(get("/livez"))
        while not reading(proxy):
            proxy.loop.turn()
            passed.append(len(proxy.sent()))
        assert max(after - before for before, after in pairwise([0, *passed])) < 20_000
        assert other.replies()[0][0] == 200
        proxy.upstream().ends()
        assert read_replies(proxy.sent())[0][1] == content


def test_a_packed_stream_takes_more_turns() -> None:
    """A kilobyte may hold two hundred, and reading those is what takes the time (Y-2)."""
    content = zlib.compress(b"".join(chat(f"{number * 7919}") for number in range(3_000)), wbits=31)
    with Proxy(POLICY) as proxy:
        streams(proxy, content, "Content-Encoding: gzip")
        turns = 0
        while not reading(proxy):
            proxy.loop.turn()
            turns += 1
        assert turns >= len(content) // 1024
        proxy.upstream().ends()
        assert read_replies(proxy.sent())[0][1] == content


def test_a_body_that_is_not_read_as_events_passes_at_once() -> None:
    """Copying bytes takes no time worth sharing."""
    with Proxy(POLICY) as proxy:
        proxy.send(asked())
        proxy.upstream().says(ok(b"x" * 300_000, "Content-Type: application/json"))
        assert len(read_replies(proxy.sent())[0][1]) == 300_000


def test_a_client_that_stops_reading_gets_what_was_held_when_it_reads_again() -> None:
    content = b"".join(chat(f"word {number}") for number in range(2_000))
    with Proxy(POLICY) as proxy:
        streams(proxy, content)
        proxy.connection.pause_writing()
        before = len(proxy.sent())
        proxy.loop.turn(9)
        assert len(proxy.sent()) == before
        proxy.connection.resume_writing()
        proxy.loop.turn(60)
        proxy.upstream().ends()
        assert read_replies(proxy.sent())[0][1] == content


def test_what_was_received_before_the_upstream_left_is_passed_on() -> None:
    content = b"".join(chat(f"word {number}") for number in range(2_000))
    with Proxy(POLICY) as proxy:
        streams(proxy, content)
        proxy.upstream().goes(ConnectionResetError())
        assert content[-1000:] in proxy.sent()


def test_bytes_behind_the_end_of_a_stream_make_its_connection_unusable() -> None:
    """Also when they are still held."""
    events = b"".join(chat(f"word {number}") for number in range(1_000))
    with Proxy(POLICY) as proxy:
        proxy.send(asked())
        proxy.upstream().says(CHUNKED_HEAD + chunks(events) + b"x" * 200_000)
        proxy.loop.turn(60)
        assert read_replies(proxy.sent())[0][1] == events
        assert proxy.upstream().wire.closed
        assert proxy.pools["up"].take() is None
