"""A real nginx with the shipped configuration, the real `breakloop serve` behind it, and a small application."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "nginx"
READY = "breakloop ready on http://127.0.0.1:"
DEADLINE_S = 15.0


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
    """Stands behind nginx and remembers what reached it."""

    daemon_threads = True

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, bytes]] = []
        super().__init__(("127.0.0.1", 0), _Handler)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def _answer(self) -> None:
        assert isinstance(self.server, Application)
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        self.server.seen.append((self.command, self.path, body))
        self.send_response(200)
        self.send_header("Content-Length", "3")
        self.end_headers()
        self.wfile.write(b"app")

    do_GET = do_POST = _answer  # noqa: N815 - the names that the base class looks for

    def log_message(self, *_arguments: object) -> None:
        """Say nothing."""


class Relay:
    """Passes connections on to `port`, and counts them: what is counted is what nginx really opened."""

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
    """nginx in front, breakloop to be asked, the application behind."""

    port: int
    breakloop: subprocess.Popen[str]
    application: Application
    relay: Relay

    def ask(
        self,
        path: str = "/v1/tools/search?q=same",
        method: str = "GET",
        body: bytes | Iterator[bytes] | None = None,
        client: str = "127.0.0.1",
        headers: dict[str, str] | None = None,
    ) -> Answer:
        """Send one request through nginx, from an address of the loopback network."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_S, source_address=(client, 0))
        started = time.monotonic()
        try:
            connection.request(method, path, body, headers or {}, encode_chunked=not isinstance(body, bytes | None))
            answer = connection.getresponse()
            text = answer.read().decode()
        finally:
            connection.close()
        fields = {name.lower(): value for name, value in answer.getheaders()}
        return Answer(answer.status, fields, text, time.monotonic() - started)

    def stop_breakloop(self) -> None:
        """Take breakloop away, as a crash would; the relay goes with it, so that connecting is refused."""
        self.relay.close()
        self.breakloop.kill()
        self.breakloop.wait()

    def hang_breakloop(self) -> None:
        """Leave it running without answering."""
        self.breakloop.send_signal(signal.SIGSTOP)


@contextmanager
def running_stack(nginx: str, folder: Path, policy: Path, changes: dict[str, str]) -> Iterator[Stack]:
    """Start all three. `changes` replaces text of the shipped configuration, see `configure`."""
    with _breakloop(folder, policy) as (process, port):
        application, relay = Application(), Relay(port)
        threading.Thread(target=application.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        front = free_port()
        configure(
            folder / "nginx",
            {
                "127.0.0.1:8080": f"127.0.0.1:{front}",
                "127.0.0.1:8787": f"127.0.0.1:{relay.port}",
                "127.0.0.1:9000": f"127.0.0.1:{application.server_address[1]}",
                **changes,
            },
        )
        try:
            with _nginx(nginx, folder / "nginx", front):
                yield Stack(front, process, application, relay)
        finally:
            application.shutdown()
            application.server_close()
            relay.close()


def configure(folder: Path, changes: dict[str, str]) -> Path:
    """Copy the shipped configuration with other addresses, and with temporary files where anybody may write."""
    shutil.copytree(EXAMPLE, folder)
    paths = "".join(
        f"    {kind}_temp_path {folder / kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    texts = {file: file.read_text() for file in sorted(folder.glob("*.conf"))}
    for old, new in {"http {\n": f"http {{\n    access_log off;\n{paths}", **changes}.items():
        assert any(old in text for text in texts.values()), f"the shipped configuration has no {old!r}"
        texts = {file: text.replace(old, new) for file, text in texts.items()}
    for file, text in texts.items():
        file.write_text(text)
    return folder / "nginx.conf"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def _breakloop(folder: Path, policy: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    flags = ["--mode", "decision", "--port", "0", "--admin-port", "0", "--policy", str(policy)]
    env = {name: value for name, value in os.environ.items() if not name.startswith("BREAKLOOP_")}
    with (folder / "breakloop.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "breakloop", "serve", *flags, "--data-dir", str(folder / "data")],
            cwd=folder,
            env=env,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    try:
        yield process, _announced_port(process, folder / "breakloop.log")
    finally:
        process.kill()  # also when it hangs; how it stops in good order is test_serve's matter
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def _announced_port(process: subprocess.Popen[str], log: Path) -> int:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(READY):
            return int(line.removeprefix(READY))
    pytest.fail(f"breakloop did not start: {log.read_text()}")


@contextmanager
def _nginx(program: str, folder: Path, port: int) -> Iterator[None]:
    # One process: no master that would want to change its user, and no worker that cannot enter the folder.
    main = f"daemon off; master_process off; pid {folder / 'nginx.pid'};"
    command = [program, "-p", str(folder), "-c", "nginx.conf", "-e", str(folder / "error.log"), "-g", main]
    process = subprocess.Popen(command)
    try:
        _wait_until_open(process, port, folder / "error.log")
        yield
    finally:
        process.terminate()
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
    pytest.fail(f"nginx did not start: {log.read_text() if log.exists() else ''}")
