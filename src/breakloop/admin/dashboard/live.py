"""Live updates: a stream of server-sent events that tells pages to look again. It says that something happened and
what it is called, nothing more; what is shown comes from the pages' own parts, so that it is rendered in one way."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from breakloop.admin.dashboard.page import Pages

STILL_HERE_S: Final = 15.0  # how often a quiet stream says that it lives, and learns that nobody listens
LISTENERS_MAX: Final = 100
_STILL_HERE: Final = b": still here\n\n"


class Live:
    """The stream."""

    def __init__(self, pages: Pages, still_here_s: float = STILL_HERE_S) -> None:
        self._pages = pages
        self._still_here_s = still_here_s
        self._listeners = 0

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [self._pages.get("/live", self.stream)]

    async def stream(self, _request: Request) -> Response:
        """Tell whatever happens from now on."""
        if self._listeners >= LISTENERS_MAX:
            return Response("too many listeners", 503, headers={"retry-after": "30"})
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(self.lines(), headers=headers, media_type="text/event-stream")

    async def lines(self) -> AsyncIterator[bytes]:
        """Yield the stream; ends with what it listens to."""
        self._listeners += 1
        items = aiter(self._pages.services.live())
        waiting: asyncio.Task[Mapping[str, Any]] | None = None
        try:
            yield b"retry: 3000\n\n"
            while True:
                waiting = waiting or asyncio.create_task(_next(items))
                done, _ = await asyncio.wait({waiting}, timeout=self._still_here_s)
                if not done:
                    yield _STILL_HERE
                    continue
                item, waiting = waiting.result(), None
                yield message(item)
        except _OverError:
            return
        finally:
            self._listeners -= 1
            if waiting is not None:
                waiting.cancel()


class _OverError(Exception):
    """There is nothing more to listen to."""


async def _next(items: AsyncIterator[Mapping[str, Any]]) -> Mapping[str, Any]:
    """`StopAsyncIteration` cannot leave a task."""
    try:
        return await anext(items)
    except StopAsyncIteration:
        raise _OverError from None


def message(item: Mapping[str, Any]) -> bytes:
    """Return one message: something happened (an event, or events that are kept by now), or only sums."""
    event = item.get("event", item)
    name = event.get("name") if isinstance(event, Mapping) else None
    kind = "happened" if isinstance(name, str) or item.get("kept") else "sums"
    data = json.dumps({"name": name[:80]} if isinstance(name, str) else {})
    return f"event: {kind}\ndata: {data}\n\n".encode()
