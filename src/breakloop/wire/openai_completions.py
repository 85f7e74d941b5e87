"""Reads OpenAI's older Completions requests into a `Chat` of one message: the prompt, and the suffix to fill up to."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from breakloop.model.call import Message
from breakloop.wire.content import count, prompts, text, truth
from breakloop.wire.conversation import Conversation, Parts

DIALECT: Final = "openai_completions"


class _Body(msgspec.Struct, gc=False):
    """What is read of a request; anything of another type sends the whole body to the tolerant step."""

    model: str
    prompt: str | list[str | int | list[int]]
    stream: bool | None = None
    max_tokens: int | None = None
    suffix: str | None = None


_decode_body = msgspec.json.Decoder(_Body).decode


def _typed(body: bytes) -> Parts:
    fields = _decode_body(body)
    said = _said(fields.prompt, fields.suffix)
    return Parts(fields.model, [said], fields.stream or False, fields.max_tokens)


def _tolerant(fields: dict[str, Any]) -> Parts | None:
    get = fields.get
    model, prompt = get("model"), get("prompt")
    if model is None or prompt is None:
        return None
    return Parts(text(model), [_said(prompt, get("suffix"))], truth(get("stream")), count(get("max_tokens")))


def _said(prompt: object, suffix: object) -> str:
    return f"{prompts(prompt)}\n<suffix> {text(suffix)}" if suffix else prompts(prompt)


def _flatten(said: str) -> Message:
    return Message("prompt", said)


_conversation = Conversation(DIALECT, _typed, _tolerant, _flatten)
read: Final = _conversation.read
opening: Final = _conversation.opening
