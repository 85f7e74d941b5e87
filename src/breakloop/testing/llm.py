"""`StandInLLM`: a server that answers like OpenAI, Anthropic, Gemini and MCP servers do, as told, without a model.

An asynchronous context manager in a thread of its own, with its event loop, and ways to reach into it.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from email.utils import formatdate
from typing import Any, Final, Self, TypeVar

from breakloop.clock import Clock
from breakloop.testing.answer import Answer, Gate, Respond, Script, When
from breakloop.testing.http import SeenRequest
from breakloop.testing.mcp import McpServer, Tool, is_housekeeping
from breakloop.testing.providers.registry import render
from breakloop.testing.sending import Step, raw_steps, steps
from breakloop.testing.server import StandInConnection, StandInServer

T = TypeVar("T")


class LoopThread:
    """Holds something open in a background thread between `start` and `stop`."""

    def __init__(self, held: AbstractAsyncContextManager[Any]) -> None:
        self._held = held
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._main, name="stand-in", daemon=True)

    def start(self) -> None:
        """Start, and return when it is open; what goes wrong there is raised here."""
        self._thread.start()
        self._ready.wait()
        if self._error is not None:
            self._thread.join()
            raise self._error

    def stop(self) -> None:
        """Close it and end the thread."""
        if self._loop is not None and self._stop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in there and wait for it."""
        if self._loop is None:
            coroutine.close()
            raise RuntimeError("not started")
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def call(self, function: Callable[[], T]) -> T:
        """Call a function in there and wait for it."""

        async def called() -> T:
            return function()

        return self.run(called())

    def _main(self) -> None:
        try:
            asyncio.run(self._hold())
        except BaseException as error:  # noqa: BLE001 - the edge of the thread: `start` raises it where it is seen
            self._error = error
        finally:
            self._ready.set()

    async def _hold(self) -> None:
        async with self._held:
            self._loop = asyncio.get_running_loop()
            self._stop = asyncio.Event()
            self._ready.set()
            await self._stop.wait()


EPOCH: Final = 1_800_000_000  # the time of the first answer, where no clock is given; a second passes with each request


class StandInLLM(StandInServer):
    """The stand-in. What it answers: what was queued with `next`, what `respond` returns, a default sentence."""

    def __init__(
        self,
        *,
        respond: Respond | None = None,
        default: Answer | None = None,
        tools: Mapping[str, Tool] | None = None,
        tls: ssl.SSLContext | None = None,
        clock: Clock | None = None,
        port: int = 0,
    ) -> None:
        super().__init__(tls=tls, clock=clock, port=port)
        self._script = Script(default, respond)
        self.mcp = McpServer(tools)
        self._own_time = clock

    @classmethod
    def in_thread(cls, **options: Any) -> AbstractContextManager[ThreadedLLM]:
        """Run one in a thread of its own: `with StandInLLM.in_thread() as llm`. The options are the constructor's."""
        return ThreadedLLM(cls(**options))

    def next(self, *answers: Answer, when: When | None = None) -> None:
        """Queue answers, each for one request (with `when`: one that it holds for)."""
        self._script.next(*answers, when=when)

    def script(self, answers: Iterable[Answer], *, when: When | None = None) -> None:
        """Queue a list of answers, as `next` does."""
        self._script.next(*answers, when=when)

    @property
    def left(self) -> int:
        """How many queued answers nobody has asked for yet."""
        return self._script.left

    @property
    def respond(self) -> Respond | None:
        """What is asked for an answer when none is queued; None from it means the default."""
        return self._script.respond

    @respond.setter
    def respond(self, respond: Respond | None) -> None:
        self._script.respond = respond

    def stepped(self, answer: Answer, *, when: When | None = None) -> Gate:
        """Queue an answer whose chunks go out one by one, as the gate that is returned releases them."""
        gate = Gate()
        self._script.next(answer.sent(gate=gate), when=when)
        return gate

    # -- what connections ask

    def heard_head(self, seen: SeenRequest, connection: StandInConnection) -> Iterator[Step] | None:
        """Answer at once where the script says so."""
        super().heard_head(seen, connection)
        seen.is_housekeeping = _is_mcp(seen) and is_housekeeping(seen)
        answer = self._script.early(seen)
        if answer is None:
            return None
        if not answer.manner.drain:
            connection.stop_reading()
        return self._steps(seen, answer)

    def heard(self, seen: SeenRequest) -> Iterator[Step]:
        """Answer a complete request."""
        seen.is_housekeeping = _is_mcp(seen) and is_housekeeping(seen)
        return self._steps(seen, self._script.take(seen))

    def _steps(self, seen: SeenRequest, answer: Answer | None) -> Iterator[Step]:
        created = EPOCH + seen.number if self._own_time is None else int(self._own_time.now())
        given = answer or Answer()
        if given.raw is not None:
            return raw_steps(given.raw, given.manner, seen)
        if _is_mcp(seen) and given.body is None:
            rendered = self.mcp.render(seen, answer)
        else:
            rendered = render(seen, answer, created)
        return steps(rendered, given.manner, seen, formatdate(created, usegmt=True))


