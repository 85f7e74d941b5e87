"""The stand-in MCP server: handshake, sessions, tools, both ways to answer, and the form without a handshake."""

from __future__ import annotations

from typing import Any

import pytest

from breakloop.testing.answer import Answer, fail, say, tool_failed
from breakloop.testing.connection import Rendered
from breakloop.testing.factories import mcp_call
from breakloop.testing.http import SeenRequest
from breakloop.testing.mcp import MODERN, VERSIONS, McpServer, is_housekeeping
from tests.unit.testing.talking import events, seen, whole


def rpc(method: str, params: Any = None, **headers: str) -> SeenRequest:
    return seen("/mcp", {"jsonrpc": "2.0", "id": 7, "method": method, "params": params or {}}, **headers)


def call(server: McpServer, answer: Answer | None = None, **headers: str) -> Rendered:
    return server.render(seen("/mcp", mcp_call("echo", {"a": 1}, call_id=7), **headers), answer)


def test_the_handshake_begins_a_session() -> None:
    server = McpServer()
    rendered = server.render(rpc("initialize", {"protocolVersion": "2025-06-18", "capabilities": {}}), None)
    assert rendered.headers == (("Mcp-Session-Id", "standin-session-1"),)
    assert whole(rendered) == {
        "jsonrpc": "2.0",
        "id": 7,
        "result": {
            "protocolVersion": "2025-06-18",
            "capabilities": {"tools": {"listChanged": False}},
            "serverInfo": {"name": "stand-in", "version": "1.0.0"},
        },
    }
    assert server.sessions == {"standin-session-1"}
    newest = whole(server.render(rpc("initialize", {"protocolVersion": "2099-01-01"}), None))
    assert newest["result"]["protocolVersion"] == "2025-11-25"


def test_a_session_ends_with_delete() -> None:
    """Then its id is unknown: 404, and the client has to begin anew."""
    server = McpServer()
    server.render(rpc("initialize"), None)
    session: Any = {"mcp_session_id": "standin-session-1"}
    assert whole(call(server, **session))["id"] == 7
    assert server.render(seen("/mcp", method="DELETE", **session), None).status == 204
    assert server.sessions == set()
    gone = call(server, **session)
    assert (gone.status, whole(gone)["error"]["message"]) == (404, "Session not found")
    assert server.render(seen("/mcp", method="DELETE"), None).status == 405


def test_notifications_are_accepted() -> None:
    server = McpServer()
    told = server.render(seen("/mcp", {"jsonrpc": "2.0", "method": "notifications/initialized"}), None)
    assert (told.status, list(told.pieces)) == (202, [])
    answer = server.render(seen("/mcp", {"jsonrpc": "2.0", "id": 1, "result": {}}), None)
    assert answer.status == 202


def test_tools_are_listed_and_run() -> None:
    def add(arguments: dict[str, Any]) -> str:
        """Add two numbers.

        Only the first line is told.
        """
        return str(arguments["a"] + arguments["b"])

    server = McpServer({"add": add})
    listed = whole(server.render(rpc("tools/list"), None))["result"]
    assert listed == {"tools": [{"name": "add", "description": "Add two numbers.", "inputSchema": {"type": "object"}}]}
    done = whole(server.render(seen("/mcp", mcp_call("add", {"a": 1, "b": 2})), None))
    assert done["result"] == {"content": [{"type": "text", "text": "3"}], "isError": False}
    unknown = whole(server.render(seen("/mcp", mcp_call("sub")), None))
    assert unknown["error"] == {"code": -32602, "message": "Unknown tool: sub"}


def test_a_scripted_answer_comes_first() -> None:
    server = McpServer()
    assert whole(call(server))["result"]["content"][0]["text"] == '{"a":1}'
    assert whole(call(server, say("scripted")))["result"]["content"][0]["text"] == "scripted"
    assert whole(call(server, tool_failed("no such file")))["result"] == {
        "content": [{"type": "text", "text": "no such file"}],
        "isError": True,
    }
    failed = call(server, fail(503, "down"))
    assert (failed.status, whole(failed)) == (
        503,
        {"jsonrpc": "2.0", "id": 7, "error": {"code": -32000, "message": "down"}},
    )
    assert whole(call(server, fail(200, "odd", code="-32001")))["error"]["code"] == -32001


