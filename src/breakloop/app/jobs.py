"""Background work beside the traffic: slow functions in threads, and jobs that are restarted when they fail."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from threading import Thread
from typing import TypeVar

T = TypeVar("T")

Job = tuple[str, Callable[[], Awaitable[None]]]  # name, and one round of it


async def aside(function: Callable[[], T]) -> T:
    """Run a slow function in a daemon thread. Threads of the standard pool would keep the process from exiting."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def finish(result: T | None, error: BaseException | None) -> None:
        if not future.done():
            if error is None:
                future.set_result(result)  # type: ignore[arg-type]  # without an error there is a result
            else:
                future.set_exception(error)

    def work() -> None:
        result, error = None, None
        try:
            result = function()
        except BaseException as raised:  # noqa: BLE001 - raised again where the result is awaited
            error = raised
        with suppress(RuntimeError):  # the loop is closed already
            loop.call_soon_threadsafe(finish, result, error)

    Thread(target=work, daemon=True).start()
    return await future


async def forever(name: str, job: Callable[[], Awaitable[None]]) -> None:
    """Run a job in a loop. A job that fails is logged and runs again after a second."""
    while True:
        try:
            await job()
        except Exception:
            logging.getLogger("breakloop").exception("job %s failed and starts again", name)
            await asyncio.sleep(1.0)