def _is_mcp(seen: SeenRequest) -> bool:
    return seen.path.removesuffix("/").endswith("/mcp")


class ThreadedLLM:
    """A `StandInLLM` in a thread of its own, for code that is not asynchronous. Everything here may be called from any
    other thread; `llm` is the stand-in itself, for looking at what stands still."""

    def __init__(self, llm: StandInLLM) -> None:
        self.llm = llm
        self.next = llm.next
        self.script = llm.script
        self._thread = LoopThread(llm)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.stop()

    @property
    def url(self) -> str:
        """Where it listens."""
        return self.llm.url

    @property
    def port(self) -> int:
        """Its port."""
        return self.llm.port

    @property
    def requests(self) -> list[SeenRequest]:
        """The requests so far."""
        return self._thread.call(lambda: self.llm.requests)

    @property
    def aborted(self) -> list[SeenRequest]:
        """Requests whose client left before the answer was through."""
        return self._thread.call(lambda: self.llm.aborted)

    @property
    def malformed(self) -> list[str]:
        """What came that is no HTTP."""
        return self.llm.malformed

    @property
    def open(self) -> int:
        """How many connections are open; `llm.opened` and `llm.closed` count them."""
        return self.llm.open

    def stepped(self, answer: Answer, *, when: When | None = None) -> ThreadedGate:
        """Queue an answer whose chunks go out one by one."""
        return ThreadedGate(self.llm.stepped(answer, when=when), self._thread)

    def wait_until(self, condition: Callable[[], bool], *, timeout_s: float = 5.0) -> None:
        """Wait for a condition on what is seen here."""
        self._thread.run(self.llm.wait_until(condition, timeout_s=timeout_s))

    def wait_for_requests(self, count: int = 1, *, timeout_s: float = 5.0) -> SeenRequest:
        """Wait until so many requests have come."""
        return self._thread.run(self.llm.wait_for_requests(count, timeout_s=timeout_s))

    def wait_for_disconnect(self, seen: SeenRequest | None = None, *, timeout_s: float = 5.0) -> SeenRequest:
        """Wait until the connection of a request (the newest) is gone."""
        return self._thread.run(self.llm.wait_for_disconnect(seen, timeout_s=timeout_s))

    def resume(self) -> None:
        """Let every stalled answer go on."""
        self._thread.call(self.llm.resume)


class ThreadedGate:
    """The gate of a stepped answer, for other threads."""

    def __init__(self, gate: Gate, thread: LoopThread) -> None:
        self._gate = gate
        self._thread = thread

    @property
    def sent(self) -> int:
        """How many chunks have gone."""
        return self._gate.sent

    def release(self, chunks: int = 1, *, timeout_s: float = 5.0) -> int:
        """Let so many chunks out, and wait until they are."""
        return self._thread.run(self._gate.release(chunks, timeout_s=timeout_s))

    def finish(self) -> None:
        """Let out whatever is left."""
        self._thread.run(self._gate.finish())
