"""Ollama's own API: `/api/chat` and `/api/generate`. Messages and tools are those of OpenAI Chat Completions, except
that arguments are objects and calls may have no ids. Answers are streamed unless a request says otherwise: one JSON
object a line, of which the last one has `done` and the token counts.
"""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec

from breakloop.dialects import denial
from breakloop.dialects.answers import AnswerBuilder, StreamEnd, StreamListener, event_fields, tokens, word
from breakloop.dialects.base import BodyFields, Dialect
from breakloop.dialects.body_changes import JsonBody
from breakloop.dialects.content import as_list, count, text
from breakloop.dialects.openai_chat import ChatTool, OpenAIChat
from breakloop.dialects.openai_legacy import PromptDialect, prompt_and_suffix
from breakloop.dialects.session_ids import BodyModel
from breakloop.model.call import CHARS_A_TOKEN, Answer, Call, Usage
from breakloop.model.verdict import Verdict

_ENVELOPE: Final = ("model", "created_at")


class _Options(msgspec.Struct, gc=False):
    num_predict: int | None = None


class OllamaChatBody(BodyModel, gc=False, kw_only=True):
    """The fields of a chat request that are read."""

    messages: list[msgspec.Raw]
    model: str
    tools: list[ChatTool] | None = None
    functions: None = None  # of OpenAI
    stream: bool | None = None
    options: _Options | None = None


class OllamaGenerateBody(BodyModel, gc=False, kw_only=True):
    """The fields of a request for one text that are read."""

    prompt: str
    model: str
    system: str | None = None
    suffix: str | None = None
    stream: bool | None = None
    options: _Options | None = None


_decode_chat: Final = msgspec.json.Decoder(OllamaChatBody).decode
_decode_generate: Final = msgspec.json.Decoder(OllamaGenerateBody).decode


def _limit(options: _Options | None) -> int | None:
    """A number below zero means that there is no limit."""
    limit = None if options is None else options.num_predict
    return None if limit is None or limit < 0 else limit


def _lenient_limit(options: object) -> int | None:
    limit = count(options.get("num_predict")) if isinstance(options, dict) else None
    return None if limit is None or limit < 0 else limit


class Ollama(Dialect):
    """What both endpoints share."""

    provider = "ollama"
    ends_streams = True

    def read_answer(self, body: bytes, status: int, *, complete: bool) -> Answer | None:  # noqa: ARG002
        return None  # not as `OpenAIChat` does

    def answer_builder(self, listener: StreamListener | None = None) -> AnswerBuilder:
        return OllamaAnswer(listener)

    def owns_usage(self, fields: dict[str, Any]) -> bool:
        return "eval_count" in fields

    def end_stream(self, end: StreamEnd) -> bytes:
        last = event_fields(end.state.last)
        if not last or last.get("done"):
            return b""
        envelope = {name: last[name] for name in _ENVELOPE if name in last}
        counted = end.chars // CHARS_A_TOKEN if end.usage is None else end.usage.output_tokens
        done = {"done": True, "done_reason": "length", "prompt_eval_count": 0, "eval_count": counted}
        return _line(envelope | self.empty_answer() | done)

    def empty_answer(self) -> dict[str, object]:
        """Return the field that the last line of a stream repeats, without content."""
        return {"message": {"role": "assistant", "content": ""}}

    def error_event(self, verdict: Verdict, call: Call) -> bytes:
        return self.denial(verdict, call)[1] + b"\n"

    def error_fields(self, verdict: Verdict, call: Call) -> dict[str, object]:  # noqa: ARG002 - as in the base class
        return {"error": denial.message(verdict)}


class OllamaChat(Ollama, OpenAIChat):
    name = "ollama_chat"
    path_endings = ("/api/chat",)
    answer_field = ""

    def read_fields(self, body: bytes) -> BodyFields:
        fields = _decode_chat(body)
        return BodyFields(
            fields.model, fields.messages, fields.stream is not False, _limit(fields.options), fields=fields
        )

    def read_fields_leniently(self, fields: dict[str, Any]) -> BodyFields | None:
        get = fields.get
        model, messages = get("model"), get("messages")
        if model is None or messages is None:  # many applications have such a path
            return None
        limit = _lenient_limit(get("options"))
        return BodyFields(text(model), as_list(messages), get("stream") is not False, limit, fields=fields)

    def insert_note(self, json: JsonBody, note: str) -> bytes | None:
        messages = json.fields["messages"]
        _, last = json.items_at(messages)
        message = json.fields_at(last)
        role = json.value(message, "role")
        if role == "user":
            return json.with_text(message["content"], note) if json.first_char(message["content"]) == '"' else None
        return json.with_item(messages, {"role": "user", "content": note}) if role in ("tool", "system") else None

    def switch_off_tools(self, json: JsonBody) -> bytes:
        # There is no choice of tools; histories with calls of undeclared tools are accepted.
        return json.with_field("tools", []) if json.has_items("tools") else json.body

    def request_usage(self, body: bytes) -> bytes | None:  # noqa: ARG002 - the counts always come
        return None


class OllamaGenerate(PromptDialect, Ollama):
    name = "ollama_generate"
    prompt_fields = ("prompt", "suffix", "system")
    path_endings = ("/api/generate",)

    def read_fields(self, body: bytes) -> BodyFields:
        fields = _decode_generate(body)
        prompt = prompt_and_suffix(fields.prompt, fields.suffix)
        limit = _limit(fields.options)
        return BodyFields(fields.model, [prompt], fields.stream is not False, limit, fields.system, fields)

    def read_fields_leniently(self, fields: dict[str, Any]) -> BodyFields | None:
        get = fields.get
        model, prompt = get("model"), get("prompt")
        if model is None or prompt is None:
            return None
        items, limit = [prompt_and_suffix(text(prompt), get("suffix"))], _lenient_limit(get("options"))
        return BodyFields(text(model), items, get("stream") is not False, limit, get("system"), fields)

    def empty_answer(self) -> dict[str, object]:
        return {"response": ""}


def _line(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode("ascii") + b"\n"


class OllamaAnswer(AnswerBuilder):
    """Lines of a stream and whole answers have the same shape. Each call comes whole, in one line."""

    __slots__ = ()

    SINGLE = True
    VALUES_ONCE = True

    def read_event(self, payload: bytes) -> None:
        self.read_leniently(payload)

    def read_fields(self, fields: dict[str, Any]) -> None:
        get = fields.get
        if get("error"):
            self.set_error(get("error"))
        self.model = word(get("model")) or self.model
        message = get("message")
        if isinstance(message, dict):
            self._add(message.get("content"), message.get("thinking"))
            for made in as_list(message.get("tool_calls")):
                function = made.get("function") if isinstance(made, dict) else None
                if isinstance(function, dict):
                    call = self.start_call(len(self._calls), word(function.get("name")), word(made.get("id")))
                    self.set_arguments(call, function.get("arguments"))
        else:
            self._add(get("response"), get("thinking"))
        if get("done"):
            self.ended = True
            self.usage = fields
            self.finish_choice(0, get("done_reason") or "stop")

    def _add(self, said: object, thought: object) -> None:
        if said:
            self.add_text(0, text(said))
        elif isinstance(thought, str) and thought:
            self.add_reasoning(0, thought)

    def read_usage(self, fields: dict[str, Any]) -> Usage | None:
        """A prompt that is wholly in the cache has no count."""
        if "eval_count" not in fields and "prompt_eval_count" not in fields:
            return None
        return Usage(tokens(fields, "prompt_eval_count"), tokens(fields, "eval_count"))
