"""Answers of MCP servers to `tools/call`, in the shape in which they come."""

from __future__ import annotations

from typing import Any

from breakloop.model.call import Answer
from tests.unit.dialects.recorded.shape import JSON, SSE, Recorded, dump, events

TOLD = {"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": 1, "progress": 0.5}}
ASKED = {"jsonrpc": "2.0", "id": 1, "method": "sampling/createMessage", "params": {"messages": []}}


def result(**fields: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "result": fields}


FOUND = result(
    content=[{"type": "text", "text": "18 degrees"}, {"type": "text", "text": "and rain"}],
    structuredContent={"degrees": 18},
    isError=False,
)
MCP = {
    "mcp whole": Recorded("mcp", JSON, dump(FOUND), Answer(200, "18 degrees\nand rain", complete=True)),
    "mcp events": Recorded(
        "mcp",
        SSE,
        b"id: 1\nretry: 500\ndata: \n\nevent: message\nid: 2\ndata: "
        + dump(TOLD)
        + b"\n\n: ping - 2025-10-01\r\n\r\nevent: message\r\ndata: "
        + dump(ASKED)
        + b"\r\n\r\n"
        + b"event: message\nid: 3\ndata: "
        + dump(FOUND)
        + b"\n\n",
        Answer(200, "18 degrees\nand rain", complete=True),
    ),
    "mcp nothing yet": Recorded("mcp", SSE, events(TOLD, ASKED), Answer(200)),
    "mcp structured": Recorded(
        "mcp",
        JSON,
        dump(result(content=[], structuredContent={"b": 1, "a": 2.0}, resultType="complete")),
        Answer(200, '{"a":2,"b":1}', finish="complete", complete=True),
    ),
    "mcp asks": Recorded(
        "mcp",
        JSON,
        dump(result(resultType="input_required", requestState="x")),
        Answer(200, finish="input_required", complete=True),
    ),
    "mcp tool fails": Recorded(
        "mcp",
        JSON,
        dump(result(content=[{"type": "text", "text": "no such file"}], isError=True)),
        Answer(200, "no such file", error="tool_error", complete=True),
    ),
    "mcp protocol fails": Recorded(
        "mcp",
        SSE,
        events({"jsonrpc": "2.0", "id": 1, "error": {"code": -32602, "message": "Unknown tool: secrets"}}),
        Answer(200, error="-32602", complete=True),
    ),
    "mcp batch": Recorded(
        "mcp",
        JSON,
        dump([TOLD, FOUND, result(content=[{"type": "text", "text": "second"}])]),
        Answer(200, "18 degrees\nand rain\nsecond", complete=True),
    ),
}
