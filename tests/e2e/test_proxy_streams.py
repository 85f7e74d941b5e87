"""Streams through the real server: nothing is held back, and whoever leaves frees what was at work for him."""

from __future__ import annotations

import json
import select
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from breakloop.testing import Answer, SeenRequest, ThreadedGate, body, bundle, limit_policy, say, stall
from tests.deadlines import DEADLINE_S
from tests.e2e.proxied import (
    CHAT,
    JSON,
    MIB,
    OCTETS,
    STREAMING,
    Proxied,
    chat,
    fresh,
    one_test,
    proxied,
    stream_request,
)
from tests.e2e.raw_client import CutShortError, RawClient, chunked, request
from tests.e2e.served import eventually

pytestmark = pytest.mark.e2e

WORDS = say("one two three four")
LEAVING: dict[str, Callable[[RawClient], None]] = {
    "close": RawClient.close,
    "half-close": RawClient.half_close,
    "reset": RawClient.reset,
}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxied]:
    with proxied(tmp_path_factory.mktemp("streams")) as both:
        yield both


@pytest.fixture
def proxy(running: Proxied) -> Iterator[Proxied]:
    with one_test(running) as both:
        yield both


def quiet(client: RawClient) -> bool:
    """Nothing is there to be read."""
    return not select.select([client.socket], [], [], 0.02)[0]


# -- every chunk at once


@pytest.mark.parametrize("dialect", STREAMING)
def test_each_chunk_arrives_before_the_next_is_sent(proxy: Proxied, dialect: str) -> None:
    """Head first, then chunk by chunk, each while the upstream waits to be told to send the next (D-1)."""
    gate = proxy.llm.stepped(WORDS.streamed())
    with proxy.client() as client:
        client.send(stream_request(dialect))
        head = client.head()
        assert (head.status, head.all("transfer-encoding")) == (200, ["chunked"])
        assert "x-breakloop-request-id" in head
        assert quiet(client)
        contents = []
        for number in range(1, 4):
            assert gate.release() == number
            contents.append(client.chunk())
            assert gate.sent == number
            assert quiet(client)
        gate.finish()
        while content := client.chunk():
            contents.append(content)
        assert client.exactly(2) == b"\r\n"
        text = b"".join(contents)
        assert all(word in text for word in (b"one", b"two", b"three", b"four"))
        client.send(chat())  # and the connection lives on
        assert client.answer().status == 200


@pytest.mark.parametrize("dialect", STREAMING)
def test_http_1_0_clients_get_each_chunk_too(proxy: Proxied, dialect: str) -> None:
    """HTTP/1.0 clients get the same content without chunks, and the end of the connection is its end (D-1)."""
    gate = proxy.llm.stepped(WORDS.streamed())
    with proxy.client() as client:
        client.send(stream_request(dialect, version="1.0"))
        head = client.head()
        assert head.status == 200
        assert "transfer-encoding" not in head
        assert "content-length" not in head
        assert head["connection"] == "close"
        text = b""
        for number in range(1, 4):
            assert gate.release() == number
            text += client.receive()
            assert gate.sent == number
            assert quiet(client)
        gate.finish()
        text += client.rest()
        assert all(word in text for word in (b"one", b"two", b"three", b"four"))


@pytest.mark.parametrize("version", ["1.1", "1.0"])
def test_chunks_of_anything_pass_at_once(proxy: Proxied, version: str) -> None:
    """What is no dialect streams as well; a chunk may be a byte, or half a chunk (D-1)."""
    gate = proxy.llm.stepped(body([b"a", b"\x00\xff", b"data: x\n"], content_type="application/x-anything"))
    with proxy.client() as client:
        client.ask("GET", "/events", b"", version=version)
        client.head()
        for content in (b"a", b"\x00\xff", b"data: x\n"):
            gate.release()
            assert (client.chunk() if version == "1.1" else client.exactly(len(content))) == content
        assert client.until(b"0\r\n\r\n") if version == "1.1" else client.ends() == "closed"


