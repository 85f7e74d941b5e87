"""Reads the newest step of a request (SPEC LD-4): the last answer of the model and everything behind it, whichever
dialect it is written in. Work is in proportion to that tail; the conversation before it is passed over undecoded.

What a step means, and whether it was seen before, is left to `detect.steps`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from breakloop.model.step import Step
from breakloop.wire import (
    anthropic_messages,
    anthropic_steps,
    gemini,
    gemini_steps,
    mcp,
    mcp_steps,
    openai_chat,
    openai_chat_steps,
    openai_completions,
    openai_responses,
    openai_responses_steps,
)
from breakloop.wire.step_parts import own


def read(dialect: str, body: bytes) -> Step | None:
    """Read the newest step of a request body; None where the dialect has none, or nothing can be read. Never raises."""
    reader = _READERS.get(dialect)
    try:
        return None if reader is None else reader(body)
    except RecursionError:
        return None


def _completions(body: bytes) -> Step | None:
    """A prompt without a conversation: what is asked, and nothing that was done."""
    chat = openai_completions.read(body, 1)
    if chat is None:
        return None
    asked = tuple([own(message.text) for message in chat.tail if message.text])
    return Step("", (), (), (), asked, (), chat.message_count, len(body))


_READERS: Final[dict[str, Callable[[bytes], Step | None]]] = {
    openai_chat.DIALECT: openai_chat_steps.read,
    openai_responses.DIALECT: openai_responses_steps.read,
    openai_completions.DIALECT: _completions,
    anthropic_messages.DIALECT: anthropic_steps.read,
    gemini.DIALECT: gemini_steps.read,
    mcp.DIALECT: mcp_steps.read,
}
