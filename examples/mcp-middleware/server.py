"""An MCP server with loop protection of its own. `python server.py` calls it as a stuck agent would: no keys, no
network; `python server.py stdio` serves."""

from __future__ import annotations

import asyncio
import sys

from mcp import Client
from mcp.server.mcpserver import MCPServer
from mcp_types import TextContent

from breakloop.sdk.mcp import BreakloopMiddleware

server = MCPServer("support", log_level="ERROR", middleware=[BreakloopMiddleware()])  # the one line that is added


@server.tool()
def search(query: str) -> str:
    """Look something up. This one never finds anything, and so a naive agent never stops."""
    return f"no results for {query!r}"


async def stuck() -> None:
    """Call it eight times."""
    async with Client(server) as client:
        for number in range(1, 9):
            result = await client.call_tool("search", {"query": "refund policy"})
            said = " / ".join(block.text for block in result.content if isinstance(block, TextContent))
            print(f"call {number}: {'failed: ' if result.is_error else ''}{said}")


if __name__ == "__main__":
    if "stdio" in sys.argv:
        server.run("stdio")
    else:
        asyncio.run(stuck())
