"""`StandInLLM`: a server with scripted responses in the formats of OpenAI, Anthropic, Gemini and MCP, and its version
for threads.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack
from email.utils import formatdate
from typing import Any, Final, Self, TypeVar

from breakloop.clock import Clock
from breakloop.testing.answer import Answer, Gate, Respond, Script, When
from breakloop.testing.http import SeenRequest
from breakloop.testing.mcp import McpServer, Tool, is_housekeeping
from breakloop.testing.providers import render
from breakloop.testing.sending import Step, raw_steps, steps
from breakloop.testing.server import StandInConnection, StandInServer

T = TypeVar("T")


class LoopThread:
    """Runs an asynchronous context manager in a background thread between `start` and `stop`."""

    def __init__(self, held: AbstractAsyncContextManager[Any]) -> None:
        self._held = held
        self._entered = AsyncExitStack()
        self._running: tuple[asyncio.AbstractEventLoop, threading.Thread] | None = None

    def start(self) -> None:
        """Start the thread. Errors on entering are raised here."""
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, name="stand-in", daemon=True)
        self._running = loop, thread
        thread.start()
        try:
            self.run(self._entered.enter_async_context(self._held))
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        if self._running is None:
            return
        loop, thread = self._running
        try:
            self.run(self._entered.aclose())
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()
            self._running = None

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the thread and wait for it."""
        if self._running is None:
            coroutine.close()
            raise RuntimeError("not started")
        return asyncio.run_coroutine_threadsafe(coroutine, self._running[0]).result()

    def call(self, function: Callable[[], T]) -> T:
        """Call a function in the thread and wait for it."""

        async def called() -> T:
            return function()

        return self.run(called())


EPOCH: Final = 1_800_000_000  # time of the first response without a clock; each request advances it by a second


class StandInLLM(StandInServer):
    """The stand-in server. Responses come from the queue (`next`), from `respond`, or are a default."""

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
        """Run in a background thread: `with StandInLLM.in_thread() as llm`. Takes the options of the constructor."""
        return ThreadedLLM(cls(**options))

    def next(self, *answers: Answer, when: When | None = None) -> None:
        """Queue responses, one per request; with `when`, for requests that match."""
        self._script.next(*answers, when=when)

    def script(self, answers: Iterable[Answer], *, when: When | None = None) -> None:
        """Queue a list of responses."""
        self._script.next(*answers, when=when)

    @property
    def left(self) -> int:
        return self._script.left

    @property
    def respond(self) -> Respond | None:
        """Called for a response if none is queued; None from it means the default."""
        return self._script.respond

    @respond.setter
    def respond(self, respond: Respond | None) -> None:
        self._script.respond = respond

    def stepped(self, answer: Answer, *, when: When | None = None) -> Gate:
        """Queue a response whose chunks are released one by one by the returned gate."""
        gate = Gate()
        self._script.next(answer.sent(gate=gate), when=when)
        return gate

    # -- interface of connections

    def heard_head(self, seen: SeenRequest, connection: StandInConnection) -> Iterator[Step] | None:
        """Respond before the body has arrived, if the script says so."""
        super().heard_head(seen, connection)
        seen.is_housekeeping = _is_mcp(seen) and is_housekeeping(seen)
        answer = self._script.early(seen)
        if answer is None:
            return None
        if not answer.manner.drain:
            connection.stop_reading()
        return self._steps(seen, answer)

    def heard(self, seen: SeenRequest) -> Iterator[Step]:
        """Respond to a complete request."""
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
    """A `StandInLLM` in a background thread, for synchronous code. All methods can be called from any thread.

    `llm` is the stand-in itself, for attributes that do not change.
    """

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
        return self.llm.url

    @property
    def port(self) -> int:
        return self.llm.port

    @property
    def requests(self) -> list[SeenRequest]:
        return self._thread.call(lambda: self.llm.requests)

    @property
    def aborted(self) -> list[SeenRequest]:
        """Return the requests whose client disconnected before the end of the response."""
        return self._thread.call(lambda: self.llm.aborted)

    @property
    def malformed(self) -> list[str]:
        """Return errors of requests that were not valid HTTP."""
        return self.llm.malformed

    @property
    def open(self) -> int:
        """Return the number of open connections; `llm.opened` and `llm.closed` count all."""
        return self.llm.open

    def stepped(self, answer: Answer, *, when: When | None = None) -> ThreadedGate:
        """Queue a response whose chunks are released one by one."""
        return ThreadedGate(self.llm.stepped(answer, when=when), self._thread)

    def wait_until(self, condition: Callable[[], bool], *, timeout_s: float = 5.0) -> None:
        """Wait until the condition holds."""
        self._thread.run(self.llm.wait_until(condition, timeout_s=timeout_s))

    def wait_for_requests(self, count: int = 1, *, timeout_s: float = 5.0) -> SeenRequest:
        """Wait until this number of requests has arrived."""
        return self._thread.run(self.llm.wait_for_requests(count, timeout_s=timeout_s))

    def wait_for_disconnect(self, seen: SeenRequest | None = None, *, timeout_s: float = 5.0) -> SeenRequest:
        """Wait until the connection of a request (by default the newest) is closed."""
        return self._thread.run(self.llm.wait_for_disconnect(seen, timeout_s=timeout_s))

    def resume(self) -> None:
        """Continue all stalled responses."""
        self._thread.call(self.llm.resume)


class ThreadedGate:
    """The gate of a stepped response, for other threads."""

    def __init__(self, gate: Gate, thread: LoopThread) -> None:
        self._gate = gate
        self._thread = thread

    @property
    def sent(self) -> int:
        return self._gate.sent

    def release(self, chunks: int = 1, *, timeout_s: float = 5.0) -> int:
        """Release chunks and wait until they are sent."""
        return self._thread.run(self._gate.release(chunks, timeout_s=timeout_s))

    def finish(self) -> None:
        self._thread.run(self._gate.finish())
