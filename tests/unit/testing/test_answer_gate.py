"""Waiting without polling, and letting chunks out by hand."""

from __future__ import annotations

import asyncio

import pytest

from breakloop.testing.answer import Gate, News


def test_news_wakes_whoever_waits() -> None:
    async def main() -> None:
        news, seen = News(), [0]
        waiting = [asyncio.create_task(news.until(lambda: seen[0] >= 2, 5)) for _ in range(2)]
        for value in (1, 2):
            await asyncio.sleep(0)
            assert not any(task.done() for task in waiting)
            seen[0] = value
            news.tell()
        await asyncio.gather(*waiting)
        await news.until(lambda: True, 0)
        news.tell()

    asyncio.run(main())


def test_waiting_has_an_end() -> None:
    async def main() -> None:
        news = News()
        with pytest.raises(TimeoutError):
            await news.until(lambda: False, 0.001)
        news.tell()  # whoever gave up is not woken again

    asyncio.run(main())


def test_a_gate_lets_out_what_is_released() -> None:
    """One by one; what was released before is not forgotten; `finish` opens it for good."""

    async def main() -> None:
        gate, calls = Gate(), []

        def chunk() -> None:
            calls.append(gate.sent)
            if gate.passes(chunk):
                gate.went()

        chunk()
        assert gate.sent == 0
        assert await gate.release() == 1
        for _ in range(2):
            chunk()
        assert gate.sent == 1
        released = asyncio.create_task(gate.release(2))
        await asyncio.sleep(0)
        assert gate.sent == 2
        assert not released.done()
        chunk()
        assert await released == 3
        chunk()
        await gate.finish()
        chunk()
        assert gate.sent == 5

    asyncio.run(main())


def test_a_release_that_nobody_takes_ends_in_time() -> None:
    async def main() -> None:
        with pytest.raises(TimeoutError):
            await Gate().release(timeout_s=0.001)

    asyncio.run(main())
