"""A request whose head is that of the one before but for its length is read as any other (Y-3)."""

from __future__ import annotations

import msgspec
import pytest

from breakloop.gateway.http_request import HeadCache, LengthTemplate, Request, RequestLimits
from tests.each import each
from tests.unit.gateway.fake_client import Client, get, post

FIELDS = ("Authorization: Bearer x", "Connection: keep-alive")


def alike(size: str, body: bytes, *fields: str, name: str = "Content-Length", target: str = "/p") -> bytes:
    return get(target, *FIELDS, f"{name}: {size}", *fields, method="POST") + body


def outcome(pieces: tuple[bytes, ...], limits: RequestLimits, *, experienced: bool) -> list[object]:
    """What a client gets that has sent the same head before, or has not."""
    with Client(limits=limits) as client:
        for _ in range(4 if experienced else 0):
            client.send(alike("3", b"abc"))
        assert (client.connection._template is not None) is experienced
        known, before = len(client.seen), len(client.sent())
        client.send(*pieces)
        requests = [msgspec.structs.replace(request, template=None) for request in client.seen[known:]]
        state = (client.closed(), client.phase(), len(client.connection._reader), client.transport.eof)
        return [requests, client.sent()[before:], state, client.server.bad_requests]


@each(
    "pieces",
    [
        (alike("0", b""),),
        (alike("1", b"x"), alike("2", b"xy")),
        (alike("0005", b"12345"),),
        (alike("10", b"\r\n\r\nContent"),),
        (alike("10", b"12345"), b"67890"),  # in two reads
        (alike("10", b"12345"),),  # incomplete
        (alike("3", b"abc") + alike("4", b"abcd"),),  # two in one read
        (alike("3", b"abcd"),),
        (alike("", b""),),
        (alike("-1", b""),),
        (alike("+3", b"abc"),),
        (alike("3 ", b"abc"),),
        (alike("3x", b"abc"),),
        (alike("3, 3", b"abc"),),
        (alike("0" * 17 + "3", b"abc"),),
        (alike("0" * 18 + "3", b"abc"),),
        (alike("3", b"abc", "X: y"),),
        (alike("3", b"abc", "Content-Length: 3"),),
        (alike("3", b"abc", name="content-length"),),
        (alike("3", b"abc", target="/q"),),
        (alike("3", b"abc", "Transfer-Encoding: chunked"),),
        (alike("99", b"x" * 99),),  # larger than the limit
        (alike("3", b"abc")[:-10],),
        (get("/a"), alike("3", b"abc"), get("/b")),
        (post(b"other"), alike("3", b"abc")),
        (alike("3", b"abc")[1:],),
    ],
)
def test_what_was_sent_before_makes_no_difference(pieces: tuple[bytes, ...]) -> None:
    limits = RequestLimits(body_bytes=20, head_bytes=200)
    assert outcome(pieces, limits, experienced=True) == outcome(pieces, limits, experienced=False)


def test_a_head_near_the_limit_is_measured_each_time() -> None:
    """With a longer number, it may be too long."""
    with Client(limits=RequestLimits(head_bytes=len(alike("10", b"")))) as client:
        for size in ("3", "4", "5", "6", "10"):
            client.send(alike(size, b"x" * int(size)))
        assert (client.connection._template, len(client.seen)) == (None, 5)
        client.send(alike("100", b"x" * 100))
        assert b" 431 " in client.sent()


def test_the_length_may_stand_anywhere() -> None:
    with Client() as client:
        for size in (3, 4, 5, 200):
            client.send(alike(str(size), b"x" * size, "X-Later: 1", "X-Length: 7"))
        assert [(request.length, len(request.body)) for request in client.seen] == [(3, 3), (4, 4), (5, 5), (200, 200)]
        assert client.connection._template is None  # another name that ends like it stands behind it
        for size in (3, 4, 5, 200):
            client.send(alike(str(size), b"x" * size, "X-Later: 1"))
        last = client.seen[-1]
        assert (last.length, last.headers["x-later"], last.headers["content-length"]) == (200, b"1", b"200")
        assert last.raw == alike("200", b"", "X-Later: 1")
        assert client.connection._template is not None


def test_heads_are_not_kept_by_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten thousand idle clients must not hold more heads than the cache does (Y-2)."""
    monkeypatch.setattr(HeadCache, "max_entries", 2)
    with Client() as client:
        for number in range(8):
            for _ in range(4):
                client.send(alike("3", b"abc", f"Cookie: {number}"))
        assert [request.body for request in client.seen] == [b"abc"] * 32
        known = client.connection._template
        client.server.head_parser._templates.clear()
        client.seen.clear()
        assert known is not None
        assert known() is None
        client.send(alike("3", b"abc", "Cookie: 7"))
        assert client.replies()[-1] == (200, b"POST /p abc")


def test_a_request_has_its_own_fields() -> None:
    """What is done to one is not seen in the next."""
    template = LengthTemplate(Request("POST", b"/", {"host": b"a"}), b"before ", after=b"\r\n\r\n")
    first = template.whole_request(b"before 2\r\n\r\nab", "192.0.2.7")
    assert first is not None
    first.headers["host"] = b"b"
    second = template.whole_request(b"before 1\r\n\r\na", "192.0.2.8")
    assert second is not None
    assert (second.headers, second.peer) == ({"host": b"a", "content-length": b"1"}, "192.0.2.8")
    assert template.whole_request(b"before \r\n\r\n", "") is None
    assert template.whole_request(b"before 12", "") is None
    assert template.whole_request(b"befora 1\r\n\r\na", "") is None
