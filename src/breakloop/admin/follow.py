"""Events as they happen, as `text/event-stream` (SPEC X-1): read from history behind the last one that was sent, so
that each comes once, with its id, and a reader that was away goes on where it was (`Last-Event-ID`)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import StreamingResponse

from breakloop.admin.services import Services
from breakloop.history.api import EventFilter
from breakloop.model.records import EventRecord

EVERY_S: Final = 0.5  # history is written once a second
QUIET_S: Final = 15.0  # so long after the last word, a comment keeps the connection open
MOST: Final = 500


def follow(services: Services, wanted: EventFilter, request: Request) -> StreamingResponse:
    """Return an answer that does not end: those behind `after`, or those from now on."""
    last = request.headers.get("last-event-id", "")
    if last.isdecimal() and len(last) < 17:
        wanted = replace(wanted, after=int(last))
    return StreamingResponse(
        stream(services, wanted), headers={"X-Accel-Buffering": "no"}, media_type="text/event-stream"
    )


async def stream(
    services: Services, wanted: EventFilter, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
) -> AsyncIterator[bytes]:
    """Yield what happens, for ever."""
    after = wanted.after or await _newest(services, wanted)
    quiet_s = 0.0
    yield b": breakloop events\n\n"
    while True:
        found = await _events(services, replace(wanted, after=after, before=0, most=MOST))
        for one in sorted(found, key=lambda event: event.id):  # behind 0 they come newest first
            after = max(after, one.id)
            yield _lines(one)
        if len(found) == MOST:
            continue
        quiet_s = 0.0 if found else quiet_s + EVERY_S
        if quiet_s >= QUIET_S:
            quiet_s = 0.0
            yield b": still here\n\n"
        await sleep(EVERY_S)


async def _newest(services: Services, wanted: EventFilter) -> int:
    """Return the id behind which everything is new. Behind 0 would be everything there ever was."""
    newest = replace(wanted, names=(), project="", agent="", incident="", since=0.0, most=1, before=0, after=0)
    found = await _events(services, newest)
    return found[0].id if found else 0


async def _events(services: Services, wanted: EventFilter) -> list[EventRecord]:
    found: list[EventRecord] = await services.aside(lambda: services.history.events(wanted))
    return found


def _lines(one: EventRecord) -> bytes:
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (one.id, one.name.encode(), msgspec.json.encode(one))
