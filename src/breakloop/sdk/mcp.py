"""Middleware for servers made with the `mcp` package: `MCPServer("tools", middleware=[BreakloopMiddleware()])`, or
`server.middleware.append(...)` of the low-level one. Every tool call with its result is a step of its session; all
other messages pass. It imports nothing of the package. How results are written is `mcp_results`'."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from hashlib import blake2b
from typing import Any, Final

from breakloop.sdk import mcp_results
from breakloop.sdk.core import STEPS_ONLY
from breakloop.sdk.guard import Guard
from breakloop.sdk.held import aafter, abefore
from breakloop.sdk.naming import AGENT_HEADER, SESSION_HEADER
from breakloop.sdk.run import Run
from breakloop.sdk.transcript import Made

_SESSIONS: Final = ("mcp-session-id", SESSION_HEADER.lower())
_OWN: Final = "stdio"

Next = Callable[[Any], Awaitable[Any]]


class BreakloopMiddleware:
    """Judges the tool calls of a server. A model that repeats itself reads a note behind the result, then why its call
    is not carried out."""

    def __init__(self, guard: Guard | None = None) -> None:
        self.guard = guard or Guard(STEPS_ONLY)

    async def __call__(self, ctx: Any, call_next: Next) -> Any:
        """Serve one message."""
        if ctx.method != mcp_results.TOOLS_CALL:
            return await call_next(ctx)
        made, run = self._read(ctx)
        if made is None or run is None:
            return await call_next(ctx)
        decision = await abefore(run, made)
        if not decision.allowed:
            return mcp_results.refused(decision)
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
            if fields is None or not mcp_results.is_final(fields):
                return result
            decision = await aafter(run, made, mcp_results.outcome(fields))
            return mcp_results.noted(fields, decision.notice) if decision.notice else result
        return result

    def _read(self, ctx: Any) -> tuple[Made | None, Run | None]:
        with self.guard.fail_open():
            made = mcp_results.made_of(ctx.params)
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
