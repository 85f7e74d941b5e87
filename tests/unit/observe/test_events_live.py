"""What happens now, for those who look at it."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from breakloop.model.events import Event
from breakloop.observe.events import LiveEvents, Subscription
from tests.deadlines import DEADLINE_S

LOOP = Event("loop.detected", 5.0, {"kind": "exact"}, "default", "r-1")
SHOWN = {"name": "loop.detected", "at": 5.0, "project": "default", "request_id": "r-1", "data": {"kind": "exact"}}


async def read(reader: Subscription, count: int) -> list[Any]:
    return [await asyncio.wait_for(anext(reader), DEADLINE_S) for _ in range(count)]


def test_readers_get_what_happens_from_when_they_came() -> None:
    """Live, without asking again (X-2)."""

    async def run() -> None:
        live = LiveEvents()
        early = live.subscribe()
        live.take([LOOP])
        late = live.subscribe()
        live.send({"sums": {"requests": 3}})
        assert await read(early, 2) == [{"event": SHOWN}, {"sums": {"requests": 3}}]
        assert await read(late, 1) == [{"sums": {"requests": 3}}]

    asyncio.run(run())


def test_a_reader_waits_for_the_next() -> None:
    async def run() -> None:
        live = LiveEvents()
        reader = aiter(live.subscribe())
        waiting = asyncio.create_task(read(reader, 1))
        await asyncio.sleep(0)
        assert not waiting.done()
        live.take([LOOP])
        assert await waiting == [{"event": SHOWN}]

    asyncio.run(run())


def test_a_slow_reader_loses_the_oldest_and_is_told() -> None:
    """Bounded, whoever reads (X-2)."""

    async def run() -> None:
        live = LiveEvents(queue_max=2)
        reader = live.subscribe()
        for number in range(5):
            live.send({"sums": number})
        assert await read(reader, 3) == [{"lost": 3}, {"sums": 3}, {"sums": 4}]
        live.send({"sums": 5})
        assert await read(reader, 1) == [{"sums": 5}]

    asyncio.run(run())


@pytest.mark.slow
def test_whoever_is_one_too_many_reads_nothing() -> None:
    async def run() -> None:
        live = LiveEvents(most=1)
        first = live.subscribe()
        assert [item async for item in live.subscribe()] == []
        assert len(live) == 1
        del first
        gc.collect()
        assert len(live) == 0
        assert live.subscribe() is not None

    asyncio.run(run())


def test_when_it_ends_what_was_told_is_still_read() -> None:
    async def run() -> None:
        live = LiveEvents()
        reader = live.subscribe()
        live.send({"sums": 1})
        live.close()
        assert [item async for item in reader] == [{"sums": 1}]

    asyncio.run(run())