def test_an_answer_as_events() -> None:
    """With a progress token each chunk is told before the result."""
    server = McpServer()
    rendered = call(server, say("one two").streamed())
    assert rendered.content_type.startswith("text/event-stream")
    ((name, content),) = events(rendered)
    assert (name, content["id"], content["result"]["content"][0]["text"]) == ("message", 7, "one two")
    body = mcp_call()
    body["params"]["_meta"] = {"progressToken": "p"}
    *told, last = events(server.render(seen("/mcp", body), say("one two").streamed()))
    assert [data["params"] for _, data in told] == [
        {"progressToken": "p", "progress": 1, "total": 2, "message": "one"},
        {"progressToken": "p", "progress": 2, "total": 2, "message": " two"},
    ]
    assert "result" in last[1]


def test_get_holds_a_stream_open() -> None:
    server = McpServer()
    rendered = server.render(seen("/mcp", method="GET", accept="text/event-stream"), None)
    assert (rendered.status, rendered.holds, rendered.streamed) == (200, True, True)
    assert server.render(seen("/mcp", method="GET", accept="text/html"), None).status == 405
    assert server.render(seen("/mcp", method="PUT"), None).headers == (("Allow", "GET, POST, DELETE"),)


def test_without_a_handshake() -> None:
    """2026-07-28: `server/discover`, no session, results say that they are complete, errors have an HTTP status."""
    server = McpServer()
    modern: Any = {"mcp_protocol_version": MODERN}
    found = whole(server.render(rpc("server/discover", **modern), None))["result"]
    assert found == {
        "supportedVersions": list(VERSIONS),
        "capabilities": {"tools": {"listChanged": False}},
        "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "stand-in", "version": "1.0.0"}},
        "ttlMs": 0,
        "cacheScope": "private",
        "resultType": "complete",
    }
    assert whole(call(server, **modern))["result"]["resultType"] == "complete"
    unknown = server.render(rpc("prompts/list", **modern), None)
    assert (unknown.status, whole(unknown)["error"]["code"]) == (404, -32601)
    assert server.render(seen("/mcp", method="GET", accept="text/event-stream", **modern), None).status == 405
    old = McpServer(versions=VERSIONS[:-1])
    refused = old.render(rpc("server/discover", **modern), None)
    assert (refused.status, whole(refused)["error"]["code"]) == (400, -32022)
    assert whole(refused)["error"]["data"] == {"supported": list(VERSIONS[:-1]), "requested": MODERN}
    only_new = McpServer(versions=(MODERN,))
    assert whole(only_new.render(rpc("initialize"), None))["error"]["code"] == -32022


def test_other_messages() -> None:
    server = McpServer()
    assert whole(server.render(rpc("ping"), None))["result"] == {}
    assert whole(server.render(rpc("prompts/list"), None))["error"]["code"] == -32601
    broken = seen("/mcp")
    broken.take(b"{")
    assert (server.render(broken, None).status, whole(server.render(broken, None))["error"]["code"]) == (400, -32700)
    batch = server.render(seen("/mcp", [mcp_call(call_id=1), mcp_call("no", call_id=2)]), None)
    assert [("result" in one, one["id"]) for one in whole(batch)] == [(True, 1), (False, 2)]


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (seen("/mcp", mcp_call()), False),
        (seen("/mcp", [mcp_call()]), False),
        (rpc("tools/list"), True),
        (seen("/mcp", method="GET"), True),
        (seen("/mcp", method="DELETE"), True),
        (seen("/mcp", "text"), True),
    ],
)
def test_only_tool_calls_take_from_the_script(request_: SeenRequest, expected: bool) -> None:
    assert is_housekeeping(request_) is expected


def test_before_the_body_has_come_the_header_tells() -> None:
    begun = seen("/mcp", mcp_method="tools/call")
    begun.complete = False
    assert not is_housekeeping(begun)
    begun = seen("/mcp", mcp_call())
    begun.complete = False
    assert is_housekeeping(begun)
