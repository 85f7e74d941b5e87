"""Bodies of Anthropic's Messages interface in request logs: how to tell them from OpenAI's, where no path is recorded.
The record around a body is `request_log`'s business."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from breakloop.wire import anthropic_messages

DIALECT: Final = anthropic_messages.DIALECT
PATH: Final = "/v1/messages"
_BLOCKS: Final = frozenset(("tool_use", "tool_result", "thinking", "redacted_thinking", "server_tool_use"))
_LOOKED_AT: Final = 20  # messages from either end


def fits(body: Mapping[str, Any]) -> bool:
    """Tell whether this may be a request body at all."""
    return isinstance(body.get("messages"), list)


def is_theirs(body: Mapping[str, Any], response: object) -> bool:
    """Tell whether a request without a path went to Anthropic."""
    if isinstance(response, dict):
        if "choices" in response:
            return False
        if response.get("type") == "message":
            return True
    if isinstance(response, list) and response and isinstance(response[0], dict):
        return response[0].get("type") == "message_start"
    if "anthropic_version" in body or any(kind in _BLOCKS for kind in _kinds(body)):
        return True
    return "system" in body and "max_tokens" in body


def _kinds(body: Mapping[str, Any]) -> Iterator[object]:
    """The types of the blocks in the messages."""
    messages = body.get("messages")
    if not isinstance(messages, list):
        return
    for message in messages[:_LOOKED_AT] + messages[-_LOOKED_AT:]:
        content = message.get("content") if isinstance(message, dict) else None
        for block in content if isinstance(content, list) else ():
            if isinstance(block, dict):
                yield block.get("type")
