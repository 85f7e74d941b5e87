"""Bodies that pass in pieces, because they are too large to be judged or because nobody needs to see them (D-1, Y-2)."""

from __future__ import annotations

import json

from breakloop.gateway.connection import Phase
from breakloop.gateway.http_request import RequestLimits
from tests.builders import at, bundle, policy, tail
from tests.unit.gateway.fake_client import chunked, get, read_replies
from tests.unit.gateway.fake_upstream import Proxy, ok

SMALL = RequestLimits(body_bytes=100)


def test_a_large_upload_is_streamed() -> None:
    """What is larger than what is judged passes unjudged, piece by piece, as long as nobody objects (Y-2)."""
    with Proxy(limits=SMALL) as proxy:
        head = get("/v1/files", "Content-Length: 300", method="POST")
        proxy.send(head + b"a" * 50)
        upstream = proxy.upstream().wire
        assert upstream.sent.endswith(b"\r\n\r\n" + b"a" * 50)
        assert b"content-length: 300\r\n" in upstream.sent
        proxy.send(b"b" * 200)
        proxy.send(b"c" * 50)
        assert upstream.sent.endswith(b"a" * 50 + b"b" * 200 + b"c" * 50)
        proxy.upstream().says(ok())
        assert read_replies(proxy.sent())[0][:2] == (200, b"fine")
        proxy.exchange()
        assert proxy.pools["up"].opened == 1


def test_a_chunked_upload_that_grows_too_large_goes_on_in_pieces() -> None:
    """It is collected because a policy wants to see it, until it is too large for that."""
    with Proxy(bundle(policy("p", loop=tail())), limits=SMALL) as proxy:
        head = get("/v1/files", "Transfer-Encoding: chunked", "Content-Type: application/json", method="POST")
        proxy.send(head + b"40\r\n" + b"a" * 64)
        assert proxy.pools["up"].made == []  # still collecting
        proxy.send(b"\r\n40\r\n" + b"b" * 64)
        proxy.send(b"\r\n1\r\nc\r\n0\r\n\r\n")
        sent = proxy.upstream().wire.sent
        head_sent, _, body = sent.partition(b"\r\n\r\n")
        assert b"transfer-encoding: chunked" in head_sent
        got = b""
        while not body.startswith(b"0\r\n\r\n"):
            size, _, body = body.partition(b"\r\n")
            got += body[: int(size, 16)]
            body = body[int(size, 16) + 2 :]
        assert got == b"a" * 64 + b"b" * 64 + b"c"
        proxy.upstream().says(ok())
        assert read_replies(proxy.sent())[0][0] == 200


def test_a_chunked_body_that_is_collected_goes_on_with_its_length() -> None:
    data = bundle(policy("p", loop=tail()))
    with Proxy(data) as proxy:
        proxy.exchange(chunked(b"abc", b"def", trailers=b"X-T: 1\r\n"))
        head, _, body = proxy.upstream().wire.sent.partition(b"\r\n\r\n")
        assert b"content-length: 6" in head.split(b"\r\n")
        assert b"transfer-encoding" not in head.lower()
        assert body == b"abcdef"


def test_an_upstream_that_does_not_read_stops_the_upload() -> None:
    """Back-pressure the other way (D-1)."""
    limits = RequestLimits(body_bytes=100, backlog_bytes=1000, head_bytes=1000)
    with Proxy(limits=limits) as proxy:
        proxy.send(get("/v1/files", "Content-Length: 100000", method="POST") + b"a" * 200)
        upstream = proxy.upstream()
        upstream.pause_writing()
        sent = len(upstream.wire.sent)
        proxy.send(b"b" * 900)
        assert proxy.reading()
        proxy.send(b"b" * 900)
        assert (len(upstream.wire.sent), proxy.reading()) == (sent, False)
        upstream.resume_writing()
        assert (len(upstream.wire.sent), proxy.reading()) == (sent + 1800, True)


def test_expect_continue_is_answered_before_a_streamed_body() -> None:
    with Proxy(limits=SMALL) as proxy:
        proxy.send(get("/v1/files", "Content-Length: 300", "Expect: 100-continue", method="POST"))
        assert proxy.sent() == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert b"xpect" not in proxy.upstream().wire.sent


