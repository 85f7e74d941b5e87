"""Back-pressure through the real server: whoever does not read stops whoever sends, and nothing piles up between."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from breakloop.testing import body, stall
from tests.deadlines import DEADLINE_S
from tests.e2e.noise import BETWEEN_MIB, BLOCK, BOUND_MIB, pieces, sha, some, standstill, upload
from tests.e2e.proxied import JSON, MIB, OCTETS, Proxied, one_test, proxied
from tests.e2e.raw_client import CutShortError, RawClient

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxied]:
    with proxied(tmp_path_factory.mktemp("pressure")) as both:
        yield both


@pytest.fixture
def proxy(running: Proxied) -> Iterator[Proxied]:
    with one_test(running) as both:
        yield both


@pytest.mark.parametrize("kind", [OCTETS, JSON])
@pytest.mark.parametrize("chunk_bytes", [0, 256 * 1024])
def test_fifty_megabytes_pass_without_being_kept(tmp_path: Path, chunk_bytes: int, kind: str) -> None:
    """A large upload is streamed; the gateway's memory hardly grows (D-1, Y-2)."""
    content = some(50 * MIB)
    with proxied(tmp_path) as proxy, proxy.client() as client:
        client.ask("GET", "/warm")
        client.answer()
        before = proxy.memory_mib()
        upload(client, content, kind, chunk_bytes=chunk_bytes)
        assert client.answer().json()["body_sha256"] == sha(content)
        assert proxy.memory_mib("VmHWM") - before < BOUND_MIB


def test_a_client_that_does_not_read_stops_the_upstream(tmp_path: Path) -> None:
    """Back-pressure: what the upstream can get rid of is what fits between, and the gateway keeps none of it (D-1)."""
    with proxied(tmp_path) as proxy, proxy.client(small=True) as client:
        before = proxy.memory_mib()
        proxy.llm.next(body(pieces(100 * MIB), content_type="application/octet-stream"))
        client.ask("GET", "/download")
        head = client.head()
        stuck = standstill(lambda: proxy.llm.requests[-1].bytes_sent)
        assert stuck < BETWEEN_MIB * MIB
        assert proxy.memory_mib("VmHWM") - before < BOUND_MIB / 4
        client.body_of(head)
        assert sha(head.body) == sha(some(100 * MIB))
        assert proxy.memory_mib("VmHWM") - before < BOUND_MIB / 4


@pytest.mark.parametrize("version", ["1.1", "1.0"])
def test_a_client_that_does_not_read_for_too_long_gets_no_clean_end(tmp_path: Path, version: str) -> None:
    """It is given up, and can tell that from an end when it reads on (Y-2, D-1)."""
    with proxied(tmp_path, BREAKLOOP_LIMITS_BODY_SECONDS="1") as proxy, proxy.client(small=True) as client:
        proxy.llm.next(body(pieces(50 * MIB), content_type="application/octet-stream").framed("chunked"))
        client.ask("GET", "/download", version=version)
        head = client.head()
        assert proxy.llm.wait_for_disconnect().outcome == "aborted"
        with pytest.raises(CutShortError):
            client.body_of(head)


@pytest.mark.parametrize("way", [RawClient.close, RawClient.reset])
def test_a_client_that_does_not_read_and_leaves_frees_the_upstream(
    proxy: Proxied, way: Callable[[RawClient], None]
) -> None:
    """Also while nothing can be sent to it (D-1)."""
    proxy.llm.next(body([BLOCK] * 50, content_type="application/octet-stream"))
    with proxy.client(small=True) as client:
        client.ask("GET", "/download")
        client.head()
        standstill(lambda: proxy.llm.requests[-1].bytes_sent)
        way(client)
        assert proxy.llm.wait_for_disconnect(timeout_s=DEADLINE_S).outcome == "aborted"


UPLOADS = {
    "length": (OCTETS, f"Content-Length: {100 * MIB}"),
    "chunked": (OCTETS, "Transfer-Encoding: chunked"),
    "judged, length": (JSON, f"Content-Length: {100 * MIB}"),
    "judged, chunked": (JSON, "Transfer-Encoding: chunked"),
}


def push(client: RawClient, lines: tuple[str, ...], most: int = 100 * MIB) -> int:
    """Send until nothing more is taken; returns how much that was."""
    piece = some(64 * 1024)
    framed = b"%x\r\n%b\r\n" % (len(piece), piece) if "chunked" in lines[1] else piece
    client.ask("POST", "/upload", b"", *lines)
    client.socket.settimeout(1.0)
    sent = 0
    try:
        while sent < most:
            client.send(framed)
            sent += len(piece)
    except TimeoutError:
        pass
    return sent


@pytest.mark.parametrize("name", UPLOADS)
def test_an_upstream_that_does_not_read_stops_the_client_and_is_to_blame(tmp_path: Path, name: str) -> None:
    """The gateway takes what it judges, and what fits between; then it is the upstream that is too slow (D-1, Y-2)."""
    times = {"BREAKLOOP_PROXY_ANSWER_SECONDS": "2", "BREAKLOOP_LIMITS_BODY_SECONDS": "2"}
    with proxied(tmp_path, BREAKLOOP_SHUTDOWN_GRACE_SECONDS="0.5", **times) as proxy, proxy.client() as client:
        before = proxy.memory_mib()
        proxy.llm.next(stall().early(drain=False))
        sent = push(client, UPLOADS[name])
        assert sent < (10 + BETWEEN_MIB) * MIB
        assert proxy.memory_mib("VmHWM") - before < BOUND_MIB
        client.socket.settimeout(DEADLINE_S)
        found = client.answer()
        assert (found.status, found.json()["detail"]["error"]) == (504, "upstream_timeout")


def test_a_client_that_leaves_a_stuck_upload_frees_the_upstream(tmp_path: Path) -> None:
    """A client that is not read from, because the upstream does not read, can leave all the same (D-1)."""
    gone = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        watcher = threading.Thread(target=unread, args=(listener, gone), daemon=True)
        watcher.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with (
            proxied(tmp_path, "--upstream", f"deaf={url}", BREAKLOOP_SHUTDOWN_GRACE_SECONDS="0.5") as proxy,
            proxy.client() as client,
        ):
            client.ask("POST", "/deaf/upload", b"", OCTETS, f"Content-Length: {100 * MIB}")
            client.socket.settimeout(0.5)
            with pytest.raises(TimeoutError):
                client.send(some(60 * MIB))
            assert not gone.is_set()
            client.reset()
            assert gone.wait(DEADLINE_S), "the upstream's connection is still there"
        watcher.join(DEADLINE_S)


def unread(listener: socket.socket, gone: threading.Event) -> None:
    """Take a connection, read nothing, and tell when it is gone."""
    connection, _ = listener.accept()
    poll = select.poll()
    poll.register(connection, select.POLLRDHUP)
    if poll.poll(20_000):
        gone.set()
    connection.close()
