"""Reads OpenAI's older Completions requests into a `Chat` of one message: the prompt, and the suffix to fill up to."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from breakloop.model.call import Message
from breakloop.wire.content import at_least_one, count, prompts, text, truth
from breakloop.wire.conversation import Body, Conversation, Parts

DIALECT: Final = "openai_completions"


class CompletionsBody(Body, gc=False, kw_only=True):
    """What is read of a request."""

    model: str
    prompt: str | list[str | int | list[int]]
    stream: bool | None = None
    max_tokens: int | None = None
    suffix: str | None = None
    n: int | None = None
    best_of: int | None = None


_decode_body = msgspec.json.Decoder(CompletionsBody).decode


def _typed(body: bytes) -> Parts:
    fields = _decode_body(body)
    said = _said(fields.prompt, fields.suffix)
    answers = _answers(fields.prompt, fields.n, fields.best_of)
    return Parts(fields.model, [said], fields.stream or False, fields.max_tokens, fields=fields, answers=answers)


def _tolerant(fields: dict[str, Any]) -> Parts | None:
    get = fields.get
    model, prompt = get("model"), get("prompt")
    if model is None or prompt is None:
        return None
    said, stream, limit = _said(prompt, get("suffix")), truth(get("stream")), count(get("max_tokens"))
    return Parts(text(model), [said], stream, limit, fields=fields, answers=_answers(prompt, get("n"), get("best_of")))


def _answers(prompt: object, n: object, best_of: object) -> int:
    """How many are written: of each prompt in a batch as many as are asked for, or as the best is chosen from."""
    each = max(at_least_one(n), at_least_one(best_of))
    if not isinstance(prompt, list) or not prompt or isinstance(prompt[0], int):  # a text, or its tokens
        return each
    return each * len(prompt)


def _said(prompt: object, suffix: object) -> str:
    return f"{prompts(prompt)}\n<suffix> {text(suffix)}" if suffix else prompts(prompt)


def _flatten(said: str) -> Message:
    return Message("prompt", said)


_conversation = Conversation(DIALECT, _typed, _tolerant, _flatten)
take: Final = _conversation.take
read: Final = _conversation.read
opening: Final = _conversation.opening
