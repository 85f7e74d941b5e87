"""Reads MCP `tools/call` requests (JSON-RPC 2.0) into a `Chat` of one message that holds the calls.

A batch is one request, so all its calls stand in that message. `id`, `_meta`, task and state tokens are not identity;
every other method is plain HTTP.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from breakloop.model.call import Chat, Message, ToolCall
from breakloop.wire.content import ITEMS_MAX, arguments, as_list, clean_message, decode, load, more, text
from breakloop.wire.conversation import NULL

DIALECT: Final = "mcp"
TOOLS_CALL: Final = "tools/call"
_MARK: Final = b"jsonrpc"
_MARK_WITHIN_BYTES: Final = 256


class _Request(msgspec.Struct, gc=False):
    jsonrpc: str
    method: str = ""  # an answer of the client has none
    params: msgspec.Raw = NULL


_decode_body = msgspec.json.Decoder(_Request | list[_Request]).decode


def is_likely(body: bytes) -> bool:
    """Say whether a body looks like JSON-RPC, without decoding it: some clients write the mark first, others last."""
    found = body.find(_MARK, 0, _MARK_WITHIN_BYTES)
    return found >= 0 or body.find(_MARK, -_MARK_WITHIN_BYTES) >= 0


def read(body: bytes, tail: int) -> Chat | None:
    """Read a request body, or return None when no tool is called in it."""
    try:
        try:
            found = _decode_body(body)
            requests = found if isinstance(found, list) else [found]
            asked = [decode(request.params) for request in requests if request.method == TOOLS_CALL]
            return _chat(asked, tail) if asked else None
        except ValueError:
            return _tolerant(body, tail)
    except RecursionError:
        return None


def opening(_body: bytes) -> str:
    """Return "": a tool call does not say which conversation it belongs to."""
    return ""


def _tolerant(body: bytes, tail: int) -> Chat | None:
    requests = [item for item in as_list(load(body)) if isinstance(item, dict) and "jsonrpc" in item]
    asked = [request.get("params") for request in requests if request.get("method") == TOOLS_CALL]
    if not asked:
        return None
    chat = _chat(asked, tail)
    return chat._replace(tail=tuple([clean_message(message) for message in chat.tail]), fallback="tolerant")


def _chat(asked: list[Any], tail: int) -> Chat:
    if tail <= 0:
        return Chat(DIALECT, "", (), 1)
    calls = [_call(params) for params in asked[:ITEMS_MAX]]
    if len(asked) > ITEMS_MAX:
        calls.append(ToolCall("", more(asked)))
    # What the user was asked for and answered: the same call again with it is another request.
    texts = [text(params.get("inputResponses")) for params in asked[:ITEMS_MAX] if isinstance(params, dict)]
    return Chat(DIALECT, "", (Message(TOOLS_CALL, "\n".join(filter(None, texts)), tuple(calls)),), 1)


def _call(params: object) -> ToolCall:
    if not isinstance(params, dict):
        return ToolCall("", arguments(params))
    return ToolCall(text(params.get("name")), arguments(params.get("arguments")))
