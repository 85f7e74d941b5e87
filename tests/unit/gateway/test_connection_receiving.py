"""The receiving half on its own; what a whole connection does is in test_connection."""

from __future__ import annotations

import pytest

from breakloop.gateway.connection import Receiving
from breakloop.gateway.http_request import Reply, Request, RequestLimits
from breakloop.gateway.hub import Phase
from tests.unit.gateway.fake_client import Client, get, post


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
        client.server.streams = lambda _request: False
        client.connection = type(client.connection)(client.server)
        client.connection.connection_made(client.transport)
        client.send(get("/up", "Content-Length: 100", method="POST"))
        assert [(request.streamed, request.body) for request in client.seen] == [(True, b"")]
        assert client.phase() is Phase.LINGERING  # the handler answered without reading it


def test_the_other_half_is_needed() -> None:
    with Client() as client:
        half = Receiving(client.server)
        for method in (half.upload, half.expire, half.drain, half.cut):
            with pytest.raises(NotImplementedError):
                method()
        with pytest.raises(NotImplementedError):
            half.dispatch(Request("GET", b"/", {}))


def test_a_reply_goes_before_the_refusal_of_what_follows() -> None:
    """Nothing overtakes."""
    with Client(lambda _request: Reply(200, b"", b"first")) as client:
        client.send(get("/a") + b"BAD LINE\r\n\r\n")
        assert [status for status, _ in client.replies()] == [200, 400]
