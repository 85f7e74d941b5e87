"""Clients of the real `mcp` package through the real `breakloop serve`, to a real MCP server and to the stand-in.

In both forms of the protocol: "legacy" begins with a handshake and has sessions, "auto" finds that it needs neither.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, MutableMapping
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import httpx2
import pytest
import uvicorn
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult, TextContent, ToolListChangedNotification

from breakloop.testing import Answer, SeenRequest, StandInLLM, ThreadedLLM, cut, fail, say, stall, tool_failed
from tests.deadlines import DEADLINE_S
from tests.e2e.served import Caller, Served, eventually, refusing, serving

pytestmark = pytest.mark.e2e

LOOP = "recursive_loop_detected"
MODES = ["legacy", "auto"]
REAL = ["tools", "json"]  # two real servers: one answers in streams, one in JSON
SESSION = "mcp-session-id"


class RealServer:
    """An MCP server made with the package; `requests` are (method, session id), `calls` what its tools were asked."""

    def __init__(self, *, in_json: bool) -> None:
        self.requests: list[tuple[str, str]] = []
        self.calls: list[str] = []
        server = MCPServer("real", log_level="ERROR")
        server.add_tool(self.add)
        server.add_tool(self.broken)
        server.add_tool(self.work)
        server.add_tool(self.announce)
        self._app = server.streamable_http_app(json_response=in_json)

    def add(self, a: int, b: int) -> int:
        """Add two numbers."""
        self.calls.append(f"add {a} {b}")
        return a + b

    def broken(self) -> str:
        """Fail."""
        raise ToolError("the disk is full")

    async def work(self, ctx: Context) -> str:
        """Tell of progress."""
        for step in range(1, 4):
            await ctx.report_progress(step, 3, f"step {step}")
        return "done"

    async def announce(self, ctx: Context) -> str:
        """Say on the stream that the client listens to that the tools are others now."""
        await ctx.session.send_tool_list_changed()
        return "announced"

    async def __call__(
        self,
        scope: MutableMapping[str, Any],
        receive: Callable[[], Awaitable[MutableMapping[str, Any]]],
        send: Callable[[MutableMapping[str, Any]], Awaitable[None]],
    ) -> None:
        if scope["type"] == "http":
            session = dict(scope["headers"]).get(SESSION.encode(), b"").decode()
            self.requests.append((scope["method"], session))
        await self._app(scope, receive, send)


@contextmanager
def running(app: RealServer) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(app, log_level="error", ws="none", lifespan="on", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture(scope="module")
def llm() -> Iterator[ThreadedLLM]:
    with StandInLLM.in_thread() as started:
        yield started


@pytest.fixture(scope="module")
def real() -> dict[str, RealServer]:
    return {"tools": RealServer(in_json=False), "json": RealServer(in_json=True)}


@pytest.fixture(scope="module")
def served(llm: ThreadedLLM, real: dict[str, RealServer], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with running(real["tools"]) as tools, running(real["json"]) as in_json, refusing() as down:
        named = {"tools": tools, "json": in_json, "standin": llm.url, "down": down}
        flags = [word for name, url in named.items() for word in ("--upstream", f"{name}={url}")]
        with serving(tmp_path_factory.mktemp("mcp"), *flags) as started:
            yield started


@asynccontextmanager
async def connected(url: str, caller: Caller, mode: str, **options: Any) -> AsyncIterator[Client]:
    """A client with a key, and a hook that counts what it sends."""
    hooks = {"request": [caller.note_async]}
    headers = {"Authorization": f"Bearer {caller.key}"}
    async with (
        httpx2.AsyncClient(headers=headers, event_hooks=hooks, timeout=DEADLINE_S) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode, **options) as client,
    ):
        yield client


def text_of(result: CallToolResult) -> str:
    return "".join(block.text for block in result.content if isinstance(block, TextContent))


def calls(caller: Caller) -> list[SeenRequest]:
    """The tool calls that reached the stand-in."""
    return [seen for seen in caller.seen if seen.fields.get("method") == "tools/call"]


def leaf(error: BaseException) -> BaseException:
    """What a group of one is about."""
    while isinstance(error, BaseExceptionGroup):
        (error,) = error.exceptions
    return error


# -- calls ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("upstream", REAL)
@pytest.mark.parametrize("mode", MODES)
def test_a_real_server_behind_the_proxy(served: Served, mode: str, upstream: str) -> None:
    """The URL is all that changes: tools are listed and called, results and errors come as they are (D-1, D-2)."""

    async def run() -> None:
        async with Client(f"{served.url}/{upstream}/mcp", mode=mode) as client:
            assert {tool.name for tool in (await client.list_tools()).tools} == {"add", "broken", "work", "announce"}
            added = await client.call_tool("add", {"a": 20, "b": 22})
            assert (text_of(added), added.structured_content, added.is_error) == ("42", {"result": 42}, False)
            broken = await client.call_tool("broken")
            assert broken.is_error
            assert "the disk is full" in text_of(broken)
            with pytest.raises(MCPError):
                await client.read_resource("file:///nowhere")

    asyncio.run(run())


@pytest.mark.parametrize("mode", MODES)
def test_the_stand_in_behind_the_proxy(served: Served, caller: Caller, mode: str) -> None:
    """The same with the stand-in, in JSON and in a stream, and with a tool that fails (D-1)."""
    caller.next(say("In JSON."), say("In a stream.").streamed(), tool_failed("No such file."))

    async def run() -> list[tuple[str, bool]]:
        async with connected(f"{served.url}/standin/mcp", caller, mode) as client:
            results = [await client.call_tool("echo", {"number": number}) for number in range(3)]
            return [(text_of(result), result.is_error) for result in results]

    assert asyncio.run(run()) == [("In JSON.", False), ("In a stream.", False), ("No such file.", True)]
    assert {seen.path for seen in caller.seen} == {"/mcp"}


def test_sessions(served: Served, caller: Caller, llm: ThreadedLLM) -> None:
    """The session id goes both ways, the client's stream stays open, and its end reaches the server: DELETE, and the
    stream's connection is freed within 1 s (D-1)."""

    async def run() -> SeenRequest:
        async with connected(f"{served.url}/standin/mcp", caller, "legacy") as client:
            await client.call_tool("echo", {"x": 1})
            await asyncio.to_thread(llm.wait_until, lambda: bool(streams()))
            (stream,) = streams()
            assert llm.llm.is_connected(stream)
            return stream

    def streams() -> list[SeenRequest]:
        return [seen for seen in llm.llm.requests if caller.owns(seen) and seen.method == "GET"]

    stream = asyncio.run(run())
    assert llm.wait_for_disconnect(stream).outcome == "aborted"
    first, *others = caller.seen
    assert first.json()["method"] == "initialize"
    (session,) = {seen.header(SESSION) for seen in others}
    assert session is not None
    assert {seen.method for seen in others} == {"DELETE", "GET", "POST"}
    assert session not in llm.llm.mcp.sessions


