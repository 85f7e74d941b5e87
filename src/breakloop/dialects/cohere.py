"""Cohere's `/v2/chat`. Messages and tools are those of OpenAI Chat Completions. What the model plans before its calls
is in `tool_plan`, and results may be documents. Events of a stream have a type, and their content in `delta.message`.
"""

from __future__ import annotations

from typing import Any, Final

from breakloop.dialects import denial
from breakloop.dialects.answers import (
    AnswerBuilder,
    StreamEnd,
    StreamListener,
    event_fields,
    named_event,
    number,
    tokens,
    word,
)
from breakloop.dialects.base import BodyFields, Dialect, item_at
from breakloop.dialects.body_changes import JsonBody
from breakloop.dialects.content import ITEMS_MAX, as_list, content, text
from breakloop.dialects.openai_chat import OpenAIChat
from breakloop.dialects.steps import StepBuilder
from breakloop.model.call import CHARS_A_TOKEN, Answer, Call, Message, Usage
from breakloop.model.verdict import Verdict

_FAILED: Final = "ERROR"  # a finish reason
_ASSISTANT: Final = "assistant"
_PLAN: Final = 1 << 20  # the number of its text: blocks of the content are numbered from 0
_OPEN: Final = {"content-start": "content-end", "content-delta": "content-end"}
_CALL_OPEN: Final = {"tool-call-start": "tool-call-end", "tool-call-delta": "tool-call-end"}


class CohereChat(OpenAIChat):
    name = "cohere_chat"
    provider = "cohere"
    path_endings = ("/v2/chat",)
    answer_field = ""
    error_event_head = b""

    def read_fields_leniently(self, fields: dict[str, Any]) -> BodyFields | None:
        if fields.get("model") is None or fields.get("messages") is None:  # other APIs may have such a path
            return None
        return super().read_fields_leniently(fields)

    def newest_messages(self, parts: BodyFields, tail: int) -> list[Message]:
        _read_documents(parts.items)
        return super().newest_messages(parts, tail)

    read_step = Dialect.read_step  # answers have a plan, too

    def collect_step(self, parts: BodyFields) -> StepBuilder:
        _read_documents(parts.items)
        found = super().collect_step(parts)
        if found.answered:
            answer = next((item for item in reversed(parts.items) if _role(item) == _ASSISTANT), None)
            plan = None if answer is None else answer.get("tool_plan")
            found.texts += [text(plan)] if plan else []
        return found

    def switch_off_tools(self, json: JsonBody) -> bytes:
        return json.with_field("tool_choice", "NONE") if json.has_items("tools") else json.body

    def request_usage(self, body: bytes) -> bytes | None:  # noqa: ARG002 - the counts always come
        return None

    def read_answer(self, body: bytes, status: int, *, complete: bool) -> Answer | None:  # noqa: ARG002
        return None  # not as `OpenAIChat` does

    def answer_builder(self, listener: StreamListener | None = None) -> AnswerBuilder:
        return CohereAnswer(listener)

    def owns_usage(self, fields: dict[str, Any]) -> bool:
        return "billed_units" in fields

    def end_stream(self, end: StreamEnd) -> bytes:
        last = event_fields(end.state.last)
        kind = word(last.get("type"))
        if not last or kind == "message-end":
            return b""
        events = b""
        closing = _OPEN.get(kind) or _CALL_OPEN.get(kind)
        if closing:
            events = named_event({"type": closing, "index": number(last.get("index"))})
        made = end.chars // CHARS_A_TOKEN if end.usage is None else end.usage.output_tokens
        counts = {"input_tokens": 0 if end.usage is None else end.usage.input_tokens, "output_tokens": made}
        delta = {"finish_reason": "MAX_TOKENS", "usage": {"billed_units": counts, "tokens": counts}}
        return events + named_event({"type": "message-end", "delta": delta})

    def error_fields(self, verdict: Verdict, call: Call) -> dict[str, object]:
        return {"id": call.request_id, "message": denial.message(verdict)}


