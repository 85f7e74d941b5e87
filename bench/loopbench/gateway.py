"""Gateways: sends the requests of a session with a real HTTP client through a running gateway, whose upstream is a
stand-in that plays the recorded answers. A request is denied if it does not reach the upstream."""

from __future__ import annotations

import http.client
import json
import shlex
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from bench import programs
from bench.loopbench.suite import Answer, Session, Turn
from breakloop.testing import Answer as Scripted
from breakloop.testing import SeenRequest, StandInLLM, ThreadedLLM, fail, say

TIMEOUT_S = 60.0
START_S = 120.0
BETWEEN_S = 60.0  # between two sessions, if pauses are kept
FAULTS = (401, 404, 405, 500, 502, 504)  # no denials, even if the upstream got nothing
_LIBRARIES = ("*/faketime/libfaketime.so.1", "faketime/libfaketime.so.1")


class GatewayError(RuntimeError):
    """The gateway does not pass requests to the upstream, so nothing can be measured."""


class Played:
    """The upstream's script: one answer at a time, as often as the gateway asks for it."""

    def __init__(self) -> None:
        self.answer = say("Very well.")
        self.asked = 0  # requests so far, without probes of the gateway

    def respond(self, request: SeenRequest) -> Scripted:
        """Return the answer of the turn that is played."""
        self.asked += request.method == "POST"
        return self.answer

    def show(self, answer: Answer) -> None:
        """Take the answer of the next turn."""
        if answer.status >= 400:
            self.answer = fail(answer.status)
            return
        self.answer = say(answer.text or ("" if answer.calls else "Very well."))
        for call in answer.calls:
            self.answer = self.answer.with_tool(call.name, json.loads(call.arguments), tool_id=call.id)


class MovedClock:
    """A clock that started programs see (libfaketime): pauses pass at once."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "clock"
        self._began = time.monotonic()
        self._offset_s = 0.0
        self._write()

    def environment(self) -> dict[str, str]:
        """Return what a program needs to see this clock."""
        return {
            "LD_PRELOAD": str(faketime_library() or ""),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "NO_FAKE_STAT": "1",  # times of files are compared with those of compiled modules
        }

    def now_s(self) -> float:
        """Return the seconds that have passed on this clock."""
        return time.monotonic() - self._began + self._offset_s

    def move(self, to_s: float) -> None:
        """Let time pass; it never goes back."""
        if to_s > self.now_s():
            self._offset_s += to_s - self.now_s()
            self._write()

    def _write(self) -> None:
        new = self._file.with_suffix(".new")
        new.write_text(f"{self._offset_s:+.3f}\n")
        new.replace(self._file)


def faketime_library() -> Path | None:
    """Return the library that moves the clock of a program, if it is installed."""
    folders = map(Path, ("/usr/lib", "/usr/lib64", "/usr/local/lib"))
    return next((path for folder in folders for pattern in _LIBRARIES for path in folder.glob(pattern)), None)


class Gateway:
    """A running gateway. Without a clock, requests are sent as fast as it answers."""

    def __init__(self, url: str, played: Played) -> None:
        self._at = urlsplit(url)
        self._played = played
        self.clock: MovedClock | None = None
        self.headers: Mapping[str, str] = {}  # instead of those of the session

    def stopped_at(self, session: Session) -> int | None:
        """Return the turn of the first request that does not reach the upstream."""
        began_s = self.clock.now_s() + BETWEEN_S if self.clock is not None else 0.0
        for number, turn in enumerate(session.turns, 1):
            if self.clock is not None:
                self.clock.move(began_s + turn.request.at_s)
            self._played.show(turn.answer)
            before = self._played.asked
            status, content = self._send(turn)
            if self._played.asked == before:
                if number == 1 or status in FAULTS:
                    raise GatewayError(f"{session.id}, turn {number}: the gateway answered {status}: {content[:500]!r}")
                return number
        return None

    def _send(self, turn: Turn) -> tuple[int, bytes]:
        sent = turn.request
        connection = http.client.HTTPConnection(self._at.hostname or "", self._at.port, timeout=TIMEOUT_S)
        headers = {**sent.headers, **self.headers, "content-type": "application/json"}
        try:
            connection.request("POST", self._at.path.rstrip("/") + sent.path, sent.content(), headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()


@contextmanager
def upstream(port: int = 0) -> Iterator[tuple[Played, ThreadedLLM]]:
    """Start the stand-in that plays the recorded answers."""
    played = Played()
    with StandInLLM.in_thread(respond=played.respond, port=port) as llm:
        yield played, llm


@contextmanager
def started(command: str, folder: Path, *, keep_pauses: bool) -> Iterator[Gateway]:
    """Start a gateway by its command, in which `{upstream}`, `{port}` and `{folder}` are filled in."""
    with upstream() as (played, llm):
        port = programs.free_port()
        words = [word.format(upstream=llm.url, port=port, folder=folder) for word in shlex.split(command)]
        gateway = Gateway(f"http://127.0.0.1:{port}", played)
        gateway.clock = MovedClock(folder) if keep_pauses else None
        environment = gateway.clock.environment() if gateway.clock is not None else {}
        with programs.running(words, environment, stdout=subprocess.DEVNULL) as process:
            programs.wait_for(port, process, START_S)
            yield gateway
