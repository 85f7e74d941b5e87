"""One exchange after another through the proxy, with client and upstream played by the test (D-1)."""

from __future__ import annotations

import socket
import struct

import pytest

from breakloop.gateway.connection import Phase
from tests.builders import bundle, chat_body, policy, tail, user
from tests.each import each
from tests.unit.gateway.fake_client import get, post, read_replies
from tests.unit.gateway.fake_upstream import Proxy, answer, chunks, ok


def test_a_request_goes_there_and_its_answer_comes_back() -> None:
    """Bodies pass byte for byte, unknown fields with them (D-1)."""
    with Proxy() as proxy:
        proxy.send(post(b"\x00\xffbody", "X-Unknown: 1"))
        head, _, body = proxy.upstream().wire.sent.partition(b"\r\n\r\n")
        assert head.split(b"\r\n")[:2] == [b"POST /p HTTP/1.1", b"host: up.example:8000"]
        assert b"X-Unknown: 1" in head.split(b"\r\n")
        assert body == b"\x00\xffbody"
        proxy.upstream().says(ok(b"\x01\xfe", "X-Other: 2", status="201 MakeReply"))
        [(status, got, fields)] = read_replies(proxy.sent())
        assert (status, got, fields[b"x-other"]) == (201, b"\x01\xfe", b"2")
        assert fields[b"x-breakloop-request-id"].startswith(b"t-")


def test_connections_are_used_again() -> None:
    """Keep-alive on both sides (D-1)."""
    with Proxy() as proxy:
        for _ in range(3):
            assert read_replies(proxy.exchange())[0][:2] == (200, b"fine")
        assert (proxy.pools["up"].opened, proxy.server.connections) == (1, 1)


@pytest.mark.parametrize("field", ["Connection: close", "X: y"])
def test_an_upstream_that_closes_is_not_used_again(field: str) -> None:
    with Proxy() as proxy:
        proxy.exchange(answer=ok(b"1", field))
        proxy.exchange()
        assert proxy.pools["up"].opened == (2 if field == "Connection: close" else 1)


def test_every_chunk_passes_at_once_and_as_it_came() -> None:
    """Streams pass as they arrive; chunk extensions and trailers too (D-1)."""
    with Proxy() as proxy:
        proxy.send(get("/v1/models"))
        proxy.upstream().says(answer("Transfer-Encoding: chunked", "Content-Type: text/event-stream"))
        head = proxy.sent()
        assert head.endswith(b"transfer-encoding: chunked\r\n\r\n")
        for piece in (b"4;x=1\r\nabcd\r\n", b"2\r\nx", b"y\r\n", b"0\r\nT: 1\r\n\r\n"):
            before = len(proxy.sent())
            proxy.upstream().says(piece)
            assert proxy.sent()[before:] == piece
        assert read_replies(proxy.sent())[0][:2] == (200, b"abcdxy")
        assert proxy.phase() is Phase.IDLE


STREAM = (
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"
    + answer("Transfer-Encoding: chunked", "X-A: b")
    + chunks(b"hello", b"\r\n\r\n", b"0\r\n\r\n")
)


@each("cut", range(len(STREAM)))
def test_an_answer_cut_in_two_at_every_byte(cut: int) -> None:
    """Every message split at every byte: the client gets the same."""
    with Proxy() as proxy:
        proxy.send(get("/a"), get("/b"))
        proxy.upstream().says(STREAM[:cut], STREAM[cut:])
        proxy.upstream().says(ok())
        replies = read_replies(proxy.sent())
        assert [reply[:2] for reply in replies] == [(200, b"hello\r\n\r\n0\r\n\r\n"), (200, b"fine")]
        assert proxy.pools["up"].opened == 1


def test_an_answer_byte_by_byte() -> None:
    with Proxy() as proxy:
        proxy.send(get("/a"))
        proxy.upstream().says(*[STREAM[at : at + 1] for at in range(len(STREAM))])
        assert read_replies(proxy.sent())[0][:2] == (200, b"hello\r\n\r\n0\r\n\r\n")


def test_an_answer_without_length_ends_with_its_connection() -> None:
    """An HTTP/1.1 client gets chunks, so that it can tell the end from a cut."""
    with Proxy() as proxy:
        proxy.send(get("/a"))
        proxy.upstream().says(answer("X-A: b"), b"one", b"two")
        proxy.upstream().ends()
        assert read_replies(proxy.sent())[0][:2] == (200, b"onetwo")
        assert not proxy.closed()


def test_http_1_0_clients_get_no_chunks() -> None:
    """HTTP/1.0 clients get close-delimited answers (D-1)."""
    with Proxy() as proxy:
        proxy.send(get("/a", version="1.0"))
        assert b" HTTP/1.1\r\n" in proxy.upstream().wire.sent
        proxy.upstream().says(answer("Transfer-Encoding: chunked"), chunks(b"one", b"two"))
        head, _, body = proxy.sent().partition(b"\r\n\r\n")
        assert b"transfer-encoding" not in head
        assert b"connection: close" in head
        assert (body, proxy.closed()) == (b"onetwo", True)


