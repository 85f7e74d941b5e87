"""An MCP server with loop protection. `python server.py` calls it like a stuck agent, without keys or network;
`python server.py stdio` serves it over stdio."""

from __future__ import annotations

import asyncio
import sys

from mcp import Client
from mcp.server.mcpserver import MCPServer
from mcp_types import TextContent

from breakloop.integrations.mcp import GuardMCPMiddleware

server = MCPServer("support", log_level="ERROR", middleware=[GuardMCPMiddleware()])  # the line added for breakloop


@server.tool()
def search(query: str) -> str:
    """Look something up. It never finds anything, so a naive agent never stops."""
    return f"no results for {query!r}"


async def stuck() -> None:
    """Call the tool eight times."""
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
