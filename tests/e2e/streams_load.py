"""Many streams at once, in three processes: `upstream` sends them, `gateway` is the real server with a watch on its event
loop, `clients` read them. Each prints lines of JSON; the test puts them together.

Run as `python -m tests.e2e.streams_load upstream|gateway|clients ...`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import signal
import sys
import time
import zlib
from collections import Counter
from pathlib import Path
from typing import Any, Final, cast

import uvloop

from breakloop.app.runtime import Runtime, serve
from breakloop.config.settings import Settings
from breakloop.observe.log import Logging
from breakloop.testing import Answer, StandInLLM, body, chat_request

INTERVAL_S: Final = 0.1
SAMPLE_S: Final = 0.01
_BATCH: Final = 25  # so many clients come at once, so often
_BATCH_S: Final = 0.025


def pieces(count: int) -> list[bytes]:
    """The events of one stream, as OpenAI sends them."""
    made = []
    for number in range(count - 1):
        choice = {"index": 0, "delta": {"content": f" word{number:05d}"}, "logprobs": None, "finish_reason": None}
        event = {"id": "chatcmpl-00000001", "object": "chat.completion.chunk", "created": 1_800_000_000, "model": "m"}
        made.append(b"data: %b\n\n" % json.dumps(event | {"choices": [choice]}, separators=(",", ":")).encode())
    return [*made, b"data: [DONE]\n\n"]


def on_the_wire(count: int) -> bytes:
    """The body with its chunks, as the upstream writes it and the client must get it."""
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces(count)) + b"0\r\n\r\n"


def answer(count: int) -> Answer:
    """What the upstream answers."""
    return body(pieces(count), content_type="text/event-stream").framed("chunked").paced(INTERVAL_S).realistic()


def tell(**what: Any) -> None:
    """Print one line."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def open_files() -> None:
    """Each stream needs a few; what the system allows at most is usually enough."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard if hard > 0 else 65_536, hard))


def used() -> dict[str, float]:
    """What this process has taken so far."""
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return {"cpu_s": round(time.process_time(), 2), "rss_mib": round(int(peak.split()[1]) / 1024, 1)}


def spread(values: list[float]) -> dict[str, float]:
    """Median, 99th percentile and maximum, in milliseconds."""
    ordered = sorted(values) or [0.0]
    at = {"p50_ms": len(ordered) // 2, "p99_ms": len(ordered) * 99 // 100, "max_ms": len(ordered) - 1}
    return {"count": len(values), **{name: round(ordered[index] * 1000, 2) for name, index in at.items()}}


# -- upstream


async def upstream(count: int) -> None:
    """Serve until told to stop."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with StandInLLM(default=answer(count)) as llm:
        tell(port=llm.port)
        await stop.wait()
        tell(requests=llm.request_count, aborted=len(llm.aborted), malformed=llm.malformed[:5], **used())


# -- gateway


class Watch:
    """Measures how late timers fire; SIGUSR1 begins a new series."""

    def __init__(self) -> None:
        self.series: list[list[float]] = [[]]
        self._due = 0.0

    def ready(self, runtime: Runtime) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGUSR1, lambda: self.series.append([]))
        self._again(loop)
        tell(port=int(runtime.url.rpartition(":")[2]))

    def _sample(self, loop: asyncio.AbstractEventLoop) -> None:
        self.series[-1].append(max(0.0, time.monotonic() - self._due))
        self._again(loop)

    def _again(self, loop: asyncio.AbstractEventLoop) -> None:
        self._due = time.monotonic() + SAMPLE_S  # not the loop's time, which stands still within a turn
        loop.call_later(SAMPLE_S, self._sample, loop)


def gateway(upstream_port: int, folder: Path) -> int:
    """Run the real server until it is told to stop, then tell how late its loop was."""
    values = {
        "port": 0,
        "admin_port": 0,
        "upstream": [f"openai=http://127.0.0.1:{upstream_port}"],
        "data_dir": str(folder / "data"),
    }
    watch = Watch()
    code = serve(Settings.model_validate(values), watch.ready, Logging(sys.stderr, "info", "json"))
    tell(code=code, lag=[spread(series) for series in watch.series], **used())
    return code


