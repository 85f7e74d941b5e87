"""One POST: to the address that was checked, within a time, verified, and never elsewhere."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from breakloop.alerts.channels.base import DeliveryResult
from breakloop.alerts.transport import tls_context
from tests.alert_world import CANARY, NOW, fixed, means, receiver
from tests.deadlines import DEADLINE_S
from tests.e2e.certificates import Authority


def sent(
    url: str, *, allow_private: bool = True, fields: dict[str, str] | None = None, **others: Any
) -> DeliveryResult:
    return asyncio.run(means(**others).post(url, b"{}", fields or {}, allow_private=allow_private))


@contextmanager
def raw(answer: bytes, *, close: bool = True) -> Iterator[str]:
    """A server that answers one connection with these bytes."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        done = []

        def serve() -> None:
            peer, _ = listener.accept()
            done.append(peer)
            peer.recv(65536)
            peer.sendall(answer)
            if close:
                peer.close()

        thread = Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/x"
        thread.join(DEADLINE_S)
        for peer in done:
            peer.close()


def test_what_is_sent() -> None:
    """JSON, with the fields that are given, and the name of the host (G-4)."""
    with receiver() as server:
        port = server.server_address[1]
        url = f"http://hooks.example.com:{port}/in?x=1"
        assert sent(url, resolve=fixed("127.0.0.1"), fields={"webhook-id": "msg_1"}) == DeliveryResult(
            delivered=True, status=200
        )
        (got,) = server.got
    assert (got.path, got.body) == ("/in?x=1", b"{}")
    assert got.headers["host"] == f"hooks.example.com:{port}"
    assert (got.headers["webhook-id"], got.headers["content-type"]) == ("msg_1", "application/json")


def test_a_name_is_resolved_once() -> None:
    """DNS rebinding. The second answer is another machine, and is never asked for (Y-4)."""
    asked = []

    def changing(host: str, port: int) -> list[str]:
        asked.append(host)
        return ["127.0.0.1"] if len(asked) == 1 else ["192.0.2.7"]

    with receiver() as server:
        url = f"http://hooks.example.com:{server.server_address[1]}/"
        assert sent(url, resolve=changing).delivered
    assert asked == ["hooks.example.com"]


def test_a_private_address_gets_nothing() -> None:
    """Checked at every send, not only when it was registered (Y-4)."""
    with receiver() as server:
        for url in (server.url, f"http://localhost:{server.server_address[1]}/"):
            outcome = sent(url, allow_private=False)
            assert not outcome.delivered
            assert "is not allowed: it is this machine" in outcome.error
        assert server.got == []


def test_the_next_address_is_tried(free_port: Any) -> None:
    with receiver() as server:
        url = f"http://hooks.example.com:{server.server_address[1]}/"
        assert sent(url, resolve=fixed("127.0.0.2", "127.0.0.1")).delivered


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_not_followed(status: int) -> None:
    """To a private address or any other; it is a failure that says so (Y-4)."""
    with receiver() as inside, receiver() as server:
        server.status, server.headers = status, {"Location": inside.url}
        outcome = sent(server.url)
        assert outcome == DeliveryResult(
            delivered=False, status=status, error=f"answered {status}, a redirect, which is not followed"
        )
        assert (len(server.got), inside.got) == (1, [])


@pytest.mark.parametrize(
    ("status", "headers", "expected"),
    [
        (204, {}, DeliveryResult(delivered=True, status=204)),
        (500, {"Retry-After": "7"}, DeliveryResult(delivered=False, status=500, error="answered 500")),
        (429, {"Retry-After": "7"}, DeliveryResult(delivered=False, status=429, error="answered 429", retry_after_s=7.0)),
        (503, {"Retry-After": "999999"}, DeliveryResult(delivered=False, status=503, error="answered 503", retry_after_s=3600.0)),
        (503, {"Retry-After": "Fri, 15 Jan 2027 08:01:00 GMT"}, DeliveryResult(delivered=False, status=503, error="answered 503", retry_after_s=60.0)),
        (503, {"Retry-After": "soon"}, DeliveryResult(delivered=False, status=503, error="answered 503")),
        (410, {}, DeliveryResult(delivered=False, status=410, error="answered 410: it no longer accepts deliveries", gone=True)),
    ],
)  # fmt: skip
def test_what_an_answer_means(status: int, headers: dict[str, str], expected: DeliveryResult) -> None:
    """2xx is delivered, 410 the end, and Retry-After of 429 and 503 is believed up to an hour (G-4)."""
    assert NOW == 1_800_000_000.0
    with receiver() as server:
        server.status, server.headers = status, headers
        assert sent(server.url) == expected


def test_nobody_there(free_port: Any) -> None:
    assert sent(f"http://127.0.0.1:{free_port()}/").error == "the connection was refused"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"", "the connection was closed"),
        (b"HTTP/1.1 200 OK\r\nX: y\r\n", "the connection was closed"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "the response is not HTTP"),
        (b"HTTP/2 200\r\n\r\n", "the response is not HTTP"),
        (b"HTTP/1.1 200 OK\r\n" + b"x: " + b"y" * 40_000 + b"\r\n\r\n", "the head of the response is too long"),
    ],
)
def test_odd_answers(answer: bytes, said: str) -> None:
    """Bounded, and never taken for delivered (Y-2)."""
    with raw(answer) as url:
        assert sent(url) == DeliveryResult(delivered=False, error=said)


def test_what_comes_before_the_answer_is_skipped() -> None:
    with raw(b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 202 Accepted\r\n\r\n") as url:
        assert sent(url) == DeliveryResult(delivered=True, status=202)


def test_a_slow_target_does_not_hold_us_up() -> None:
    """The whole exchange has one time limit, however slowly an answer drips (G-4)."""
    with raw(b"HTTP/1.1 200 OK\r\n", close=False) as url:
        assert sent(url, timeout_s=0.2) == DeliveryResult(delivered=False, error="no response within 0.2 s")


def test_an_endless_body_is_left() -> None:
    """At most 1 KB of it is read (Y-2)."""
    with raw(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n" + b"x" * 100_000) as url:
        assert sent(url) == DeliveryResult(delivered=True, status=200)


def test_certificates_are_verified(tmp_path: Path) -> None:
    """Of the name in the URL, although the connection goes to an address (Y-4)."""
    authority = Authority(tmp_path)
    with receiver(tls=authority.issue("hooks.example.com").server) as server:
        port = server.server_address[1]
        own = tls_context(str(authority.file))
        for host, tls, ok in (("hooks.example.com", own, True), ("other.example.com", own, False), ("hooks.example.com", tls_context(), False)):  # fmt: skip
            outcome = sent(f"https://{host}:{port}/", resolve=fixed("127.0.0.1"), tls=tls)
            assert outcome.delivered is ok
            assert ("its certificate is not trusted" in outcome.error) is not ok
    with receiver() as plain:
        assert sent(plain.url.replace("http:", "https:")).error == "no TLS connection could be made"


def test_no_field_can_end_its_line() -> None:
    """Header injection (Y-3)."""
    with receiver() as server:
        outcome = sent(server.url, fields={"webhook-id": "x\r\nX-Evil: 1"})
        assert (outcome.delivered, server.got) == (False, [])


def test_errors_have_no_secrets(free_port: Any) -> None:
    """What stands behind the host of a URL is never repeated (Y-1)."""
    for url in (
        f"http://127.0.0.1:{free_port()}/{CANARY}?{CANARY}",
        f"http://10.0.0.1/{CANARY}",
        f"gopher://x/{CANARY}",
    ):
        assert CANARY not in repr(sent(url, allow_private="10." not in url))
