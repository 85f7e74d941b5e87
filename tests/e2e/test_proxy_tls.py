"""TLS on both sides of the real server: certificates, and everything that TLS does in its own way (buffers, ends)."""

from __future__ import annotations

import re
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from breakloop.testing import StandInLLM, ThreadedLLM, body, cut, say, stall
from breakloop.testing.answer import Framing
from tests.deadlines import DEADLINE_S
from tests.e2e.certificates import Authority
from tests.e2e.noise import BETWEEN_MIB, BOUND_MIB, pieces, sha, some, standstill, upload
from tests.e2e.proxied import JSON, MIB, OCTETS, Proxied, chat, one_test
from tests.e2e.raw_client import CutShortError, RawClient, request
from tests.e2e.served import Served

pytestmark = pytest.mark.e2e

WORDS = say("one two three four")


class TlsServed(Served):
    """A `breakloop serve` whose traffic port speaks TLS."""

    def wait_ready(self) -> Served:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.banner.append(line.rstrip())
            if found := re.fullmatch(r"breakloop ready on https://127\.0\.0\.1:(\d+)", self.banner[-1]):
                self.port = int(found[1])
                return self
        pytest.fail(f"not ready, exit code {self.process.wait()}: {self._log.read_text()}")


class TlsProxied(Proxied):
    """Its clients speak TLS."""

    def __init__(self, served: Served, llm: ThreadedLLM, authority: Authority) -> None:
        super().__init__(served, llm)
        self.authority = authority

    def client(self, **options: Any) -> RawClient:
        return RawClient(self.served.port, tls=self.authority.client, **options)


@contextmanager
def tls_proxied(folder: Path, **environment: str) -> Iterator[TlsProxied]:
    """TLS on both sides, of one private authority."""
    authority = Authority(folder)
    files = authority.issue("localhost", "127.0.0.1")
    (folder / "home").mkdir()
    own = {"BREAKLOOP_TLS_CERT_FILE": str(files.certificate), "BREAKLOOP_TLS_KEY_FILE": str(files.key)}
    own |= {"BREAKLOOP_UPSTREAM_CA_FILE": str(authority.file)} | environment
    with StandInLLM.in_thread(tls=files.server) as llm:
        served = TlsServed(folder, "--port", "0", "--upstream", f"openai={llm.url}", **own)
        try:
            served.wait_ready()
            yield TlsProxied(served, llm, authority)
            assert served.stop() == 0
            assert [line for line in served.log() if line["level"] in {"error", "critical"}] == []
        finally:
            served.end()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsProxied]:
    with tls_proxied(tmp_path_factory.mktemp("tls")) as both:
        yield both


@pytest.fixture
def proxy(running: TlsProxied) -> Iterator[Proxied]:
    with one_test(running) as both:
        yield both


# -- it works


def test_requests_and_streams_pass(proxy: Proxied) -> None:
    """As without TLS; connections on both sides are kept (Y-6, D-1)."""
    opened = proxy.llm.llm.opened
    with proxy.client() as client:
        assert isinstance(client.socket, ssl.SSLSocket)
        assert client.socket.version() in {"TLSv1.2", "TLSv1.3"}
        for _ in range(3):
            client.send(chat())
            assert client.answer().json()["choices"][0]["message"]["content"]
        gate = proxy.llm.stepped(WORDS)
        client.send(chat(stream=True))
        client.head()
        for number in range(1, 4):
            gate.release()
            assert client.chunk().startswith(b"data: ")
            assert gate.sent == number
        gate.finish()
        client.until(b"[DONE]\n\n\r\n0\r\n\r\n")
    assert proxy.llm.llm.opened - opened <= 1
    assert proxy.llm.requests[-1].header("host") == f"127.0.0.1:{proxy.llm.port}"


@pytest.mark.parametrize("size", [1, 16_384, 16_385, 3 * MIB, 20 * MIB])
@pytest.mark.parametrize("chunk_bytes", [0, 100_000])
def test_bodies_pass_byte_for_byte(proxy: Proxied, size: int, chunk_bytes: int) -> None:
    """Around the size of a TLS record, and large (D-1)."""
    proxy.llm.next(body(pieces(size, chunk_bytes or size), content_type="application/octet-stream"))
    with proxy.client() as client:
        upload(client, some(size), OCTETS, chunk_bytes=chunk_bytes)
        assert sha(client.answer().body) == sha(some(size))
    assert proxy.llm.requests[-1].digest == sha(some(size))


