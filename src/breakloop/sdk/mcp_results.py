"""Calls and results of MCP tools as steps, and what is answered in a tool's stead: in the words of the protocol, and
without its package. Shared by the middleware (`mcp`) and the wrapper of a stdio server (`mcp_stdio`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeGuard

from breakloop.model.decision import Decision
from breakloop.model.note import marked
from breakloop.sdk.core import arguments_text, facts
from breakloop.sdk.tool_failure import ToolFailedError
from breakloop.sdk.transcript import Made
from breakloop.wire.step_parts import seen

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
