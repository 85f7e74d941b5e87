"""`breakloop serve --workers` with a real Redis, and what its tests need: its processes, and traffic that does not end."""

from __future__ import annotations

import http.client
import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from tests.deadlines import DEADLINE_S
from tests.e2e.served import Served, eventually


class Fleet(Served):
    """A running one, with its processes."""

    def children(self) -> dict[str, int]:
        """The pid of each process, by what it is called."""
        found = {}
        for task in Path(f"/proc/{self.process.pid}/task").iterdir():
            try:
                pids = (task / "children").read_text().split()
            except OSError:  # a thread that has ended
                continue
            for pid in map(int, pids):
                role = _role(pid)
                if role:
                    found[role] = pid
        return found

    def kill(self, role: str, number: int = signal.SIGKILL) -> int:
        """Send a signal to one of them; returns its pid."""
        pid = self.children()[role]
        os.kill(pid, number)
        return pid

    def answers(self, count: int) -> list[dict[str, Any]]:
        """What `/readyz` says on so many connections that are open at the same time, so that every worker has some."""
        connections = [http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_S) for _ in range(count)]
        try:
            for connection in connections:
                connection.request("GET", "/readyz")
            return [json.loads(connection.getresponse().read()) for connection in connections]
        finally:
            for connection in connections:
                connection.close()

    def each(self) -> list[dict[str, Any]]:
        """What `/readyz` of each of the two says now. Connections of before may still count where they were."""
        found: dict[int, dict[str, Any]] = {}
        while set(found) != {1, 2}:
            found |= {answer.get("worker", 0): answer for answer in self.answers(4)}
            if 0 in found:
                return [found[0]]
        return [found[1], found[2]]


def _role(pid: int) -> str:
    try:
        line = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    return f"{line[-4].decode()} {line[-3].decode()}" if b"breakloop.app.workers" in line else ""


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except OSError:
        return False
    return state != "Z"


@contextmanager
def fleet(folder: Path, state: str, *arguments: str, **environment: str) -> Iterator[Fleet]:
    """Run one with two workers on a free port until the end of the block."""
    (folder / "home").mkdir(exist_ok=True)
    started = Fleet(folder, "--port", "0", "--workers", "2", "--state", state, *arguments, **environment)
    try:
        yield started
    finally:
        left = list(started.children().values()) if started.process.poll() is None else []
        started.end()
        eventually(lambda: not any(map(is_alive, left)), "no process is left")


class Traffic:
    """Clients that ask over and over, each on a connection of its own that it keeps; what they saw, by worker."""

    def __init__(self, port: int, clients: int) -> None:
        self._port = port
        self._stop = threading.Event()
        self.seen: list[Counter[str]] = [Counter() for _ in range(clients)]
        self._threads = [threading.Thread(target=self._ask, args=(counts,)) for counts in self.seen]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, counts: Counter[str]) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=DEADLINE_S)
        while not self._stop.wait(0.005):  # so that a small machine has time for the rest
            try:
                connection.request("GET", "/readyz")
                answer = connection.getresponse()
                content = json.loads(answer.read())
                counts[str(content.get("worker", answer.status))] += 1
            except (OSError, http.client.HTTPException, ValueError):
                counts["error"] += 1
                connection.close()
        connection.close()
