"""OpenAI Responses. Items are grouped into turns like those of the other dialects: the text of the model and its calls
are one message, and so are results that come back together.

With `previous_response_id` the conversation is stored at OpenAI and only new results and texts are sent. Ids are not
part of a message, except those of calls that the request does not contain (`_unseen_calls`).

A stream repeats its whole output at the end. That is used if it is there: some servers do not send all pieces, others
leave the output out at the end.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from breakloop.dialects import session_ids
from breakloop.dialects.answers import (
    AnswerBuilder,
    Json,
    Rewrite,
    StreamEnd,
    StreamListener,
    event_fields,
    named_event,
    number,
    word,
)
from breakloop.dialects.base import BodyFields, NamedTool, item_at
from breakloop.dialects.body_changes import ENDED_THOUGHT, JsonBody, change_items
from breakloop.dialects.content import (
    ITEMS_MAX,
    arguments,
    as_list,
    content,
    count,
    decode,
    media,
    more,
    part,
    text,
    truth,
)
from breakloop.dialects.openai_chat import OpenAI, openai_usage, read_error
from breakloop.dialects.session_ids import NULL, BodyModel
from breakloop.dialects.steps import StepBuilder, result
from breakloop.model.call import Message, ToolCall, Usage

_ASSISTANT: Final = "assistant"
_RESULT: Final = "tool"
_GROUPED: Final = frozenset((_ASSISTANT, _RESULT))
_OVER_WEBSOCKET: Final = "response.create"  # the connection keeps the answer, whatever `store` is
_WALKED_MAX: Final = 2 * ITEMS_MAX  # items from the end that are looked at: there may be many between two messages
_FAILED: Final = frozenset(("failed", "incomplete"))
_ANSWER_ITEMS: Final = frozenset(("reasoning", "item_reference", "mcp_approval_request"))
# The fields in which calls and results of the various types keep their content, in order of precedence.
_ARGUMENTS: Final = ("arguments", "input", "action", "operation", "code", "queries")
_OUTPUTS: Final = ("output", "result", "results", "outputs", "error")


class ResponsesBody(BodyModel, gc=False, kw_only=True):
    """The fields of a request that are read."""

    input: str | list[msgspec.Raw]
    model: str
    tools: list[NamedTool] | None = None
    stream: bool | None = None
    store: bool | None = None
    type: str | None = None
    max_output_tokens: int | None = None
    instructions: msgspec.Raw = NULL
    prompt: msgspec.Raw = NULL


_decode_body = msgspec.json.Decoder(ResponsesBody).decode


class OpenAIResponses(OpenAI):
    name = "openai_responses"
    path_endings = ("/responses", "/responses/")
    links_responses = True
    answer_field = "output"
    error_event_head = b"event: error\n"
    ends_streams = True
    kept_events = b'"response.output_item.done"'

    def read_fields(self, body: bytes) -> BodyFields:
        fields = _decode_body(body)
        given, template = fields.input, fields.prompt
        lead = _template(decode(template)) if template is not NULL else []
        items = [_user(given)] if isinstance(given, str) else given
        if lead:
            items = lead + items
        limit = fields.max_output_tokens
        return BodyFields(fields.model, items, fields.stream or False, limit, fields.instructions, fields, len(lead))

    def read_fields_leniently(self, fields: dict[str, Any]) -> BodyFields | None:
        get = fields.get
        model, given, template = get("model"), get("input"), get("prompt")
        if template is None and (model is None or given is None):  # paths of other APIs end in /responses too
            return None
        lead = _template(template)
        items = lead + ([_user(given)] if isinstance(given, str) else as_list(given))
        stream, limit = truth(get("stream")), count(get("max_output_tokens"))
        before = 0 if given is None else len(lead)  # without other input, the stored prompt is the conversation
        return BodyFields(text(model), items, stream, limit, get("instructions"), fields, before)

    def flatten(self, item: Any) -> Message | None:
        role = _role(item)
        return None if role is None else _message(role, item)

    def newest_messages(self, parts: BodyFields, tail: int) -> list[Message]:
        """Walk back from the end until `tail` messages are complete; only items on the way are decoded."""
        items = parts.items
        groups: list[tuple[str, list[Any]]] = []  # newest first, also within a group
        first = max(0, len(items) - _WALKED_MAX)
        reached_start = first == 0
        for at in range(len(items) - 1, first - 1, -1) if tail > 0 else ():
            item = item_at(items, at)
            role = _role(item)
            if role is None:
                continue
            if groups and groups[-1][0] == role and role in _GROUPED:
                groups[-1][1].append(item)
            elif len(groups) == tail:
                reached_start = False
                break
            else:
                groups.append((role, [item]))
        groups.reverse()
        calls = {text(item.get("call_id")) for role, group in groups if role == _ASSISTANT for item in group}
        return [
            # The calls of the first group's results may come just before it, where they were not read.
            _message(role, group[0])
            if role != _RESULT and len(group) == 1
            else _join(role, group[::-1], calls if reached_start or index else None)
            for index, (role, group) in enumerate(groups)
        ]

    def collect_step(self, parts: BodyFields) -> StepBuilder:
        found = StepBuilder()
        items, fields = parts.items, parts.fields
        found.continues = session_ids.continued(fields)
        if isinstance(fields, dict):
            found.stored = fields.get("store") is not False or fields.get("type") == _OVER_WEBSOCKET
        else:
            found.stored = fields.store is not False or fields.type == _OVER_WEBSOCKET
        for at in range(len(items) - 1, max(parts.lead - 1, len(items) - ITEMS_MAX - 1), -1):
            item = item_at(items, at)
            if isinstance(item, dict) and _add_answer(found, item):
                found.answered = True
            elif found.answered:
                break
            elif not isinstance(item, dict):
                found.users.append(("", item))
            else:
                _add_input(found, item)
        return found

    def insert_note(self, json: JsonBody, note: str) -> bytes | None:
        given = json.fields["input"]
        if json.first_char(given) == '"':
            return json.with_text(given, note)
        _, last = json.items_at(given)
        item = json.fields_at(last)
        kind, role = json.value(item, "type"), json.value(item, "role")
        note_part = {"type": "input_text", "text": note}
        if kind in (None, "message"):
            if role == "user":
                return json.with_content(item["content"], note_part, note)
            may_follow = isinstance(role, str) and role != _ASSISTANT
        else:  # after results only: a call waits for its result, and other types are not known
            is_result = isinstance(kind, str) and (kind.endswith("_output") or kind == "mcp_approval_response")
            caller = json.value(item, "caller")  # a program that is still running at OpenAI
            may_follow = is_result and (not isinstance(caller, dict) or caller.get("type") == "direct")
        if not may_follow:
            return None
        return json.with_item(given, {"type": "message", "role": "user", "content": [note_part]})

    def switch_off_tools(self, json: JsonBody) -> bytes:
        return json.with_field("tool_choice", "none") if json.has_items("tools") else json.body

    def answer_builder(self, listener: StreamListener | None = None) -> AnswerBuilder:
        return ResponsesAnswer(listener)

    def end_stream(self, end: StreamEnd) -> bytes:
        last = event_fields(end.state.last)
        kind = word(last.get("type"))
        if not last or kind in _OVER:
            return b""
        items = [item for payload in end.state.items if isinstance(item := event_fields(payload).get("item"), dict)]
        closing = _close_part(last, kind, end.text)
        if closing:
            items.append(closing[-1]["item"])
        begun = event_fields(end.state.first).get("response")
        response = {
            **_RESPONSE,
            **(begun if isinstance(begun, dict) else {}),
            "status": "incomplete",
            "incomplete_details": {"reason": "max_output_tokens"},
            "output": items,
            "usage": None if end.usage is None else _usage(end.usage),
        }
        sequence = number(last.get("sequence_number"))
        events = [*closing, {"type": "response.incomplete", "response": response}]
        return b"".join(
            [named_event(event | {"sequence_number": sequence + 1 + at}) for at, event in enumerate(events)]
        )

    def resume_stream(self, end: StreamEnd) -> tuple[bytes, Rewrite] | None:
        begun = event_fields(end.state.first).get("response")
        # A stored response is named in later requests. SDKs require one id, and the first is of no use there.
        if not isinstance(begun, dict) or begun.get("store") is not False:
            return None
        last = event_fields(end.state.last)
        sequence, at = number(last.get("sequence_number")) + 1, number(last.get("output_index"))
        item = {"id": word(last.get("item_id")), "type": "reasoning", "summary": [], "encrypted_content": ENDED_THOUGHT}
        done = {"type": "response.output_item.done", "sequence_number": sequence, "output_index": at, "item": item}
        return named_event(done), _resumed(sequence, at + 1, begun.get("id"))

    def without_ended_thoughts(self, body: bytes) -> bytes:
        return change_items(body, "input", _unless_ended)


def _unless_ended(item: Any) -> Any:
    ended = isinstance(item, dict) and item.get("encrypted_content") == ENDED_THOUGHT
    return None if ended else item


def _resumed(sequence: int, before: int, response_id: object) -> Rewrite:
    def rewrite(event: Json) -> Json | None:
        nonlocal sequence
        if event.get("type") in _BEGINNING:
            return None
        sequence += 1
        event["sequence_number"] = sequence
        if "output_index" in event:
            event["output_index"] = number(event["output_index"]) + before
        response = event.get("response")
        if isinstance(response, dict):
            response["id"] = response_id
        return event

    return rewrite


def _user(given: str) -> dict[str, Any]:
    return {"role": "user", "content": given}


def _template(template: object) -> list[Any]:
    # A stored prompt and its variables: without other input, only these distinguish two requests.
    return [] if template is None else [{"role": "prompt", "content": text(template)}]


def _role(item: Any) -> str | None:
    """Return the role of an item; None for reasoning, which is left out."""
    if not isinstance(item, dict):
        return ""
    kind = item.get("type")
    if kind == "function_call_output":
        return _RESULT
    if kind == "function_call":
        return _ASSISTANT
    if kind == "reasoning":
        return None
    if not isinstance(kind, str) or kind == "message":
        return text(item.get("role"))
    if kind.endswith("_output"):
        return _RESULT
    return _ASSISTANT if kind.endswith("_call") else kind


def _message(role: str, item: Any) -> Message:
    if not isinstance(item, dict):
        return Message(role, text(item))
    get = item.get
    kind = get("type")
    if kind == "function_call":
        return Message(role, "", (ToolCall(text(get("name")), arguments(get("arguments"))),))
    if kind == "function_call_output" and get("status") is None:
        return Message(role, content(get("output")))
    if not isinstance(kind, str) or kind == "message":
        return Message(role, content(get("content")))
    if kind == "item_reference":
        return Message(role, f"<{kind}>")
    if kind.endswith("_output"):
        return Message(role, _output(item))
    if kind.endswith("_call"):
        name = text(get("name")) or kind.removesuffix("_call")
        return Message(role, _output(item), (ToolCall(name, arguments(_first(item, _ARGUMENTS))),))
    return Message(role, media(kind, item))


def _output(item: dict[str, Any]) -> str:
    value = _first(item, _OUTPUTS)
    said = part(value) if isinstance(value, dict) and "type" in value else content(value)
    status = item.get("status")
    return f"<{status}> {said}" if isinstance(status, str) and status in _FAILED else said


def _first(item: dict[str, Any], names: tuple[str, ...]) -> object:
    """Return the value of the first of these fields that is not None."""
    for name in names:
        value = item.get(name)
        if value is not None:
            return value
    return None


def _join(role: str, group: list[Any], calls: set[str] | None) -> Message:
    unseen = _unseen_calls(group, calls) if role == _RESULT and calls is not None else []
    if len(group) == 1 and not unseen:
        return _message(role, group[0])
    found = [_message(role, item) for item in group[:ITEMS_MAX]]
    if len(group) > ITEMS_MAX:
        unseen.append(more(group))
    texts = [message.text for message in found if message.text]
    return Message(role, "\n".join(texts + unseen), tuple([call for message in found for call in message.calls]))


def _unseen_calls(group: list[Any], calls: set[str]) -> list[str]:
    """Return marks for calls that are stored at OpenAI (`previous_response_id`, references) and only answered here.

    Six results "done" may answer six different calls, which is work and not a loop. The id represents a call that
    cannot be seen: a retry of the same request has the same one.
    """
    ids = [text(item.get("call_id")) for item in group[:ITEMS_MAX]]
    return [f"<call {call_id}>" for call_id in ids if call_id and call_id not in calls]


def _add_answer(found: StepBuilder, item: dict[str, Any]) -> bool:
    """Add an item of the model's answer; return whether it is one."""
    get = item.get
    kind = get("type")
    if kind == "function_call":
        found.add_call(get("name"), get("arguments"), get("call_id"))
        return True
    if not isinstance(kind, str) or kind == "message":
        if get("role") != _ASSISTANT:
            return False
        found.texts.append(content(get("content")))
        return True
    if kind.endswith("_call"):
        call_id = get("call_id") or get("id")
        found.add_call(get("name") or kind.removesuffix("_call"), _first(item, _ARGUMENTS), call_id)
        if _first(item, _OUTPUTS) is not None:  # a tool that ran at OpenAI
            _add_result(found, item, call_id)
        return True
    return kind in _ANSWER_ITEMS


