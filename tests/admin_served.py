"""A world of `admin_world` behind the real admin server, in a thread of its own, for browsers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from breakloop.admin.app import AdminServer
from tests.admin_client import app_of
from tests.admin_world import Row, World
from tests.deadlines import DEADLINE_S


@dataclass
class Served:
    """Where it is, and a way to make something happen there."""

    url: str
    world: World
    loop: asyncio.AbstractEventLoop

    def tell(self, item: Row) -> None:
        """Tell whoever listens live."""
        self.loop.call_soon_threadsafe(self.world.tell, item)


@contextmanager
def served(world: World) -> Iterator[Served]:
    """Serve it on a free port."""
    ready = threading.Event()
    stop: list[asyncio.Event] = []
    found: list[Served] = []

    async def run() -> None:
        server, end = AdminServer(app_of(world), "127.0.0.1", 0), asyncio.Event()
        port = await server.start()
        stop.append(end)
        found.append(Served(f"http://127.0.0.1:{port}", world, asyncio.get_running_loop()))
        ready.set()
        await end.wait()
        await server.stop()

    thread = threading.Thread(target=asyncio.run, args=(run(),), daemon=True)
    thread.start()
    assert ready.wait(DEADLINE_S), "the server did not start"
    try:
        yield found[0]
    finally:
        found[0].loop.call_soon_threadsafe(stop[0].set)
        thread.join(DEADLINE_S)
