"""A body in pieces on its own; with connections on both sides it is in test_exchange_uploads."""

from __future__ import annotations

import pytest

from breakloop.gateway.http_request import CHUNKED, Request
from breakloop.gateway.http_response import Upload


def upload(length: int, body: bytes = b"") -> Upload:
    return Upload(Request("POST", b"/", {}, body=body, length=length, streamed=True))


@pytest.mark.parametrize("connected_after", range(4))
@pytest.mark.parametrize(("length", "sent"), [(6, b"abcdef"), (CHUNKED, b"2\r\nab\r\n3\r\ncde\r\n1\r\nf\r\n0\r\n\r\n")])
def test_the_upstream_gets_the_same_whenever_it_is_there(connected_after: int, length: int, sent: bytes) -> None:
    """Byte for byte, whether pieces had to wait or not (D-1)."""
    got: list[bytes] = []
    body = upload(length, b"ab")
    steps = [lambda: body.add(b"cde"), lambda: body.add(b"f"), body.finish]
    for number, step in enumerate(steps):
        if number == connected_after:
            body.begin(got.append)
        step()
    if connected_after == len(steps):
        body.begin(got.append)
    assert (b"".join(got), body.done) == (sent, True)
