"""Live updates: something happened, look again (X-2)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

from breakloop.admin.dashboard.pages import LISTENERS_MAX, LiveUpdates, message
from breakloop.admin.dashboard.render import PageRenderer
from tests.admin_world import World, full
from tests.deadlines import DEADLINE_S


def live(world: World, still_here_s: float = 60.0) -> LiveUpdates:
    return LiveUpdates(PageRenderer(world.services), still_here_s)


def test_events_and_sums() -> None:
    """What happened by its name, and nothing else of it."""
    assert (
        message({"event": {"name": "loop.detected", "data": {"secret": 1}}})
        == b'event: happened\ndata: {"name": "loop.detected"}\n\n'
    )
    assert message({"sums": {"requests": 3}}) == b"event: sums\ndata: {}\n\n"
    assert message({"sums": {}, "kept": 0}) == b"event: sums\ndata: {}\n\n"
    assert message({"sums": {}, "kept": 2}) == b"event: happened\ndata: {}\n\n"
    assert message({"lost": 4}) == b"event: sums\ndata: {}\n\n"
    assert b"\nx" not in message({"event": {"name": "a\n\nx"}})


def test_from_now_on_until_the_end() -> None:
    async def listen() -> list[bytes]:
        world = full()
        lines, got = live(world).lines(), []
        got.append(await anext(lines))

        async def first() -> bytes:
            return await anext(lines)

        reader = asyncio.create_task(first())
        for _ in range(5):  # until it listens
            await asyncio.sleep(0)
        world.tell({"event": {"name": "agent.killed"}})
        got.append(await reader)
        world.tell(None)
        return got + [line async for line in lines]

    assert asyncio.run(asyncio.wait_for(listen(), DEADLINE_S)) == [
        b"retry: 3000\n\n",
        b'event: happened\ndata: {"name": "agent.killed"}\n\n',
    ]


def test_a_quiet_stream_says_that_it_lives() -> None:
    """So that a reader that has gone is noticed, and nothing waits for it any more."""

    async def listen() -> tuple[bytes, bool]:
        world = full()
        gone = asyncio.Event()

        async def quiet() -> AsyncIterator[Mapping[str, Any]]:
            try:
                await asyncio.Event().wait()
                yield {}
            finally:
                gone.set()

        world.services.live = quiet
        lines = live(world, 0.001).lines()
        await anext(lines)
        said = await anext(lines)
        await lines.aclose()  # type: ignore[attr-defined]
        await asyncio.wait_for(gone.wait(), DEADLINE_S)
        return said, gone.is_set()

    assert asyncio.run(listen()) == (b": still here\n\n", True)


def test_not_too_many() -> None:
    made = live(full())
    made._listeners = LISTENERS_MAX
    answer = asyncio.run(made.stream(None))  # type: ignore[arg-type]
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "30")
    made._listeners = 0
    assert asyncio.run(made.stream(None)).headers["content-type"].startswith("text/event-stream")  # type: ignore[arg-type]
