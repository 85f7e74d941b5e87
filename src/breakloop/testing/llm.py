"""`StandInLLM`: a server with scripted responses in the formats of OpenAI, Anthropic, Gemini and MCP, and its version
for threads.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack
from email.utils import formatdate
from typing import Any, Final, Self, TypeVar

from breakloop.clock import Clock, SystemClock
from breakloop.testing.answer import WAIT_S, Answer, Gate, News, Respond, Script, When
from breakloop.testing.connection import StandInConnection, Step, raw_steps, steps
from breakloop.testing.http import SeenRequest
from breakloop.testing.mcp import McpServer, Tool, is_housekeeping
from breakloop.testing.providers import render

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
REMEMBERED: Final = 10_000
_BACKLOG: Final = 4096
_STOP_S: Final = 5.0


class StandInLLM(Script):
    """A server on a loopback port; `async with` starts and stops it. Responses come from the queue (`next`), from
    `respond`, or are a default:

    ```python
    async with StandInLLM() as llm:
        llm.next(say("Hello."), fail(529), call_tool("search", {"query": "x"}))
        client = openai.AsyncOpenAI(base_url=f"{llm.url}/v1", api_key="any")
    ```

    Args:
        respond: Returns the response to a request, or None for the default.
        default: The response where nothing else is scripted.
        tools: Functions that the MCP server at `/mcp` offers, by name.
        tls: Serve HTTPS.
        clock: The time in responses; by default it begins at a fixed time.
        port: Listen there instead of on a free port.
    """

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
        super().__init__(default, respond)
        self.mcp = McpServer(tools)
        self.host = "127.0.0.1"
        self.port = port  # 0 until it listens, if no port was given
        self.opened = 0  # connections so far
        self.closed = 0  # closed connections
        self.request_count = 0
        self.malformed: list[str] = []  # errors of requests that were not valid HTTP
        self._tls = tls
        self._clock = clock
        self._requests: deque[SeenRequest] = deque(maxlen=REMEMBERED)
        self._live: dict[int, StandInConnection] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listener: asyncio.Server | None = None
        self._news = News()

    @classmethod
    def in_thread(cls, **options: Any) -> AbstractContextManager[ThreadedLLM]:
        """Run in a background thread: `with StandInLLM.in_thread() as llm`. Takes the options of the constructor."""
        return ThreadedLLM(cls(**options))

    # -- responses, beside `next`, `left` and `respond` of a script

    def script(self, answers: Iterable[Answer], *, when: When | None = None) -> None:
        """Queue responses, as `next` does."""
        self.next(*answers, when=when)

    def stepped(self, answer: Answer, *, when: When | None = None) -> Gate:
        """Queue a response whose chunks are released one by one by the returned gate."""
        gate = Gate()
        self.next(answer.sent(gate=gate), when=when)
        return gate

    def resume(self) -> None:
        """Continue all stalled responses."""
        for connection in tuple(self._live.values()):
            if connection.player is not None and connection.player.held:
                connection.player.resume()

    # -- starting and stopping

    async def start(self) -> Self:
        """Listen. `async with` does this, and stops it at the end."""
        self._loop = asyncio.get_running_loop()
        self._listener = await self._loop.create_server(
            lambda: StandInConnection(self), self.host, self.port, ssl=self._tls, backlog=_BACKLOG
        )
        self.port = self._listener.sockets[0].getsockname()[1]
        return self

    async def stop(self) -> None:
        """Close all connections and stop listening."""
        if self._listener is None:
            return
        self._listener.close()
        for connection in tuple(self._live.values()):
            connection.abort()
        await self._news.until(lambda: not self._live, _STOP_S)
        await self._listener.wait_closed()
        self._listener = None

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            raise RuntimeError("the stand-in is not started")
        return self._loop

    @property
    def url(self) -> str:
        """Return the base URL without a trailing slash."""
        return f"{'https' if self._tls else 'http'}://{self.host}:{self.port}"

    # -- observations

    @property
    def requests(self) -> list[SeenRequest]:
        """Return the last 10,000 requests in the order of their heads."""
        return list(self._requests)

    @property
    def open(self) -> int:
        return self.opened - self.closed

    @property
    def aborted(self) -> list[SeenRequest]:
        """Return the requests whose client disconnected before the end of the response."""
        return [seen for seen in self._requests if seen.outcome == "aborted"]

    def is_connected(self, seen: SeenRequest) -> bool:
        """Return whether the connection of a request is still open."""
        return seen.connection in self._live

    async def wait_until(self, condition: Callable[[], bool], *, timeout_s: float = WAIT_S) -> None:
        """Wait until the condition holds. Raises TimeoutError if it does not in time."""
        await self._news.until(condition, timeout_s)

    async def wait_for_requests(self, count: int = 1, *, timeout_s: float = WAIT_S) -> SeenRequest:
        """Wait until this number of requests has arrived completely; returns the newest."""
        done = lambda: sum(seen.complete for seen in self._requests) >= count  # noqa: E731 - short, and used once
        await self._news.until(done, timeout_s)
        return [seen for seen in self._requests if seen.complete][-1]

    async def wait_for_disconnect(self, seen: SeenRequest | None = None, *, timeout_s: float = WAIT_S) -> SeenRequest:
        """Wait until the connection of a request (by default the newest) is closed; returns the request."""
        found = self._requests[-1] if seen is None else seen
        await self._news.until(lambda: not self.is_connected(found), timeout_s)
        return found

    async def wait_until_idle(self, *, timeout_s: float = WAIT_S) -> None:
        """Wait until no connection is open."""
        await self._news.until(lambda: not self._live, timeout_s)

    # -- called by connections

    def connected(self, connection: StandInConnection) -> int:
        self.opened += 1
        self._live[self.opened] = connection
        self._news.tell()
        return self.opened

    def disconnected(self, connection: StandInConnection) -> None:
        self.closed += 1
        del self._live[connection.number]
        self._news.tell()

    def complain(self, connection: StandInConnection, problem: str) -> None:
        self.malformed.append(f"connection {connection.number}: {problem}")
        self._news.tell()

    def changed(self) -> None:  # a request or a response is complete
        self._news.tell()

    def heard_head(self, seen: SeenRequest, connection: StandInConnection) -> Iterator[Step] | None:
        # The steps of a response that does not wait for the body, if the script has one.
        self.request_count += 1
        seen.number = self.request_count
        seen.received_at = (self._clock or SystemClock()).now()
        self._requests.append(seen)
        self._news.tell()
        seen.is_housekeeping = _is_mcp(seen) and is_housekeeping(seen)
        answer = self.early(seen)
        if answer is None:
            return None
        if not answer.manner.drain:
            connection.stop_reading()
        return self._steps(seen, answer)

    def heard(self, seen: SeenRequest) -> Iterator[Step]:
        # The steps of the response to a complete request.
        seen.is_housekeeping = _is_mcp(seen) and is_housekeeping(seen)
        return self._steps(seen, self.take(seen))

    def _steps(self, seen: SeenRequest, answer: Answer | None) -> Iterator[Step]:
        created = EPOCH + seen.number if self._clock is None else int(self._clock.now())
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

    def wait_until(self, condition: Callable[[], bool], *, timeout_s: float = WAIT_S) -> None:
        """Wait until the condition holds. Raises TimeoutError if it does not in time."""
        self._thread.run(self.llm.wait_until(condition, timeout_s=timeout_s))

    def wait_for_requests(self, count: int = 1, *, timeout_s: float = WAIT_S) -> SeenRequest:
        """Wait until this number of requests has arrived."""
        return self._thread.run(self.llm.wait_for_requests(count, timeout_s=timeout_s))

    def wait_for_disconnect(self, seen: SeenRequest | None = None, *, timeout_s: float = WAIT_S) -> SeenRequest:
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

    def release(self, chunks: int = 1, *, timeout_s: float = WAIT_S) -> int:
        """Release chunks and wait until they are sent."""
        return self._thread.run(self._gate.release(chunks, timeout_s=timeout_s))

    def finish(self) -> None:
        """Release all remaining chunks."""
        self._thread.run(self._gate.finish())
