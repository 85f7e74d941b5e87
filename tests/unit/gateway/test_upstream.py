"""One connection to an upstream on its own; whole exchanges are in test_exchange and its neighbours."""

from __future__ import annotations

from tests.unit.gateway.fake_client import get
from tests.unit.gateway.fake_upstream import Proxy, answer, ok


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
