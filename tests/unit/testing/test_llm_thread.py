"""Something asynchronous in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from breakloop.testing.llm import LoopThread


@asynccontextmanager
async def held(log: list[str]) -> AsyncIterator[None]:
    log.append("open")
    yield
    log.append("closed")


def test_it_is_open_between_start_and_stop() -> None:
    log: list[str] = []
    thread = LoopThread(held(log))
    thread.start()
    try:
        assert log == ["open"]

        async def where() -> str:
            return threading.current_thread().name

        assert thread.run(where()) == "stand-in"
        assert thread.call(lambda: threading.current_thread().name) == "stand-in"
    finally:
        thread.stop()
    assert log == ["open", "closed"]
    assert not [one for one in threading.enumerate() if one.name == "stand-in"]


def test_what_goes_wrong_at_the_start_is_raised_there() -> None:
    @asynccontextmanager
    async def broken() -> AsyncIterator[None]:
        raise OSError("no port")
        yield  # type: ignore[unreachable]

    thread = LoopThread(broken())
    with pytest.raises(OSError, match="no port"):
        thread.start()
    thread.stop()


def test_errors_of_what_is_run_come_back() -> None:
    thread = LoopThread(held([]))
    with pytest.raises(RuntimeError, match="not started"):
        thread.run(asyncio.sleep(0))
    thread.start()
    try:

        def wrong() -> None:
            raise KeyError("x")

        with pytest.raises(KeyError):
            thread.call(wrong)
    finally:
        thread.stop()
