"""Upstreams that fail, through the real server: 502 and 504 in the client's own dialect, or an aborted stream; never a
clean end of an answer that was cut."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from breakloop.testing import Answer, body, chat_request, cut, nonsense, raw, say, stall
from breakloop.testing.answer import Framing
from tests.deadlines import DEADLINE_S
from tests.e2e.faulty import DIALECTS, FullUp, ask, check_error, drop_idle
from tests.e2e.proxied import JSON, Proxied, chat, fresh, one_test, proxied
from tests.e2e.raw_client import CutShortError, RawClient, Received, request
from tests.e2e.served import refusing
from tests.e2e.streams_process import Part

pytestmark = pytest.mark.e2e

WORDS = say("one two three four")
ANSWER_S = 1
FRAMINGS: tuple[Framing, ...] = ("chunked", "length", "close")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxied]:
    with refusing() as down, proxied(tmp_path_factory.mktemp("faults"), "--upstream", f"down={down}") as both:
        yield both


@pytest.fixture
def proxy(running: Proxied) -> Iterator[Proxied]:
    with one_test(running) as both:
        yield both


@pytest.fixture(scope="module")
def short_of_time(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxied]:
    times = {"BREAKLOOP_PROXY_ANSWER_SECONDS": str(ANSWER_S), "BREAKLOOP_PROXY_CONNECT_SECONDS": "1"}
    folder = tmp_path_factory.mktemp("impatient")
    with FullUp() as full, proxied(folder, "--upstream", f"full={full}", **times) as both:
        yield both


@pytest.fixture
def impatient(short_of_time: Proxied) -> Iterator[Proxied]:
    """One that waits a second, only for tests whose upstream never answers: a busy machine may need longer."""
    with one_test(short_of_time) as both:
        yield both


# -- before the answer has begun: an error in the client's words


FAILED: dict[str, Answer] = {
    "cut": cut(),
    "reset": cut(reset=True),
    "half a head": cut(after_bytes=30),
    "half a head, reset": cut(after_bytes=30, reset=True),
    "nonsense": nonsense(),
    "TLS": nonsense(b"\x15\x03\x01\x00\x02\x02\x46"),
    "HTTP/2": nonsense(b"\x00\x00\x12\x04\x00\x00\x00\x00\x00"),
}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_an_upstream_that_is_down(proxy: Proxied, dialect: str) -> None:
    """502 in the dialect's shape, and the client's connection lives on (D-1)."""
    with proxy.client() as client:
        for _ in range(2):
            ask(client, dialect, "/down")
            check_error(client.answer(), dialect, 502, "The upstream down refused the connection")


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("fault", FAILED)
def test_an_upstream_that_fails_before_its_answer(proxy: Proxied, fault: str, dialect: str) -> None:
    """Closed, reset, cut in its head, or no HTTP: 502, tried once (D-1)."""
    count = proxy.llm.llm.request_count
    proxy.llm.next(FAILED[fault], when=lambda seen: not seen.is_housekeeping or seen.path == "/mcp")
    drop_idle(proxy)
    with proxy.client() as client:
        ask(client, dialect)
        check_error(client.answer(), dialect, 502, "The upstream")
        assert proxy.llm.llm.request_count == count + 1
        client.ask("GET", "/next")
        assert client.answer().status == 200


def timed(client: RawClient) -> tuple[Received, float]:
    began = time.monotonic()
    return client.answer(), time.monotonic() - began


def test_an_upstream_that_does_not_answer(impatient: Proxied) -> None:
    """504 in each dialect's shape when its time is over, and the connections to it are given up (D-1)."""
    impatient.llm.next(*[stall()] * len(DIALECTS), when=lambda seen: True)
    with ExitStack() as stack:
        clients = [stack.enter_context(impatient.client()) for _ in DIALECTS]
        began = time.monotonic()
        for client, dialect in zip(clients, DIALECTS, strict=True):
            ask(client, dialect)
        for client, dialect in zip(clients, DIALECTS, strict=True):
            check_error(client.answer(), dialect, 504, "did not respond in time")
        assert time.monotonic() - began >= ANSWER_S
        for seen in impatient.llm.requests[-len(DIALECTS) :]:
            assert impatient.llm.wait_for_disconnect(seen, timeout_s=DEADLINE_S).outcome == "aborted"


