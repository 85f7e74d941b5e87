"""The ids inside a request body by which clients name a conversation or session, or else their end user.

User names (`user`, `safety_identifier`, a plain `metadata.user_id`) are never taken for a session. `policy.identity`
reads headers and decides which id takes precedence.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

import msgspec
from msgspec.structs import astuple

from breakloop.dialects.content import clean, decode, load

Raw = msgspec.Raw
NULL: Final = Raw(b"null")


class BodyModel(msgspec.Struct, gc=False, kw_only=True):
    """The fields of any request body that may hold an id. They stay undecoded, so that a wrong type in one does not
    hide the others.

    Each dialect's own body model adds the fields that it reads. A value of another type in those makes the decoder
    raise, and the body is read leniently.
    """

    conversation: Raw = NULL
    conversation_id: Raw = NULL
    thread_id: Raw = NULL
    litellm_session_id: Raw = NULL
    session_id: Raw = NULL
    sessionId: Raw = NULL  # noqa: N815 - as it is sent
    langfuse_session_id: Raw = NULL
    litellm_trace_id: Raw = NULL
    litellm_metadata: Raw = NULL
    metadata: Raw = NULL
    previous_response_id: Raw = NULL
    prompt_cache_key: Raw = NULL
    user: Raw = NULL
    safety_identifier: Raw = NULL


class TreeIds(NamedTuple):
    """What a message says about the tree of agents that its session belongs to; "" and 0 where it says nothing."""

    root: str = ""
    parent: str = ""
    depth: int = 0


class BodyIds(NamedTuple):
    """The ids found in a body; "" where there is none."""

    session: str = ""  # names the conversation or session itself
    previous: str = ""  # the response that this request continues (`previous_response_id`)
    cache_key: str = ""  # a `prompt_cache_key` that is as specific as an id
    trace: str = ""  # a trace: may cover one request or many
    user: str = ""  # the end user, if no session is named
    tree: TreeIds | None = None  # None: the body says nothing about a tree of agents


NONE: Final = BodyIds()

# Next to the messages and inside `metadata`; ids of a single conversation before wider ones.
_SESSIONS: Final = dict.fromkeys((
    "conversation_id",  # LangSmith, and many chat front ends
    "thread_id",  # LangSmith, LangGraph
    "litellm_session_id",  # LiteLLM, Cline
    "session_id",  # OpenRouter, LiteLLM, OpenHands
    "sessionId",  # Qwen Code
    "langfuse_session_id",  # Langfuse
))  # fmt: skip
_META_SESSIONS: Final = dict.fromkeys(("agent-session-id", "openai/session"))  # MCP's `_meta`: Goose, ChatGPT
_TRACES: Final = dict.fromkeys(("litellm_trace_id", "trace_id"))
# The tree of agents, in `metadata`, `_meta` and `baggage`. The first three names are ours.
ROOT: Final = "breakloop.root"
PARENT: Final = "breakloop.parent"
DEPTH: Final = "breakloop.depth"
_PARENTS: Final = dict.fromkeys((PARENT, "parent_session_id", "parent_thread_id", "parent_conversation_id"))
_TREE: Final = frozenset((ROOT, DEPTH, *_PARENTS))
DEPTH_MAX: Final = 255
_CLAUDE_CODE: Final = "_session_"
# A cache key may also name a prompt, or everything a user does. Only a UUID is taken for the id of a conversation.
_UUID: Final = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}").fullmatch
_NOT_IDS: Final = frozenset(("null", "undefined", "none"))  # what programs write if they have no id
_TRACEPARENT: Final = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}").match
_VALUE_MAX_BYTES: Final = 64 * 1024  # a larger value is not searched for ids


_FIELDS: Final = BodyModel.__struct_fields__
_COUNT: Final = len(_FIELDS)
_NO_VALUES: Final = astuple(BodyModel())


def find_in(fields: BodyModel | dict[str, Any]) -> BodyIds:
    """Return the ids in the fields of any LLM request, typed or as plain values. May raise `RecursionError`."""
    if isinstance(fields, dict):
        return _find(fields)
    values = astuple(fields)[:_COUNT]  # a dialect's own fields come after these
    if values == _NO_VALUES:
        return NONE
    return _find({name: _value(raw) for name, raw in zip(_FIELDS, values, strict=True) if raw is not NULL})


def find_in_meta(meta: dict[str, Any]) -> BodyIds:
    """Return the ids in the `_meta` of an MCP request."""
    sent = meta.get("traceparent")
    trace = trace_of(sent) if isinstance(sent, str) else ""
    carried = meta.get("baggage")
    tree = _tree({**in_baggage(carried), **meta} if isinstance(carried, str) else meta)
    return BodyIds(_first(meta, _META_SESSIONS), trace=trace, tree=tree)


def in_baggage(sent: str) -> dict[str, str]:
    """Return the entries of a W3C `baggage`."""
    pairs = [entry.partition(";")[0].partition("=") for entry in sent.split(",")]
    return {name.strip(): unquote(value.strip()) for name, _, value in pairs}


def depth_of(value: object) -> int:
    """Return a depth that a client states, at most `DEPTH_MAX`; 0 if it is no depth."""
    if isinstance(value, str) and value.isascii() and value.isdecimal():
        value = int(value[:9])
    return min(value, DEPTH_MAX) if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def continued(fields: BodyModel | dict[str, Any]) -> str | None:
    """Return the id of the response that a request continues if the provider keeps the conversation; "" if it
    continues the newest response of a stored conversation; None if it keeps none."""
    if isinstance(fields, dict):
        previous, conversation = fields.get("previous_response_id"), fields.get("conversation")
    elif fields.previous_response_id is NULL and fields.conversation is NULL:  # the usual case
        return None
    else:
        previous, conversation = _value(fields.previous_response_id), _value(fields.conversation)
    named = _id(previous)
    return named or ("" if _conversation(conversation) else None)


def trace_of(traceparent: str) -> str:
    """Return the trace id of a W3C `traceparent`, or ""."""
    found = _TRACEPARENT(traceparent.strip())
    return found[1] if found else ""


def _find(fields: dict[str, Any]) -> BodyIds:
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
    user = "" if session else _id(get("safety_identifier")) or _id(get("user")) or _id(inner.get("user_id"))
    return BodyIds(session, _id(get("previous_response_id")), _cache_key(get), trace, user, _tree(inner))


def _tree(fields: dict[str, Any]) -> TreeIds | None:
    if _TREE.isdisjoint(fields):
        return None
    return TreeIds(_id(fields.get(ROOT)), _first(fields, _PARENTS), depth_of(fields.get(DEPTH)))


def _conversation(value: object) -> str:
    """OpenAI Responses accept the id of a conversation, or an object that holds it."""
    return _id(value.get("id") if isinstance(value, dict) else value)


def _claude_code(value: object) -> str:
    """Return the session in Claude Code's `user_id`: older versions end in `_session_<id>`, newer ones send JSON."""
    if isinstance(value, str):
        if value.startswith("user_"):
            return _id(value.rpartition(_CLAUDE_CODE)[2]) if _CLAUDE_CODE in value else ""
        if not value.startswith("{"):
            return ""
        value = load(value.encode("utf-8", "replace"))
    return _id(value.get("session_id")) if isinstance(value, dict) else ""


def _cache_key(get: Callable[[str], Any]) -> str:
    sent = get("prompt_cache_key")
    key = "" if sent is None else _id(sent)
    return key if key and _UUID(key) and key not in (_id(get("user")), _id(get("safety_identifier"))) else ""


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