@pytest.mark.parametrize("upstream", REAL)
def test_sessions_of_a_real_server(served: Served, caller: Caller, real: dict[str, RealServer], upstream: str) -> None:
    """A message that the server sends by itself comes on the open stream; the session ends with DELETE (D-1)."""
    before = len(real[upstream].requests)

    async def run() -> None:
        told = asyncio.Event()

        async def hear(message: object) -> None:
            if isinstance(message, ToolListChangedNotification):
                told.set()

        async with connected(f"{served.url}/{upstream}/mcp", caller, "legacy", message_handler=hear) as client:
            opened = lambda: "GET" in dict(real[upstream].requests[before:])  # noqa: E731 - short, and used once
            await asyncio.to_thread(eventually, opened, "the client's stream", 2)
            assert text_of(await client.call_tool("announce")) == "announced"
            await asyncio.wait_for(told.wait(), DEADLINE_S)

    asyncio.run(run())
    first, *others = real[upstream].requests[before:]
    (session,) = {session for _, session in others}
    assert first == ("POST", "")
    assert session
    assert others[-1] == ("DELETE", session)


@pytest.mark.parametrize("mode", MODES)
def test_progress_of_a_real_server(served: Served, caller: Caller, mode: str) -> None:
    """Notifications within the stream of an answer (D-1)."""
    told: list[str | None] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        told.append(message)

    async def run() -> str:
        async with connected(f"{served.url}/tools/mcp", caller, mode) as client:
            return text_of(await client.call_tool("work", progress_callback=hear))

    assert asyncio.run(run()) == "done"
    assert told == ["step 1", "step 2", "step 3"]


@pytest.mark.parametrize("mode", MODES)
def test_each_event_comes_before_the_next_is_sent(served: Served, caller: Caller, mode: str) -> None:
    """The upstream lets one event out at a time (D-1)."""
    gate = caller.stepped(say(chunks=["one", "two"]).streamed())

    async def run() -> str:
        told: asyncio.Queue[str | None] = asyncio.Queue()

        async def hear(progress: float, total: float | None, message: str | None) -> None:
            await told.put(message)

        async with connected(f"{served.url}/standin/mcp", caller, mode) as client:
            call = asyncio.create_task(client.call_tool("echo", {"x": 1}, progress_callback=hear))
            for text in ("one", "two"):
                await asyncio.to_thread(gate.release)
                assert await asyncio.wait_for(told.get(), DEADLINE_S) == text
            assert not call.done()
            gate.finish()
            return text_of(await call)

    assert asyncio.run(run()) == "onetwo"


def test_cancelling_a_call_frees_the_upstream(served: Served, caller: Caller) -> None:
    """Without sessions a call is cancelled by closing it; the upstream's connection is gone within 1 s (D-1)."""
    caller.next(stall())

    async def run() -> None:
        async with connected(f"{served.url}/standin/mcp", caller, "auto") as client:
            call = asyncio.create_task(client.call_tool("echo", {"x": 1}))
            await asyncio.to_thread(caller.wait_seen, 2)
            call.cancel()
            with suppress(asyncio.CancelledError):
                await call
            assert (await asyncio.to_thread(caller.wait_freed)).outcome == "aborted"

    asyncio.run(run())