def _add_input(found: StepBuilder, item: dict[str, Any]) -> None:
    kind = item.get("type")
    if not isinstance(kind, str) or kind == "message":
        found.users.append((text(item.get("role")), item.get("content")))
    elif kind.endswith("_output"):
        _add_result(found, item, item.get("call_id"))
    # Approvals, lists of tools and compactions are neither results nor texts.


def _add_result(found: StepBuilder, item: dict[str, Any], call_id: object) -> None:
    status = item.get("status")
    failed = (isinstance(status, str) and status in _FAILED) or item.get("error") is not None
    output = _first(item, _OUTPUTS)
    if isinstance(output, list) and output and isinstance(output[0], dict) and "outcome" in output[0]:
        failed = failed or any(_has_failed(one) for one in output[:ITEMS_MAX])
        output = "\n".join([_command_output(one) for one in output[:ITEMS_MAX]])
    found.results.append(result(output, call_id, failed=failed))


def _has_failed(command: object) -> bool:
    """Return whether a command of the shell tool has an exit code other than 0."""
    outcome = command.get("outcome") if isinstance(command, dict) else None
    return isinstance(outcome, dict) and outcome.get("exit_code") != 0


def _command_output(command: object) -> str:
    if not isinstance(command, dict):
        return text(command)
    return "\n".join(filter(None, (text(command.get("stdout")), text(command.get("stderr")))))


