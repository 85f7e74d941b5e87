"""Mistral's conversations, which the provider keeps: a request has only new entries, and the id of the conversation is
in its path. (Mistral's chats, and those of its agents, are OpenAI Chat Completions.)
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from breakloop.dialects import denial
from breakloop.dialects.answers import (
    AnswerBuilder,
    StreamEnd,
    StreamListener,
    event_fields,
    named_event,
    number,
    word,
)
from breakloop.dialects.base import BodyFields, Dialect, ParsedBody, item_at
from breakloop.dialects.body_changes import JsonBody
from breakloop.dialects.content import ITEMS_MAX, arguments, as_list, content, count, decode, text, truth
from breakloop.dialects.openai_chat import ChatTool, openai_usage
from breakloop.dialects.session_ids import NULL, BodyModel, continued
from breakloop.dialects.steps import StepBuilder, result
from breakloop.model.call import Call, Message, ToolCall, Usage
from breakloop.model.verdict import Verdict

_PATH: Final = "/conversations"
_RESTART: Final = "/restart"
_USER: Final = "user"
_CALL: Final = "function.call"
_RESULT: Final = "function.result"
_RAN: Final = "tool.execution"  # by the provider
_ERROR_EVENT: Final = "conversation.response.error"
_ENDS: Final = frozenset(("conversation.response.done", _ERROR_EVENT))
_ERROR_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    429: "rate_limited",
    500: "internal_server_error",
}


class _Arguments(msgspec.Struct, gc=False):
    max_tokens: int | None = None


class ConversationBody(BodyModel, gc=False, kw_only=True):
    """The fields of a request that are read."""

    inputs: str | list[msgspec.Raw]
    model: str | None = None
    agent_id: str | None = None
    tools: list[ChatTool] | None = None
    stream: bool | None = None
    store: bool | None = None
    instructions: msgspec.Raw = NULL
    completion_args: _Arguments | None = None


_decode_body: Final = msgspec.json.Decoder(ConversationBody).decode


class MistralConversations(Dialect):
    name = "mistral_conversations"
    provider = "mistral"
    path_endings = (_PATH,)
    links_responses = True
    ends_streams = True

    def parse(self, body: bytes, path: str = "") -> ParsedBody | None:
        parsed = super().parse(body, path)
        known = path.removesuffix(_RESTART).rpartition(f"{_PATH}/")[2] if parsed is not None else ""
        if parsed is not None and known and known != path.removesuffix(_RESTART):
            fields = parsed.parts.fields  # as if the body named what it continues, as OpenAI's does
            if isinstance(fields, dict):
                fields["previous_response_id"] = known
            else:
                fields.previous_response_id = msgspec.Raw(msgspec.json.encode(known))
        return parsed

    def read_fields(self, body: bytes) -> BodyFields:
        fields = _decode_body(body)
        given, options = fields.inputs, fields.completion_args
        items = [{"role": _USER, "content": given}] if isinstance(given, str) else given
        limit, model = None if options is None else options.max_tokens, fields.model or fields.agent_id or ""
        return BodyFields(model, items, fields.stream or False, limit, fields.instructions, fields)

    def read_fields_leniently(self, fields: dict[str, Any]) -> BodyFields | None:
        get = fields.get
        given, options = get("inputs"), get("completion_args")
        if given is None:  # OpenAI has such paths, too
            return None
        items = [{"role": _USER, "content": given}] if isinstance(given, str) else as_list(given)
        limit = count(options.get("max_tokens")) if isinstance(options, dict) else None
        model = text(get("model") or get("agent_id"))
        return BodyFields(model, items, truth(get("stream")), limit, get("instructions"), fields)

    def flatten(self, item: Any) -> Message:
        if not isinstance(item, dict):
            return Message("", text(item))
        get = item.get
        kind = get("type")
        if kind in (_CALL, _RAN):
            return Message("assistant", "", (ToolCall(text(get("name")), arguments(get("arguments"))),))
        if kind == _RESULT:
            return Message("tool", content(get("result")))
        return Message(_role(item), content(get("content")))

    def newest_messages(self, parts: BodyFields, tail: int) -> list[Message]:
        """A call that the provider keeps is represented by its id: results that are all "done" may answer different
        calls, which is work and not a loop."""
        items = parts.items
        newest = [item_at(items, at) for at in range(max(0, len(items) - tail), len(items))]
        before = items[max(0, len(items) - tail - ITEMS_MAX) :]
        made = {text(one.get("tool_call_id")) for one in map(_decoded, before) if one.get("type") == _CALL}
        found: list[Message] = []
        for item in newest:
            message = self.flatten(item)
            call_id = text(item.get("tool_call_id")) if isinstance(item, dict) and item.get("type") == _RESULT else ""
            if call_id and call_id not in made:
                message = message._replace(text=f"{message.text}\n<call {call_id}>")
            found.append(message)
        return found

    def collect_step(self, parts: BodyFields) -> StepBuilder:
        found = StepBuilder()
        items, fields = parts.items, parts.fields
        found.continues = continued(fields)
        found.stored = (fields.get("store") if isinstance(fields, dict) else fields.store) is not False
        for at in range(len(items) - 1, max(-1, len(items) - ITEMS_MAX - 1), -1):
            item = item_at(items, at)
            if not isinstance(item, dict):
                found.users.append(("", item))
                continue
            kind = item.get("type")
            if kind in (_CALL, _RAN):
                found.answered = True
                found.add_call(item.get("name"), item.get("arguments"), item.get("tool_call_id"))
            elif _role(item) == "assistant":
                found.answered = True
                found.texts.append(content(item.get("content")))
            elif found.answered:
                break
            elif kind == _RESULT:
                found.results.append(result(item.get("result"), item.get("tool_call_id")))
            else:
                found.users.append((_role(item), item.get("content")))
        return found

    def tool_names(self, fields: ConversationBody | dict[str, Any]) -> list[str]:
        if isinstance(fields, dict):
            made = [tool.get("function") for tool in as_list(fields.get("tools"))[:ITEMS_MAX] if isinstance(tool, dict)]
            return [name for one in made if isinstance(one, dict) and (name := text(one.get("name")))]
        return [tool.function.name for tool in (fields.tools or ())[:ITEMS_MAX] if tool.function is not None]

    def insert_note(self, json: JsonBody, note: str) -> bytes | None:
        given = json.fields["inputs"]
        if json.first_char(given) == '"':
            return json.with_text(given, note)
        _, last = json.items_at(given)
        item = json.fields_at(last)
        if json.value(item, "type") == _RESULT:  # the models reject a message of the user after it
            return json.with_text(item["result"], note) if json.first_char(item["result"]) == '"' else None
        if json.value(item, "role") != _USER:
            return None
        return json.with_content(item["content"], {"type": "text", "text": note}, note)

    def switch_off_tools(self, json: JsonBody) -> bytes:
        # The tools of an agent, or of a conversation that goes on, are not in the request.
        span = json.fields.get("completion_args")
        if span is None or json.first_char(span) != "{":
            return json.with_field("completion_args", {"tool_choice": "none"})
        return json.with_field_of(span, json.fields_at(span), "tool_choice", "none")

    def answer_builder(self, listener: StreamListener | None = None) -> AnswerBuilder:
        return ConversationAnswer(listener)

    def end_stream(self, end: StreamEnd) -> bytes:
        last = event_fields(end.state.last)
        if not last or last.get("type") in _ENDS:
            return b""
        made = 0 if end.usage is None else end.usage.output_tokens
        usage = {"prompt_tokens": 0, "completion_tokens": made, "total_tokens": made}
        return named_event({"type": "conversation.response.done", "usage": usage})

    def error_event(self, verdict: Verdict, call: Call) -> bytes:  # noqa: ARG002 - as in the base class
        return named_event({"type": _ERROR_EVENT, "message": denial.message(verdict), "code": verdict.status})

    def error_fields(self, verdict: Verdict, call: Call) -> dict[str, object]:  # noqa: ARG002 - as in the base class
        return {
            "object": "error",
            "message": denial.message(verdict),
            "type": denial.error_type(_ERROR_TYPES, verdict.status),
            "param": None,
            "code": denial.error_code(verdict),
        }


def _decoded(item: Any) -> dict[str, Any]:
    found = decode(item) if type(item) is msgspec.Raw else item
    return found if isinstance(found, dict) else {}


def _role(item: dict[str, Any]) -> str:
    if item.get("type") == "message.output":
        return "assistant"
    return text(item.get("role")) or _USER


class ConversationAnswer(AnswerBuilder):
    """Texts are numbered like the outputs, calls by their id."""

    __slots__ = ("_numbers",)

    SINGLE = True
    NEEDS_IDS = True

    def __init__(self, listener: StreamListener | None = None) -> None:
        super().__init__(listener)
        self._numbers: dict[str, int] = {}  # of calls

    def read_event(self, payload: bytes) -> None:
        self.read_leniently(payload)

    def read_fields(self, fields: dict[str, Any]) -> None:
        get = fields.get
        kind = get("type")
        self.response_id = word(get("conversation_id")) or self.response_id
        if isinstance(get("usage"), dict):
            self.usage = get("usage")
        if kind == _ERROR_EVENT or get("object") == "error":
            self.set_error(get("type") if kind != _ERROR_EVENT else get("code"))
        elif kind == "message.output.delta":
            self.model = word(get("model")) or self.model
            self._add_text(number(get("output_index")), get("content"))
        elif kind == "function.call.delta":
            self._add_call(get("tool_call_id"), get("name"), get("arguments"))
        elif kind == "conversation.response.done":
            self.ended, self.finish = True, "stop"
        elif isinstance(get("outputs"), list):
            self._read_outputs(fields["outputs"])

    def _read_outputs(self, outputs: list[Any]) -> None:
        self.finish = "stop"
        for index, output in enumerate(outputs):
            if not isinstance(output, dict):
                continue
            if output.get("type") == _CALL:
                self._add_call(output.get("tool_call_id"), output.get("name"), output.get("arguments"))
            elif output.get("type") == "message.output":
                self.model = word(output.get("model")) or self.model
                self._add_text(index, output.get("content"))

    def _add_text(self, index: int, said: object) -> None:
        parts = [said] if isinstance(said, dict) else said
        if parts:
            self.add_text(index, content(parts))

    def _add_call(self, call_id: object, name: object, given: object) -> None:
        key = word(call_id)
        at = self._numbers.get(key)
        if at is None:
            at = len(self._numbers)
            if at >= ITEMS_MAX:
                return
            self._numbers[key] = at
            self.start_call(at, word(name), key)
        call = self._calls.get(at)
        if call is not None and isinstance(given, str):
            self.add_arguments(call, given)
        elif call is not None:
            self.set_arguments(call, given)

    def read_usage(self, fields: dict[str, Any]) -> Usage | None:
        return openai_usage(fields)