def test_who_speaks_no_tls_is_sent_away(proxy: Proxied) -> None:
    """Plain HTTP to the TLS port is no request, and disturbs nobody (Y-6)."""
    count = proxy.llm.llm.request_count
    with RawClient(proxy.served.port) as plain:
        plain.send(request("GET", "/plain"))
        with pytest.raises(CutShortError):
            plain.answer()
    with proxy.client() as client:
        client.ask("GET", "/after")
        assert client.answer().status == 200
    seen = proxy.seen_since(count)  # perhaps with a late one of the test before
    assert "GET /after" in seen
    assert "GET /plain" not in seen


def test_old_tls_is_refused(running: TlsProxied) -> None:
    """TLS 1.2 at the least (Y-6)."""
    old = running.authority.client
    old.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises((ssl.SSLError, ConnectionError)):
        RawClient(running.served.port, tls=old)


@pytest.mark.parametrize("sent", [request("GET", "/", b"", "X: " + "x" * 70_000), b"nonsense\r\n\r\n" * 10_000])
def test_a_refusal_can_be_read(proxy: Proxied, sent: bytes) -> None:
    """Also when more was sent than was read (Y-2)."""
    with proxy.client() as client:
        client.send(sent)
        assert client.answer().status in {400, 431}


# -- certificates


class Other(NamedTuple):
    """An upstream whose certificate is not as it should be."""

    names: tuple[str, ...]
    trusted: bool
    days: int
    said: str


OTHERS = {
    "another authority": Other(("127.0.0.1",), False, 1, "unable to get local issuer certificate"),
    "another address": Other(("127.0.0.2", "other.example"), True, 1, "IP address mismatch"),
    "another name": Other(("other.example",), True, 1, "Hostname mismatch"),
    "run out": Other(("127.0.0.1", "localhost"), True, -1, "certificate has expired"),
}


def test_upstreams_that_are_not_to_be_trusted(tmp_path: Path) -> None:
    """502, with the reason in words; nothing is sent to them. A private authority is trusted when it is named (D-1)."""
    trusted, unknown = Authority(tmp_path), Authority(tmp_path, "unknown")
    (tmp_path / "home").mkdir()
    arguments = []
    with ExitStack() as stack:
        upstreams = {}
        for number, (name, other) in enumerate(OTHERS.items()):
            files = (trusted if other.trusted else unknown).issue(*other.names, days=other.days)
            upstreams[name] = llm = stack.enter_context(StandInLLM.in_thread(tls=files.server))
            host = "localhost" if other.said.startswith("Hostname") else "127.0.0.1"
            arguments += ["--upstream", f"u{number}=https://{host}:{llm.port}"]
        good = stack.enter_context(StandInLLM.in_thread(tls=trusted.issue("127.0.0.1").server))
        plain = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        threading.Thread(target=answer_plainly, args=(plain,), daemon=True).start()
        plain_url = f"https://127.0.0.1:{plain.getsockname()[1]}"
        arguments += ["--upstream", f"good={good.url}", "--upstream", f"plain={plain_url}"]
        arguments += ["--upstream", f"wrong=http://127.0.0.1:{good.port}"]
        served = Served(tmp_path, "--port", "0", *arguments, BREAKLOOP_UPSTREAM_CA_FILE=str(trusted.file))
        stack.callback(served.end)
        served.wait_ready()
        for number, (name, other) in enumerate(OTHERS.items()):
            status, headers, content = served.ask(f"/u{number}/v1/x")
            assert status == 502, name
            assert f"The upstream u{number} has a certificate that is not trusted: {other.said}" in content
            assert headers["x-breakloop-request-id"]
            assert upstreams[name].llm.request_count == 0
        assert served.ask("/good/v1/x")[0] == 200
        status, _, content = served.ask("/plain/v1/x")
        assert (status, "failed the TLS handshake" in content) == (502, True)
        assert served.ask("/wrong/v1/x")[0] == 502
        assert served.stop() == 0


def answer_plainly(listener: socket.socket) -> None:
    """Do to one client what a server does that speaks no TLS."""
    connection, _ = listener.accept()
    connection.recv(10_000)
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    connection.close()


# -- who leaves


def goodbye(client: RawClient) -> None:
    """Close as TLS wants it."""
    assert isinstance(client.socket, ssl.SSLSocket)
    client.socket.settimeout(0.2)
    with suppress(OSError, ValueError):
        client.socket.unwrap()
    client.close()


LEAVING: dict[str, Callable[[RawClient], None]] = {
    "goodbye": goodbye,
    "close": RawClient.close,
    "reset": RawClient.reset,
}


