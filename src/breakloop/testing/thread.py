"""An asynchronous context manager in a thread of its own, with its event loop, and ways to reach into it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """Holds something open in a background thread between `start` and `stop`."""

    def __init__(self, held: AbstractAsyncContextManager[Any]) -> None:
        self._held = held
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._main, name="stand-in", daemon=True)

    def start(self) -> None:
        """Start, and return when it is open; what goes wrong there is raised here."""
        self._thread.start()
        self._ready.wait()
        if self._error is not None:
            self._thread.join()
            raise self._error

    def stop(self) -> None:
        """Close it and end the thread."""
        if self._loop is not None and self._stop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in there and wait for it."""
        if self._loop is None:
            coroutine.close()
            raise RuntimeError("not started")
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def call(self, function: Callable[[], T]) -> T:
        """Call a function in there and wait for it."""

        async def called() -> T:
            return function()

        return self.run(called())

    def _main(self) -> None:
        try:
            asyncio.run(self._hold())
        except BaseException as error:  # noqa: BLE001 - the edge of the thread: `start` raises it where it is seen
            self._error = error
        finally:
            self._ready.set()

    async def _hold(self) -> None:
        async with self._held:
            self._loop = asyncio.get_running_loop()
            self._stop = asyncio.Event()
            self._ready.set()
            await self._stop.wait()
