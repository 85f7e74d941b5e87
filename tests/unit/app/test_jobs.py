"""Work beside the traffic: in a thread, and again after a failure."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest

from breakloop.app.build import aside, forever
from tests.deadlines import DEADLINE_S


def test_aside_runs_elsewhere_and_returns() -> None:
    """The loop is free meanwhile, and the thread does not keep a process alive."""

    async def go() -> tuple[bool, bool]:
        thread = await aside(threading.current_thread)
        return thread is threading.current_thread(), thread.daemon

    assert asyncio.run(go()) == (False, True)


def test_aside_raises_where_it_is_awaited() -> None:
    """An error is not lost in its thread."""

    def fail() -> None:
        raise ZeroDivisionError("there")

    with pytest.raises(ZeroDivisionError, match="there"):
        asyncio.run(aside(fail))


def test_result_for_nobody_is_dropped() -> None:
    """A loop that has ended, or somebody who stopped waiting, is no error of the thread's."""
    release, done = threading.Event(), threading.Event()

    def slow() -> None:
        release.wait(DEADLINE_S)
        done.set()

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(aside(slow), 0.01)
        release.set()
        await aside(lambda: done.wait(DEADLINE_S))

    asyncio.run(give_up())
    assert done.is_set()


def test_failing_job_begins_anew(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash is logged and the job runs again, until it is cancelled."""
    runs: list[int] = []
    pauses: list[float] = []

    async def job() -> None:
        runs.append(len(runs))
        if len(runs) == 1:
            raise ZeroDivisionError("first")
        if len(runs) == 3:
            raise asyncio.CancelledError

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr("breakloop.app.build.asyncio.sleep", pause)
    with caplog.at_level(logging.ERROR, "breakloop"), pytest.raises(asyncio.CancelledError):
        asyncio.run(forever("watching", job))
    assert (runs, pauses) == ([0, 1, 2], [1.0])
    assert "job watching failed" in caplog.text
    assert "ZeroDivisionError: first" in caplog.text