_PARTS: Final = 1000  # texts are numbered by item, and within it by part
_ANSWER_ARGUMENTS: Final = (*_ARGUMENTS, "actions")
_OPENING: Final = b'{"type":"'
_TEXT: Final = b"response.output_text.delta"
_TEXT_PIECES: Final = frozenset((_TEXT, b"response.refusal.delta", b"response.audio.transcript.delta"))
_ARGUMENT_PIECES: Final = frozenset(
    (
        b"response.function_call_arguments.delta",
        b"response.mcp_call_arguments.delta",
        b"response.custom_tool_call_input.delta",
    )
)
_REASONING_PIECES: Final = frozenset((b"response.reasoning_text.delta", b"response.reasoning_summary_text.delta"))
_ENDS: Final = frozenset((b"response.completed", b"response.incomplete", b"response.failed", b"response.cancelled"))
_OTHERS: Final = frozenset((b"response.created", b"response.output_item.added", b"response.output_item.done", b"error"))
_PIECES: Final = _TEXT_PIECES | _ARGUMENT_PIECES
_READ: Final = _PIECES | _ENDS | _OTHERS
_BEGINNING: Final = frozenset(("response.created", "response.in_progress", "response.queued"))
_OVER: Final = frozenset([name.decode() for name in _ENDS]) | {"error"}
# The fields that every response has, for streams that did not begin with one.
_RESPONSE: Final[Json] = {
    "id": "",
    "object": "response",
    "created_at": 0,
    "model": "",
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
}