def test_an_answer_before_the_upload_is_complete_ends_both_connections() -> None:
    with Proxy(limits=SMALL) as proxy:
        proxy.send(get("/v1/files", "Content-Length: 300", method="POST") + b"a" * 50)
        proxy.upstream().says(ok(b"no", status="413 Too Large"))
        [(status, body, fields)] = read_replies(proxy.sent())
        assert (status, body, fields[b"connection"]) == (413, b"no", b"close")
        assert proxy.phase() is Phase.LINGERING
        assert proxy.upstream().wire.aborted


def test_a_broken_upload_is_refused_and_never_completed() -> None:
    with Proxy(limits=SMALL) as proxy:
        head = get("/v1/files", "Transfer-Encoding: chunked", "Content-Type: audio/wav", method="POST")
        proxy.send(head + b"3\r\nabc\r\n")
        proxy.send(b"zz\r\n")
        assert read_replies(proxy.sent())[0][0] == 400
        assert proxy.upstream().wire.aborted
        assert b"0\r\n\r\n" not in proxy.upstream().wire.sent


def test_an_upload_that_stops_arriving() -> None:
    with Proxy(limits=RequestLimits(body_bytes=100, body_s=5)) as proxy:
        proxy.send(get("/v1/files", "Content-Length: 300", method="POST") + b"a" * 50)
        for _ in range(6):
            proxy.server.sweep()
        assert read_replies(proxy.sent())[0][0] == 408
        assert proxy.upstream().wire.aborted


def test_a_streamed_request_is_never_tried_again() -> None:
    """Its body is gone."""
    with Proxy(limits=SMALL) as proxy:
        proxy.exchange()
        proxy.send(get("/v1/files", "Content-Length: 300", method="POST") + b"a" * 300)
        proxy.upstream().goes()
        assert [status for status, _, _ in read_replies(proxy.sent())] == [200, 502]


def test_a_denied_upload_is_answered_and_the_connection_ends() -> None:
    """Nobody reads on for a body that nobody wants."""
    switch = {"scope_key": "header:x-team", "scope_value": "a", "reason": "stop"}
    data = bundle(kill_switches=[switch])
    with Proxy(data, limits=SMALL) as proxy:
        proxy.send(get("/v1/files", "Content-Length: 300", "X-Team: a", method="POST") + b"a" * 50)
        [(status, _, fields)] = read_replies(proxy.sent())
        assert (status, fields[b"connection"]) == (429, b"close")
        assert (proxy.phase(), proxy.pools["up"].made) == (Phase.LINGERING, [])


def test_a_policy_may_refuse_what_is_too_large_to_be_judged() -> None:
    """413 if the policy says so, in the client's dialect; else it passes and is counted (Y-2)."""
    head = get("/v1/files", "Content-Length: 300", method="POST")
    with Proxy(bundle(policy("p", prefix="/v1/", on_large_body="reject")), limits=SMALL) as proxy:
        proxy.door.admission.body_bytes = SMALL.body_bytes
        proxy.send(head + b"a" * 50)
        [(status, body, _)] = read_replies(proxy.sent())
        assert (status, json.loads(body)["detail"]["error"]) == (413, "body_too_large")
        assert (proxy.pools["up"].made, proxy.world.engine.tally.unjudged) == ([], 1)
    chunked_head = get("/v1/files", "Transfer-Encoding: chunked", "Content-Type: audio/wav", method="POST")
    with Proxy(bundle(policy("p", prefix="/v1/", on_large_body="reject")), limits=SMALL) as proxy:
        proxy.door.admission.body_bytes = SMALL.body_bytes
        proxy.send(chunked_head + b"40\r\n" + b"a" * 64 + b"\r\n40\r\n" + b"a" * 64)
        assert (read_replies(proxy.sent())[0][0], proxy.pools["up"].made) == (413, [])
    shadow = {"enabled": True, "reason": "r", "expires_at": at(60)}
    data = bundle(policy("p", prefix="/v1/", on_large_body="reject"), global_shadow=shadow)
    with Proxy(data, limits=SMALL) as proxy:
        proxy.door.admission.body_bytes = SMALL.body_bytes
        proxy.send(head + b"a" * 300)
        assert len(proxy.pools["up"].made) == 1  # K-1
    with Proxy(bundle(policy("p", prefix="/other/", on_large_body="reject")), limits=SMALL) as proxy:
        proxy.door.admission.body_bytes = SMALL.body_bytes
        proxy.send(head + b"a" * 300)
        proxy.upstream().says(ok())
        assert (read_replies(proxy.sent())[0][0], proxy.world.engine.tally.unjudged) == (200, 1)