def test_an_upstream_that_does_not_take_the_connection(impatient: Proxied) -> None:
    """Connecting has a time of its own (D-1)."""
    with impatient.client() as client:
        ask(client, "openai_chat", "/full")
        found, seconds = timed(client)
        check_error(found, "openai_chat", 504, "The upstream full did not accept the connection in time")
        assert seconds >= 1.0


# What is no answer that has one reading only: refused as the requests of clients are.
STRANGE = {
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nhi!",
    "length and chunks": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "no number": b"HTTP/1.1 200 OK\r\nContent-Length: two\r\n\r\nhi",
    "another coding": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "no status": b"HTTP/1.1 OK\r\n\r\n",
    "another version": b"HTTP/2.0 200 OK\r\n\r\n",
    "another protocol": b"ICY 200 OK\r\n\r\n",
    "a folded field": b"HTTP/1.1 200 OK\r\nX: a\r\n b\r\nContent-Length: 2\r\n\r\nhi",
    "a field without a colon": b"HTTP/1.1 200 OK\r\nX\r\nContent-Length: 2\r\n\r\nhi",
    "bare LF": b"HTTP/1.1 200 OK\r\nX: a\nY: b\r\nContent-Length: 2\r\n\r\nhi",
    "only LF": b"HTTP/1.1 200 OK\nContent-Length: 2\n\nhi",
    "a switch of protocols": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n",
    "provisional answers without end": b"HTTP/1.1 103 Early Hints\r\n\r\n" * 20,
    "a huge head": b"HTTP/1.1 200 OK\r\nX: " + b"x" * 300_000,
    "many fields": b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 1000 + b"\r\n",
}


@pytest.mark.parametrize("name", STRANGE)
def test_answers_with_two_readings_are_refused(proxy: Proxied, name: str) -> None:
    """502 at once, though the upstream keeps the connection open; it is not used again (D-1)."""
    proxy.llm.next(raw(STRANGE[name], close=False))
    with proxy.client() as client:
        client.send(chat())
        check_error(client.answer(), "openai_chat", 502, "The upstream openai")
        proxy.llm.wait_for_disconnect(timeout_s=DEADLINE_S)


def test_a_slow_head_is_waited_for(proxy: Proxied) -> None:
    """In pieces, as long as it takes less than the time for an answer (D-1)."""
    pieces = (b"HTTP/1.1 200", b" OK\r\nContent-", b"Length: 2\r\n\r", b"\nh", b"i")
    proxy.llm.next(Answer(raw=pieces).paced(0.05).sent(close=False))
    with proxy.client() as client:
        client.ask("GET", "/slow")
        assert client.answer().body == b"hi"


def test_a_head_without_an_end_is_given_up(impatient: Proxied) -> None:
    """One that does not come to its end in time is a 504 (D-1)."""
    impatient.llm.next(raw(b"HTTP/1.1 200 OK\r\nX: ", close=False))
    with impatient.client() as client:
        client.ask("GET", "/slower")
        check_error(client.answer(), "", 504, "did not respond in time")


# -- after it has begun: aborted


def bad(piece: bytes) -> Answer:
    """Chunks, of which the second is none."""
    first = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n"
    return Answer(raw=(first, piece)).paced(0.05).sent(close=False)


BROKEN: dict[str, Answer] = {
    "chunks": WORDS.streamed().cut(2),
    "chunks, in the middle of one": WORDS.streamed().cut(2, mid_chunk=True),
    "chunks, before the last": WORDS.streamed().cut(7),
    "chunks, reset": WORDS.streamed().cut(2, reset=True),
    "length": body([b"x" * 100, b"y" * 100]).framed("length").cut(1),
    "length, at once": body([b"x" * 100, b"y" * 100]).framed("length").cut("head"),
    "length, reset": body([b"x" * 100, b"y" * 100]).framed("length").cut(1, reset=True),
    "until close, reset": WORDS.streamed().framed("close").cut(2, reset=True),
    "a bad chunk": bad(b"zz\r\nhi\r\n"),
    "a chunk longer than said": bad(b"2\r\nhi!\r\n"),
    "a bad trailer": bad(b"0\r\nX\r\n\r\n"),
}


