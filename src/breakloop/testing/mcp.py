"""A stand-in MCP server over streamable HTTP, with and without sessions.

Only tool calls get responses from the script; all other requests are handled here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from breakloop.testing.answer import Answer
from breakloop.testing.connection import Rendered
from breakloop.testing.http import SeenRequest
from breakloop.testing.providers.base import EVENTS, dump, event

Json = dict[str, Any]
Tool = Callable[[Json], str]

TOOLS_CALL: Final = "tools/call"
SESSION: Final = "mcp-session-id"
MODERN: Final = "2026-07-28"  # from this version on, requests do not depend on a session
VERSIONS: Final = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", MODERN)
_INFO: Final = {"name": "stand-in", "version": "1.0.0"}
_CAPABILITIES: Final[Json] = {"tools": {"listChanged": False}}
_PARSE_ERROR: Final = -32700
_INVALID_REQUEST: Final = -32600
_METHOD_NOT_FOUND: Final = -32601
_INVALID_PARAMS: Final = -32602
_FAILED: Final = -32000
_UNSUPPORTED_VERSION: Final = -32022
_STATUSES: Final = {_PARSE_ERROR: 400, _INVALID_REQUEST: 400, _METHOD_NOT_FOUND: 404, _UNSUPPORTED_VERSION: 400}


class RpcError(Exception):
    def __init__(self, code: int, message: str, data: Json | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.error: Json = {"code": code, "message": message} | ({} if data is None else {"data": data})


def echo(arguments: Json) -> str:
    """Return the arguments of a tool call as text. This is the default tool."""
    return json.dumps(arguments, separators=(",", ":"), ensure_ascii=False)


def is_housekeeping(seen: SeenRequest) -> bool:
    """Return whether a request to an MCP endpoint is anything but a tool call, as far as it has arrived."""
    if seen.method != "POST":
        return True
    if not seen.complete:
        return seen.header("mcp-method") != TOOLS_CALL
    return not any(message.get("method") == TOOLS_CALL for message in _messages(seen))


def _messages(seen: SeenRequest) -> list[Json]:
    try:
        found = seen.json()
    except (ValueError, RecursionError):
        return []
    return [message for message in (found if isinstance(found, list) else [found]) if isinstance(message, dict)]


def _is_modern(seen: SeenRequest) -> bool:
    return (seen.header("mcp-protocol-version") or "") >= MODERN


class McpServer:
    """Tools and sessions of the server."""

    def __init__(self, tools: Mapping[str, Tool] | None = None, versions: tuple[str, ...] = VERSIONS) -> None:
        self.tools: dict[str, Tool] = dict({"echo": echo} if tools is None else tools)
        self.versions = versions
        self.sessions: set[str] = set()
        self._begun = 0

    def render(self, seen: SeenRequest, answer: Answer | None) -> Rendered:
        session = seen.header(SESSION)
        if session is not None and session not in self.sessions:
            return _problem(RpcError(_INVALID_REQUEST, "Session not found"), None, 404)
        if seen.method == "GET":  # a stream for messages of the server, which stays open and empty
            if _is_modern(seen) or "text/event-stream" not in (seen.header("accept") or ""):
                return Rendered([], status=405, headers=(("Allow", "POST"),))
            return Rendered([b": open\n\n"], EVENTS, streamed=True, holds=True)
        if seen.method == "DELETE":
            self.sessions.discard(session or "")
            return Rendered([], status=204 if session else 405)
        if seen.method != "POST":
            return Rendered([], status=405, headers=(("Allow", "GET, POST, DELETE"),))
        return self._post(seen, answer)

    def _post(self, seen: SeenRequest, answer: Answer | None) -> Rendered:
        messages = _messages(seen)
        if not messages:
            return _problem(RpcError(_PARSE_ERROR, "Parse error"), None, 400)
        asked = [message for message in messages if "id" in message and "method" in message]
        if not asked:
            return Rendered([], status=202)  # notifications, and responses to requests that the server never made
        if answer is not None and answer.failure is not None and answer.failure.at is None:
            code = int(answer.failure.code) if answer.failure.code.lstrip("-").isdigit() else _FAILED
            return _problem(RpcError(code, answer.failure.message), asked[0]["id"], answer.status)
        if len(asked) > 1:
            return Rendered([dump([self._answered(seen, one, answer)[0] for one in asked])])
        content, status = self._answered(seen, asked[0], answer)
        headers = self._begin_session(seen, asked[0], status)
        if answer is not None and answer.stream and status == 200:
            return Rendered(_events(asked[0], answer, content), EVENTS, streamed=True, headers=headers)
        return Rendered([dump(content)], status=status, headers=headers)

    def _begin_session(self, seen: SeenRequest, message: Json, status: int) -> tuple[tuple[str, str], ...]:
        if message["method"] != "initialize" or status != 200 or _is_modern(seen):
            return ()
        self._begun += 1
        session = f"standin-session-{self._begun}"
        self.sessions.add(session)
        return (("Mcp-Session-Id", session),)

    def _answered(self, seen: SeenRequest, message: Json, answer: Answer | None) -> tuple[Json, int]:
        try:
            result = self._result(seen, message, answer)
        except RpcError as error:
            status = _STATUSES.get(error.code, 200) if _is_modern(seen) else 200
            return {"jsonrpc": "2.0", "id": message["id"], "error": error.error}, status
        if _is_modern(seen):
            result["resultType"] = "complete"
        return {"jsonrpc": "2.0", "id": message["id"], "result": result}, 200

    def _result(self, seen: SeenRequest, message: Json, answer: Answer | None) -> Json:
        method, given = message["method"], message.get("params")
        params: Json = given if isinstance(given, dict) else {}
        asked = seen.header("mcp-protocol-version") or self.versions[0]
        if asked not in self.versions:
            supported = {"supported": list(self.versions), "requested": asked}
            raise RpcError(_UNSUPPORTED_VERSION, "Unsupported protocol version", supported)
        if method == TOOLS_CALL:
            return self._called(params, answer)
        if method == "tools/list":
            return {"tools": [self._listed(name) for name in self.tools]} | _cache(seen)
        if method == "initialize":
            return self._initialized(params)
        if method == "server/discover" and MODERN in self.versions:
            found = {"supportedVersions": list(self.versions), "capabilities": _CAPABILITIES}
            return found | {"_meta": {"io.modelcontextprotocol/serverInfo": _INFO}} | _cache(seen)
        if method == "ping":
            return {}
        raise RpcError(_METHOD_NOT_FOUND, f"Method not found: {method}")

    def _initialized(self, params: Json) -> Json:
        handshakes = [version for version in self.versions if version < MODERN]
        if not handshakes:
            raise RpcError(_UNSUPPORTED_VERSION, "Unsupported protocol version", {"supported": list(self.versions)})
        wanted = params.get("protocolVersion")
        version = wanted if wanted in handshakes else handshakes[-1]
        return {"protocolVersion": version, "capabilities": _CAPABILITIES, "serverInfo": _INFO}

    def _called(self, params: Json, answer: Answer | None) -> Json:
        if answer is not None:
            return _content(answer.text, is_error=answer.tool_error)
        tool = self.tools.get(str(params.get("name")))
        if tool is None:
            raise RpcError(_INVALID_PARAMS, f"Unknown tool: {params.get('name')}")
        given = params.get("arguments")
        return _content(tool(given if isinstance(given, dict) else {}), is_error=False)

    def _listed(self, name: str) -> Json:
        description = (self.tools[name].__doc__ or name).partition("\n")[0]
        return {"name": name, "description": description, "inputSchema": {"type": "object"}}


def _content(text: str, *, is_error: bool) -> Json:
    return {"content": [{"type": "text", "text": text}], "isError": is_error}


def _cache(seen: SeenRequest) -> Json:
    return {"ttlMs": 0, "cacheScope": "private"} if _is_modern(seen) else {}


def _problem(error: RpcError, message_id: object, status: int) -> Rendered:
    return Rendered([dump({"jsonrpc": "2.0", "id": message_id, "error": error.error})], status=status)


def _events(message: Json, answer: Answer, content: Json) -> Iterator[bytes]:
    """Report progress, one event per chunk of the text, if the client asked for it; then send the result."""
    params = message.get("params")
    meta = params.get("_meta") if isinstance(params, dict) else None
    token = meta.get("progressToken") if isinstance(meta, dict) else None
    if token is not None:
        for number, text in enumerate(answer.chunks, 1):
            told = {"progressToken": token, "progress": number, "total": len(answer.chunks), "message": text}
            yield event({"jsonrpc": "2.0", "method": "notifications/progress", "params": told}, "message")
    yield event(content, "message")
