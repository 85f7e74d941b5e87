"""Clients for what wrk cannot do. `calls` and `streams` hold so many connections and let every answer come to its end,
so that none is counted by half; `delays` sends one request at a time and learns from the upstream's answer when its
first byte got there. `bench.load` starts them."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import sys
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import monotonic, monotonic_ns
from typing import cast

import uvloop

from bench import chat
from bench.load import SESSION, Pieces
from bench.upstream import PACE_S

_END = b"\r\n0\r\n\r\n"
_OK = b"HTTP/1.1 200"
_STREAM_BYTES = sum(len(chunk) for chunk in chat.stream_chunks()) // 2  # LiteLLM leaves out fields
_LENGTH = re.compile(rb"(?i)\r\ncontent-length: *(\d+)")
_HEARD = re.compile(r"\{[^{}]*first_byte_ns[^{}]*\}")
_PATIENCE_S = 60


@dataclass(slots=True)
class Run:
    """What all connections share."""

    request: Pieces
    number: int
    streamed: bool
    deadline: float
    open: int
    done: asyncio.Event
    taken_us: list[int] = field(default_factory=list)  # to the end of an answer; of a stream, to its first byte
    refused: int = 0
    broken: int = 0


class Connection(asyncio.Protocol):
    """Asks for one answer after the other."""

    _transport: asyncio.Transport

    def __init__(self, run: Run, number: int) -> None:
        self._run = run
        before = run.request.before.replace(SESSION, b"s-%05d" % number)
        self._request = Pieces(before, run.request.after)
        self._asked_ns = self._received = 0
        self._length: int | None = None
        self._last = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def ask(self) -> None:
        """Send a request that was not sent before."""
        self._run.number += 1
        self._received = 0
        self._asked_ns = monotonic_ns()
        self._transport.write(self._request.with_number(self._run.number))

    def data_received(self, data: bytes) -> None:
        if not self._received:
            self._run.refused += not data.startswith(_OK)
            self._length = _answer_bytes(data)
            self._tell(at_end=False)
        self._received += len(data)
        self._last = (self._last + data[-len(_END) :])[-len(_END) :]
        if self._last == _END if self._length is None else self._received >= self._length:
            self._tell(at_end=True)
            self._run.broken += self._run.streamed and self._received < _STREAM_BYTES
            self._next()

    def _tell(self, *, at_end: bool) -> None:
        if at_end is not self._run.streamed:
            self._run.taken_us.append((monotonic_ns() - self._asked_ns) // 1000)

    def _next(self) -> None:
        if monotonic() < self._run.deadline:
            self.ask()
        else:
            self._asked_ns = 0
            self._transport.close()

    def connection_lost(self, _problem: Exception | None) -> None:
        self._run.broken += self._asked_ns > 0
        self._run.open -= 1
        if not self._run.open:
            self._run.done.set()


def _answer_bytes(data: bytes) -> int | None:
    """How long an answer is with its head, which has come; None when it is chunked."""
    end = data.index(b"\r\n\r\n") + 4
    length = _LENGTH.search(data, 0, end)
    return end + int(length[1]) if length else None


async def calls(port: int, request: Pieces, first: int, connections: int, seconds: int, *, streamed: bool) -> None:
    """They start evenly spread over the pace of a chunk. A request with `SESSION` is of another on each connection."""
    loop = asyncio.get_running_loop()
    run = Run(request, first, streamed, monotonic() + seconds, connections, asyncio.Event())
    made = []
    for number in range(connections):
        _, one = await loop.create_connection(partial(Connection, run, number), "127.0.0.1", port)
        made.append(one)
    before = monotonic()
    run.deadline = before + seconds
    for number, connection in enumerate(made):
        loop.call_later(number / connections * PACE_S, connection.ask)
    async with asyncio.timeout(seconds + _PATIENCE_S):
        await run.done.wait()
    _tell(run.taken_us, monotonic() - before, run.refused, run.broken)


def delays(port: int, request: Pieces, first: int, count: int) -> None:
    """From the moment the request is handed to the kernel, in one piece, to when its first byte is at the upstream."""
    taken, before = [], monotonic()
    with socket.create_connection(("127.0.0.1", port), timeout=_PATIENCE_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for number in range(first, first + count):
            whole = request.with_number(number)
            sent_ns = monotonic_ns()
            connection.sendall(whole)
            heard = _heard(connection)
            if heard["number"] != number:
                raise SystemExit(f"bench: the upstream got another request: {heard}")
            taken.append((heard["first_byte_ns"] - sent_ns) // 1000)
    _tell(taken, monotonic() - before)


def _heard(connection: socket.socket) -> dict[str, int]:
    """What the upstream says of the request, which it says in the answer's text: every gateway leaves that as it is."""
    answer = connection.recv(65536)
    length = _answer_bytes(answer)
    while len(answer) < length if length is not None else not answer.endswith(_END):
        data = connection.recv(65536)
        if not data:
            break
        answer += data
    found = _HEARD.search(answer.decode().replace("\\", ""))
    if found is None:
        raise SystemExit(f"bench: the answer does not tell of its request: {answer!r}")
    content: dict[str, int] = json.loads(found[0])
    return content


def _tell(taken_us: list[int], elapsed_s: float, refused: int = 0, broken: int = 0) -> None:
    taken_us.sort()
    p50, p99 = (taken_us[len(taken_us) * share // 100] if taken_us else 0 for share in (50, 99))
    counted = f"requests={len(taken_us)} duration_us={elapsed_s * 1e6:.0f} refused={refused} broken={broken}"
    print(f"RESULT {counted} p50_us={p50} p99_us={p99}")


def _main(what: str, port: str, before: str, after: str, *numbers: str) -> None:
    request = Pieces(Path(before).read_bytes(), Path(after).read_bytes())
    if what == "delays":
        first, count = map(int, numbers)
        delays(int(port), request, first, count)
    else:
        first, connections, seconds = map(int, numbers)
        uvloop.run(calls(int(port), request, first, connections, seconds, streamed=what == "streams"))


if __name__ == "__main__":
    _main(*sys.argv[1:])