@pytest.mark.parametrize("version", ["1.1", "1.0"])
@pytest.mark.parametrize("name", BROKEN)
def test_a_cut_answer_never_ends_cleanly(proxy: Proxied, name: str, version: str) -> None:
    """The client can tell it from a whole one, whatever its framing; and nothing of an error page is in it (D-1)."""
    proxy.llm.next(BROKEN[name])
    with proxy.client() as client:
        client.send(chat(stream=True, version=version))
        with pytest.raises(CutShortError) as caught:
            client.answer()
        if version == "1.0" and not name.startswith("length"):
            assert caught.value.how == "reset", "a proper end is all that ends an answer without a length"


def test_what_came_before_a_cut_has_been_passed_on(proxy: Proxied) -> None:
    """A chunk that came is not lost because the next one does not come (D-1)."""
    gate = proxy.llm.stepped(WORDS.streamed().cut(3))
    with proxy.client() as client:
        client.send(chat(stream=True))
        client.head()
        for _ in range(3):
            gate.release()
            assert client.chunk().startswith(b"data: ")
        with pytest.raises(CutShortError):
            client.chunk()


def test_an_answer_that_stalls_is_cut(impatient: Proxied) -> None:
    """The time between two pieces is limited, too (D-1)."""
    cases = list(itertools.product(FRAMINGS, ("1.1", "1.0")))
    with ExitStack() as stack:
        clients = [stack.enter_context(impatient.client()) for _ in cases]
        for client, (framing, version) in zip(clients, cases, strict=True):
            impatient.llm.next(body([b"x" * 100, b"y" * 100], content_type="text/plain").framed(framing).stall(1))
            client.ask("GET", "/stalls", version=version)
            client.until(b"x" * 100)
        ends = [how_it_ends(client) for client in clients]
        assert set(ends) <= {"ended", "reset"}
        assert "reset" == ends[1] == ends[5], "nothing but the end of the connection tells that it was cut"
    for seen in impatient.llm.requests[-len(cases) :]:
        assert impatient.llm.wait_for_disconnect(seen, timeout_s=DEADLINE_S).outcome == "aborted"


def how_it_ends(client: RawClient) -> str:
    """The end of an answer that cannot be complete."""
    with pytest.raises(CutShortError) as caught:
        client.until(b"never")
    assert not caught.value.got.endswith(b"0\r\n\r\n"), "a clean last chunk"
    return caught.value.how


def test_bytes_behind_an_answer_are_nobodys(proxy: Proxied) -> None:
    """The answer passes, what follows it does not, and that connection is not used again (D-1)."""
    two = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhiHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"
    proxy.llm.next(raw(two, close=False))
    with proxy.client() as client:
        client.ask("GET", "/1")
        assert client.answer().body == b"hi"
        first = proxy.llm.requests[-1]
        client.ask("GET", "/2")
        assert client.answer().json()["path"] == "/2"
        assert proxy.llm.requests[-1].connection != first.connection


def test_killing_the_upstream_in_the_middle_of_a_stream(tmp_path: Path) -> None:
    """SIGKILL: the stream is aborted, the next request is a 502, the gateway lives (D-1)."""
    upstream = Part(tmp_path, "upstream", "1000")
    try:
        url = f"http://127.0.0.1:{upstream.line()['port']}"
        with proxied(tmp_path, "--upstream", f"mortal={url}") as proxy, ExitStack() as stack:
            clients = [stack.enter_context(proxy.client()) for _ in range(3)]
            for client, version in zip(clients, ("1.1", "1.1", "1.0"), strict=True):
                client.send(
                    request(
                        "POST",
                        "/mortal/v1/chat/completions",
                        json.dumps(chat_request(fresh(), stream=True)).encode(),
                        JSON,
                        version=version,
                    )
                )
                client.until(b"word00002")
            upstream.process.kill()
            ends = [how_it_ends(client) for client in clients]
            assert (set(ends) <= {"ended", "reset"}, ends[2]) == (True, "reset")
            upstream.process.wait()  # until then its port may still take connections, and reset them
            client = stack.enter_context(proxy.client())
            client.ask("GET", "/mortal/x")
            check_error(client.answer(), "", 502, "refused the connection")
    finally:
        upstream.end()
