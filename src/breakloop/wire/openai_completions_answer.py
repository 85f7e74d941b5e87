"""Reads answers of OpenAI's older Completions, streamed or whole, and of Embeddings, of which only the count matters.

Counting, and the shapes of errors, are those of `openai_chat_answer`.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from breakloop.model.answer import Usage
from breakloop.wire.content import as_list, text
from breakloop.wire.gathered import Gathered, number, word
from breakloop.wire.openai_chat_answer import failed_of, openai_tokens


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


class CompletionsAnswer(Gathered):
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
