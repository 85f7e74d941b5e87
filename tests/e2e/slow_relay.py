"""A relay between a program and a server that keeps every answer back for a while, in a process of its own: `python -m
tests.e2e.slow_relay PORT`. It prints its own port, and takes delays, in milliseconds, a line each, from its input."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import uvloop

ROOT: Final = Path(__file__).resolve().parent.parent.parent
READ_BYTES: Final = 64 * 1024


class Relay:
    """One that runs."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self._process = process
        self.port = port

    def delay(self, milliseconds: int) -> None:
        """Keep answers back for so long from now on."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{milliseconds}\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == f"{milliseconds}\n"


@contextmanager
def relay(port: int) -> Iterator[Relay]:
    """Run one in front of a server on this machine."""
    command = [sys.executable, "-m", "tests.e2e.slow_relay", str(port)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment
    ) as process:
        try:
            assert process.stdout is not None
            yield Relay(process, int(process.stdout.readline()))
        finally:
            process.kill()


# -- in the process


class _Relaying:
    def __init__(self, port: int) -> None:
        self._port = port
        self._delay_s = 0.0

    async def joined(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Join a client with the server until one of them leaves."""
        back, forth = await asyncio.open_connection("127.0.0.1", self._port)
        loop = asyncio.get_running_loop()
        kept: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def ask() -> None:
            while data := await reader.read(READ_BYTES):
                forth.write(data)

        async def keep() -> None:
            while data := await back.read(READ_BYTES):
                kept.put_nowait((loop.time() + self._delay_s, data))

        async def answer() -> None:
            while True:  # what came first goes first, whatever the delay is by now
                due, data = await kept.get()
                await asyncio.sleep(max(0.0, due - loop.time()))
                writer.write(data)

        tasks = [asyncio.create_task(ask()), asyncio.create_task(keep()), asyncio.create_task(answer())]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        for one in (forth, writer):
            one.close()

    def told(self) -> None:
        """Take a new delay, and say so."""
        line = sys.stdin.readline()
        if line:
            self._delay_s = int(line) / 1000
            print(int(line), flush=True)  # noqa: T201 - to the test


async def _main(port: int) -> None:
    relaying = _Relaying(port)
    server = await asyncio.start_server(relaying.joined, "127.0.0.1", 0)
    asyncio.get_running_loop().add_reader(sys.stdin, relaying.told)
    print(server.sockets[0].getsockname()[1], flush=True)  # noqa: T201 - to the test
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_main(int(sys.argv[1])))
