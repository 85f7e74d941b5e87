"""Finds the ids by which clients already name a conversation inside a request body (SPEC C-7), and nothing else of it.

Names of users (`user`, `safety_identifier`, a plain `metadata.user_id`) are never one. Header fields, and which id wins
over which, are `policy.identity`'s and `policy.descriptors`' business.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from operator import attrgetter
from typing import Any, Final, NamedTuple

import msgspec

from breakloop.dialects import mcp
from breakloop.dialects.base import NULL, BodyModel, Raw, clean, decode, load
from breakloop.dialects.registry import Taken


class BodyIds(NamedTuple):
    """What a body says about its conversation; "" is: nothing."""

    session: str = ""  # names the conversation or session outright
    previous: str = ""  # the response that this request continues (`previous_response_id`)
    cache_key: str = ""  # a `prompt_cache_key` that is as good as an id
    trace: str = ""  # a trace: may cover one request or many


NONE: Final = BodyIds()

# Beside the messages and inside `metadata`; the one that names a single conversation before the wider one.
_SESSIONS: Final = dict.fromkeys((
    "conversation_id",  # LangSmith, and many a chat front end
    "thread_id",  # LangSmith, LangGraph
    "litellm_session_id",  # LiteLLM, Cline
    "session_id",  # OpenRouter, LiteLLM, OpenHands
    "sessionId",  # Qwen Code
    "langfuse_session_id",  # Langfuse
))  # fmt: skip
# In an MCP request's `_meta`: Goose's, then ChatGPT's.
_MCP_SESSIONS: Final = dict.fromkeys(("agent-session-id", "openai/session"))
_TRACES: Final = dict.fromkeys(("litellm_trace_id", "trace_id"))
_CLAUDE_CODE: Final = "_session_"
# A cache key may as well name a prompt, or all that a user does: only a UUID is taken for a conversation's id.
_UUID: Final = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}").fullmatch
_NOT_IDS: Final = frozenset(("null", "undefined", "none"))  # what a program writes when it has no id
_TRACEPARENT: Final = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}").match
_VALUE_MAX_BYTES: Final = 64 * 1024  # no id is looked for in anything larger


Get = Callable[[str], Any]
_FIELDS: Final = BodyModel.__struct_fields__
_values: Final = attrgetter(*_FIELDS)
_NOTHING: Final = _values(BodyModel())
_NO_META: Final[dict[str, Any]] = {}
_decode_body = msgspec.json.Decoder(BodyModel).decode


def of(taken: Taken) -> BodyIds:
    """Return the ids in a body that was taken apart; never raises."""
    try:
        return _in_meta(_meta(taken)) if isinstance(taken, mcp.McpBody) else _in_fields(taken.parts.fields)
    except RecursionError:
        return NONE


def find(dialect: str, body: bytes) -> BodyIds:
    """Return the ids in a body that was read as `dialect`; never raises."""
    if dialect == mcp.DIALECT:
        taken = mcp.take(body)
        return NONE if taken is None else of(taken)
    try:
        return _in_fields(_fields(body))
    except RecursionError:
        return NONE


def trace_of(traceparent: str) -> str:
    """Return the trace id of a W3C `traceparent`, or ""."""
    found = _TRACEPARENT(traceparent.strip())
    return found[1] if found else ""


def _fields(body: bytes) -> BodyModel | dict[str, Any]:
    try:
        return _decode_body(body)
    except ValueError:  # BOM, lone surrogates, NaN; or no JSON at all
        loaded = load(body)
        return loaded if isinstance(loaded, dict) else {}


def _in_fields(fields: BodyModel | dict[str, Any]) -> BodyIds:
    if isinstance(fields, dict):
        return _among(fields)
    values = _values(fields)
    if values == _NOTHING:
        return NONE
    return _among({name: _value(raw) for name, raw in zip(_FIELDS, values, strict=True) if raw is not NULL})


def _among(fields: dict[str, Any]) -> BodyIds:
    get = fields.get
    metadata = get("metadata")
    inner = metadata if isinstance(metadata, dict) else {}
    litellm = get("litellm_metadata")
    if isinstance(litellm, dict):
        inner = {**inner, **litellm}
    session = (
        _conversation(get("conversation"))
        or _first(fields, _SESSIONS)
        or _first(inner, _SESSIONS)
        or _claude_code(inner.get("user_id"))
    )
    trace = _id(get("litellm_trace_id")) or _first(inner, _TRACES)
    return BodyIds(session, _id(get("previous_response_id")), _cache_key(get), trace)


def _conversation(value: object) -> str:
    """OpenAI's Responses take the id of a conversation, or an object that holds it."""
    return _id(value.get("id") if isinstance(value, dict) else value)


def _claude_code(value: object) -> str:
    """Return the session in Claude Code's `user_id`: first it ended in `_session_<id>`, now it is JSON in a string."""
    if isinstance(value, str):
        if value.startswith("user_"):
            return _id(value.rpartition(_CLAUDE_CODE)[2]) if _CLAUDE_CODE in value else ""
        if not value.startswith("{"):
            return ""
        value = load(value.encode("utf-8", "replace"))
    return _id(value.get("session_id")) if isinstance(value, dict) else ""


def _cache_key(get: Get) -> str:
    sent = get("prompt_cache_key")
    key = "" if sent is None else _id(sent)
    return key if key and _UUID(key) and key not in (_id(get("user")), _id(get("safety_identifier"))) else ""


def _meta(taken: mcp.McpBody) -> dict[str, Any]:
    """Return the `_meta` of the first request that has one; of a batch, all belong to one client."""
    for request in taken.requests:
        meta = request.params.get("_meta") if isinstance(request.params, dict) else None
        if meta and isinstance(meta, dict):
            return meta
    return _NO_META


def _in_meta(meta: dict[str, Any]) -> BodyIds:
    sent = meta.get("traceparent")
    return BodyIds(_first(meta, _MCP_SESSIONS), trace=trace_of(sent) if isinstance(sent, str) else "")


def _first(fields: dict[str, Any], names: dict[str, None]) -> str:
    if names.keys().isdisjoint(fields):
        return ""
    for name in names:
        found = _id(fields.get(name))
        if found:
            return found
    return ""


def _id(value: object) -> str:
    if isinstance(value, str):
        value = clean(value.strip())
        return "" if value.lower() in _NOT_IDS else value
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else ""


def _value(raw: Raw) -> Any:
    if memoryview(raw).nbytes > _VALUE_MAX_BYTES:
        return None
    try:
        return decode(raw)
    except ValueError:
        return None
