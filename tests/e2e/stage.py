"""A gateway in the test's own event loop, over real sockets: so a test knows in which pieces bytes arrived, and what was
read from the answers that passed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from breakloop.app import build
from breakloop.app.runtime import Runtime
from breakloop.config.settings import Settings
from breakloop.gateway.connection import Connection
from breakloop.gateway.proxy import ProxyHandler
from breakloop.gateway.server import Server
from breakloop.gateway.upstream import UpstreamConnection
from breakloop.model.call import Answer, Call

TURNS = 200  # of the loop that a piece may need to arrive; usually it is two or three


class Gateway(Server):
    """The server, which tells what came in one piece, and how requests were settled."""

    port = 0

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.from_upstream: list[bytes] = []
        self.from_client: list[bytes] = []
        self.settled: list[Answer] = []

    def process_reads(self) -> None:
        self.from_client += [data for connection, data in self.reads if isinstance(connection, Connection)]
        super().process_reads()

    def forget(self) -> None:
        """Begin a new act."""
        self.from_upstream.clear()
        self.from_client.clear()
        self.settled.clear()


@asynccontextmanager
async def gateway(folder: Path, upstream_port: int, **values: Any) -> AsyncIterator[Gateway]:
    """Run one whose upstreams are all at that port. Loops are looked for, and never found."""
    names = [f"{name}=http://127.0.0.1:{upstream_port}" for name in ("openai", "anthropic", "gemini")]
    own = {"upstream": names, "data_dir": str(folder), "loop_guard": {"max_hits": 1_000_000_000}} | values
    settings = Settings.model_validate(own)
    runtime = Runtime(settings)
    runtime.load()
    server = Gateway(runtime.handler, build.limits(settings))
    _listen(build.open_proxy(server, settings, runtime.admission, runtime.handler), server.settled)
    received = UpstreamConnection.data_received

    def record(connection: UpstreamConnection, data: bytes) -> None:
        server.from_upstream.append(data)
        received(connection, data)

    server.port = await server.start()
    try:
        with patch.object(UpstreamConnection, "data_received", record):
            yield server
        assert server.handler_errors == 0
    finally:
        await server.stop(0.0)


def _listen(door: ProxyHandler, settled: list[Answer]) -> None:
    """Hear what the door tells the engine."""
    settle = door.admission.settle

    def listening(call: Call, answer: Answer) -> None:
        settled.append(answer)
        settle(call, answer)

    setattr(door.admission, "settle", listening)  # noqa: B010 - mypy takes it for a method


async def turns_until(condition: Callable[[], bool]) -> bool:
    """Let the loop turn until it is so; tells whether it is."""
    for _ in range(TURNS):
        if condition():
            return True
        await asyncio.sleep(0)
    return condition()
