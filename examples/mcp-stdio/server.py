"""An ordinary MCP server over stdin and stdout, without any breakloop code."""

from __future__ import annotations

from mcp.server.mcpserver import MCPServer

server = MCPServer("support", log_level="ERROR")


@server.tool()
def search(query: str) -> str:
    """Look something up. It never finds anything, so a naive agent never stops."""
    return f"no results for {query!r}"


if __name__ == "__main__":
    server.run("stdio")