class _Piece(msgspec.Struct, gc=False):
    delta: str
    output_index: int = 0
    content_index: int = 0
    summary_index: int = 0


class _Kind(msgspec.Struct, gc=False):
    type: str


_decode_piece: Final = msgspec.json.Decoder(_Piece).decode
_decode_kind: Final = msgspec.json.Decoder(_Kind).decode


class ResponsesAnswer(AnswerBuilder):
    """Calls are numbered like the items, texts by item and part."""

    __slots__ = ()

    SINGLE = True
    NEEDS_IDS = True

    def read_event(self, payload: bytes) -> None:
        """Read one event. Of fifty types only a dozen are decoded."""
        if payload.startswith(_OPENING):
            kind = payload[9 : payload.find(b'"', 9)]
        else:
            try:
                kind = _decode_kind(payload).type.encode("utf-8", "replace")
            except ValueError:
                self.read_leniently(payload)
                return
        if kind not in _READ:
            if self.listener is not None and kind in _REASONING_PIECES:
                self._read_reasoning(payload)
            return
        if kind not in _PIECES:
            self.read_leniently(payload)
            return
        try:
            piece = _decode_piece(payload)
        except ValueError:
            self.read_leniently(payload)
            return
        if kind in _TEXT_PIECES:
            self.add_text(piece.output_index * _PARTS + piece.content_index, piece.delta)
        else:
            self.continue_call(piece.output_index, piece.delta)

    def read_fields(self, fields: dict[str, Any]) -> None:
        get = fields.get
        kind = get("type")
        name = kind.encode("utf-8", "replace") if isinstance(kind, str) else b""
        if name == b"error":
            read_error(self, fields if get("error") else {"error": fields})
        elif name in _ENDS or name == b"response.created":
            self._read_response(get("response"), final=name in _ENDS)
            read_error(self, fields)
            self._end(name)
        elif name.startswith(b"response.output_item."):
            self._read_item(number(get("output_index")), get("item"))
        elif name in _PIECES:
            self._read_odd_piece(name, fields)
        else:
            self._read_response(fields, final=True)

    def read_usage(self, fields: dict[str, Any]) -> Usage | None:
        return openai_usage(fields)

    def _read_reasoning(self, payload: bytes) -> None:
        try:
            piece = _decode_piece(payload)
        except ValueError:
            return
        if piece.delta:
            self.add_reasoning(piece.output_index * _PARTS + piece.content_index + piece.summary_index, piece.delta)

    def _end(self, name: bytes) -> None:
        if name == b"response.failed" and not self.error:
            self.set_error()
        self.ended = name != b"response.created"

    def _read_response(self, response: object, *, final: bool) -> None:
        if not isinstance(response, dict):
            return
        get = response.get
        self.model, self.response_id = word(get("model")) or self.model, word(get("id")) or self.response_id
        if not final:
            return
        read_error(self, response)
        details, usage, output = get("incomplete_details"), get("usage"), as_list(get("output"))
        self.finish = (word(details.get("reason")) if isinstance(details, dict) else "") or word(get("status"))
        if isinstance(usage, dict):
            self.usage = usage
        if output:
            self.clear()
        for index, item in enumerate(output):
            self._read_item(index, item)

    def _read_item(self, index: int, item: object) -> None:
        if not isinstance(item, dict):
            return
        get = item.get
        kind = word(get("type"))
        if kind == "message":
            self._read_message(index, get("content"))
        elif kind.endswith("_call") or kind == "mcp_approval_request":
            call = self.start_call(index, word(get("name")) or kind.removesuffix("_call"), word(get("call_id")))
            self.set_arguments(call, _first(item, _ANSWER_ARGUMENTS))

    def _read_message(self, index: int, parts: object) -> None:
        for position, item in enumerate(as_list(parts)[:_PARTS]):
            if index * _PARTS + position not in self._texts:  # not read from its pieces
                self.add_text(index * _PARTS + position, content([item]))

    def _read_odd_piece(self, name: bytes, fields: dict[str, Any]) -> None:
        piece, index = fields.get("delta"), number(fields.get("output_index"))
        if not isinstance(piece, str):
            self.unreadable += 1
        elif name in _TEXT_PIECES:
            self.add_text(index * _PARTS + number(fields.get("content_index")), piece)
        else:
            self.continue_call(index, piece)


def _close_part(last: Json, kind: str, said: str) -> list[Json]:
    """Return the events that close the part of a message to which the last event belongs, and the message."""
    refused = kind == "response.refusal.delta"
    if not refused and kind != "response.output_text.delta":
        return []
    fields: Json = {"refusal": said} if refused else {"text": said, "logprobs": []}
    closed: Json = {"type": "refusal", **fields} if refused else {"type": "output_text", "annotations": [], **fields}
    item_id, item_at = word(last.get("item_id")), {"output_index": number(last.get("output_index"))}
    part_at = {"item_id": item_id, **item_at, "content_index": number(last.get("content_index"))}
    item = {"id": item_id, "type": "message", "status": "incomplete", "role": "assistant", "content": [closed]}
    return [
        {"type": kind.removesuffix("delta") + "done", **part_at, **fields},
        {"type": "response.content_part.done", **part_at, "part": closed},
        {"type": "response.output_item.done", **item_at, "item": item},
    ]


def _usage(usage: Usage) -> Json:
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": usage.cache_write_tokens},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }
