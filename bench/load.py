"""One burst of load by wrk, pinned to its own core. What it means is `decision`'s to say."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from bench import traffic

SCRIPT = Path(__file__).with_name("wrk.lua")
FIRST_NUMBER = 100_000_000  # nine digits throughout, so that Content-Length never changes
_RESULT = re.compile(r"^RESULT (.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Shape:
    """What one client sends over and over. `varies`: a number in the original URI (or the body) changes every time."""

    target: str
    method: str = "GET"
    body: bool = False
    varies: bool = True


@dataclass(frozen=True, slots=True)
class Burst:
    """What wrk saw. `refused` had another status than 2xx or 3xx, `broken` no answer at all."""

    requests: int
    duration_us: int
    refused: int
    broken: int
    p50_us: int
    p99_us: int
    cpu_s: float  # of wrk itself

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
    """Starts bursts. Numbers go on from burst to burst, so that no request is ever repeated by accident."""

    def __init__(self, core: int, connections: int) -> None:
        program = shutil.which("wrk")
        if program is None:
            raise SystemExit("bench: wrk is not installed; `sh scripts/install-system.sh wrk` installs it")
        self._command = ["taskset", "-c", str(core), program, "-t1", f"-c{connections}"]
        self._next = FIRST_NUMBER

    def burst(self, port: int, shape: Shape, seconds: int) -> Burst:
        """Send `shape` for so long and return what came back."""
        with tempfile.TemporaryDirectory() as folder:
            files = [Path(folder, "before"), Path(folder, "after")]
            for file, piece in zip(files, pieces(shape), strict=True):
                file.write_bytes(piece)
            numbers = [str(self._next), "vary" if shape.varies else "same"]
            command = [*self._command, f"-d{seconds}s", "-s", str(SCRIPT), f"http://127.0.0.1:{port}", "--"]
            found, cpu_s = _run([*command, *map(str, files), *numbers])
        if shape.varies:
            self._next += found["requests"] + 10_000
        return Burst(**found, cpu_s=cpu_s)


def _run(command: list[str]) -> tuple[dict[str, int], float]:
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        output = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    line = _RESULT.search(output)
    if line is None:
        raise SystemExit(f"bench: wrk failed:\n{output}")
    found = {name: int(value) for name, _, value in (word.partition("=") for word in line[1].split())}
    return found, usage.ru_utime + usage.ru_stime
