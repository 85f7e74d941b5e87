"""deploy/nginx/two-instances.conf in a real nginx: what is sent once is sent once, an instance that is gone is not
noticed, streams stream, and nobody can say that he is somebody else. That two instances act as one is shown in
tests/e2e/test_instances.py, with the same configuration."""

from __future__ import annotations

import http.client
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from breakloop.testing import StandInLLM, ThreadedLLM, say
from tests.deadlines import DEADLINE_S
from tests.deploy.shipped_nginx import configure, shipped_nginx
from tests.e2e.served import Served, serving

pytestmark = pytest.mark.e2e

HEADERS = {"Content-Type": "application/json", "Authorization": "Bearer sk-canary-nginx"}
CHAT = b'{"model": "gpt-5", "messages": [{"role": "user", "content": "%s"}]}'


@pytest.fixture(scope="module")
def llm() -> Iterator[ThreadedLLM]:
    with StandInLLM.in_thread() as running:
        yield running


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, llm: ThreadedLLM) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("served"), "--upstream", f"openai={llm.url}") as running:
        yield running


class Closing:
    """An instance that takes each request and goes away without an answer; it keeps their heads."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.heads: list[bytes] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(DEADLINE_S)
                self.heads.append(connection.recv(65536))


@contextmanager
def closing() -> Iterator[Closing]:
    one = Closing()
    try:
        yield one
    finally:
        one.close()


@contextmanager
def asking(port: int, method: str, path: str, body: bytes = b"", **more: str) -> Iterator[http.client.HTTPResponse]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
    try:
        connection.request(
            method, path, body or None, HEADERS | {name.replace("_", "-"): value for name, value in more.items()}
        )
        yield connection.getresponse()
    finally:
        connection.close()


def status(port: int, method: str, path: str, body: bytes = b"") -> int:
    with asking(port, method, path, body) as answer:
        answer.read()
        return answer.status


def test_nginx_accepts_its_configuration(tmp_path: Path) -> None:
    """`nginx -t` on the shipped files."""
    command = configure(tmp_path, [8787, 8789], 8080)
    done = subprocess.run([command[0], "-t", *command[1:]], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "warn" not in done.stderr


def test_an_instance_that_is_gone_is_not_noticed(tmp_path: Path, served: Served) -> None:
    """A request that could not be sent goes to the other one, POST or not."""
    with socket.socket() as gone:
        gone.bind(("127.0.0.1", 0))  # refuses, and nobody else gets its port
        with shipped_nginx(tmp_path, [gone.getsockname()[1], served.port]) as port:
            assert [status(port, "POST", "/v1/chat/completions", CHAT % b"%d" % turn) for turn in range(6)] == [200] * 6


def test_what_was_sent_is_not_sent_again(tmp_path: Path, served: Served, llm: ThreadedLLM) -> None:
    """A POST that may have been counted, and paid for, is not repeated behind the client's back; a GET is."""
    before = len(llm.requests)
    with closing() as first, closing() as second:
        with shipped_nginx(tmp_path / "both", [first.port, second.port]) as port:
            assert status(port, "POST", "/v1/chat/completions", CHAT % b"once") == 502
            assert len(first.heads) + len(second.heads) == 1
        with shipped_nginx(tmp_path / "one", [first.port, served.port]) as port:
            assert {status(port, "GET", "/readyz") for _ in range(4)} == {200}
    assert len(llm.requests) == before


def test_streams_stream(tmp_path: Path, served: Served, llm: ThreadedLLM) -> None:
    """Each piece arrives while the provider has not yet sent the next (D-1)."""
    gate = llm.stepped(say("one two three four").streamed())
    body = (CHAT % b"stream")[:-1] + b', "stream": true}'
    with (
        shipped_nginx(tmp_path, [served.port, served.port]) as port,
        asking(port, "POST", "/v1/chat/completions", body) as answer,
    ):
        for number in range(1, 4):
            assert gate.release() == number
            assert answer.read1().startswith(b"data: ")
            assert gate.sent == number
        gate.finish()
        assert b"[DONE]" in answer.read()


def test_large_conversations_pass(tmp_path: Path, served: Served) -> None:
    """Five megabytes, which nginx by itself refuses (D-1)."""
    with shipped_nginx(tmp_path, [served.port, served.port]) as port:
        assert status(port, "POST", "/v1/chat/completions", CHAT % (b"large " * 800_000)) == 200


def test_nobody_can_say_that_he_is_somebody_else(tmp_path: Path) -> None:
    """Address and origin are what nginx knows; the host is the client's (C-4)."""
    claims = {
        "X_Forwarded_For": "203.0.113.9",
        "X_Country_Code": "XX",
        "X_ASN": "1",
        "X_ASN_Type": "hosting",
        "X_Tor_Exit": "1",
    }
    with closing() as one, shipped_nginx(tmp_path, [one.port, one.port]) as port:
        with asking(port, "POST", "/v1/chat/completions", CHAT % b"who", **claims) as answer:
            assert answer.status == 502
        lines = one.heads[0].lower().partition(b"\r\n\r\n")[0].split(b"\r\n")
    fields = dict(line.split(b": ", 1) for line in lines[1:])
    assert fields[b"x-forwarded-for"] == b"127.0.0.1"
    assert fields[b"host"] == f"127.0.0.1:{port}".encode()
    assert not {b"x-country-code", b"x-asn", b"x-asn-type", b"x-tor-exit", b"connection"} & fields.keys()
