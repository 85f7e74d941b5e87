"""A thousand streams at once through the real server."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import cast

import pytest

from tests.e2e import streams_load
from tests.e2e.proxied import chat
from tests.e2e.stage import gateway
from tests.e2e.streams_process import Part
from tests.growth import lines_run

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

STREAMS = 1000
SECONDS = float(os.environ.get("BREAKLOOP_TESTS_STREAM_SECONDS", "5"))


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[list[Part]]:
    started: list[Part] = []
    yield started
    for part in started:
        part.end()


@pytest.mark.timeout(SECONDS + 120)
def test_a_thousand_streams(
    parts: list[Part],
    tmp_path: Path,
    record_property: Callable[[str, object], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """1,000 streams of 10 chunks a second each, every byte of them (D-1). How late the loop is, is printed and not
    judged: it depends on what else the machine does."""
    chunks = int(SECONDS / streams_load.INTERVAL_S)
    parts.append(upstream := Part(tmp_path, "upstream", str(chunks)))
    parts.append(gateway := Part(tmp_path, "gateway", str(upstream.line()["port"]), str(tmp_path)))
    parts.append(clients := Part(tmp_path, "clients", str(gateway.line()["port"]), str(chunks), str(STREAMS)))
    assert clients.line() == {"streams": STREAMS}
    gateway.process.send_signal(signal.SIGUSR1)  # from here on they are only held
    read = clients.line()
    served, sent = gateway.stop(), upstream.stop()
    with capsys.disabled():
        print(f"\nclients {read}\ngateway {served}\nupstream {sent}")  # noqa: T201 - the figures are the result
    record_property("streams", {"clients": read, "gateway": served, "upstream": sent})
    assert (read["complete"], read["faults"]) == (STREAMS, {})
    assert (sent["requests"], sent["aborted"], sent["malformed"]) == (STREAMS, 0, [])
    assert len(served["lag"]) == 2, "while they were opened, and while they were held"
    assert [line for line in gateway.log if line["level"] in {"error", "critical"}] == []


EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"word "}}]}\n\n'
CHUNK = b"%x\r\n%b\r\n" % (len(EVENT), EVENT)
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


class Streaming(asyncio.Protocol):
    """An upstream that answers each request with the beginning of a stream."""

    opened: list[asyncio.Transport]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if data.startswith(b"POST"):
            self.opened.append(self._transport)
            self._transport.write(HEAD + CHUNK)


def lines_of_a_chunk(folder: Path, streams: int) -> int:
    """How many lines of Python it takes to pass one chunk of one stream on, while so many are open."""
    opened: list[asyncio.Transport] = []
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()

        async def begin() -> list[asyncio.StreamReader]:
            made = type("Upstream", (Streaming,), {"opened": opened})
            upstream = await asyncio.get_running_loop().create_server(made, "127.0.0.1", 0)
            stack.callback(upstream.close)
            server = await stack.enter_async_context(gateway(folder, upstream.sockets[0].getsockname()[1]))
            readers = []
            for _ in range(streams):
                reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
                stack.callback(writer.close)
                writer.write(chat(stream=True))
                await reader.readuntil(EVENT)
                readers.append(reader)
            return readers

        async def pass_on() -> None:
            opened[0].write(CHUNK)
            await readers[0].readuntil(EVENT)

        readers = runner.run(begin())
        # The least of some, because once a second the server looks at all its connections.
        lines = min(lines_run(lambda: runner.run(pass_on())) for _ in range(9))
        runner.run(stack.aclose())
        return lines


def test_a_chunk_is_the_same_work_beside_many_streams(tmp_path: Path) -> None:
    """What holds up the loop does not grow with the number of open streams (D-1)."""
    few, many = (lines_of_a_chunk(tmp_path / str(streams), streams) for streams in (5, 200))
    assert 0 < many <= few * 1.1
