"""What HTTP has besides requests and answers, through the real server: methods, expectations, upgrades, old clients,
requests sent ahead; and a gateway that is its own upstream."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from breakloop.testing import PATHS, body, fail, mcp_call, say
from tests.e2e.proxied import JSON, OCTETS, Proxied, chat, fresh, one_test, proxied
from tests.e2e.raw_client import RawClient, chunked, request
from tests.e2e.served import serving

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxied]:
    with proxied(tmp_path_factory.mktemp("protocol")) as both:
        yield both


@pytest.fixture
def proxy(running: Proxied) -> Iterator[Proxied]:
    with one_test(running) as both:
        yield both


# -- methods


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "PROPFIND", "QUERY"])
@pytest.mark.parametrize("sent", [b"", b"hello"])
def test_methods_pass(proxy: Proxied, method: str, sent: bytes) -> None:
    """Any method, with and without a body (D-1)."""
    with proxy.client() as client:
        client.ask(method, "/things", sent)
        told = client.answer().json()
        assert (told["method"], told["path"], told["body_bytes"]) == (method, "/things", len(sent))


def test_head_has_the_fields_and_no_body(proxy: Proxied) -> None:
    """The length is that of the answer to a GET, and the connection goes on; also where the upstream sends chunks
    (D-1)."""
    proxy.llm.next(body(b"x" * 1234), body([b"x", b"y"]).framed("chunked"), body([b"x"]).framed("close"))
    with proxy.client() as client:
        client.ask("HEAD", "/1")
        found = client.answer("HEAD")
        assert (found.status, found["content-length"]) == (200, "1234")
        for number in (2, 3):
            client.ask("HEAD", f"/{number}")
            assert client.answer("HEAD").status == 200
        client.ask("GET", "/next")
        assert client.answer().json()["path"] == "/next"


@pytest.mark.parametrize("status", [204, 304])
def test_answers_without_a_body(proxy: Proxied, status: int) -> None:
    """Nothing is waited for (D-1)."""
    proxy.llm.next(body(b"", status=status))
    with proxy.client() as client:
        client.ask("GET", "/1")
        assert client.answer().status == status
        client.ask("GET", "/2")
        assert client.answer().json()["path"] == "/2"


# -- expectations and interim answers


@pytest.mark.parametrize("kind", [JSON, OCTETS])
@pytest.mark.parametrize("framing", ["length", "chunked"])
def test_a_client_that_waits_to_be_told(proxy: Proxied, framing: str, kind: str) -> None:
    """100 Continue at once, whether the body is judged or passes; the upstream is not bothered with it (D-1)."""
    content = json.dumps({"text": fresh()}).encode()
    length = f"Content-Length: {len(content)}" if framing == "length" else "Transfer-Encoding: chunked"
    with proxy.client() as client:
        client.ask("POST", "/waits", b"", kind, length, "Expect: 100-continue")
        assert client.head().status == 100
        client.send(content if framing == "length" else chunked(content))
        told = client.answer().json()
        assert told["body_bytes"] == len(content)
    assert proxy.llm.requests[-1].header("expect") is None


def test_a_client_that_does_not_wait_although_it_says_so(proxy: Proxied) -> None:
    """With the body behind the head nobody needs to be told (D-1)."""
    with proxy.client() as client:
        client.ask("POST", "/waits", b"hello", OCTETS, "Expect: 100-continue")
        client.ask("GET", "/next")
        assert client.answer().json()["body_bytes"] == 5
        assert client.answer().json()["path"] == "/next"


def test_an_early_answer_to_a_client_that_waits(proxy: Proxied) -> None:
    """An upstream may say no before the body; the connection ends, for nobody knows whether it will come (D-1)."""
    proxy.llm.next(fail(403).early())
    with proxy.client() as client:
        client.ask("POST", "/waits", b"", OCTETS, "Content-Length: 1000", "Expect: 100-continue")
        found = client.answer()
        assert (found.status, found["connection"]) == (403, "close")
        assert client.ends() == "closed"


def test_interim_answers_are_not_confused_with_the_answer(proxy: Proxied) -> None:
    """100 and 103 before the answer (D-1)."""
    answer = say("hi").after_informational(100).after_informational(103, ("Link", "</x>")).after_informational(102)
    proxy.llm.next(answer, answer.streamed())
    with proxy.client() as client:
        for stream in (False, True):
            client.send(chat(stream=stream))
            found = client.answer()
            assert (found.status, b"hi" in found.body) == (200, True)


# -- upgrades


def test_h2c_is_ignored_with_the_body_intact(proxy: Proxied) -> None:
    """Java's client offers HTTP/2 in its first request, with the body behind it (D-1)."""
    lines = (
        "Connection: Upgrade, HTTP2-Settings",
        "Upgrade: h2c",
        "HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA",
    )
    with proxy.client() as client:
        for _ in range(2):
            client.send(chat("", *lines))
            assert client.answer().status == 200
    seen = proxy.llm.requests[-1]
    assert seen.json()["messages"]
    assert [seen.header(name) for name in ("upgrade", "http2-settings", "connection")] == [None, None, None]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/mcp"])
