"""Reads an MCP `tools/call` request as a step: calls whose results go to the client and are not seen here.

What tells one step from the next are the JSON-RPC ids together with what is called: a client counts its requests, so
the same call with a new id is made again, and is a step; but every connection begins to count anew, so the same id with
another call is a step too. Only where both are the same has a request been sent twice. Neither ids nor `_meta` are part
of what was asked.
"""

from __future__ import annotations

import xxhash

from breakloop.model.call import ToolCall
from breakloop.model.step import Step
from breakloop.wire import mcp
from breakloop.wire.content import ITEMS_MAX, clean, text
from breakloop.wire.step_budget import bounded
from breakloop.wire.step_parts import own


def of(taken: mcp.Taken) -> Step | None:
    """Return the calls of a request as a step; None where they cannot be read."""
    chat = taken.chat(1)
    if chat is None:
        return None
    asked = chat.tail[0]
    calls = tuple([ToolCall(call.name, bounded(call.arguments)) for call in asked.calls[:ITEMS_MAX]])
    users = (own(asked.text),) if asked.text else ()
    try:
        ids = _ids(taken, asked.calls)
    except RecursionError:
        ids = ()
    return Step("", calls, ids, (), users, (), chat.message_count, len(taken.body))


def read(body: bytes) -> Step | None:
    """Read the calls of a request, or return None where no tool is called in it."""
    taken = mcp.take(body)
    return None if taken is None else of(taken)


def _ids(taken: mcp.Taken, calls: tuple[ToolCall, ...]) -> tuple[str, ...]:
    ids = [clean(text(request.id)) for request in taken.asked[:ITEMS_MAX]]
    if not any(ids):
        return ()
    return tuple([f"{sent}:{_digest(call)}" for sent, call in zip(ids, calls, strict=False)])


def _digest(call: ToolCall) -> str:
    return xxhash.xxh3_64_hexdigest(f"{call.name}\0{call.arguments}".encode("utf-8", "replace"))