def test_half_a_chunk_passes_at_once(proxy: Proxied) -> None:
    """Pieces pass as they come, wherever the upstream's writes cut its chunks (D-1)."""
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    pieces = (b"a", b"\r\n01234", b"56789\r", b"\n0\r\n", b"\r\n")
    raw = Answer(raw=(head, *pieces)).sent(close=False)
    gate = proxy.llm.stepped(raw)
    with proxy.client() as client:
        client.ask("GET", "/halves")
        gate.release()
        client.head()
        for piece in pieces:
            gate.release()
            assert client.exactly(len(piece)) == piece


def test_an_answer_until_close_streams_as_chunks(proxy: Proxied) -> None:
    """An upstream without chunks streams, too; the client gets chunks and an end (D-1)."""
    gate = proxy.llm.stepped(WORDS.streamed().framed("close"))
    with proxy.client() as client:
        client.send(stream_request("openai_chat"))
        assert client.head().all("transfer-encoding") == ["chunked"]
        for number in range(1, 4):
            gate.release()
            assert client.chunk().startswith(b"data: "), number
        gate.finish()
        client.until(b"[DONE]\n\n\r\n")
        assert client.exactly(5) == b"0\r\n\r\n"


# -- who leaves


@pytest.mark.parametrize("way", LEAVING)
@pytest.mark.parametrize("moment", ["before the head", "after the head", "in the stream", "in a plain body"])
def test_a_client_that_leaves_frees_the_upstream(proxy: Proxied, moment: str, way: str) -> None:
    """Closed, half-closed or reset, waiting or reading: the upstream's connection is gone within a second (D-1)."""
    gate: ThreadedGate | None = None
    if moment == "before the head":
        proxy.llm.next(stall())
    elif moment == "after the head":
        proxy.llm.next(WORDS.stall("head"))
    elif moment == "in the stream":
        gate = proxy.llm.stepped(WORDS)
    else:
        proxy.llm.next(body([b"x" * 100, b"y" * 100]).framed("length").stall(1))
    count = proxy.llm.llm.request_count
    with proxy.client() as client:
        client.send(chat(stream=moment != "in a plain body"))
        if moment != "before the head":
            client.head()
        if gate is not None:
            gate.release(2)
            client.chunk()
        proxy.llm.wait_until(lambda: proxy.llm.llm.request_count > count)
        LEAVING[way](client)
        seen = proxy.llm.wait_for_disconnect()
        assert seen.outcome == "aborted"
    with proxy.client() as client:
        client.send(chat())
        assert client.answer().status == 200
    assert proxy.llm.requests[-1].connection != seen.connection


@pytest.mark.parametrize("way", LEAVING)
@pytest.mark.parametrize("framing", ["length", "chunked"])
def test_a_client_that_leaves_in_its_upload_frees_the_upstream(proxy: Proxied, framing: str, way: str) -> None:
    """An upload that breaks off is gone at the upstream, and never looks complete there (D-1)."""
    lines = ["Content-Length: 1000000"] if framing == "length" else ["Transfer-Encoding: chunked"]
    part, path = b"x" * 70_000, f"/v1/files/{framing}-{way}"

    def arrived() -> list[SeenRequest]:
        """By its path: a late request of the test before may come after it."""
        return [one for one in proxy.llm.llm._requests if one.target == path and len(one._body) == len(part)]

    with proxy.client() as client:
        client.ask("POST", path, b"", OCTETS, *lines)
        client.send(part if framing == "length" else chunked(part)[:-5])
        eventually(lambda: bool(arrived()), "the upload has arrived")
        LEAVING[way](client)
        seen = proxy.llm.wait_for_disconnect(arrived()[0])
    assert (seen.complete, seen.outcome, seen.body == part) == (False, "aborted", True)


@pytest.mark.parametrize("way", LEAVING)
def test_a_client_that_leaves_in_a_collected_body_is_never_heard_of(proxy: Proxied, way: str) -> None:
    """A body that is judged goes on when it is whole, or not at all (D-1)."""
    count = proxy.llm.llm.request_count
    with proxy.client() as client:
        client.ask("POST", CHAT, b"", JSON, "Content-Length: 1000")
        client.send(b"{")
        LEAVING[way](client)
    with proxy.client() as client:
        client.ask("GET", "/after")
        assert client.answer().status == 200
    seen = proxy.seen_since(count)  # perhaps with a late one of the test before
    assert "GET /after" in seen
    assert not [one for one in seen if CHAT in one]


@pytest.mark.parametrize("ahead", [20, 1000])
def test_a_client_that_sends_ahead_and_leaves_frees_the_upstream(proxy: Proxied, ahead: int) -> None:
    """Requests that wait behind a stream, even too many to be read, do not hide that their client is gone (D-1)."""
    proxy.llm.next(stall())
    count = proxy.llm.llm.request_count
    with proxy.client() as client:
        client.send(chat(stream=True), chat() * ahead)
        proxy.llm.wait_until(lambda: proxy.llm.llm.request_count > count)
        client.reset()
        assert proxy.llm.wait_for_disconnect().outcome == "aborted"


def test_nothing_is_left_of_those_who_left(proxy: Proxied) -> None:
    """No descriptors of clients that left in every way, at every moment (Y-2)."""

    def descriptors() -> int:
        return len(list(Path(f"/proc/{proxy.served.process.pid}/fd").iterdir()))

    proxy.llm.wait_until(lambda: proxy.llm.open <= 1)  # those of earlier tests, idle
    before = descriptors()
    proxy.llm.next(*[WORDS.stall(1)] * 60)
    for number in range(60):
        with proxy.client() as client:
            client.send(chat(stream=True))
            if number % 2 == 0:
                client.until(b"data: ")
            list(LEAVING.values())[number % 3](client)
    proxy.llm.llm._queue.clear()
    eventually(lambda: descriptors() <= before + 1, "everything is closed")
    proxy.llm.wait_until(lambda: proxy.llm.open <= 1)  # the idle one of the pool


# -- the gateway's own life


def test_a_signal_lets_a_stream_finish(tmp_path: Path) -> None:
    """SIGTERM in the middle: nobody new is let in, the stream goes on to its end, then exit 0 (S-6)."""
    with proxied(tmp_path) as proxy, proxy.client() as client, proxy.client() as idle:
        idle.ask("GET", "/x")
        idle.answer()
        gate = proxy.llm.stepped(WORDS)
        client.send(chat(stream=True))
        client.head()
        gate.release()
        client.chunk()
        proxy.served.process.send_signal(signal.SIGTERM)
        assert idle.ends() == "closed"
        eventually(lambda: not accepts(proxy.served.port), "no new connections")
        gate.release(2)
        assert b"one" in client.chunk()
        assert proxy.served.process.poll() is None
        gate.finish()
        while client.chunk():
            pass
        assert client.exactly(2) == b"\r\n"
        assert client.ends() == "closed"
        assert proxy.served.process.wait(DEADLINE_S) == 0
        (stopped,) = proxy.served.log("stopped")
        assert stopped["cut_off"] == 0


def test_a_signal_lets_an_answer_come_that_has_not_begun(tmp_path: Path) -> None:
    """Who waits for the upstream when the signal comes still gets his answer, and is told to go elsewhere next
    (S-6)."""
    with proxied(tmp_path) as proxy, proxy.client() as client:
        proxy.llm.next(stall())
        client.send(chat())
        proxy.llm.wait_for_requests()
        proxy.served.process.send_signal(signal.SIGTERM)
        eventually(lambda: not accepts(proxy.served.port), "no new connections")
        proxy.llm.resume()
        found = client.answer()
        assert (found.status, found["connection"]) == (200, "close")
        assert client.ends() == "closed"
        assert proxy.served.process.wait(DEADLINE_S) == 0