# -- clients


class Stream(asyncio.Protocol):
    """One client: asks, and checks what comes without keeping it."""

    __slots__ = ("_all", "_head", "_last", "_number", "_transport", "crc", "fault", "size")

    def __init__(self, everyone: Clients, number: int) -> None:
        self._all = everyone
        self._number = number
        self._head: bytes | None = b""
        self._last = 0.0
        self._transport = cast("asyncio.Transport", None)
        self.crc = 0
        self.size = 0
        self.fault = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        sent = json.dumps(chat_request(f"Question {self._number}: tell me a story.", stream=True)).encode()
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: gateway\r\nContent-Type: application/json\r\n"
        head += f"Authorization: Bearer sk-test-{self._number}\r\nContent-Length: {len(sent)}\r\n\r\n"
        self._transport.write(head.encode() + sent)

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        if self._head is not None:
            self._head += data
            if b"\r\n\r\n" not in self._head:
                return
            head, _, data = self._head.partition(b"\r\n\r\n")
            self._head = None
            if not head.startswith(b"HTTP/1.1 200 "):
                self.fault = head[:40].decode("latin-1")
            self._all.began()
        else:
            self._all.gaps[int((now - self._last) * 1000)] += 1
        self._last = now
        if data:
            self.size += len(data)
            self.crc = zlib.crc32(data, self.crc)
            if self.size >= self._all.size:
                self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.fault or self._head is not None:
            self._all.ended(self.fault or "no answer")
        elif self.size != self._all.size:
            self._all.ended(f"{'reset' if exc else 'ended'} after {self.size} of {self._all.size} bytes")
        else:
            self._all.ended("" if self.crc == self._all.crc else "other bytes")


class Clients:
    """All of them, and what they saw."""

    def __init__(self, chunks: int, streams: int) -> None:
        whole = on_the_wire(chunks)
        self.size, self.crc = len(whole), zlib.crc32(whole)
        self.gaps: Counter[int] = Counter()  # milliseconds between two pieces -> how often
        self._streams = streams
        self._begun = self._over = 0
        self._faults: Counter[str] = Counter()
        self._done = asyncio.Event()

    def began(self) -> None:
        self._begun += 1
        if self._begun == self._streams:
            tell(streams=self._begun)

    def ended(self, fault: str) -> None:
        self._over += 1
        if fault:
            self._faults[fault] += 1
        if self._over == self._streams:
            self._done.set()

    async def run(self, port: int) -> None:
        loop = asyncio.get_running_loop()
        began = time.monotonic()
        for number in range(self._streams):
            await loop.create_connection(lambda at=number: Stream(self, at), "127.0.0.1", port)  # type: ignore[misc]
            if number % _BATCH == _BATCH - 1:
                await asyncio.sleep(_BATCH_S)
        await self._done.wait()
        pieces_read = sum(self.gaps.values())
        tell(
            complete=self._over - sum(self._faults.values()),
            faults=dict(self._faults.most_common(5)),
            seconds=round(time.monotonic() - began, 2),
            pieces=pieces_read,
            gap_p50_ms=self._gap(pieces_read // 2),
            gap_p99_ms=self._gap(pieces_read * 99 // 100),
            gap_max_ms=max(self.gaps),
            **used(),
        )

    def _gap(self, rank: int) -> int:
        for gap in sorted(self.gaps):
            rank -= self.gaps[gap]
            if rank < 0:
                return gap
        return -1


def main(mode: str, *arguments: str) -> int:
    """One of the three."""
    open_files()
    if mode == "gateway":
        return gateway(int(arguments[0]), Path(arguments[1]))
    if mode == "upstream":
        uvloop.run(upstream(int(arguments[0])))
    else:
        port, chunks, streams = map(int, arguments)
        uvloop.run(_clients(port, chunks, streams))
    return 0


async def _clients(port: int, chunks: int, streams: int) -> None:
    await Clients(chunks, streams).run(port)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