def test_http_1_0_clients_of_a_cut_answer_get_a_reset() -> None:
    """The end of the connection would be the proper end of the answer (D-1)."""
    with Proxy() as proxy:
        options: list[tuple[object, ...]] = []
        spy = type("Socket", (), {"setsockopt": lambda _self, *given: options.append(given)})()
        setattr(proxy.transport, "get_extra_info", lambda name: spy if name == "socket" else None)  # noqa: B010
        proxy.send(get("/a", version="1.0"))
        proxy.upstream().says(answer("Transfer-Encoding: chunked"), b"3\r\none\r\n")
        proxy.upstream().goes()
        assert proxy.transport.aborted
        assert options == [(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))]


def test_http_1_0_keep_alive_needs_a_length() -> None:
    with Proxy() as proxy:
        got = proxy.exchange(get("/a", "Connection: keep-alive", version="1.0"))
        assert b"connection: keep-alive" in got
        assert not proxy.closed()


def test_http_1_0_keep_alive_cannot_be_kept_without_one() -> None:
    with Proxy() as proxy:
        given = answer("Transfer-Encoding: chunked") + chunks(b"one")
        got = proxy.exchange(get("/a", "Connection: keep-alive", version="1.0"), given)
        assert b"keep-alive" not in got
        assert (got.endswith(b"\r\n\r\none"), proxy.closed()) == (True, True)


def test_a_long_body_is_not_kept_while_its_answer_streams() -> None:
    """Once nobody can need it again, it goes (Y-2)."""
    body = chat_body(user("x" * 100_000))
    request = get("/v1/chat/completions", f"Content-Length: {len(body)}", method="POST") + body
    with Proxy(bundle(policy("p", loop=tail()))) as proxy:
        proxy.exchange()
        proxy.send(request)
        exchange = proxy.upstream().exchange
        assert exchange is not None
        assert exchange._request.body == body  # on a connection that was used before: it may have to go again
        proxy.upstream().says(answer("Transfer-Encoding: chunked"))
        assert (exchange._request.body, exchange._call.body) == (b"", b"")
        assert "x" * 100 not in str(exchange._call.parsed.chat)


@pytest.mark.parametrize(
    ("method", "given", "line"),
    [
        ("HEAD", answer("Content-Length: 1000"), b"content-length: 1000\r\n"),
        ("HEAD", answer("Transfer-Encoding: chunked"), b""),
        ("GET", answer("Content-Length: 7", status="304 Not Modified"), b"content-length: 7\r\n"),
        ("GET", answer(status="204 No Content"), b""),
        ("OPTIONS", ok(b""), b"content-length: 0\r\n"),
    ],
)
def test_answers_without_a_body(method: str, given: bytes, line: bytes) -> None:
    """HEAD and OPTIONS, 204 and 304: the length is told, no body is waited for, the connections live on."""
    with Proxy() as proxy:
        proxy.exchange(get("/a", method=method), given)
        assert proxy.phase() is Phase.IDLE
        assert proxy.sent().count(b"content-length") == bool(line)
        assert line in proxy.sent()
        proxy.exchange()
        assert [reply[0] for reply in read_replies(proxy.sent(), method)][1] == 200
        assert proxy.pools["up"].opened == 1


def test_a_client_that_wants_to_close_gets_it() -> None:
    with Proxy() as proxy:
        got = proxy.exchange(get("/a", "Connection: close"))
        assert b"connection: close\r\n" in got
        assert proxy.closed()


def test_pipelined_requests_are_answered_in_order() -> None:
    with Proxy() as proxy:
        proxy.send(get("/one") + get("/two") + get("/three"))
        for number in (b"1", b"2", b"3"):
            proxy.upstream().says(ok(number))
        assert [body for _, body, _ in read_replies(proxy.sent())] == [b"1", b"2", b"3"]
        asked = [line for line in proxy.upstream().wire.sent.split(b"\r\n") if line.startswith(b"GET")]
        assert asked == [b"GET /one HTTP/1.1", b"GET /two HTTP/1.1", b"GET /three HTTP/1.1"]


def test_h2c_is_ignored_with_the_body_intact() -> None:
    """Java's client offers h2c by default; the offer is between neighbours and stays here."""
    offer = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMA")
    with Proxy() as proxy:
        proxy.exchange(post(b"payload", *offer))
        sent = proxy.upstream().wire.sent
        assert sent.endswith(b"\r\n\r\npayload")
        assert b"h2c" not in sent
        assert b"HTTP2" not in sent
