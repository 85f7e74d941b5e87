"""Reads Anthropic Messages requests into a `Chat`: calls are `tool_use` blocks, results are text of the user's turn.

A result that is an error says so in its text. Thinking, ids and cache marks never enter.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from breakloop.model.call import Message, ToolCall
from breakloop.wire.content import ITEMS_MAX, arguments, as_list, content, count, is_silent, more, part, text, truth
from breakloop.wire.conversation import NULL, Body, Conversation, Named, Parts

DIALECT: Final = "anthropic_messages"
ERROR: Final = "<error>"
CALLS: Final = frozenset(("tool_use", "server_tool_use", "mcp_tool_use"))


class MessagesBody(Body, gc=False, kw_only=True):
    """What is read of a request."""

    messages: list[msgspec.Raw]
    model: str
    tools: list[Named] | None = None
    stream: bool | None = None
    max_tokens: int | None = None
    system: msgspec.Raw = NULL


_decode_body = msgspec.json.Decoder(MessagesBody).decode


def _typed(body: bytes) -> Parts:
    fields = _decode_body(body)
    return Parts(fields.model, fields.messages, fields.stream or False, fields.max_tokens, fields.system, fields)


def _tolerant(fields: dict[str, Any]) -> Parts | None:
    get = fields.get
    model, messages = get("model"), get("messages")
    if model is None or messages is None:  # many an API has a path that ends in /messages
        return None
    items, stream, limit = as_list(messages), truth(get("stream")), count(get("max_tokens"))
    return Parts(text(model), items, stream, limit, get("system"), fields)


def _flatten(item: Any) -> Message:
    if not isinstance(item, dict):
        return Message("", text(item))
    said = item.get("content")
    role = text(item.get("role"))
    return _blocks(role, said) if isinstance(said, list) else Message(role, text(said))


def _blocks(role: str, blocks: list[Any]) -> Message:
    texts: list[str] = []
    calls: list[ToolCall] = []
    for block in blocks[:ITEMS_MAX]:
        kind = block.get("type") if isinstance(block, dict) else None
        if not isinstance(kind, str):
            texts.append(part(block))
        elif kind in CALLS:
            calls.append(ToolCall(text(block.get("name")), arguments(block.get("input"))))
        elif kind.endswith("tool_result"):
            texts.append(_result(block))
        elif not is_silent(block):
            texts.append(part(block))
    if len(blocks) > ITEMS_MAX:
        texts.append(more(blocks))
    return Message(role, "\n".join(texts), tuple(calls))


def _result(block: dict[str, Any]) -> str:
    said = content(block.get("content"))
    if truth(block.get("is_error")):
        return f"{ERROR} {said}"
    return said


_conversation = Conversation(DIALECT, _typed, _tolerant, _flatten)
take: Final = _conversation.take
read: Final = _conversation.read
opening: Final = _conversation.opening
