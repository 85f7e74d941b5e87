"""What stands around a gateway in tests: the real `breakloop serve` that it asks, a small application behind it, and a
relay that counts connections. Which gateway, and how it is started, is `nginx`'s and `gateways`'."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.deadlines import DEADLINE_S
from tests.e2e.forking import Process, start

ROOT = Path(__file__).resolve().parents[2]
READY = "breakloop ready on http://127.0.0.1:"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a client got."""

    status: int
    headers: dict[str, str]  # names in lower case
    body: str
    seconds: float

    def json(self) -> Any:
        return json.loads(self.body)


class Application(ThreadingHTTPServer):
    """Stands behind the gateway and remembers what reached it. `/stream` sends a second event when it is told to."""

    daemon_threads = True

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, bytes]] = []
        self.go_on = threading.Event()
        super().__init__(("127.0.0.1", 0), _Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """Gateways end connections as they like."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def _answer(self) -> None:
        assert isinstance(self.server, Application)
        body = self._body()
        self.server.seen.append((self.command, self.path, body))
        if self.path == "/broken":
            self.close_connection = True
            return
        if self.path == "/stream":
            self._stream(self.server)
            return
        self.send_response(200)
        self.send_header("Content-Length", "3")
        self.end_headers()
        self.wfile.write(b"app")

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", "0")))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size + 2)[:-2]
        self.rfile.readline()
        return body

    def _stream(self, server: Application) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for event in (b"data: one\n\n", b"data: two\n\n"):
            self.wfile.write(b"%x\r\n%b\r\n" % (len(event), event))
            self.wfile.flush()
            server.go_on.wait(DEADLINE_S)
        self.wfile.write(b"0\r\n\r\n")

    do_GET = do_POST = _answer  # noqa: N815 - the names that the base class looks for

    def log_message(self, *_arguments: object) -> None:
        """Say nothing."""


class Relay:
    """Passes connections on to `port`, and counts them: what is counted is what the gateway really opened."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.connections = 0
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        for sock in (self._listener, *self._open):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def _accept(self) -> None:
        while True:
            try:
                inner, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            outer = socket.create_connection(("127.0.0.1", self._target))
            self._open += [inner, outer]
            for source, sink in ((inner, outer), (outer, inner)):
                threading.Thread(target=_pump, args=(source, sink), daemon=True).start()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        pass


@dataclass(slots=True)
class Stack:
    """A gateway in front, breakloop to be asked, the application behind."""

    port: int
    breakloop: Process
    application: Application
    relay: Relay

    def ask(
        self,
        path: str = "/v1/tools/search?q=same",
        method: str = "GET",
        body: bytes | Iterator[bytes] | None = None,
        client: str = "127.0.0.1",
        headers: dict[str, str] | None = None,
        timeout_s: float = DEADLINE_S,
    ) -> Answer:
        """Send one request through the gateway, from an address of the loopback network."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s, source_address=(client, 0))
        started = time.monotonic()
        try:
            connection.request(method, path, body, headers or {}, encode_chunked=not isinstance(body, bytes | None))
            answer = connection.getresponse()
            text = answer.read().decode()
        finally:
            connection.close()
        fields = {name.lower(): value for name, value in answer.getheaders()}
        return Answer(answer.status, fields, text, time.monotonic() - started)

    def streamed(self) -> tuple[str, str]:
        """Return the first event of a stream, read before the second is sent, and what comes after it."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_S)
        try:
            connection.request("GET", "/stream")
            answer = connection.getresponse()
            first = answer.readline() + answer.readline()
            self.application.go_on.set()
            return first.decode(), answer.read().decode()
        finally:
            connection.close()

    def stop_breakloop(self) -> None:
        """Take breakloop away, as a crash would; the relay goes with it, so that connecting is refused."""
        self.relay.close()
        self.breakloop.kill()
        self.breakloop.wait()

    def hang_breakloop(self) -> None:
        """Leave it running without answering."""
        self.breakloop.send_signal(signal.SIGSTOP)


def stopped(stack: Stack) -> list[Answer]:
    """Send the same six times: the first four reach the application, then the client gets 429, reason and body."""
    answers = [stack.ask() for _ in range(6)]
    assert [answer.status for answer in answers] == [200, 200, 200, 200, 429, 429]
    assert [answer.body for answer in answers[:4]] == ["app"] * 4
    assert len(stack.application.seen) == 4
    denied = answers[4]
    assert denied.headers["x-breakloop-reason"] == "loop_detected"
    assert denied.headers["retry-after"] == "60"
    assert denied.headers["x-should-retry"] == "false"
    assert denied.headers["content-type"] == "application/json"
    assert denied.headers["x-breakloop-request-id"]
    assert denied.json()["detail"]["error"] == "recursive_loop_detected"
    assert denied.json()["detail"]["hit_count"] == 5
    return answers


@contextmanager
def breakloop_and_application(folder: Path, policy: Path, env: dict[str, str] | None = None) -> Iterator[Stack]:
    """Start both; the gateway's port is free and not taken yet."""
    with _breakloop(folder, policy, env or {}) as (process, port):
        application, relay = Application(), Relay(port)
        threading.Thread(target=application.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        try:
            yield Stack(free_port(), process, application, relay)
        finally:
            application.go_on.set()
            application.shutdown()
            application.server_close()
            relay.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def _breakloop(folder: Path, policy: Path, more: dict[str, str]) -> Iterator[tuple[Process, int]]:
    flags = ["--mode", "decision", "--port", "0", "--admin-port", "0", "--policy", str(policy)]
    env = {name: value for name, value in os.environ.items() if not name.startswith("BREAKLOOP_")}
    with (folder / "breakloop.log").open("w") as log:
        command = ["serve", *flags, "--data-dir", str(folder / "data")]
        process = start(command, cwd=folder, env=env | more, stderr=log)
    try:
        yield process, _announced_port(process, folder / "breakloop.log")
    finally:
        process.kill()  # also when it hangs; how it stops in good order is test_serve's matter
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def _announced_port(process: Process, log: Path) -> int:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(READY):
            return int(line.removeprefix(READY))
    pytest.fail(f"breakloop did not start: {log.read_text()}")


@contextmanager
def gateway_process(command: list[str], folder: Path, port: int, log: Path, env: dict[str, str]) -> Iterator[None]:
    """Run a gateway until it is no longer needed."""
    with (folder / "gateway.out").open("w") as out:
        process = subprocess.Popen(command, cwd=folder, env=os.environ | env, stdout=out, stderr=out)
    try:
        _wait_until_open(process, port, log)
        yield
    finally:
        process.kill()
        process.wait()


def _wait_until_open(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.02)
        else:
            return
    pytest.fail(f"the gateway did not start: {log.read_text() if log.exists() else ''}")