@pytest.mark.parametrize("way", LEAVING)
@pytest.mark.parametrize("moment", ["before the head", "in the stream", "in an upload"])
def test_a_client_that_leaves_frees_the_upstream(proxy: Proxied, moment: str, way: str) -> None:
    """Properly, without a goodbye, or reset: within a second (D-1)."""
    count = proxy.llm.llm.request_count
    with proxy.client() as client:
        if moment == "in an upload":
            client.ask("POST", "/v1/files", b"", OCTETS, "Content-Length: 1000000")
            client.send(some(70_000))
        else:
            proxy.llm.next(stall() if moment == "before the head" else WORDS.stall(2))
            client.send(chat(stream=True))
        proxy.llm.wait_until(lambda: proxy.llm.llm.request_count > count)
        if moment == "in the stream":
            client.until(b"one")
        LEAVING[way](client)
        assert proxy.llm.wait_for_disconnect(timeout_s=DEADLINE_S).outcome == "aborted"


# -- who does not read


def test_a_client_that_does_not_read_stops_the_upstream(tmp_path: Path) -> None:
    """TLS has buffers of its own on both sides; they are limited as well (D-1)."""
    with tls_proxied(tmp_path) as proxy, proxy.client(small=True) as client:
        before = proxy.memory_mib()
        proxy.llm.next(body(pieces(80 * MIB), content_type="application/octet-stream"))
        client.ask("GET", "/download")
        head = client.head()
        assert standstill(lambda: proxy.llm.requests[-1].bytes_sent) < BETWEEN_MIB * MIB
        assert proxy.memory_mib("VmHWM") - before < BOUND_MIB / 4
        client.body_of(head)
        assert sha(head.body) == sha(some(80 * MIB))
        assert proxy.memory_mib("VmHWM") - before < BOUND_MIB / 4


@pytest.mark.parametrize("kind", [OCTETS, JSON])
def test_an_upstream_that_does_not_read_stops_the_client(tmp_path: Path, kind: str) -> None:
    """The same the other way (D-1, Y-2)."""
    with tls_proxied(tmp_path, BREAKLOOP_SHUTDOWN_GRACE_SECONDS="0.5") as proxy, proxy.client() as client:
        before = proxy.memory_mib()
        proxy.llm.next(stall().early(drain=False))
        client.ask("POST", "/upload", b"", kind, "Transfer-Encoding: chunked")
        piece = b"10000\r\n" + some(65_536) + b"\r\n"
        client.socket.settimeout(1.0)
        sent = 0
        with suppress(TimeoutError):
            while sent < 100 * MIB:
                client.send(piece)
                sent += len(piece)
        assert sent < (10 + BETWEEN_MIB) * MIB
        assert proxy.memory_mib("VmHWM") - before < BOUND_MIB


# -- ends


@pytest.mark.parametrize("version", ["1.1", "1.0"])
@pytest.mark.parametrize("framing", ["chunked", "length", "close"])
def test_an_answer_without_goodbye_is_cut(proxy: Proxied, framing: Framing, version: str) -> None:
    """Under TLS an end without its goodbye is a cut, also of an answer that only the end ends (D-1)."""
    proxy.llm.next(body([b"x" * 100, b"y" * 100], content_type="text/plain").framed(framing).cut(1))
    with proxy.client() as client:
        client.ask("GET", "/cut", version=version)
        with pytest.raises(CutShortError) as caught:
            client.answer()
        if version == "1.0" and framing != "length":
            assert caught.value.how in {"reset", "no close_notify"}


@pytest.mark.parametrize("version", ["1.1", "1.0"])
def test_an_answer_with_its_goodbye_is_whole(proxy: Proxied, version: str) -> None:
    """The proper end of an answer without a length (D-1)."""
    proxy.llm.next(body([b"x" * 100, b"y" * 100], content_type="text/plain").framed("close"))
    with proxy.client() as client:
        client.ask("GET", "/whole", version=version)
        assert client.answer().body == b"x" * 100 + b"y" * 100


def test_a_kept_connection_that_dies_unheard_is_tried_again_once(proxy: Proxied) -> None:
    """As without TLS (D-1)."""
    with proxy.client() as client:
        client.ask("GET", "/warm")
        client.answer()
        count = proxy.llm.llm.request_count
        proxy.llm.next(cut())
        client.send(chat())
        assert client.answer().status == 200
        assert proxy.llm.llm.request_count == count + 2


def test_a_signal_does_not_wait_for_idle_clients(tmp_path: Path) -> None:
    """Idle connections on both sides, whose other end does not say goodbye, do not hold up the end (S-6)."""
    with tls_proxied(tmp_path) as proxy, proxy.client() as idle:
        idle.ask("GET", "/x")
        assert idle.answer().status == 200
        proxy.served.process.send_signal(signal.SIGTERM)
        assert proxy.served.process.wait(DEADLINE_S) == 0
