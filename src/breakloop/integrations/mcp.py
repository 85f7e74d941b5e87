"""Middleware for MCP servers that are made with the `mcp` package:

    from breakloop.integrations.mcp import GuardMCPMiddleware
    server = MCPServer("tools", middleware=[GuardMCPMiddleware()])

Each tool call with its result is a step of its session; all other messages pass. The package itself is not imported:
`breakloop mcp` runs any server that uses stdin and stdout behind a `Relay`, and does not need it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, TypeGuard

from breakloop.dialects.steps import text_and_media
from breakloop.integrations.stdio import Id, is_id, read_line, write_line
from breakloop.model.decision import Decision, ToolFailedError, marked
from breakloop.sdk.context import AGENT_HEADER, SESSION_HEADER, AgentContext, agent
from breakloop.sdk.requests import ToolInvocation, arguments_text, denial_details
from breakloop.sdk.toolkit import BoundedDict, Run, steps_guard, toolkit_of

if TYPE_CHECKING:  # loading it takes longer than `breakloop mcp` should take to start
    from breakloop.sdk.guard import Guard

__all__ = ["GuardMCPMiddleware"]

TOOLS_CALL: Final = "tools/call"
_META: Final = "breakloop/detail"
_INPUT_REQUIRED: Final = "input_required"  # the server needs something first; no result yet
_RESULT_FIELDS: Final = frozenset(("content", "structuredContent"))  # a task that was started has neither
_SESSION_HEADERS: Final = ("mcp-session-id", SESSION_HEADER.lower())
_STDIO_SESSION: Final = "stdio"
_OPEN_MAX: Final = 1000
_CANCELLED: Final = "notifications/cancelled"

Json = dict[str, Any]
Next = Callable[[Any], Awaitable[Any]]


def read_call(params: Any) -> ToolInvocation | None:
    """Return the tool call of a request; None if it cannot be read, or continues an earlier call."""
    if not isinstance(params, Mapping) or not isinstance(params.get("name"), str):
        return None
    if params.get("inputResponses") is not None:
        return None
    return params["name"], params.get("arguments") or {}


def is_final(result: Any) -> TypeGuard[Mapping[str, Any]]:
    """Tell whether this is the result of a call, and not a question back or the promise of a result."""
    return (
        isinstance(result, Mapping)
        and result.get("resultType") != _INPUT_REQUIRED
        and not _RESULT_FIELDS.isdisjoint(result)
    )


def read_result(result: Mapping[str, Any]) -> str | ToolFailedError:
    """Return the result of a tool, as `Run.after_tool` takes it."""
    content, media = text_and_media(result.get("content") or [])
    text = "\n".join(filter(None, (content, *[f"<{one}>" for one in media])))
    if not text and result.get("structuredContent") is not None:
        text = arguments_text(result["structuredContent"])
    return ToolFailedError(text) if result.get("isError") else text


def read_error(error: Mapping[str, Any]) -> ToolFailedError:
    """Return an error of the protocol as a failed result."""
    return ToolFailedError(f"{error.get('code')}: {error.get('message')}")


def with_note(result: Mapping[str, Any], note: str) -> Json:
    """Return a result with a note for the model after its content."""
    content = result.get("content")
    parts = content if isinstance(content, list) else []
    return {**result, "content": [*parts, {"type": "text", "text": marked(note)}]}


def denied_result(decision: Decision) -> Json:
    """Return the result of a denied call: a tool error, which the model reads."""
    return {
        "resultType": "complete",  # required since 2026-07-28; earlier versions allow unknown fields
        "content": [{"type": "text", "text": decision.notice}],
        "isError": True,
        "_meta": {_META: denial_details(decision)},
    }


class GuardMCPMiddleware:
    """Checks the tool calls of a server. A model that repeats itself reads a note after the result, and later why its
    call is not made:

        server = MCPServer("tools", middleware=[GuardMCPMiddleware()])
        server.middleware.append(GuardMCPMiddleware())  # or like this, with the low-level server
    """

    def __init__(self, guard: Guard | None = None) -> None:
        self.guard = guard or steps_guard()
        self._toolkit = toolkit_of(self.guard)

    async def __call__(self, ctx: Any, call_next: Next) -> Any:
        call, context = self._read(ctx) if ctx.method == TOOLS_CALL else (None, None)
        if call is None or context is None:
            return await call_next(ctx)
        run = self._toolkit.run_for(context)
        decision = await run.abefore_tool(*call)
        if not decision.allowed:
            return denied_result(decision)
        try:
            with agent(received=_received(ctx)):  # a tool may be an agent itself
                result = await call_next(ctx)
        except Exception as error:
            await run.aafter_tool(*call, error)
            raise
        with self._toolkit.fail_open():
            fields = _fields(result)
            if fields is None or not is_final(fields):
                return result
            decision = await run.aafter_tool(*call, read_result(fields))
            return with_note(fields, decision.notice) if decision.notice else result
        return result

    def _read(self, ctx: Any) -> tuple[ToolInvocation | None, AgentContext | None]:
        with self._toolkit.fail_open():
            return read_call(ctx.params), _context(ctx)
        return None, None


def _context(ctx: Any) -> AgentContext:
    """Return agent and session: over HTTP from the header fields, or else one session per key or client address; over
    stdio there is one client."""
    request = getattr(ctx, "request", None)
    headers: Mapping[str, str] = getattr(request, "headers", None) or {}
    if not headers:
        return AgentContext("", _STDIO_SESSION)
    agent = headers.get(AGENT_HEADER.lower(), "")
    session = next((headers[name] for name in _SESSION_HEADERS if headers.get(name)), "")
    if not session:
        client = getattr(request, "client", None)
        session = headers.get("authorization", "") or getattr(client, "host", "")
    return AgentContext(agent, f"mcp-{blake2b(session.encode('utf-8', 'surrogatepass'), digest_size=8).hexdigest()}")


def _received(ctx: Any) -> dict[str, str]:
    """Return what names the place of the client in a tree of agents: header fields, and `baggage` of `_meta`."""
    headers: Mapping[str, str] = getattr(getattr(ctx, "request", None), "headers", None) or {}
    params = ctx.params
    meta = params.get("_meta") if isinstance(params, Mapping) else None
    carried = meta.get("baggage") if isinstance(meta, Mapping) else None
    return {"baggage": carried, **headers} if isinstance(carried, str) else dict(headers)


def _fields(result: Any) -> Mapping[str, Any] | None:
    """Return a result as it is sent: handlers return a mapping, or an object of the package."""
    if isinstance(result, Mapping):
        return result
    dump = getattr(result, "model_dump", None)
    return dump(mode="json", by_alias=True, exclude_none=True) if callable(dump) else None


class StdioGuard:
    """Checks the messages between one client and one server over stdio. `run` makes the run that the calls are steps
    of, when the first call comes. In shadow mode, `shadow` gets each notice and nothing is changed."""

    def __init__(self, run: Callable[[], Run], *, shadow: Callable[[str], None] | None = None) -> None:
        self._run = run
        self._shadow = shadow
        self._open: BoundedDict[Id, ToolInvocation] = BoundedDict(_OPEN_MAX)  # calls without a result yet

    def from_client(self, line: bytes) -> bytes:
        """Return the answer to a tool call that is denied; b"" if the line, which has its line feed, goes on."""
        # JSON may escape the slash of `tools/call`, so the two words are searched separately.
        calls = b"call" in line and b"tools" in line
        sent = read_line(line) if calls or (self._open and b"cancelled" in line) else None
        if sent is None:
            return b""
        params = sent.get("params")
        if sent.get("method") == _CANCELLED and isinstance(params, dict) and is_id(params.get("requestId")):
            self._open.pop(params["requestId"], None)
        call = read_call(params) if sent.get("method") == TOOLS_CALL and is_id(sent.get("id")) else None
        if call is None:
            return b""
        decision = self._applied(self._run().before_tool(*call))
        if not decision.allowed:
            return write_line({"jsonrpc": "2.0", "id": sent["id"], "result": denied_result(decision)})
        self._open[sent["id"]] = call
        return b""

    def from_server(self, line: bytes) -> bytes:
        """Return the line for the client."""
        sent = read_line(line) if self._open and b'"id"' in line else None
        if sent is None or "method" in sent or not is_id(sent.get("id")) or sent["id"] not in self._open:
            return line
        call = self._open.pop(sent["id"])
        result, error = sent.get("result"), sent.get("error")
        if isinstance(error, dict):
            self._applied(self._run().after_tool(*call, read_error(error)))
            return line
        if not is_final(result):
            return line
        decision = self._applied(self._run().after_tool(*call, read_result(result)))
        if decision.notice:
            with suppress(ValueError):  # it cannot be written as JSON again
                return write_line({**sent, "result": with_note(result, decision.notice)})
        return line

    def _applied(self, decision: Decision) -> Decision:
        if self._shadow is None or not decision.notice:
            return decision
        self._shadow(decision.notice)
        return Decision()