# -- what goes wrong -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_failures_of_the_upstream(served: Served, caller: Caller, mode: str) -> None:
    """The server's own error arrives; trying again after it is no loop (D-1, LD-6)."""
    caller.next(*[fail(500, "out of order", code="-32050")] * 7, say("Back."))

    async def run() -> str:
        async with connected(f"{served.url}/standin/mcp", caller, mode) as client:
            for _ in range(7):
                with pytest.raises(MCPError, match="out of order") as caught:
                    await client.call_tool("echo", {"x": 1})
                assert caught.value.code == -32050
            return text_of(await client.call_tool("echo", {"x": 1}))

    assert asyncio.run(run()) == "Back."
    assert len(calls(caller)) == 8


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        pytest.param(cut(), r"The upstream standin closed the connection\. \(upstream_failed\)", id="at once"),
        pytest.param(say("One.").streamed().cut("head"), "SSE stream ended without a response", id="in a stream"),
        pytest.param(say("One.").streamed().cut(0, mid_chunk=True), "SSE stream ended without", id="in an event"),
    ],
)
@pytest.mark.parametrize("mode", MODES)
def test_an_upstream_that_hangs_up(served: Served, caller: Caller, mode: str, broken: Answer, said: str) -> None:
    """Before its answer: an error in our words. In the middle of a stream: never taken for the end of it (D-1)."""
    caller.next(broken, broken)  # a connection that was kept is tried twice

    async def run() -> None:
        async with connected(f"{served.url}/standin/mcp", caller, mode) as client:
            with pytest.raises(MCPError, match=said):
                await client.call_tool("echo", {"x": 1})

    asyncio.run(run())


@pytest.mark.parametrize("mode", MODES)
def test_an_upstream_that_is_down(served: Served, caller: Caller, mode: str) -> None:
    """Whatever is asked first, the client reads why it got no answer (A-3, D-1)."""

    async def run() -> None:
        async with connected(f"{served.url}/down/mcp", caller, mode):
            pass

    with pytest.raises(ExceptionGroup) as caught:
        asyncio.run(run())
    error = leaf(caught.value)
    assert isinstance(error, MCPError)
    assert "The upstream down refused the connection." in str(error)


# -- loops ---------------------------------------------------------------------------------------------------------


def assert_loop(result: CallToolResult) -> None:
    assert result.is_error
    assert text_of(result).startswith("Blocked: identical request sent 6 times in 60 seconds.")
    assert LOOP in text_of(result)
    assert result.meta is not None
    detail: Any = result.meta["breakloop/detail"]
    assert (detail["error"], detail["hit_count"], detail["cooldown_seconds"]) == (LOOP, 6, 30)


@pytest.mark.parametrize("upstream", REAL)
@pytest.mark.parametrize("mode", MODES)
def test_the_sixth_identical_call(
    served: Served, caller: Caller, real: dict[str, RealServer], mode: str, upstream: str
) -> None:
    """A tool's error that the model can read, after one HTTP request; another call passes at once (A-3, LD-2)."""
    b = 100 + MODES.index(mode)
    made = 0

    async def run() -> None:
        nonlocal made
        async with connected(f"{served.url}/{upstream}/mcp", caller, mode) as client:
            await client.list_tools()
            for _ in range(5):
                assert text_of(await client.call_tool("add", {"a": 1, "b": b})) == str(1 + b)
            made = len(caller.made)
            assert_loop(await client.call_tool("add", {"a": 1, "b": b}))
            made = len(caller.made) - made
            assert text_of(await client.call_tool("add", {"a": 2, "b": b})) == str(2 + b)

    asyncio.run(run())
    assert made == 1
    assert real[upstream].calls.count(f"add 1 {b}") == 5


@pytest.mark.parametrize("mode", MODES)
def test_the_sixth_identical_call_to_the_stand_in(served: Served, caller: Caller, mode: str) -> None:
    """The same where the answers are streams (A-3, LD-2)."""
    caller.next(*[say("Done.").streamed()] * 5)

    async def run() -> None:
        async with connected(f"{served.url}/standin/mcp", caller, mode) as client:
            for _ in range(5):
                assert text_of(await client.call_tool("echo", {"x": 1})) == "Done."
            assert_loop(await client.call_tool("echo", {"x": 1}))

    asyncio.run(run())
    assert len(calls(caller)) == 5


@pytest.mark.parametrize("mode", MODES)
def test_what_is_no_tool_call_is_no_loop(served: Served, caller: Caller, mode: str) -> None:
    """Listing tools as often as one likes, and connecting again, costs nothing and is not counted (LD-2, C-8)."""

    async def run() -> None:
        for _ in range(7):
            async with connected(f"{served.url}/standin/mcp", caller, mode, cache=None) as client:
                assert [tool.name for tool in (await client.list_tools()).tools] == ["echo"]

    asyncio.run(run())
