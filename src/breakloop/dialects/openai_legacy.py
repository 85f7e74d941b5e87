"""Reads OpenAI's older Completions requests into a `Chat` of one message: the prompt, and the suffix to fill up to.

Reads answers of OpenAI's older Completions, streamed or whole, and of Embeddings, of which only the count matters.

Counting, and the shapes of errors, are those of `openai_chat_answer`.

Reads OpenAI Embeddings requests into a `Chat` of one message. Nothing is streamed or generated, so no limits.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from breakloop.dialects.answers import AnswerBuilder, number, word
from breakloop.dialects.base import (
    BodyFields,
    BodyModel,
    ConversationReader,
    as_list,
    at_least_one,
    count,
    prompts,
    text,
    truth,
)
from breakloop.dialects.openai_chat import failed_of, openai_tokens
from breakloop.model.call import Message, Usage

COMPLETIONS: Final = "openai_completions"


class CompletionsBody(BodyModel, gc=False, kw_only=True):
    """What is read of a request."""

    model: str
    prompt: str | list[str | int | list[int]]
    stream: bool | None = None
    max_tokens: int | None = None
    suffix: str | None = None
    n: int | None = None
    best_of: int | None = None


_completions_decode_body = msgspec.json.Decoder(CompletionsBody).decode


def _completions_typed(body: bytes) -> BodyFields:
    fields = _completions_decode_body(body)
    said = _said(fields.prompt, fields.suffix)
    answers = _answers(fields.prompt, fields.n, fields.best_of)
    return BodyFields(fields.model, [said], fields.stream or False, fields.max_tokens, fields=fields, answers=answers)


def _completions_leniently(fields: dict[str, Any]) -> BodyFields | None:
    get = fields.get
    model, prompt = get("model"), get("prompt")
    if model is None or prompt is None:
        return None
    said, stream, limit = _said(prompt, get("suffix")), truth(get("stream")), count(get("max_tokens"))
    return BodyFields(
        text(model), [said], stream, limit, fields=fields, answers=_answers(prompt, get("n"), get("best_of"))
    )


def _answers(prompt: object, n: object, best_of: object) -> int:
    """How many are written: of each prompt in a batch as many as are asked for, or as the best is chosen from."""
    each = max(at_least_one(n), at_least_one(best_of))
    if not isinstance(prompt, list) or not prompt or isinstance(prompt[0], int):  # a text, or its tokens
        return each
    return each * len(prompt)


def _said(prompt: object, suffix: object) -> str:
    return f"{prompts(prompt)}\n<suffix> {text(suffix)}" if suffix else prompts(prompt)


def _completions_flatten(said: str) -> Message:
    return Message("prompt", said)


_completions_conversation = ConversationReader(
    COMPLETIONS, _completions_typed, _completions_leniently, _completions_flatten
)
take_completions: Final = _completions_conversation.take
read_completions: Final = _completions_conversation.read
opening_completions: Final = _completions_conversation.opening


class _Choice(msgspec.Struct, gc=False):
    text: str | None = None
    index: int = 0
    finish_reason: str | None = None


class _Chunk(msgspec.Struct, gc=False):
    """What is read of an ordinary chunk; any other is read tolerantly."""

    choices: list[_Choice]
    id: str | None = None
    model: str | None = None
    usage: dict[str, Any] | None = None
    error: Any = None


class _Vectors(msgspec.Struct, gc=False):
    """Of an answer with vectors, which make megabytes, all that is not a vector."""

    model: str | None = None
    usage: dict[str, Any] | None = None
    error: Any = None


_decode_chunk: Final = msgspec.json.Decoder(_Chunk).decode
_decode_vectors: Final = msgspec.json.Decoder(_Vectors).decode


class CompletionsAnswer(AnswerBuilder):
    """One answer. Texts are numbered as the choices are."""

    __slots__ = ()

    def event(self, payload: bytes) -> None:
        """Read one chunk."""
        try:
            chunk = _decode_chunk(payload)
        except ValueError:
            self.tolerantly(payload)
            return
        if chunk.error is not None:
            self.tolerantly(payload)
            return
        for choice in chunk.choices:
            if choice.text:
                self.say(choice.index, choice.text)
            if choice.finish_reason:
                self._finished(choice.index, choice.finish_reason)
        if chunk.usage is not None:
            self.usage = chunk.usage
        if not self.model:
            self.model, self.response_id = word(chunk.model), word(chunk.id)

    def whole(self, fields: dict[str, Any]) -> None:
        """Read a whole answer or an odd chunk."""
        get = fields.get
        failed_of(self, fields)
        self.model, self.response_id = word(get("model")) or self.model, word(get("id")) or self.response_id
        usage = get("usage")
        if isinstance(usage, dict):
            self.usage = usage
        for place, choice in enumerate(as_list(get("choices"))):
            if isinstance(choice, dict):
                index = number(choice.get("index"), place)
                self.say(index, text(choice.get("text")))
                self._finished(index, choice.get("finish_reason"))

    def tokens(self, fields: dict[str, Any]) -> Usage | None:
        """Read OpenAI's count."""
        return openai_tokens(fields)

    def _finished(self, index: int, reason: object) -> None:
        if reason and (index == 0 or not self.finish):
            self.finish = word(reason)


class EmbeddingsAnswer(CompletionsAnswer):
    """One answer: nothing is said in it."""

    __slots__ = ()

    def body(self, body: bytes) -> bool:
        """Read the count and pass over the vectors."""
        try:
            found = _decode_vectors(body)
        except ValueError:
            return super().body(body)
        self.whole({"model": found.model, "usage": found.usage, "error": found.error})
        return True


EMBEDDINGS: Final = "openai_embeddings"


class EmbeddingsBody(BodyModel, gc=False, kw_only=True):
    """What is read of a request."""

    model: str
    input: str | list[str | int | list[int]]


_embeddings_decode_body = msgspec.json.Decoder(EmbeddingsBody).decode


def _embeddings_typed(body: bytes) -> BodyFields:
    fields = _embeddings_decode_body(body)
    return BodyFields(fields.model, [prompts(fields.input)], fields=fields)


def _embeddings_leniently(fields: dict[str, Any]) -> BodyFields | None:
    model, said = fields.get("model"), fields.get("input")
    return None if model is None or said is None else BodyFields(text(model), [prompts(said)], fields=fields)


def _embeddings_flatten(said: str) -> Message:
    return Message("input", said)


_embeddings_conversation = ConversationReader(EMBEDDINGS, _embeddings_typed, _embeddings_leniently, _embeddings_flatten)
take_embeddings: Final = _embeddings_conversation.take
read_embeddings: Final = _embeddings_conversation.read
opening_embeddings: Final = _embeddings_conversation.opening
