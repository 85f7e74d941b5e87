"""The real `breakloop serve` in a process of its own, and what tests of it share: a way to ask it, and callers whose
requests, queued answers and loop counters do not mix though they use one process and one stand-in."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Protocol

import pytest

from breakloop.testing import Answer, SeenRequest, ThreadedGate, ThreadedLLM
from tests.deadlines import DEADLINE_S
from tests.e2e.forking import Process, start

SRC = Path(__file__).resolve().parent.parent.parent / "src"
KEY = "sk-canary-"  # how the keys of all callers begin


class Served:
    """A running `breakloop serve`."""

    def __init__(self, folder: Path, *arguments: str, **environment: str) -> None:
        self.folder = folder
        self._log = folder / "log.jsonl"
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("BREAKLOOP_", "XDG_"))}
        clean |= {"HOME": str(folder / "home"), "PYTHONPATH": str(SRC), **environment}
        with self._log.open("a") as log:
            self.process: Process = self._start(["serve", "--admin-port", "0", *arguments], clean, log)
        self.banner: list[str] = []
        self.port = 0

    def _start(self, arguments: list[str], environment: dict[str, str], log: IO[str]) -> Process:
        return start(arguments, cwd=self.folder, env=environment, stderr=log)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def wait_ready(self) -> Served:
        return self._wait(r"breakloop ready on http://127\.0\.0\.1:(\d+)")

    def wait_listening(self) -> Served:
        """Wait until it listens, ready or not."""
        return self._wait(r"breakloop (?:ready|listening) on http://127\.0\.0\.1:(\d+).*")

    def _wait(self, pattern: str) -> Served:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.banner.append(line.rstrip())
            found = re.fullmatch(pattern, self.banner[-1])
            if found:
                self.port = int(found[1])
                return self
        pytest.fail(f"not ready, exit code {self.process.wait()}: {self._log.read_text()}")

    def ask(
        self, path: str, method: str = "GET", body: str | bytes = "", **headers: str
    ) -> tuple[int, dict[str, str], str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_S)
        try:
            connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
            answer = connection.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read().decode()
        finally:
            connection.close()

    def decide(self, path: str, body: str = "", **headers: str) -> tuple[int, dict[str, str], str]:
        return self.ask("/v1/decision", "POST", body, X_Original_URI=path, X_Original_Method="POST", **headers)

    def ready(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.ask("/readyz")[2])
        return found

    def log(self, message: str = "") -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self._log.read_text().splitlines()]
        return [line for line in lines if not message or line["message"] == message]

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(DEADLINE_S)

    def end(self) -> None:
        """Leave nothing behind, in whatever state it is."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


@contextmanager
def serving(folder: Path, *arguments: str, **environment: str) -> Iterator[Served]:
    """Run one on a free port, for all tests of a module; a fault or a key in its log fails whoever ends it."""
    (folder / "home").mkdir(exist_ok=True)
    served = Served(folder, "--port", "0", *arguments, **environment)
    try:
        yield served.wait_ready()
        assert served.stop() == 0
        faults = {line["message"] for line in served.log() if line["level"] in {"error", "critical"}}
        assert not faults, faults
        assert KEY not in (folder / "log.jsonl").read_text(), "Y-1: a key in the log"
    finally:
        served.end()


def eventually(check: Callable[[], bool], what: str, within_s: float = DEADLINE_S) -> None:
    """Ask until it is so."""
    began, pause_s = time.monotonic(), 0.005
    while not check():
        assert time.monotonic() - began < within_s, f"{what}: not within {within_s} s"
        time.sleep(pause_s)
        pause_s = min(0.1, pause_s * 1.5)  # what is waited for needs the processor as well


@contextmanager
def refusing() -> Iterator[str]:
    """The URL of a port where connecting is refused for as long as this lasts: bound, so nobody else gets it."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"


class HttpRequest(Protocol):
    """As much of the clients' request as is looked at."""

    @property
    def method(self) -> str: ...


class Caller:
    """One test's own caller: a key that nobody else has. `made` are the HTTP requests that its clients made, where
    `note` or `note_async` is their hook; `seen` those that reached the stand-in."""

    def __init__(self, llm: ThreadedLLM, name: str) -> None:
        self.llm = llm
        self.key = KEY + re.sub(r"[^A-Za-z0-9]+", "-", name)
        self.made: list[str] = []

    def note(self, request: HttpRequest) -> None:
        self.made.append(request.method)

    async def note_async(self, request: HttpRequest) -> None:
        self.made.append(request.method)

    def owns(self, seen: SeenRequest) -> bool:
        bearer = (seen.header("authorization") or "").removeprefix("Bearer ")
        return self.key in {bearer, seen.header("x-api-key"), seen.header("api-key")}

    @property
    def seen(self) -> list[SeenRequest]:
        return [seen for seen in self.llm.requests if self.owns(seen)]

    def next(self, *answers: Answer) -> None:
        """Queue answers for this caller's next requests; of MCP's, for tool calls."""
        self.llm.next(*answers, when=self._takes_answers)

    def stepped(self, answer: Answer) -> ThreadedGate:
        return self.llm.stepped(answer, when=self._takes_answers)

    def _takes_answers(self, seen: SeenRequest) -> bool:
        return self.owns(seen) and not seen.is_housekeeping

    def wait_seen(self, count: int = 1) -> None:
        """Wait until so many of its requests have come to the stand-in."""
        self.llm.wait_until(lambda: sum(map(self.owns, self.llm.llm.requests)) >= count)

    def wait_freed(self) -> SeenRequest:
        """Wait until the upstream connection of the newest request is gone."""
        return self.llm.wait_for_disconnect(self.seen[-1], timeout_s=DEADLINE_S)
