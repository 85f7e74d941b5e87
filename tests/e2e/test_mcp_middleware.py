"""Our middleware in real servers of the `mcp` package, high-level and low-level, with its real client: over a pipe within
this process, and over HTTP."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import uvicorn
from mcp import Client
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolRequestParams, CallToolResult, ListToolsResult, TextContent, Tool

from breakloop import Guard
from breakloop.integrations.mcp import GuardMCPMiddleware
from tests.e2e.served import serving

pytestmark = pytest.mark.e2e

MODES = ["legacy", "auto"]
LOOP = "recursive_loop_detected"


class Tools:
    """Functions, and what they were asked."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def find(self, query: str) -> str:
        """Find nothing."""
        self.calls.append(query)
        return "no results"

    def count(self, number: int) -> dict[str, int]:
        """Return something new, structured."""
        return {"squared": number * number}

    def broken(self) -> str:
        """Fail."""
        self.calls.append("broken")
        raise ToolError("the disk is full")


def made(tools: Tools, guard: Guard | None = None) -> MCPServer:
    server = MCPServer("real", log_level="ERROR", middleware=[GuardMCPMiddleware(guard)])
    for function in (tools.find, tools.count, tools.broken):
        server.add_tool(function)
    return server


def lowlevel(tools: Tools) -> Server[Any]:
    async def listed(ctx: Any, params: Any) -> ListToolsResult:
        return ListToolsResult(tools=[Tool(name="find", input_schema={"type": "object"})])

    async def called(ctx: Any, params: CallToolRequestParams) -> CallToolResult:
        text = tools.find((params.arguments or {})["query"])
        return CallToolResult(content=[TextContent(type="text", text=text)])

    server: Server[Any] = Server("low", on_list_tools=listed, on_call_tool=called)
    server.middleware.append(GuardMCPMiddleware())
    return server


@contextmanager
def over_http(server: MCPServer) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(server.streamable_http_app(), log_level="error", ws="none", lifespan="on")
        running = uvicorn.Server(config)
        thread = threading.Thread(target=running.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
        finally:
            running.should_exit = True
            thread.join()


def texts(result: CallToolResult) -> list[str]:
    return [block.text for block in result.content if isinstance(block, TextContent)]


async def loop(client: Client) -> None:
    """Call the same tool until it is refused, and another way then."""
    results = [await client.call_tool("find", {"query": "x"}) for _ in range(7)]
    assert [texts(one)[0] for one in results[:5]] == ["no results"] * 5
    assert [len(one.content) for one in results] == [1, 1, 2, 2, 2, 1, 1]
    assert texts(results[2])[1].startswith("[breakloop] You repeat yourself: ")
    assert [one.is_error for one in results] == [False] * 5 + [True] * 2
    assert LOOP in texts(results[5])[0]
    assert not (await client.call_tool("find", {"query": "y"})).is_error


@pytest.mark.parametrize("mode", MODES)
def test_a_loop_is_told_then_refused(mode: str) -> None:
    """The tool has run five times, and not once more (P-3, A-3)."""
    tools = Tools()

    async def run() -> None:
        async with Client(made(tools), mode=mode) as client:
            await loop(client)

    asyncio.run(run())
    assert tools.calls == ["x"] * 5 + ["y"]


def test_a_lowlevel_server() -> None:
    """A lowlevel server: the same (P-3)."""
    tools = Tools()

    async def run() -> None:
        async with Client(lowlevel(tools)) as client:
            await loop(client)

    asyncio.run(run())
    assert tools.calls == ["x"] * 5 + ["y"]


@pytest.mark.parametrize("mode", MODES)
def test_over_http_each_client_has_its_own_steps(mode: str) -> None:
    """By the session of the protocol, where it has one; in the form without, by the key or the address (P-3, C-3)."""
    tools = Tools()

    async def run(url: str) -> None:
        async with Client(url, mode=mode) as client:
            await loop(client)
        async with Client(url, mode=mode) as another:
            again = await another.call_tool("find", {"query": "x"})
            assert again.is_error is (mode == "auto")

    with over_http(made(tools)) as url:
        asyncio.run(run(url))


@pytest.mark.parametrize("mode", MODES)
def test_a_healthy_client_is_untouched(mode: str) -> None:
    """Results are those of a server without us, whatever they are (P-3)."""

    async def seen(server: MCPServer) -> list[dict[str, Any]]:
        async with Client(server, mode=mode) as client:
            results = [await client.call_tool("count", {"number": number}) for number in range(12)]
            results += [await client.call_tool("broken"), await client.call_tool("nothing", {"a": 1})]
            listed = await client.list_tools()
            return [one.model_dump() for one in (*results, listed)]

    plain = MCPServer("real", log_level="ERROR")
    tools = Tools()
    for function in (tools.find, tools.count, tools.broken):
        plain.add_tool(function)
    assert asyncio.run(seen(made(Tools()))) == asyncio.run(seen(plain))


def test_errors_of_a_tool_are_steps_that_failed() -> None:
    """Seen earlier than answers that repeat (LD-4)."""
    tools = Tools()

    async def run() -> list[CallToolResult]:
        async with Client(made(tools)) as client:
            return [await client.call_tool("broken") for _ in range(6)]

    results = asyncio.run(run())
    assert [one.is_error for one in results] == [True] * 6
    assert tools.calls == ["broken"] * 4
    assert [LOOP in texts(one)[-1] for one in results] == [False] * 3 + [True] * 3


def test_the_gateway_decides(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A Guard that asks a service (D-4)."""
    tools = Tools()

    async def run(guard: Guard) -> None:
        async with Client(made(tools, guard)) as client:
            await loop(client)

    with serving(tmp_path_factory.mktemp("served"), "--mode", "decision") as served, Guard(url=served.url) as guard:
        asyncio.run(run(guard))
    assert tools.calls == ["x"] * 5 + ["y"]