def test_websockets_are_told_to_use_http(proxy: Proxied, path: str) -> None:
    """426 where no API has any, which clients that try websockets first take for that; the upstream does not hear of it
    (D-1)."""
    count = proxy.llm.llm.request_count
    lines = (
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
    )
    with proxy.client() as client:
        client.ask("GET", path, b"", *lines)
        found = client.answer()
        assert (found.status, found["upgrade"]) == (426, "HTTP/1.1")
        assert client.ends() == "closed"
    assert proxy.llm.llm.request_count == count


# -- old clients and old servers


@pytest.mark.parametrize("keeps", [True, False])
def test_http_1_0_clients(proxy: Proxied, keeps: bool) -> None:
    """The connection ends with the answer, unless they ask to keep it and the answer has a length (D-1)."""
    lines = ("Connection: keep-alive",) if keeps else ()
    proxy.llm.next(say("a"), say("b"))
    with proxy.client() as client:
        client.send(chat("", *lines, version="1.0"))
        found = client.answer()
        assert (found.framing, found["connection"]) == ("length", "keep-alive" if keeps else "close")
        if keeps:
            client.send(chat("", *lines, version="1.0", stream=True))
            found = client.answer()
            assert (found.framing, found["connection"]) == ("close", "close")
        else:
            proxy.llm.llm._queue.clear()
        assert client.ends() == "closed"
    assert proxy.llm.requests[-1].version == "1.1"


def test_http_1_0_without_host(proxy: Proxied) -> None:
    """HTTP/1.0 knows none; the upstream gets its own (D-1)."""
    with proxy.client() as client:
        client.send(b"GET /old HTTP/1.0\r\n\r\n")
        assert client.answer().json()["path"] == "/old"
    assert proxy.llm.requests[-1].header_all("host") == [f"127.0.0.1:{proxy.llm.port}"]


def test_http_1_0_upstreams(proxy: Proxied) -> None:
    """An old server's answers reach new clients, with a length and without (D-1)."""
    proxy.llm.next(say("a").http10(), say("b c d").http10().streamed())
    with proxy.client() as client:
        client.send(chat())
        assert (found := client.answer()).framing == "length"
        assert found.version == "1.1"
        client.send(chat(stream=True))
        assert client.answer().framing == "chunked"


def test_a_client_that_wants_to_end(proxy: Proxied) -> None:
    """`Connection: close` ends the client's connection and not the upstream's (D-1)."""
    with proxy.client() as client:
        client.ask("GET", "/end", b"", "Connection: close")
        assert client.answer()["connection"] == "close"
        assert client.ends() == "closed"
    kept = proxy.llm.requests[-1]
    assert proxy.llm.llm.is_connected(kept)
    assert kept.header("connection") is None


# -- one after the other


def test_requests_sent_ahead_are_answered_in_order(proxy: Proxied) -> None:
    """Streams, plain answers, our own and refusals, in the order of their requests (D-1)."""
    proxy.llm.next(say("first").streamed().paced(0.02), say("second").delayed(0.05))
    with proxy.client() as client:
        client.send(
            chat("", stream=True), chat(), request("GET", "/livez"), request("POST", "/x%2fy", b"1"), *[request("GET", f"/{n}") for n in range(40)]
        )  # fmt: skip
        assert b"first" in client.answer().body
        assert b"second" in client.answer().body
        assert client.answer().json()["status"] == "ok"
        assert client.answer().status == 400
        assert [client.answer().json()["path"] for _ in range(40)] == [f"/{number}" for number in range(40)]


def test_requests_sent_ahead_go_to_the_upstream_one_at_a_time(proxy: Proxied) -> None:
    """The second is sent when the first is answered: no answer can be taken for another's (D-1)."""
    count = proxy.llm.llm.request_count
    gate = proxy.llm.stepped(say("one two"))
    with proxy.client() as client:
        client.send(chat("", stream=True), request("GET", "/second"))
        client.head()
        gate.release()
        client.chunk()
        assert proxy.llm.llm.request_count == count + 1
        gate.finish()
        client.until(b"0\r\n\r\n")
        assert client.answer().json()["path"] == "/second"


# -- itself


def test_a_gateway_that_is_its_own_upstream(tmp_path: Path, free_port: Callable[[], int]) -> None:
    """One round, then 508; MCP's clients read it as a tool's error; and it does not go on for ever (LD-9)."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with (
        serving(tmp_path, "--port", str(port), "--upstream", f"openai={url}") as served,
        RawClient(served.port) as client,
    ):
        client.send(chat())
        found = client.answer()
        assert (found.status, found["x-breakloop-upstream-reason"]) == (508, "proxy_loop")  # of the second pass
        assert (found["x-should-retry"], found.json()["error"]["code"]) == ("false", "proxy_loop")
        client.ask("GET", "/plain")
        assert client.answer().status == 508
        client.ask("POST", PATHS["mcp"], json.dumps(mcp_call()).encode(), JSON)
        found = client.answer()
        assert (found.status, found.json()["result"]["isError"]) == (200, True)


def test_gateways_in_a_row_are_no_loop(proxy: Proxied, tmp_path: Path) -> None:
    """Another instance in front is none, nor is a mark that some client made up (LD-9)."""
    with serving(tmp_path, "--upstream", f"openai={proxy.served.url}") as front, RawClient(front.port) as client:
        client.send(chat("", "X-Breakloop-Hop: 0123456789abcdef"))
        assert client.answer().status == 200
    hops = proxy.llm.requests[-1].header_all("x-breakloop-hop")
    assert len(hops) == 1
    assert len(hops[0].split(", ")) == 3
