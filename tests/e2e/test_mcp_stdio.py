"""`breakloop mcp -- COMMAND` between the real client and a real server of the `mcp` package, in both forms of the
protocol; and what each of the two saw, byte for byte."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult, ElicitResult, TextContent

from tests.deadlines import DEADLINE_S
from tests.e2e.served import SRC, eventually, serving

pytestmark = pytest.mark.e2e

HERE = Path(__file__).parent
SERVER = HERE / "mcp_server_program.py"
MODES = ["legacy", "auto"]
WRAPPED = [sys.executable, "-m", "breakloop", "mcp"]


class Stage:
    """A folder in which a client, breakloop and a server meet; both sides of breakloop are recorded."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def command(self, *flags: str) -> list[str]:
        """Client | copy | breakloop | copy | server."""
        tee = [sys.executable, str(HERE / "mcp_tee.py")]
        server = [sys.executable, str(SERVER), str(self.folder / "calls")]
        return [*tee, str(self.folder / "outer"), *WRAPPED, *flags, "--", *tee, str(self.folder / "inner"), *server]

    @property
    def calls(self) -> list[str]:
        path = self.folder / "calls"
        return path.read_text().splitlines() if path.exists() else []

    def seen(self, side: str, direction: str) -> bytes:
        return (self.folder / side / direction).read_bytes()

    @asynccontextmanager
    async def connected(self, mode: str, *flags: str, **options: Any) -> AsyncIterator[Client]:
        program, *arguments = self.command(*flags)
        env = {"PYTHONPATH": str(SRC), "HOME": str(self.folder)}
        server = StdioServerParameters(command=program, args=arguments, env=env)
        async with Client(stdio_client(server), mode=mode, **options) as client:
            yield client


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def texts(result: CallToolResult) -> list[str]:
    return [block.text for block in result.content if isinstance(block, TextContent)]


@pytest.mark.parametrize("mode", MODES)
def test_a_loop_is_told_then_refused(stage: Stage, mode: str) -> None:
    """A note behind the result; then the server hears nothing of the call, and the model reads why. Another call passes
    at once (P-3, A-3)."""

    async def run() -> None:
        async with stage.connected(mode) as client:
            results = [await client.call_tool("find", {"query": "x"}) for _ in range(7)]
            assert [texts(one)[0] for one in results[:5]] == ["no results"] * 5
            assert [len(one.content) for one in results] == [1, 1, 2, 2, 2, 1, 1]
            assert texts(results[2])[1].startswith("[breakloop] You repeat yourself: `find` returned the same 10 bytes")
            assert [one.is_error for one in results] == [False] * 5 + [True] * 2
            assert "recursive_loop_detected" in texts(results[5])[0]
            detail: Any = (results[5].meta or {})["breakloop/detail"]
            assert (detail["error"], detail["kind"]) == ("recursive_loop_detected", "repeat")
            assert not (await client.call_tool("find", {"query": "y"})).is_error

    asyncio.run(run())
    assert stage.calls == ["find x"] * 5 + ["find y"]


@pytest.mark.parametrize("mode", MODES)
def test_a_healthy_client_is_untouched(stage: Stage, mode: str) -> None:
    """Handshake, lists, calls, structured results, errors, progress and large messages: what the one side sent is what
    the other got, byte for byte (P-3)."""
    told: list[str | None] = []
    large = "large " * 500_000

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        told.append(message)

    async def run() -> None:
        async with stage.connected(mode) as client:
            assert len((await client.list_tools()).tools) == 7
            for number in range(20):
                result = await client.call_tool("count", {"number": number})
                assert result.structured_content == {"squared": number * number}
            assert texts(await client.call_tool("work", progress_callback=hear)) == ["done"]
            assert texts(await client.call_tool("echo", {"text": large})) == [large]
            assert texts(await client.call_tool("echo", {"text": 'ünï "cödé"\n\u2028'})) == ['ünï "cödé"\n\u2028']
            assert (await client.call_tool("nothing", {})).is_error

    asyncio.run(run())
    assert told == ["step 1", "step 2", "step 3"]
    for direction in ("sent", "answered"):
        assert stage.seen("outer", direction) == stage.seen("inner", direction)
        assert len(stage.seen("outer", direction)) > len(large)


