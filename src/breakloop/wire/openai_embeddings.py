"""Reads OpenAI Embeddings requests into a `Chat` of one message. Nothing is streamed or generated, so no limits."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from breakloop.model.call import Message
from breakloop.wire.content import prompts, text
from breakloop.wire.conversation import Body, Conversation, Parts

DIALECT: Final = "openai_embeddings"


class EmbeddingsBody(Body, gc=False, kw_only=True):
    """What is read of a request."""

    model: str
    input: str | list[str | int | list[int]]


_decode_body = msgspec.json.Decoder(EmbeddingsBody).decode


def _typed(body: bytes) -> Parts:
    fields = _decode_body(body)
    return Parts(fields.model, [prompts(fields.input)], fields=fields)


def _tolerant(fields: dict[str, Any]) -> Parts | None:
    model, said = fields.get("model"), fields.get("input")
    return None if model is None or said is None else Parts(text(model), [prompts(said)], fields=fields)


def _flatten(said: str) -> Message:
    return Message("input", said)


_conversation = Conversation(DIALECT, _typed, _tolerant, _flatten)
take: Final = _conversation.take
read: Final = _conversation.read
opening: Final = _conversation.opening