def _role(item: object) -> object:
    return item.get("role") if isinstance(item, dict) else None


def _read_documents(items: list[Any]) -> None:
    """Replace documents in the last results by their text."""
    for at in range(len(items) - 1, max(-1, len(items) - ITEMS_MAX - 1), -1):
        item = item_at(items, at)
        if _role(item) != "tool":
            break
        said = item.get("content")
        if isinstance(said, list):
            item["content"] = [_as_text(block) for block in said]


def _as_text(block: object) -> object:
    document = block.get("document") if isinstance(block, dict) else None
    if not isinstance(document, dict):
        return block
    return {"type": "text", "text": text(document.get("data"))}


class CohereAnswer(AnswerBuilder):
    """Texts are numbered like the blocks of the content, calls by their index."""

    __slots__ = ()

    SINGLE = True

    def read_event(self, payload: bytes) -> None:
        self.read_leniently(payload)

    def read_fields(self, fields: dict[str, Any]) -> None:
        get = fields.get
        kind, delta = get("type"), get("delta")
        if isinstance(kind, str) and "-" in kind:
            self._read_delta(kind, number(get("index")), delta if isinstance(delta, dict) else {})
        if not isinstance(delta, dict):
            self._read_whole(fields)
        self.response_id = word(get("id")) or self.response_id

    def _read_whole(self, fields: dict[str, Any]) -> None:
        get = fields.get
        message = get("message")
        if isinstance(message, str):
            self.set_error("error")
            return
        self._read_end(fields)
        if not isinstance(message, dict):
            return
        if message.get("tool_plan"):
            self.add_text(_PLAN, text(message["tool_plan"]))
        for index, block in enumerate(as_list(message.get("content"))):
            self._read_block(index, block)
        for index, made in enumerate(as_list(message.get("tool_calls"))):
            self._read_call(index, made)

    def _read_delta(self, kind: str, index: int, delta: dict[str, Any]) -> None:
        message = delta.get("message")
        said = message if isinstance(message, dict) else {}
        if kind in _OPEN:
            self._read_block(index, said.get("content"))
        elif kind == "tool-plan-delta":
            self.add_text(_PLAN, text(said.get("tool_plan")))
        elif kind == "tool-call-start":
            self._read_call(index, said.get("tool_calls"))
        elif kind == "tool-call-delta":
            made = said.get("tool_calls")
            function = made.get("function") if isinstance(made, dict) else None
            if isinstance(function, dict):
                self.continue_call(index, text(function.get("arguments")))
        elif kind == "message-end":
            self._read_end(delta)
            self.ended = True

    def _read_end(self, fields: dict[str, Any]) -> None:
        reason, usage = fields.get("finish_reason"), fields.get("usage")
        self.finish = word(reason) or self.finish
        if self.finish == _FAILED or fields.get("error"):
            self.set_error("error")
        if isinstance(usage, dict):
            self.usage = usage

    def _read_block(self, index: int, block: object) -> None:
        if not isinstance(block, dict):
            return
        if isinstance(block.get("thinking"), str):
            self.add_reasoning(index, block["thinking"])
        elif block.get("text"):
            self.add_text(index, content(block["text"]))

    def _read_call(self, index: int, made: object) -> None:
        function = made.get("function") if isinstance(made, dict) else None
        if isinstance(made, dict) and isinstance(function, dict):
            call = self.start_call(index, word(function.get("name")), word(made.get("id")))
            given = function.get("arguments")
            if isinstance(given, str):
                if given:
                    self.add_arguments(call, given)
            else:
                self.set_arguments(call, given)

    def read_usage(self, fields: dict[str, Any]) -> Usage | None:
        """What is billed is less than what was read: the template of the prompt is free."""
        billed, counted = fields.get("billed_units"), fields.get("tokens")
        units = billed if isinstance(billed, dict) and "input_tokens" in billed else counted
        if not isinstance(units, dict):
            return None
        return Usage(tokens(units, "input_tokens"), tokens(units, "output_tokens"), tokens(fields, "cached_tokens"))