def test_what_the_server_asks(stage: Stage) -> None:
    """Its own requests, with ids of its own, and the client's answers to them, in the middle of a call (P-3)."""

    async def answer(context: Any, params: Any) -> ElicitResult:
        return ElicitResult(action="accept", content={"name": "Ada"})

    async def run() -> list[str]:
        async with stage.connected("legacy", elicitation_callback=answer) as client:
            return texts(await client.call_tool("ask"))

    assert asyncio.run(run()) == ["hello Ada"]
    assert b"elicitation/create" in stage.seen("outer", "answered")
    assert stage.seen("outer", "sent") == stage.seen("inner", "sent")


@pytest.mark.parametrize("mode", MODES)
def test_cancelling_and_a_server_that_crashes(stage: Stage, mode: str) -> None:
    """A call that the client gives up is given up by the server; others go on meanwhile and after. Of a server that
    crashes, the client learns as it would without us (P-3)."""
    told: list[str] = []

    async def run() -> None:
        async with stage.connected(mode) as client:
            call = asyncio.create_task(client.call_tool("wait"))
            await asyncio.to_thread(eventually, lambda: "waiting" in stage.calls, "the call")
            assert texts(await client.call_tool("echo", {"text": "meanwhile"})) == ["meanwhile"]
            call.cancel()
            with suppress(asyncio.CancelledError):
                await call
            await asyncio.to_thread(eventually, lambda: "cancelled" in stage.calls, "the end of the call")
            assert texts(await client.call_tool("echo", {"text": "after"})) == ["after"]
            try:
                await client.call_tool("crash")
            except MCPError as error:
                told.append(str(error))

    with suppress(BaseExceptionGroup):  # there is nobody to say goodbye to
        asyncio.run(run())
    assert told == ["Connection closed"]


def test_the_exit_code_and_standard_error_are_the_servers(tmp_path: Path) -> None:
    """Passed on, also while the client is still there and says nothing (P-3)."""
    command = [*WRAPPED, "--", sys.executable, str(SERVER), str(tmp_path / "calls")]
    lines: list[dict[str, Any]] = [
        {"id": 0, "method": "initialize", "params": {
            "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"},
        }},
        {"method": "notifications/initialized"},
        {"id": 1, "method": "tools/call", "params": {"name": "crash", "arguments": {}}},
    ]  # fmt: skip
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={"PYTHONPATH": str(SRC)}
    ) as running:
        assert running.stdin is not None
        assert running.stdout is not None
        assert running.stderr is not None
        written = [json.dumps({"jsonrpc": "2.0", **line}).encode() + b"\n" for line in lines]
        running.stdin.write(written[0])
        running.stdin.flush()
        assert json.loads(running.stdout.readline())["id"] == 0
        running.stdin.writelines(written[1:])
        running.stdin.flush()
        assert running.wait(DEADLINE_S) == 7
        assert running.stderr.read() == b"going down\n"
        assert running.stdout.read() == b""
        with suppress(BrokenPipeError):
            running.stdin.close()


def test_the_gateway_decides(stage: Stage) -> None:
    """One that counts for several processes; and where it is gone, everything passes (D-4)."""

    async def run(url: str) -> list[bool]:
        async with stage.connected("auto", "--url", url, "--agent", "nightly") as client:
            return [(await client.call_tool("find", {"query": "x"})).is_error for _ in range(6)]

    with serving(stage.folder, "--mode", "decision") as served:
        assert asyncio.run(run(served.url)) == [False] * 5 + [True]
        url = served.url
    assert asyncio.run(run(url)) == [False] * 6
