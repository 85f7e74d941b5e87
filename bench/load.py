"""Bursts of load, by wrk or by the clients in `bench.clients`, pinned to their own core. What they mean is for the
benchmarks to say."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench import traffic

SCRIPT = Path(__file__).with_name("wrk.lua")
FIRST_NUMBER = 100_000_000  # nine digits throughout, so that Content-Length never changes
SESSION = b"s-00000"  # `Clients` put the number of the connection in its place: each agent keeps its own
_APART = 10_000  # requests that were sent and not answered have numbers too
_RESULT = re.compile(r"^RESULT (.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Shape:
    """What one client sends over and over. `varies`: a number in the original URI (or the body) changes every time."""

    target: str
    method: str = "GET"
    body: bool = False
    varies: bool = True


@dataclass(frozen=True, slots=True)
class Pieces:
    """A request as bytes, before and after its number, which has nine digits."""

    before: bytes
    after: bytes
    varies: bool = True

    def with_number(self, number: int) -> bytes:
        """The whole request."""
        return b"%b%09d%b" % (self.before, number, self.after)


@dataclass(frozen=True, slots=True)
class Burst:
    """What the clients saw. `refused` had another status than 2xx or 3xx, `broken` no answer at all."""

    requests: int
    duration_us: int
    refused: int
    broken: int
    p50_us: int
    p99_us: int
    cpu_s: float  # of the load itself

    @property
    def rps(self) -> float:
        """Requests a second."""
        return self.requests / self.duration_us * 1e6


def pieces(shape: Shape) -> tuple[bytes, bytes]:
    """The request as bytes, before and after the number."""
    if not shape.body:
        raw = _head(shape, shape.method, traffic.AGENT_URI + "{}")
    else:
        body = traffic.chat_body("123456789")
        head = _head(shape, "POST", traffic.CHAT_URI).removesuffix(b"\r\n")
        raw = head + b"Content-Length: %d\r\n\r\n" % len(body) + body.replace(b"123456789", b"{}")
    before, _, after = raw.partition(b"{}" if not shape.body else b"page {}")
    return (before + b"page ", after) if shape.body else (before, after)


def _head(shape: Shape, original_method: str, uri: str) -> bytes:
    method = "POST" if shape.body else "GET"
    lines = [f"{method} {shape.target} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in traffic.fields(original_method, uri)]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


class Wrk:
    """Starts bursts. Numbers go on from burst to burst, so that no request is ever repeated by accident; two of these
    that send to the same program need different first ones."""

    def __init__(self, core: int, connections: int, first: int = FIRST_NUMBER) -> None:
        program = shutil.which("wrk")
        if program is None:
            raise SystemExit("bench: wrk is not installed; `sh scripts/install-system.sh wrk` installs it")
        self._command = ["taskset", "-c", str(core), program, "-t1", f"-c{connections}", "--timeout", "30s"]
        self._next = first

    def burst(self, port: int, shape: Shape, seconds: int) -> Burst:
        """Send `shape` for so long and return what came back."""
        return self.send(port, Pieces(*pieces(shape), shape.varies), seconds)

    def send(self, port: int, request: Pieces, seconds: int, scheme: str = "http") -> Burst:
        """Send a request for so long, with a new number every time, and return what came back."""
        with _files(request) as files:
            numbers = [str(self._next), "vary" if request.varies else "same"]
            command = [*self._command, f"-d{seconds}s", "-s", str(SCRIPT), f"{scheme}://127.0.0.1:{port}", "--"]
            burst = run_load([*command, *files, *numbers])
        if request.varies:
            self._next += burst.requests + _APART
        return burst


class Clients:
    """Starts the clients of `bench.clients`, with numbers that go on in the same way."""

    def __init__(self, core: int, first: int) -> None:
        self._command = ["taskset", "-c", str(core), sys.executable, "-m", "bench.clients"]
        self._next = first

    def calls(self, port: int, request: Pieces, connections: int, seconds: int) -> Burst:
        """As wrk does it, but what has begun is waited for: with few calls a second, half-done ones would count."""
        return self._run("calls", port, request, connections, seconds)

    def streams(self, port: int, request: Pieces, connections: int, seconds: int) -> Burst:
        """So many streams at a time. A request of the burst is one of them; p50 is of their first byte."""
        return self._run("streams", port, request, connections, seconds)

    def delays(self, port: int, request: Pieces, count: int) -> Burst:
        """One request at a time. p50 is of the way from the client to the upstream."""
        return self._run("delays", port, request, count)

    def _run(self, what: str, port: int, request: Pieces, *numbers: int) -> Burst:
        with _files(request) as files:
            burst = run_load([*self._command, what, str(port), *files, *map(str, (self._next, *numbers))])
        self._next += burst.requests + _APART
        return burst


class Callers:
    """Sends as `Wrk` does, by `Clients`."""

    def __init__(self, core: int, connections: int, first: int) -> None:
        self._clients = Clients(core, first)
        self._connections = connections

    def send(self, port: int, request: Pieces, seconds: int, _scheme: str = "http") -> Burst:
        """Send a request for so long, with a new number every time, and return what came back."""
        return self._clients.calls(port, request, self._connections, seconds)


@contextmanager
def _files(request: Pieces) -> Iterator[list[str]]:
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, "before"), Path(folder, "after")]
        for file, piece in zip(files, (request.before, request.after), strict=True):
            file.write_bytes(piece)
        yield [str(file) for file in files]


def run_load(command: list[str]) -> Burst:
    """Run a load to its end and return what it says of itself."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        output = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    line = _RESULT.search(output)
    if line is None:
        raise SystemExit(f"bench: the load failed:\n{output}")
    found = {name: int(value) for name, _, value in (word.partition("=") for word in line[1].split())}
    return Burst(**found, cpu_s=usage.ru_utime + usage.ru_stime)
