"""Background work beside the traffic: slow functions in threads, and jobs that are restarted when they fail."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from threading import Thread
from typing import TypeVar

T = TypeVar("T")

Job = tuple[str, Callable[[], Awaitable[None]]]  # name, and one round of it


async def aside(function: Callable[[], T]) -> T:
    """Run a slow function in a daemon thread. Threads of the standard pool would keep the process from exiting."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()  # who waits may be cancelled, the function not

    def work() -> None:
        try:
            future.set_result(function())
        except BaseException as error:  # noqa: BLE001 - raised again where the result is awaited
            future.set_exception(error)

    Thread(target=work, daemon=True).start()
    return await asyncio.wrap_future(future)


async def forever(name: str, job: Callable[[], Awaitable[None]]) -> None:
    """Run a job in a loop. A job that fails is logged and runs again after a second."""
    while True:
        try:
            await job()
        except Exception:
            logging.getLogger("breakloop").exception("job %s failed and is restarted", name)
            await asyncio.sleep(1.0)
