"""OpenAI's older Completions, whose conversation is one prompt, and Embeddings, of whose answers only counts matter.

Token counts and errors are those of Chat Completions.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

import msgspec

from breakloop.dialects.answers import AnswerBuilder, StreamEnd, StreamListener, number, word
from breakloop.dialects.base import BodyFields, Dialect, ParsedBody
from breakloop.dialects.body_changes import JsonBody, request_usage
from breakloop.dialects.content import as_list, at_least_one, count, prompt_text, text, truth
from breakloop.dialects.openai_chat import OpenAI, end_openai_stream, openai_usage, read_error
from breakloop.dialects.prompt import PromptTexts
from breakloop.dialects.session_ids import BodyModel
from breakloop.dialects.steps import without_additions
from breakloop.model.call import EMBEDDINGS_DIALECT, Message, Step, Usage


class CompletionsBody(BodyModel, gc=False, kw_only=True):
    """The fields of a completion request that are read."""

    model: str
    prompt: str | list[str | int | list[int]]
    stream: bool | None = None
    max_tokens: int | None = None
    suffix: str | None = None
    n: int | None = None
    best_of: int | None = None


class EmbeddingsBody(BodyModel, gc=False, kw_only=True):
    """The fields of an embedding request that are read."""

    model: str
    input: str | list[str | int | list[int]]


_decode_completions: Final = msgspec.json.Decoder(CompletionsBody).decode
_decode_embeddings: Final = msgspec.json.Decoder(EmbeddingsBody).decode


class PromptDialect(Dialect):
    """What APIs have in common whose conversation is one prompt."""

    operation = "text_completion"
    prompt_fields: ClassVar[tuple[str, ...]] = ("prompt", "suffix")

    def flatten(self, item: str) -> Message:
        return Message("prompt", item)

    def newest_step(self, parsed: ParsedBody) -> Step | None:
        """A prompt has no history: the step holds the prompt and nothing that was done."""
        chat = parsed.chat(1)
        if chat is None:
            return None
        users = tuple([without_additions(message.text) for message in chat.tail if message.text])
        return Step("", (), (), (), users, (), chat.message_count, len(parsed.body))

    def add_prompt_texts(self, texts: PromptTexts, parsed: ParsedBody) -> None:
        _add_plain(texts, parsed, *self.prompt_fields)

    def insert_note(self, json: JsonBody, note: str) -> bytes | None:
        prompt = json.fields["prompt"]
        if json.first_char(prompt) != '"' or json.value(json.fields, "suffix"):  # a batch, token ids, or a gap to fill
            return None
        return json.with_text(prompt, note)


class OpenAICompletions(PromptDialect, OpenAI):
    name = "openai_completions"
    path_endings = ("/completions", "/completions/")
    ends_streams = True

    def read_fields(self, body: bytes) -> BodyFields:
        fields = _decode_completions(body)
        prompt = prompt_and_suffix(fields.prompt, fields.suffix)
        answers = _answers(fields.prompt, fields.n, fields.best_of)
        stream = fields.stream or False
        return BodyFields(fields.model, [prompt], stream, fields.max_tokens, fields=fields, answers=answers)

    def read_fields_leniently(self, fields: dict[str, Any]) -> BodyFields | None:
        get = fields.get
        model, prompt = get("model"), get("prompt")
        if model is None or prompt is None:
            return None
        return BodyFields(
            text(model),
            [prompt_and_suffix(prompt, get("suffix"))],
            truth(get("stream")),
            count(get("max_tokens")),
            fields=fields,
            answers=_answers(prompt, get("n"), get("best_of")),
        )

    def request_usage(self, body: bytes) -> bytes | None:
        return request_usage(body)

    def answer_builder(self, listener: StreamListener | None = None) -> AnswerBuilder:
        return CompletionsAnswer(listener)

    def end_stream(self, end: StreamEnd) -> bytes:
        return end_openai_stream(end, {"text": "", "logprobs": None, "finish_reason": "length"})


class OpenAIEmbeddings(OpenAI):
    name = EMBEDDINGS_DIALECT
    operation = "embeddings"
    path_endings = ("/embeddings", "/embeddings/")

    def read_fields(self, body: bytes) -> BodyFields:
        fields = _decode_embeddings(body)
        return BodyFields(fields.model, [prompt_text(fields.input)], fields=fields)

    def read_fields_leniently(self, fields: dict[str, Any]) -> BodyFields | None:
        model, given = fields.get("model"), fields.get("input")
        return None if model is None or given is None else BodyFields(text(model), [prompt_text(given)], fields=fields)

    def flatten(self, item: str) -> Message:
        return Message("input", item)

    def add_prompt_texts(self, texts: PromptTexts, parsed: ParsedBody) -> None:
        _add_plain(texts, parsed, "input")

    def answer_builder(self, listener: StreamListener | None = None) -> AnswerBuilder:
        return EmbeddingsAnswer(listener)


def _answers(prompt: object, n: object, best_of: object) -> int:
    """Return how many answers are generated: for each prompt of a batch, `n` or `best_of`."""
    each = max(at_least_one(n), at_least_one(best_of))
    if not isinstance(prompt, list) or not prompt or isinstance(prompt[0], int):  # one text, or its token ids
        return each
    return each * len(prompt)


def prompt_and_suffix(prompt: object, suffix: object) -> str:
    return f"{prompt_text(prompt)}\n<suffix> {text(suffix)}" if suffix else prompt_text(prompt)


def _add_plain(texts: PromptTexts, parsed: ParsedBody, *names: str) -> None:
    fields = parsed.parts.fields
    for name in names:
        texts.add_plain(fields.get(name) if isinstance(fields, dict) else getattr(fields, name))


class _Choice(msgspec.Struct, gc=False):
    text: str | None = None
    index: int = 0
    finish_reason: str | None = None


class _Chunk(msgspec.Struct, gc=False):
    """An ordinary chunk; any other is read leniently."""

    choices: list[_Choice]
    id: str | None = None
    model: str | None = None
    usage: dict[str, Any] | None = None
    error: Any = None


class _Vectors(msgspec.Struct, gc=False):
    """An answer with embeddings, without the vectors, which take megabytes."""

    model: str | None = None
    usage: dict[str, Any] | None = None
    error: Any = None


_decode_chunk: Final = msgspec.json.Decoder(_Chunk).decode
_decode_vectors: Final = msgspec.json.Decoder(_Vectors).decode


class CompletionsAnswer(AnswerBuilder):
    """Texts are numbered like the choices."""

    __slots__ = ()

    def read_event(self, payload: bytes) -> None:
        try:
            chunk = _decode_chunk(payload)
        except ValueError:
            self.read_leniently(payload)
            return
        if chunk.error is not None:
            self.read_leniently(payload)
            return
        for choice in chunk.choices:
            if choice.text:
                self.add_text(choice.index, choice.text)
            if choice.finish_reason:
                self.finish_choice(choice.index, choice.finish_reason)
        if chunk.usage is not None:
            self.usage = chunk.usage
        if not self.model:
            self.model, self.response_id = word(chunk.model), word(chunk.id)

    def read_fields(self, fields: dict[str, Any]) -> None:
        get = fields.get
        read_error(self, fields)
        self.model, self.response_id = word(get("model")) or self.model, word(get("id")) or self.response_id
        usage = get("usage")
        if isinstance(usage, dict):
            self.usage = usage
        for position, choice in enumerate(as_list(get("choices"))):
            if isinstance(choice, dict):
                index = number(choice.get("index"), position)
                self.add_text(index, text(choice.get("text")))
                self.finish_choice(index, choice.get("finish_reason"))

    def read_usage(self, fields: dict[str, Any]) -> Usage | None:
        return openai_usage(fields)


class EmbeddingsAnswer(CompletionsAnswer):
    __slots__ = ()

    def read_body(self, body: bytes) -> bool:
        try:
            found = _decode_vectors(body)
        except ValueError:
            return super().read_body(body)
        self.read_fields({"model": found.model, "usage": found.usage, "error": found.error})
        return True
