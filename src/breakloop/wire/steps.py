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
    conversation,
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
from breakloop.wire.dialects import Taken
from breakloop.wire.step_parts import own


def of(taken: Taken) -> Step | None:
    """Return the newest step of a request; None where its dialect has none, or nothing can be read. Never raises."""
    if isinstance(taken, mcp.Taken):
        return mcp_steps.of(taken)
    known = _READERS.get(taken.dialect)
    return None if known is None else known[1](taken)


def read(dialect: str, body: bytes) -> Step | None:
    """Read the newest step of a body that is written in `dialect`, or return None. Never raises."""
    if dialect == mcp.DIALECT:
        return mcp_steps.read(body)
    known = _READERS.get(dialect)
    taken = None if known is None else known[0](body)
    return None if taken is None else of(taken)


def _completions(taken: conversation.Taken) -> Step | None:
    """A prompt without a conversation: what is asked, and nothing that was done."""
    chat = taken.chat(1)
    if chat is None:
        return None
    asked = tuple([own(message.text) for message in chat.tail if message.text])
    return Step("", (), (), (), asked, (), chat.message_count, len(taken.body))


_Take = Callable[[bytes], conversation.Taken | None]
_Of = Callable[[conversation.Taken], Step | None]
_READERS: Final[dict[str, tuple[_Take, _Of]]] = {
    openai_chat.DIALECT: (openai_chat.take, openai_chat_steps.of),
    openai_responses.DIALECT: (openai_responses.take, openai_responses_steps.of),
    openai_completions.DIALECT: (openai_completions.take, _completions),
    anthropic_messages.DIALECT: (anthropic_messages.take, anthropic_steps.of),
    gemini.DIALECT: (gemini.take, gemini_steps.of),
}
