"""Letting a stream out chunk by chunk, by hand, and waiting for things to happen without polling or sleeping."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class News:
    """Wakes whoever waits for a condition. Everything happens in one event loop's thread."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[None]] = []

    def tell(self) -> None:
        """Something changed: everybody looks again."""
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            for future in waiting:
                if not future.done():
                    future.set_result(None)

    async def until(self, condition: Callable[[], bool], timeout_s: float) -> None:
        """Wait until it holds; TimeoutError when it does not in time."""
        if condition():
            return
        async with asyncio.timeout(timeout_s):
            while not condition():
                future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self._waiting.append(future)
                await future


class Gate:
    """Holds each chunk of one answer until it is released. The head passes by itself."""

    __slots__ = ("_news", "_open", "_released", "_resume", "_taken", "sent")

    def __init__(self) -> None:
        self.sent = 0
        self._released = 0
        self._taken = 0
        self._open = False
        self._resume: Callable[[], None] | None = None
        self._news = News()

    def passes(self, resume: Callable[[], None]) -> bool:
        """Tell whether the next chunk may go; if not, `resume` is called when it may."""
        if self._open or self._taken < self._released:
            self._taken += 1
            return True
        self._resume = resume
        return False

    def went(self) -> None:
        """A chunk has been written."""
        self.sent += 1
        self._news.tell()

    async def release(self, chunks: int = 1, *, timeout_s: float = 5.0) -> int:
        """Let so many chunks out; returns when they have been written, with the number of chunks sent so far."""
        wanted = self._released + chunks
        self._released = wanted
        self._go()
        await self._news.until(lambda: self.sent >= wanted, timeout_s)
        return self.sent

    async def finish(self) -> None:
        """Let out whatever is left, now and later."""
        self._open = True
        self._go()

    def _go(self) -> None:
        resume, self._resume = self._resume, None
        if resume is not None:
            resume()
