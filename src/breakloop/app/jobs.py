"""What goes on beside the traffic: slow work in a thread of its own, and jobs that begin anew when they fail.
Which jobs there are is `runtime`'s business."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from threading import Thread
from typing import TypeVar

T = TypeVar("T")


async def aside(function: Callable[[], T]) -> T:
    """Run something slow in a thread that does not keep the process alive (the standard pool's threads do)."""
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
        except BaseException as raised:  # noqa: BLE001 - the edge of a thread: it is raised again where it is awaited
            error = raised
        with suppress(RuntimeError):  # the loop is closed already: nobody waits any more
            loop.call_soon_threadsafe(finish, result, error)

    Thread(target=work, daemon=True).start()
    return await future


async def forever(name: str, job: Callable[[], Awaitable[None]]) -> None:
    """Run a job again and again. One that fails is logged and begins anew; it never takes traffic down."""
    while True:
        try:
            await job()
        except Exception:  # the edge of a task
            logging.getLogger("breakloop").exception("job %s failed and starts again", name)
            await asyncio.sleep(1.0)
