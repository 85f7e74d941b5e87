"""Middleware for servers made with the `mcp` package: `MCPServer("tools", middleware=[GuardMCPMiddleware()])`, or
`server.middleware.append(...)` of the low-level one. Every tool call with its result is a step of its session; all
other messages pass. It imports nothing of the package. How results are written is `mcp_results`'.

Calls and results of MCP tools as steps, and what is answered in a tool's stead: in the words of the protocol, and
without its package. Shared by the middleware (`mcp`) and the wrapper of a stdio server (`mcp_stdio`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from hashlib import blake2b
from typing import Any, Final, TypeGuard

from breakloop.dialects.steps import seen
from breakloop.model.call import ToolFailedError, marked
from breakloop.model.verdict import Decision
from breakloop.sdk.backend import AGENT_HEADER, SESSION_HEADER, STEPS_ONLY, arguments_text, facts
from breakloop.sdk.guard import Guard
from breakloop.sdk.run import Made, Run, aafter, abefore

TOOLS_CALL: Final = "tools/call"
_META: Final = "breakloop/detail"
_ASKS: Final = "input_required"  # the server wants something first; no result yet
_KNOWN: Final = frozenset(("content", "structuredContent"))  # a task that was begun has neither

Json = dict[str, Any]


def made_of(params: Any) -> Made | None:
    """Return the call that a request makes; None where it is none that can be read, or goes on with an earlier one."""
    if not isinstance(params, Mapping) or not isinstance(params.get("name"), str):
        return None
    if params.get("inputResponses") is not None:
        return None
    return params["name"], params.get("arguments") or {}


def is_final(result: Any) -> TypeGuard[Mapping[str, Any]]:
    """Tell whether this is what a call returned, and neither a question on the way nor the promise of a result."""
    return isinstance(result, Mapping) and result.get("resultType") != _ASKS and not _KNOWN.isdisjoint(result)


def outcome(result: Mapping[str, Any]) -> str | ToolFailedError:
    """Return what a tool returned, in the form in which steps are told."""
    said, media = seen(result.get("content") or [])
    text = "\n".join(filter(None, (said, *[f"<{one}>" for one in media])))
    if not text and result.get("structuredContent") is not None:
        text = arguments_text(result["structuredContent"])
    return ToolFailedError(text) if result.get("isError") else text


def failure(error: Mapping[str, Any]) -> ToolFailedError:
    """Return what an error of the protocol says, as a result that failed."""
    return ToolFailedError(f"{error.get('code')}: {error.get('message')}")


def noted(result: Mapping[str, Any], note: str) -> Json:
    """Return a result with a note for the model behind its content."""
    content = result.get("content")
    parts = content if isinstance(content, list) else []
    return {**result, "content": [*parts, {"type": "text", "text": marked(note)}]}


def refused(decision: Decision) -> Json:
    """Return the result of a call that is not carried out: a tool's error, which the model reads."""
    return {
        "resultType": "complete",  # wanted since 2026-07-28, and unknown before, when other fields were allowed
        "content": [{"type": "text", "text": decision.notice}],
        "isError": True,
        "_meta": {_META: facts(decision)},
    }


_SESSIONS: Final = ("mcp-session-id", SESSION_HEADER.lower())
_OWN: Final = "stdio"

Next = Callable[[Any], Awaitable[Any]]


class GuardMCPMiddleware:
    """Judges the tool calls of a server. A model that repeats itself reads a note behind the result, then why its call
    is not carried out."""

    def __init__(self, guard: Guard | None = None) -> None:
        self.guard = guard or Guard(STEPS_ONLY)

    async def __call__(self, ctx: Any, call_next: Next) -> Any:
        """Serve one message."""
        if ctx.method != TOOLS_CALL:
            return await call_next(ctx)
        made, run = self._read(ctx)
        if made is None or run is None:
            return await call_next(ctx)
        decision = await abefore(run, made)
        if not decision.allowed:
            return refused(decision)
        try:
            result = await call_next(ctx)
        except Exception as error:
            await aafter(run, made, error)
            raise
        return await self._returned(run, made, result)

    async def _returned(self, run: Run, made: Made, result: Any) -> Any:
        """The result as it is, or with a note behind it."""
        with self.guard.fail_open():
            fields = _fields(result)
            if fields is None or not is_final(fields):
                return result
            decision = await aafter(run, made, outcome(fields))
            return noted(fields, decision.notice) if decision.notice else result
        return result

    def _read(self, ctx: Any) -> tuple[Made | None, Run | None]:
        with self.guard.fail_open():
            made = made_of(ctx.params)
            return made, None if made is None else self.guard.run_of(*_names(ctx))
        return None, None


def _names(ctx: Any) -> tuple[str, str]:
    """Agent and session: over HTTP as its fields say, else by whoever holds the key; over stdio there is one client."""
    request = getattr(ctx, "request", None)
    headers: Mapping[str, str] = getattr(request, "headers", None) or {}
    if not headers:
        return "", _OWN
    agent = headers.get(AGENT_HEADER.lower(), "")
    session = next((headers[name] for name in _SESSIONS if headers.get(name)), "")
    if session:
        return agent, f"mcp-{_digest(session)}"
    client = getattr(request, "client", None)
    return agent, f"mcp-{_digest(headers.get('authorization', '') or getattr(client, 'host', ''))}"


def _digest(name: str) -> str:
    return blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _fields(result: Any) -> Mapping[str, Any] | None:
    """A result as it goes over the wire: handlers may return it so, or as the package's own object."""
    if isinstance(result, Mapping):
        return result
    dump = getattr(result, "model_dump", None)
    return dump(mode="json", by_alias=True, exclude_none=True) if callable(dump) else None
