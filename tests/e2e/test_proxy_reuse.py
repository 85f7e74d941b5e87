"""Connections to upstreams that are used again, and uploads that meet an upstream which fails, through the real server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from breakloop.testing import cut, fail
from tests.e2e.faulty import check_error, drop_idle
from tests.e2e.noise import some
from tests.e2e.proxied import MIB, OCTETS, Proxied, chat, fresh, one_test, proxied
from tests.e2e.raw_client import RawClient
from tests.e2e.served import refusing

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxied]:
    with refusing() as down, proxied(tmp_path_factory.mktemp("reuse"), "--upstream", f"down={down}") as both:
        yield both


@pytest.fixture
def proxy(running: Proxied) -> Iterator[Proxied]:
    with one_test(running) as both:
        yield both


# -- connections that are kept


def test_a_kept_connection_that_was_closed_is_not_noticed(proxy: Proxied) -> None:
    """The upstream closes what is idle, as servers do; the next request takes another connection (D-1)."""
    with proxy.client() as client:
        for _ in range(3):
            client.send(chat())
            assert client.answer().status == 200
            drop_idle(proxy)
    assert len({seen.connection for seen in proxy.llm.requests[-3:]}) == 3


def warm(proxy: Proxied, client: RawClient) -> int:
    """Have one connection kept; returns its number."""
    drop_idle(proxy)
    client.ask("GET", "/warm")
    assert client.answer().status == 200
    return proxy.llm.requests[-1].connection


@pytest.mark.parametrize("size", [10, 300_000, 5 * MIB])
def test_a_kept_connection_that_dies_unheard_is_tried_again_once(proxy: Proxied, size: int) -> None:
    """Reused, and not a byte came: the race with an upstream that closes idle connections. Once only (D-1)."""
    with proxy.client() as client:
        kept = warm(proxy, client)
        count = proxy.llm.llm.request_count
        proxy.llm.next(cut())
        client.send(chat(fresh("x" * size)))
        assert client.answer().status == 200
        assert proxy.llm.llm.request_count == count + 2
        first, second = proxy.llm.requests[-2:]
        assert first.connection == kept != second.connection
        assert first.body == second.body

        warm(proxy, client)
        count = proxy.llm.llm.request_count
        proxy.llm.next(cut(), cut(reset=True))
        client.send(chat())
        check_error(client.answer(), "openai_chat", 502, "The upstream openai")
        assert proxy.llm.llm.request_count == count + 2


@pytest.mark.parametrize("reset", [False, True])
def test_a_kept_connection_that_dies_after_a_byte_is_not_tried_again(proxy: Proxied, reset: bool) -> None:
    """The upstream may have done what was asked: a POST is sent once (D-1)."""
    with proxy.client() as client:
        kept = warm(proxy, client)
        count = proxy.llm.llm.request_count
        proxy.llm.next(cut(after_bytes=1, reset=reset))
        client.send(chat())
        check_error(client.answer(), "openai_chat", 502, "The upstream openai")
        assert proxy.llm.llm.request_count == count + 1
        assert proxy.llm.requests[-1].connection == kept


def test_kept_connections_are_closed_before_the_upstream_does(tmp_path: Path) -> None:
    """What is idle for longer than the setting is closed by us (D-1)."""
    with proxied(tmp_path, BREAKLOOP_PROXY_IDLE_SECONDS="1") as proxy, proxy.client() as client:
        client.ask("GET", "/1")
        client.answer()
        assert proxy.llm.open == 1
        proxy.llm.wait_until(lambda: proxy.llm.open == 0)
        client.ask("GET", "/2")
        assert client.answer().status == 200


# -- in the middle of an upload


@pytest.mark.parametrize("size", [100_000, 30 * MIB])
@pytest.mark.parametrize("drain", [True, False])
def test_an_upstream_that_answers_before_the_upload_is_complete(proxy: Proxied, drain: bool, size: int) -> None:
    """A client that looks for an answer while it sends gets that one, and both connections end (D-1)."""
    proxy.llm.next(fail(413, "too much").early(drain=drain))
    with proxy.client() as client:
        client.ask("POST", "/v1/files", b"", OCTETS, f"Content-Length: {40 * MIB}")
        client.send_until_answered(some(size))
        found = client.answer()
        assert (found.status, found["connection"]) == (413, "close")
        assert client.ends() in {"closed", "reset"}
    assert not proxy.llm.requests[-1].complete


@pytest.mark.parametrize("reset", [False, True])
def test_an_upstream_that_fails_in_the_middle_of_an_upload(proxy: Proxied, reset: bool) -> None:
    """502, and the rest of the upload goes nowhere (D-1)."""
    proxy.llm.next(cut(reset=reset).early())
    with proxy.client() as client:
        client.ask("POST", "/v1/files", b"", OCTETS, "Content-Length: 10000000")
        client.send(b"x" * 100_000)
        found = client.answer()
        check_error(found, "", 502, "The upstream openai")
        assert found["connection"] == "close"
        assert client.ends() == "closed"


def test_a_refused_upload(proxy: Proxied) -> None:
    """Nobody is there: the client is told while it sends (D-1)."""
    with proxy.client() as client:
        client.ask("POST", "/down/v1/files", b"", OCTETS, "Content-Length: 10000000")
        client.send(b"x" * 1000)
        found = client.answer()
        check_error(found, "", 502, "refused the connection")
        assert client.ends() == "closed"
