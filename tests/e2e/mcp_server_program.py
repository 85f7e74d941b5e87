"""A real MCP server over stdin and stdout, made with the package. What its tools were asked goes to the file that the
first argument names, a line each."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import anyio
from mcp.server.mcpserver import Context, MCPServer
from pydantic import BaseModel

server = MCPServer("real", log_level="ERROR")


def note(text: str) -> None:
    with Path(sys.argv[1]).open("a", encoding="utf-8") as file:
        file.write(f"{text}\n")


class Answer(BaseModel):
    """What a person is asked for."""

    name: str


@server.tool()
def find(query: str) -> str:
    """Find nothing."""
    note(f"find {query}")
    return "no results"


@server.tool()
def count(number: int) -> dict[str, int]:
    """Return something new each time, structured."""
    note(f"count {number}")
    return {"squared": number * number}


@server.tool()
def echo(text: str) -> str:
    """Return what was sent."""
    return text


@server.tool()
async def work(ctx: Context) -> str:
    """Tell of progress."""
    for step in range(1, 4):
        await ctx.report_progress(step, 3, f"step {step}")
    return "done"


@server.tool()
async def ask(ctx: Context) -> str:
    """Ask the person."""
    answer = await ctx.elicit("Who are you?", Answer)
    return f"hello {answer.data.name}" if answer.action == "accept" else answer.action


@server.tool()
async def wait() -> str:
    """Wait until it is cancelled."""
    note("waiting")
    try:
        await anyio.sleep(60)
    except anyio.get_cancelled_exc_class():
        note("cancelled")
        raise
    return "too long"


@server.tool()
def crash() -> str:
    """End the process."""
    sys.stderr.write("going down\n")
    sys.stderr.flush()
    os._exit(7)


if __name__ == "__main__":
    server.run("stdio")
