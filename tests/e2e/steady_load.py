"""Clients that ask steadily, in a process of their own, and take note of every answer: `python -m
tests.e2e.steady_load PORT CLIENTS PACE_MS`. They stop when their input ends, and print what they saw as JSON.

Half of them ask the decision service, half call an LLM through the proxy; none repeats itself. One more, the ruler, asks
for what needs no state. Here is also how a test starts them and reads what they saw.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import uvloop

ROOT: Final = Path(__file__).resolve().parent.parent.parent
TIMEOUT_S: Final = 30.0  # far above the time budget of the store, which is 50 to 200 ms
RULER_S: Final = 0.005  # from one request of the ruler to the next
TELL_S: Final = 0.05
CLIENTS: Final = 8
PACE_MS: Final = 25
DECISION, PROXIED, RULER = "decision", "proxied", "ruler"
TIMED_OUT, CLOSED = -1, 0  # in the place of a status
STALL_S: Final = 0.025  # so long without any work to do, and the machine had no time


class Seen(NamedTuple):
    """One request and its answer; times are of the monotonic clock, which all processes share."""

    kind: str
    began: float
    took_s: float
    status: int
    reused: bool = False  # the connection had been idle between two requests


class Saw:
    """Everything that the clients saw. The ruler's requests need no state: how long they took is what the machine
    takes when it has other things to do, and not to be blamed on anybody."""

    def __init__(self, seen: list[Seen]) -> None:
        self.seen = [one for one in seen if one.kind != RULER]
        self._ruler = [one for one in seen if one.kind == RULER]

    def held_s(self, since: float, until: float) -> float:
        """For how long of this time the machine did nothing even for the ruler."""
        spans = [(max(since, one.began), min(until, one.began + one.took_s)) for one in self._ruler]
        return sum(end - begin for begin, end in spans if end > begin)

    @property
    def stalls(self) -> int:
        """How often the machine had no time, so that a store that is well may have seemed not to be."""
        return sum(one.took_s > STALL_S for one in self._ruler)

    def worst_ms(self, since: float, until: float, kind: str = DECISION) -> tuple[float, float]:
        """The longest that anybody waited, and that without what the machine took."""
        asked = [one for one in self.seen if since <= one.began < until and one.kind == kind]
        own = [one.took_s - self.held_s(one.began, one.began + one.took_s) for one in asked]
        return max((one.took_s for one in asked), default=0.0) * 1000, max(own, default=0.0) * 1000

    @property
    def statuses(self) -> Counter[int]:
        """How often each came."""
        return Counter(one.status for one in self.seen)


class Load:
    """Clients that are at work."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        assert process.stdout is not None
        self._told = process.stdout

    def answers(self, count: int) -> None:
        """Wait until they have got so many more answers."""
        while count > 0:
            count -= int(self._told.readline())

    def finish(self) -> Saw:
        """Stop them, and return what they saw."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        told = next(line for line in self._told if line.startswith("["))
        return Saw([Seen(*one) for one in json.loads(told)])


@contextmanager
def steady(port: int, clients: int = CLIENTS, pace_ms: int = PACE_MS) -> Iterator[Load]:
    """Let them ask for as long as this lasts."""
    command = [sys.executable, "-m", "tests.e2e.steady_load", str(port), str(clients), str(pace_ms)]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment
    ) as process:
        try:
            yield Load(process)
        finally:
            process.kill()


# -- in the process


class _Client:
    """One connection, one request at a time."""

    def __init__(self, port: int, number: int, seen: list[Seen]) -> None:
        self._port = port
        self._number = number
        self._seen = seen
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def ask(self, turn: int) -> None:
        """Send one request and take note of the answer, or that there was none."""
        kind, raw = self._request(turn)
        reused = self._writer is not None
        began = time.monotonic()
        try:
            async with asyncio.timeout(TIMEOUT_S):
                status = await self._answer(raw)
        except TimeoutError:
            status = TIMED_OUT
        except (OSError, asyncio.IncompleteReadError):
            status = CLOSED
        self._seen.append(Seen(kind, began, time.monotonic() - began, status, reused))
        if status in {TIMED_OUT, CLOSED}:
            self.close()

    async def _answer(self, raw: bytes) -> int:
        if self._reader is None or self._writer is None:
            self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._writer.write(raw)
        head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        _, _, length = head.partition(b"\r\ncontent-length:")
        await self._reader.readexactly(int(length.partition(b"\r\n")[0] or b"0"))
        return int(head.split(b" ", 2)[1])

    def _request(self, turn: int) -> tuple[str, bytes]:
        if self._number < 0:
            return RULER, self._raw("/livez", b"")
        return (DECISION, self._decision(turn)) if self._number % 2 else (PROXIED, self._proxied(turn))

    def _decision(self, turn: int) -> bytes:
        return self._raw("/v1/decision", b"", f"X-Original-URI: /tasks/{self._number}/{turn}", "X-Team: steady")

    def _proxied(self, turn: int) -> bytes:
        text = f"Client {self._number} asks for page {turn}: " + "x" * 200
        body = {"model": "gpt-x", "messages": [{"role": "user", "content": text}]}
        fields = ("Content-Type: application/json", f"Authorization: Bearer sk-canary-steady-{self._number}")
        return self._raw("/v1/chat/completions", json.dumps(body).encode(), *fields)

    def _raw(self, path: str, body: bytes, *fields: str) -> bytes:
        lines = (f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", *fields)
        return "".join(f"{line}\r\n" for line in lines).encode() + b"\r\n" + body

    def close(self) -> None:
        """The next request has a connection of its own."""
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None


async def _main(port: int, count: int, pace_ms: int) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin, stop.set)
    seen: list[Seen] = []

    async def work(number: int, pace_s: float) -> None:
        client = _Client(port, number, seen)
        await asyncio.sleep(pace_s * max(0, number) / count)
        for turn in itertools.count():
            due = time.monotonic() + pace_s
            await client.ask(turn)
            if stop.is_set():
                break
            await asyncio.sleep(max(0.0, due - time.monotonic()))
        client.close()

    async def tell() -> None:
        told = 0
        while not stop.is_set():
            await asyncio.sleep(TELL_S)
            told, before = len(seen), told
            print(told - before, flush=True)  # noqa: T201 - to the test

    await asyncio.gather(tell(), work(-1, RULER_S), *(work(number, pace_ms / 1000) for number in range(count)))
    print(json.dumps(seen))  # noqa: T201 - to the test


if __name__ == "__main__":
    uvloop.run(_main(*map(int, sys.argv[1:])))
