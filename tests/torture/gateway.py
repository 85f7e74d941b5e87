"""What scenarios are made of: a `breakloop serve` within limits, clients that attack it, and bystanders that do not."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

from bench.programs import Program, core_busy_s
from tests.deadlines import DEADLINE_S
from tests.e2e.forking import Process
from tests.e2e.raw_client import CutShortError, RawClient, request
from tests.e2e.served import KEY, Served
from tests.e2e.steady_load import RULER, Load, Saw, Seen, steady
from tests.redis_servers import free_port
from tests.torture.limits import Limits
from tests.torture.table import Row

TOKEN: Final = "bl_" + "t0rture-" * 6
CHAT: Final = "/v1/chat/completions"
JSON: Final = "Content-Type: application/json"
BYSTANDERS: Final = 4
CUT: Final = 0  # in the place of a status: the connection ended without a response
_P99_MS: Final = 20.0
_LONGEST_MS: Final = 60.0
_OTHERS_MAX: Final = 0.1  # share of a core: if other programs take more, times say nothing


@dataclass(frozen=True, slots=True)
class Rig:
    """How large the scenarios are: short ones are part of `make test`."""

    long: bool
    soak_s: int = 600

    def size(self, short: int, long: int) -> int:
        return long if self.long else short


class Gateway(Served):
    """A running one, by a new interpreter, within limits. The rest of its state is read from /proc."""

    def __init__(self, folder: Path, *arguments: str, limits: Limits, **environment: str) -> None:
        self._limits = limits
        self.admin_port = free_port()
        own = ("--admin-port", str(self.admin_port))
        super().__init__(folder, *own, *arguments, **environment | limits.environment)

    def wait_ready(self) -> Served:
        return self._wait(r"breakloop ready on https?://127\.0\.0\.1:(\d+)")

    def _start(self, arguments: list[str], environment: dict[str, str], log: IO[str]) -> Process:
        command = self._limits.command([sys.executable, "-m", "breakloop", *arguments])
        return subprocess.Popen(
            command, cwd=self.folder, env=environment, stdout=subprocess.PIPE, stderr=log, text=True
        )

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def peak_mib(self) -> int:
        """The most resident memory that it had; 0 if it is gone."""
        return self._status("VmHWM") // 1024

    def forget_peak(self) -> int:
        """Have `peak_mib` count from now on; returns what is resident now."""
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")
        return self.resident_mib()

    def resident_mib(self) -> int:
        return self._status("VmRSS") // 1024

    def threads(self) -> int:
        return self._status("Threads")

    def files(self) -> int:
        """How many descriptors are open."""
        try:
            return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))
        except OSError:
            return 0

    def _status(self, name: str) -> int:
        try:
            status = Path(f"/proc/{self.process.pid}/status").read_text()
        except OSError:
            return 0
        found = re.search(rf"^{name}:\s+(\d+)", status, re.MULTILINE)
        return int(found[1]) if found else 0

    def api(self, path: str, sent: dict[str, Any] | None = None, token: str = TOKEN) -> tuple[int, Any]:
        """Ask the admin API; the status is `CUT` without a response."""
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
        data = None if sent is None else json.dumps(sent).encode()
        asked = urllib.request.Request(f"http://127.0.0.1:{self.admin_port}{path}", data, headers)
        try:
            with urllib.request.urlopen(asked, timeout=DEADLINE_S) as answer:
                return answer.status, _parsed(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, _parsed(error.read())
        except OSError:
            return CUT, None

    def errors(self) -> list[str]:
        """Messages of errors in its log."""
        return sorted({line["message"] for line in self.log() if line["level"] in {"error", "critical"}})


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return body.decode(errors="replace")


@contextmanager
def gateway(
    upstream: str, *arguments: str, limits: Limits | None = None, policy: str = "", env: Mapping[str, str] | None = None
) -> Iterator[Gateway]:
    """Run one, in a folder of its own, and end it in whatever state it is."""
    with (
        tempfile.TemporaryDirectory(prefix="torture-") as name,
        started(Path(name), upstream, *arguments, limits=limits, policy=policy, env=env) as running,
    ):
        yield running


@contextmanager
def started(
    folder: Path,
    upstream: str,
    *arguments: str,
    limits: Limits | None = None,
    policy: str = "",
    env: Mapping[str, str] | None = None,
) -> Iterator[Gateway]:
    """The same in a given folder, where another may have run before."""
    (folder / "home").mkdir(exist_ok=True)
    given = [
        "--port",
        "0",
        "--strict",
        "--upstream",
        f"openai={upstream}",
        "--data-dir",
        str(folder / "data"),
        *arguments,
    ]
    if policy:
        (folder / "policy.yaml").write_text(policy)
        given += ["--policy", str(folder / "policy.yaml")]
    own = {"BREAKLOOP_ADMIN_TOKEN": TOKEN, "BREAKLOOP_SHUTDOWN_GRACE_SECONDS": "0.2"} | dict(env or {})
    running = Gateway(folder, *given, limits=limits or Limits(), **own)
    try:
        running.wait_ready()
        yield running
        if running.is_alive:
            running.stop()
    finally:
        running.end()


# -- clients


def chat(text: str, *lines: str, key: str = "attacker") -> bytes:
    """A chat request of one message, as bytes."""
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": text}]}).encode()
    return post(body, *lines, key=key)


def post(body: bytes, *lines: str, key: str = "attacker") -> bytes:
    """A chat request with this body, as bytes."""
    return request("POST", CHAT, body, JSON, f"Authorization: Bearer {KEY}{key}", *lines)


def send(port: int, content: bytes) -> int:
    """Send a request on a connection of its own; returns the status."""
    try:
        with RawClient(port) as client:
            client.send(content)
            return client.answer().status
    except (OSError, CutShortError):
        return CUT


def send_all(port: int, requests: Sequence[bytes]) -> Counter[int]:
    """Send all at once, each on a connection of its own; returns how often each status came."""
    statuses: Counter[int] = Counter()
    lock = threading.Lock()

    def one(content: bytes) -> None:
        status = send(port, content)
        with lock:
            statuses[status] += 1

    threads = [threading.Thread(target=one, args=(content,)) for content in requests]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return statuses


def told(counts: Counter[int]) -> str:
    """Statuses in words."""
    return ", ".join(f"{count} x {status or 'cut'}" for status, count in sorted(counts.items()))


@dataclass(slots=True)
class Bystanders:
    """Clients that ask steadily while something happens to others, and what they saw of it."""

    load: Load
    began: float = 0.0
    ended: float = 0.0
    others: float = 0.0  # cores that other programs took meanwhile
    saw: Saw = field(default_factory=lambda: Saw([]))

    @contextmanager
    def watch(self, answers: int) -> Iterator[None]:
        """Note when the attack begins and ends; before and after it, so many answers are waited for."""
        self.load.answers(answers)
        used_s = _used_by_others_s()
        self.began = time.monotonic()
        try:
            yield
        finally:
            self.ended = time.monotonic()
            self.others = (_used_by_others_s() - used_s) / (self.ended - self.began)
            self.load.answers(answers)
            self.saw = self.load.finish()

    def judge(self, row: Row, *, fast: bool = True, none_waits: bool = False, idle_may_be_cut: bool = False) -> None:
        """Every request of theirs is answered with success; `idle_may_be_cut`: but for some whose connection was closed
        while it was idle, as any HTTP client has to expect. `fast`: 99 of 100 as if they were alone; `none_waits`: and
        the others nearly so."""
        total, good, cut = len(self.saw.seen), self.saw.statuses[200], self.saw.statuses[CUT]
        if idle_may_be_cut:
            on_idle = sum(one.status == CUT and one.reused for one in self.saw.seen)
            promise = "requests of bystanders are cut only on connections that were idle, and the others succeed"
            row.expect(promise, good + on_idle == total and good > cut, f"{good} of {total} requests, {cut} cut")
        else:
            row.expect("every request of a bystander succeeds", total == good, f"{good} of {total} requests")
        during = self._times_ms(self.began, self.ended)
        if not during:
            return
        seen = f"p50 {_share(during, 0.5):.1f} ms, p99 {_share(during, 0.99):.1f} ms, longest {during[-1]:.0f} ms"
        if self.others > _OTHERS_MAX:
            promise = f"(their p99 stays below {_P99_MS:.0f} ms: not judged here)" if fast else "(times)"
            row.expect_time(promise, True, f"{seen}; other programs took {self.others:.1f} cores")
        elif fast:
            row.expect_time(f"their p99 stays below {_P99_MS:.0f} ms", _share(during, 0.99) < _P99_MS, seen)
            if none_waits:
                row.expect_time(
                    f"and the longest below {_LONGEST_MS:.0f} ms", during[-1] < _LONGEST_MS, f"{during[-1]:.0f} ms"
                )
        else:
            row.expect_time("(times)", True, seen)

    def _times_ms(self, since: float, until: float) -> list[float]:
        """How long requests took of which a part was in this time."""
        seen: list[Seen] = self.saw.seen
        return sorted(
            one.took_s * 1000
            for one in seen
            if one.kind != RULER and one.began < until and one.began + one.took_s > since
        )


def _used_by_others_s() -> float:
    """CPU time of all programs but this one and those that it has started."""
    return sum(core_busy_s().values()) - Program(os.getpid(), 0).cpu_s()


def _share(times: Sequence[float], share: float) -> float:
    return times[min(len(times) - 1, int(len(times) * share))]


@contextmanager
def bystanders(port: int) -> Iterator[Bystanders]:
    """Some clients that ask 50 times a second each."""
    with steady(port, clients=BYSTANDERS, pace_ms=20) as load:
        yield Bystanders(load)


@contextmanager
def idle(port: int, count: int, first: bytes = b"") -> Iterator[int]:
    """Hold connections on which nothing is sent, or only the beginning of something; returns how many could be opened."""
    made: list[socket.socket] = []
    try:
        for _ in range(count):
            with suppress(OSError):
                made.append(socket.create_connection(("127.0.0.1", port), DEADLINE_S))
                made[-1].sendall(first)
        yield len(made)
    finally:
        for client in made:
            client.close()


def expect_alive(row: Row, running: Gateway, memory_mib: int = 0) -> None:
    """The process lives, and its memory stayed below a limit."""
    row.expect(
        "the process lives", running.is_alive, "it does" if running.is_alive else f"ended: {running.process.poll()}"
    )
    if memory_mib:
        peak = running.peak_mib()
        row.expect(f"memory stays below {memory_mib} MiB", 0 < peak < memory_mib, f"at most {peak} MiB resident")
