"""Reads an MCP `tools/call` request as a step: calls whose results go to the client and are not seen here.

The JSON-RPC ids stand as the ids of the calls: they are no part of what was asked, yet tell a request that was sent
twice from one that asks the same again.
"""

from __future__ import annotations

from typing import Final

import msgspec

from breakloop.model.call import ToolCall
from breakloop.model.step import Step
from breakloop.wire import mcp
from breakloop.wire.content import ITEMS_MAX, as_list, clean, load, text
from breakloop.wire.step_parts import bounded, own


class _Request(msgspec.Struct, gc=False):
    method: str = ""
    id: str | int | float | None = None


_decode_ids: Final = msgspec.json.Decoder(_Request | list[_Request]).decode


def read(body: bytes) -> Step | None:
    """Read the calls of a request, or return None where no tool is called in it."""
    chat = mcp.read(body, 1)
    if chat is None or not chat.tail:
        return None
    asked = chat.tail[0]
    calls = tuple([ToolCall(call.name, bounded(call.arguments)) for call in asked.calls[:ITEMS_MAX]])
    users = (own(asked.text),) if asked.text else ()
    return Step("", calls, _ids(body), (), users, (), chat.message_count, len(body))


def _ids(body: bytes) -> tuple[str, ...]:
    try:
        found = _decode_ids(body)
        requests = found if isinstance(found, list) else [found]
        ids = [text(one.id) for one in requests[:ITEMS_MAX] if one.method == mcp.TOOLS_CALL]
    except (ValueError, RecursionError):
        asked = [one for one in as_list(load(body)) if isinstance(one, dict) and one.get("method") == mcp.TOOLS_CALL]
        ids = [clean(text(one.get("id"))) for one in asked[:ITEMS_MAX] if "jsonrpc" in one]
    return tuple(ids) if any(ids) else ()