def test_the_end_of_the_grace_cuts_a_stream_off(tmp_path: Path) -> None:
    """A stream that outlasts the grace is cut, which its client can tell from an end; then exit 0 (S-6)."""
    with proxied(tmp_path, BREAKLOOP_SHUTDOWN_GRACE_SECONDS="0.5") as proxy:
        with proxy.client() as client, proxy.client() as old:
            for one, version in ((client, "1.1"), (old, "1.0")):
                proxy.llm.next(WORDS.stall(2))
                one.send(chat(stream=True, version=version))
                one.until(b"one")
            proxy.served.process.send_signal(signal.SIGTERM)
            with pytest.raises(CutShortError):
                client.until(b"\r\n0\r\n\r\n")
            with pytest.raises(CutShortError, match="reset"):  # a proper end would be that of the answer
                old.rest()
        assert proxy.served.process.wait(DEADLINE_S) == 0
        assert proxy.served.log("stopped")[0]["cut_off"] == 2


def accepts(port: int) -> bool:
    try:
        with RawClient(port, timeout_s=1):
            return True
    except OSError:
        return False


def closing(version: int, burst: int) -> str:
    return json.dumps(bundle(limit_policy(rate=1, burst=burst, prefix="/closed"), version=version))


def test_a_new_bundle_does_not_disturb_a_stream(tmp_path: Path) -> None:
    """A request sees one bundle; its answer goes on while another takes over (B-3)."""
    file = tmp_path / "bundle.yaml"
    file.write_text(closing(1, 100))
    with proxied(tmp_path, "--policy", "bundle.yaml") as proxy, proxy.client() as client:
        gate = proxy.llm.stepped(WORDS)
        client.send(chat(stream=True))
        assert client.head().status == 200
        gate.release(2)
        client.until(b"one")
        file.write_text(closing(2, 1))
        eventually(lambda: proxy.served.ready()["bundle_version"] == 2, "version 2")
        gate.release()
        client.until(b"two")
        gate.finish()
        client.until(b"\r\n0\r\n\r\n")
        client.send(request("GET", "/closed") * 2)
        assert [client.answer().status for _ in range(2)] == [200, 429]


# -- throttled

THROTTLE = """\
bundle_version: 1
policies:
  - id: slow
    spec:
      selector: {pathPrefix: /}
      loop_detection: {enabled: true, window_seconds: 60, threshold_identical_requests: 2, action: throttle}
"""


@pytest.mark.parametrize("way", LEAVING)
def test_a_throttled_request_whose_client_leaves_is_never_sent(tmp_path: Path, way: str) -> None:
    """The delay comes before the upstream is asked; who leaves meanwhile has asked for nothing (E-6, LD-5)."""
    (tmp_path / "bundle.yaml").write_text(THROTTLE)
    with proxied(tmp_path, "--policy", "bundle.yaml") as proxy:
        text = fresh()
        with proxy.client() as client:
            client.send(chat(text))
            assert client.answer().status == 200
            began = time.monotonic()
            client.send(chat(text))
            found = client.answer()
            assert time.monotonic() - began >= 0.2
            assert (found.status, found["x-breakloop-loop-delay"]) == (200, "200")
        with proxy.client() as client:
            client.send(chat(text))
            proxy.served.ask("/livez")  # what came before this has been read
            LEAVING[way](client)
        proxy.served.process.send_signal(signal.SIGSTOP)  # so that the next is gone before anybody looks
        with proxy.client() as client:
            client.send(chat(text))
            LEAVING[way](client)
            proxy.served.process.send_signal(signal.SIGCONT)
        with proxy.client() as client:
            client.send(chat(text))
            # Its time comes after theirs. One that was reset before anybody looked was not even counted.
            assert client.answer()["x-breakloop-loop-delay"] == ("400" if way == "reset" else "500")
        assert proxy.llm.llm.request_count == 3


def test_large_chunks_and_small_ones_keep_their_order(proxy: Proxied) -> None:
    """What is used at once and what waits for its turn do not overtake each other (D-1)."""
    pieces = [bytes([65 + number % 26]) * (1 if number % 3 else 50_000) for number in range(60)]
    proxy.llm.next(body(pieces, content_type="text/plain"))
    with proxy.client() as client:
        client.ask("GET", "/mixed")
        found = client.answer()
    assert found.body == b"".join(pieces)
    assert len(found.body) < 2 * MIB
