"""A client that keeps calling the same tool, with `breakloop mcp` in front of its server. No keys needed."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from mcp import Client, StdioServerParameters
from mcp.client.stdio import get_default_environment, stdio_client
from mcp_types import TextContent

SERVER = [sys.executable, str(Path(__file__).with_name("server.py"))]
WRAPPED = [sys.executable, "-m", "breakloop", "mcp", "--", *SERVER]  # usually: breakloop mcp -- python server.py


async def main() -> None:
    """Call the tool eight times."""
    program, *arguments = WRAPPED
    env = {**get_default_environment(), "PYTHONPATH": ":".join(sys.path)}
    async with Client(stdio_client(StdioServerParameters(command=program, args=arguments, env=env))) as client:
        for number in range(1, 9):
            result = await client.call_tool("search", {"query": "refund policy"})
            said = " / ".join(block.text for block in result.content if isinstance(block, TextContent))
            print(f"call {number}: {'failed: ' if result.is_error else ''}{said}")


if __name__ == "__main__":
    asyncio.run(main())
