"""Anthropic Messages. Calls are `tool_use` blocks; results are `tool_result` blocks in the user's turn, with the flag
`is_error`. Tools that run at Anthropic have their results in the same message as the call.

Reasoning, ids and cache marks never become part of a message. A stream sends token counts at its beginning and at its
end; the later ones are totals.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
import orjson

from breakloop.dialects import denial
from breakloop.dialects.answers import (
    ARGUMENTS_MAX_CHARS,
    CALLS_MAX,
    TEXT_MAX_CHARS,
    WORD_MAX,
    AnswerBuilder,
    Json,
    Rewrite,
    StreamEnd,
    StreamListener,
    event_fields,
    named_event,
    number,
    tokens,
    word,
)
from breakloop.dialects.base import SMALL_BODY, BodyFields, Dialect, NamedTool, are_objects, follows_answer, item_at
from breakloop.dialects.body_changes import ENDED_THOUGHT, JsonBody, change_items
from breakloop.dialects.content import (
    DECODED_UNCOUNTED_BYTES,
    ITEMS_MAX,
    arguments,
    arguments_share,
    as_list,
    content,
    count,
    decode_bounded,
    is_reasoning,
    more,
    part,
    text,
    truth,
)
from breakloop.dialects.session_ids import NULL, BodyModel
from breakloop.dialects.steps import StepBuilder, result
from breakloop.dialects.text_events import TextPiece
from breakloop.model.call import CHARS_A_TOKEN, Answer, Call, Message, ToolCall, Usage
from breakloop.model.verdict import Verdict

NAME: Final = "anthropic_messages"
ERROR: Final = "<error>"
_ASSISTANT: Final = "assistant"
_new: Final = tuple.__new__  # creates a named tuple in half the time of calling its class
_FEW_BLOCKS: Final = 4  # so many share no bound on the arguments of their calls
_CALLS: Final = frozenset(("tool_use", "server_tool_use", "mcp_tool_use"))
_SERVER_CALLS: Final = frozenset(("server_tool_use", "mcp_tool_use"))
_SIGNED: Final = {"type": "signature_delta", "signature": ENDED_THOUGHT}
_BLOCK_OPEN: Final = frozenset(("content_block_start", "content_block_delta"))
_CACHE_COUNTS: Final = frozenset(("cache_read_input_tokens", "cache_creation_input_tokens"))
_ERROR_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    504: "timeout_error",
    529: "overloaded_error",
}


class MessagesBody(BodyModel, gc=False, kw_only=True):
    """The fields of a request that are read."""

    messages: list[msgspec.Raw]
    model: str
    tools: list[NamedTool] | None = None
    stream: bool | None = None
    max_tokens: int | None = None
    system: msgspec.Raw = NULL


class _SmallBody(MessagesBody, gc=False, kw_only=True):
    messages: list[Any]


_decode_body = msgspec.json.Decoder(MessagesBody).decode
_decode_small = msgspec.json.Decoder(_SmallBody).decode


class Anthropic(Dialect):
    name = NAME
    provider = "anthropic"
    path_endings = ("/messages", "/messages/")
    answer_field = "content"
    error_event_head = b"event: error\n"
    ends_streams = True
    plain_messages = True

    def read_fields(self, body: bytes) -> BodyFields:
        fields = _decode_body(body) if len(body) > SMALL_BODY else _decode_whole_body(body)
        stream = fields.stream or False
        return BodyFields(fields.model, fields.messages, stream, fields.max_tokens, fields.system, fields)

    def read_fields_leniently(self, fields: dict[str, Any]) -> BodyFields | None:
        get = fields.get
        model, messages = get("model"), get("messages")
        if model is None or messages is None:  # paths of other APIs end in /messages too
            return None
        items, stream, limit = as_list(messages), truth(get("stream")), count(get("max_tokens"))
        return BodyFields(text(model), items, stream, limit, get("system"), fields)

    def flatten(self, item: Any) -> Message:
        if not isinstance(item, dict):
            return Message("", text(item))
        role, said = item.get("role"), item.get("content")
        if type(role) is not str:
            role = text(role)
        if isinstance(said, list):
            return _flatten_blocks(role, said)
        return _new(Message, (role, said if type(said) is str else text(said), ()))

    def newest_messages(self, parts: BodyFields, tail: int) -> list[Message]:
        items, found = parts.items, []
        for at in range(max(0, len(items) - tail), len(items)):
            item = items[at]
            message = self.flatten(item if type(item) is dict else item_at(items, at))
            found.append(message)
            if message[2]:
                parts.newest_calls = at, message  # `collect_step` uses them again
        return found

    def collect_step(self, parts: BodyFields) -> StepBuilder:
        found = StepBuilder()
        items = parts.items
        size = len(items)
        for at in range(size - 1, max(0, size - ITEMS_MAX) - 1, -1):
            item = items[at]
            if type(item) is not dict:
                item = item_at(items, at)
            if not isinstance(item, dict):
                found.users.append(("", item))
            elif item.get("role") != _ASSISTANT:
                _add_input(found, item)
            elif at < size - 1 or not _is_prefill(item, items, found):
                _add_answer(found, item.get("content"), parts.calls_at(at))
                break
        return found

    def insert_note(self, json: JsonBody, note: str) -> bytes | None:
        items, last = json.items_at(json.fields["messages"])
        message = json.fields_at(last)
        # A system message may end the conversation too; one of the assistant is a prefill.
        if json.value(message, "role") not in ("user", "system") or _server_tool_runs(items):
            return None
        # After tool results, as the API requires. A message of its own would be a second one of the user.
        return json.with_content(message["content"], {"type": "text", "text": note}, note)

    def switch_off_tools(self, json: JsonBody) -> bytes:
        # With extended thinking, only `auto` and `none` are allowed.
        return json.with_field("tool_choice", {"type": "none"}) if json.has_items("tools") else json.body

    def without_ended_thoughts(self, body: bytes) -> bytes:
        return change_items(body, "messages", _without_ended)

    def read_answer(self, body: bytes, status: int, *, complete: bool) -> Answer | None:
        """An ordinary answer takes a third of the time of an odd one."""
        try:
            whole = None if len(body) > DECODED_UNCOUNTED_BYTES else _decode_whole(body)
            found = None if whole is None or whole.type != "message" else _texts_and_calls(whole.content)
        except (ValueError, RecursionError):
            return None
        if whole is None or found is None or whole.error is not None:
            return None
        names = ((whole.model or "")[:WORD_MAX], (whole.id or "")[:WORD_MAX], (whole.stop_reason or "")[:WORD_MAX])
        counts = whole.usage
        if counts is not None and None in counts.values():
            counts = {name: value for name, value in counts.items() if value is not None}
        usage = None if counts is None else anthropic_usage(counts)
        return _new(Answer, (status, *found, usage, *names, "", complete, 0, ()))

    def answer_builder(self, listener: StreamListener | None = None) -> AnswerBuilder:
        return AnthropicAnswer(listener)

    def owns_usage(self, fields: dict[str, Any]) -> bool:
        return "prompt_tokens" not in fields and not _CACHE_COUNTS.isdisjoint(fields)

    def end_stream(self, end: StreamEnd) -> bytes:
        last = event_fields(end.state.last)
        kind = word(last.get("type"))
        if not last or kind in {"message_stop", "error"}:
            return b""
        events = _close_block(last) if kind in _BLOCK_OPEN else b""
        if kind != "message_delta":
            # SDKs require a count, and so far the stream has counted the prompt only.
            output_tokens = max(0 if end.usage is None else end.usage.output_tokens, end.chars // CHARS_A_TOKEN)
            delta = {"stop_reason": "max_tokens", "stop_sequence": None}
            events += named_event({"type": "message_delta", "delta": delta, "usage": {"output_tokens": output_tokens}})
        return events + named_event({"type": "message_stop"})

    def resume_stream(self, end: StreamEnd) -> tuple[bytes, Rewrite] | None:
        last = event_fields(end.state.last)
        if not _is_thought(last):
            return None
        before, thought_tokens = number(last.get("index")) + 1, end.chars // CHARS_A_TOKEN

        def rewrite(event: Json) -> Json | None:
            kind, usage = event.get("type"), event.get("usage")
            if kind == "message_start":
                return None
            if "index" in event:
                event["index"] = number(event["index"]) + before
            if kind == "message_delta" and isinstance(usage, dict):
                usage["output_tokens"] = number(usage.get("output_tokens")) + thought_tokens
            return event

        return _close_block(last), rewrite

    def error_fields(self, verdict: Verdict, call: Call) -> dict[str, object]:
        error: dict[str, object] = {
            "type": denial.error_type(_ERROR_TYPES, verdict.status),
            "message": denial.message(verdict),
            "details": {"error_code": denial.error_code(verdict)},
        }
        fields: dict[str, object] = {"type": "error", "error": error}
        return fields | {"request_id": call.request_id} if call.request_id else fields


def _is_thought(event: Json) -> bool:
    delta = event.get("delta")
    return isinstance(delta, dict) and delta.get("type") == "thinking_delta"


def _close_block(last: Json) -> bytes:
    """Return the events that end the block of the last event. A thought gets a signature of ours in place of the
    provider's, by which `without_ended_thoughts` finds it."""
    at = {"index": number(last.get("index"))}
    stop = named_event({"type": "content_block_stop", **at})
    if not _is_thought(last):
        return stop
    return named_event({"type": "content_block_delta", **at, "delta": _SIGNED}) + stop


def _without_ended(message: Any) -> Any:
    blocks = message.get("content") if isinstance(message, dict) else None
    if isinstance(blocks, list):
        kept = [block for block in blocks if not (isinstance(block, dict) and block.get("signature") == ENDED_THOUGHT)]
        # A message must not be empty.
        message["content"] = kept or [{"type": "text", "text": "(This thought repeated itself and was ended.)"}]
    return message


def _flatten_blocks(role: str, blocks: list[Any]) -> Message:
    texts: list[str] = []
    calls: list[ToolCall] = []
    most = arguments_share(len(blocks))
    for block in blocks if len(blocks) <= ITEMS_MAX else blocks[:ITEMS_MAX]:
        kind = block.get("type") if isinstance(block, dict) else None
        if not isinstance(kind, str):
            texts.append(part(block))
        elif kind in _CALLS:
            name = block.get("name")
            spelled = arguments(block.get("input"), most)
            calls.append(_new(ToolCall, (name if type(name) is str else text(name), spelled)))
        elif kind == "tool_result" or kind.endswith("tool_result"):  # the usual kind, or one of Anthropic's own tools
            texts.append(_result_text(block))
        elif not is_reasoning(block):
            texts.append(part(block))
    if len(blocks) > ITEMS_MAX:
        texts.append(more(blocks))
    said = texts[0] if len(texts) == 1 else "\n".join(texts)
    return _new(Message, (role, said, tuple(calls) if calls else ()))


def _result_text(block: dict[str, Any]) -> str:
    said, failed = block.get("content"), block.get("is_error")
    if type(said) is not str:
        said = content(said)
    return f"{ERROR} {said}" if failed and truth(failed) else said


def _is_prefill(item: dict[str, Any], items: list[Any], found: StepBuilder) -> bool:
    said = item.get("content")
    if isinstance(said, list) and len(said) == 1 and isinstance(said[0], dict) and said[0].get("type") == "text":
        said = said[0].get("text")
    return found.is_prefill(said) and not follows_answer(items)


def _add_input(found: StepBuilder, item: dict[str, Any]) -> None:
    role, said = text(item.get("role")), item.get("content")
    if not isinstance(said, list):
        found.users.append((role, said))
        return
    others: list[Any] = []
    for block in reversed(said[:ITEMS_MAX]):
        if _is_result(block):
            _add_result(found, block)
        else:
            others.append(block)
    if others:
        found.users.append((role, others[::-1]))


def _add_answer(found: StepBuilder, said: object, flattened: Message | None) -> None:
    found.answered = True
    if not isinstance(said, list):
        found.texts.append(text(said))
        return
    if len(said) > ITEMS_MAX:
        found.texts.append(more(said))
    read = flattened[2][0] if flattened is not None and len(flattened[2]) == 1 and len(said) <= _FEW_BLOCKS else None
    for block in reversed(said[:ITEMS_MAX]):
        kind = block.get("type") if isinstance(block, dict) else None
        if isinstance(kind, str) and kind in _CALLS:
            if read is None or not found.add_read_call(block, read):
                found.add_call(block.get("name"), block.get("input"), block.get("id"))
        elif _is_result(block):
            _add_result(found, block)
        elif not is_reasoning(block):
            found.texts.append(part(block))


def _is_result(block: object) -> bool:
    kind = block.get("type") if isinstance(block, dict) else None
    return isinstance(kind, str) and kind.endswith("tool_result")


def _add_result(found: StepBuilder, block: dict[str, Any]) -> None:
    said, failed = block.get("content"), truth(block.get("is_error"))
    if isinstance(said, dict):  # of a tool that runs at Anthropic: an object, also for errors
        failed = failed or text(said.get("type")).endswith("_error") or said.get("return_code") not in (None, 0)
    found.results.append(result(said, block.get("tool_use_id"), failed=failed))


def _server_tool_runs(items: list[msgspec.Raw]) -> bool:
    """Return whether a tool that runs at Anthropic has no result yet, such as a program that has called the client's
    tools. The client's results must come alone then."""
    for item in reversed(items[-4:-1]):
        message = decode_bounded(item)
        if isinstance(message, dict) and message.get("role") == _ASSISTANT:
            said = message.get("content")
            blocks = [block for block in said if isinstance(block, dict)] if isinstance(said, list) else []
            done = [block.get("tool_use_id") for block in blocks if str(block.get("type")).endswith("tool_result")]
            runs = (block.get("id") not in done for block in blocks if str(block.get("type")) in _SERVER_CALLS)
            return any(runs) or any(_called_by_program(block) for block in blocks)
    return False


def _called_by_program(block: dict[str, Any]) -> bool:
    """Return whether a program at Anthropic made this call. It may have begun several answers before."""
    caller = block.get("caller")
    return isinstance(caller, dict) and caller.get("type") != "direct"


_EMPTY_EVENTS: Final = frozenset(("ping", "content_block_stop"))


class _Delta(msgspec.Struct, gc=False):
    type: str = ""
    text: str | None = None
    partial_json: str | None = None
    thinking: str | None = None


class _Event(msgspec.Struct, gc=False):
    """A piece of a block; all other events are rare, and read as plain values."""

    type: str
    delta: _Delta | None = None
    index: int = 0


class _Block(msgspec.Struct, gc=False):
    type: str = ""
    text: str | None = None
    name: str | None = None
    input: msgspec.Raw = NULL


class _Whole(msgspec.Struct, gc=False):
    """An ordinary answer in one body; any other is read leniently."""

    type: str
    content: list[_Block]
    id: str | None = None
    model: str | None = None
    stop_reason: str | None = None
    usage: dict[str, Any] | None = None
    error: Any = None


_decode_event: Final = msgspec.json.Decoder(_Event).decode
_decode_whole: Final = msgspec.json.Decoder(_Whole).decode


def _decode_whole_body(body: bytes) -> MessagesBody:
    """Decode a small body with all its messages, as `openai_chat` does."""
    try:
        fields = _decode_small(body)
    except (ValueError, RecursionError):
        return _decode_body(body)
    return fields if are_objects(fields.messages) else _decode_body(body)


def _texts_and_calls(blocks: list[_Block]) -> tuple[str, tuple[ToolCall, ...]] | None:
    """Return the text and the calls of an answer; None if they are too long to be kept, or from several models. May
    raise ValueError."""
    texts: list[str] = []
    calls: list[ToolCall] = []
    texts_room, room = TEXT_MAX_CHARS, ARGUMENTS_MAX_CHARS
    for block in blocks:
        if block.type == "text":
            if block.text:
                texts.append(block.text)
                texts_room -= len(block.text)
        elif block.type in _CALLS:
            # Not as a value of the struct, because large numbers are decoded differently there.
            given = arguments(orjson.loads(bytes(block.input)))
            room -= len(given)
            calls.append(_new(ToolCall, ((block.name or "")[:WORD_MAX], given)))
        elif block.type == "fallback":
            return None
    if texts_room < 0 or room < 0 or len(calls) > CALLS_MAX:
        return None
    return texts[0] if len(texts) == 1 else "\n".join(texts), tuple(calls)


class AnthropicAnswer(AnswerBuilder):
    """Texts and calls are numbered like their blocks."""

    __slots__ = ()

    SINGLE = True

    def read_event(self, payload: bytes) -> None:
        try:
            event = _decode_event(payload)
        except ValueError:
            self.read_leniently(payload)
            return
        delta = event.delta
        if event.type != "content_block_delta" or delta is None:
            if event.type not in _EMPTY_EVENTS:
                self.read_leniently(payload)
        elif delta.type == "text_delta":
            if delta.text:
                self.add_text(event.index, delta.text)
        elif delta.type == "input_json_delta":
            if delta.partial_json:
                self.continue_call(event.index, delta.partial_json)
        elif delta.thinking and delta.type == "thinking_delta":
            self.add_reasoning(event.index, delta.thinking)

    def text_piece(self, payload: bytes) -> TextPiece | None:
        event = _decode_event(payload)
        delta, at = event.delta, event.index
        if event.type != "content_block_delta" or delta is None:
            return None
        if delta.type == "text_delta" and delta.text:
            return TextPiece(at, delta.text, b"text", 0, at)
        if delta.type == "thinking_delta" and delta.thinking:
            return TextPiece(at, delta.thinking, b"thinking", 0, at, is_reasoning=True)
        return None

    def read_fields(self, fields: dict[str, Any]) -> None:
        get = fields.get
        kind, error = get("type"), get("error")
        if kind == "error" or (isinstance(error, dict) and error):
            self.set_error(error.get("type") if isinstance(error, dict) else None)
        elif kind == "message_start":
            message = get("message")
            if isinstance(message, dict):
                self._read_message(message)
        elif kind == "content_block_start":
            self._read_block(number(get("index")), get("content_block"))
        elif kind == "content_block_delta":
            self._read_odd_delta(number(get("index")), get("delta"))
        elif kind == "message_delta":
            delta = get("delta")
            if isinstance(delta, dict):
                self.finish = word(delta.get("stop_reason")) or self.finish
            self._update_usage(get("usage"))
        elif kind == "message_stop":
            self.ended = True
        elif kind == "message" or "content" in fields:
            self._read_message(fields)

    def read_usage(self, fields: dict[str, Any]) -> Usage | None:
        return anthropic_usage(fields)

    def _read_message(self, message: dict[str, Any]) -> None:
        get = message.get
        self.response_id, self.model = word(get("id")), word(get("model"))
        self.finish = word(get("stop_reason"))
        self._update_usage(get("usage"))
        for index, block in enumerate(as_list(get("content"))):
            self._read_block(index, block)

    def _read_block(self, index: int, block: object) -> None:
        if not isinstance(block, dict):
            return
        kind = block.get("type")
        if kind == "text":
            self.add_text(index, text(block.get("text")))
        elif kind == "fallback":  # another model continues from here
            served = block.get("to")
            self.model = word(served.get("model")) if isinstance(served, dict) else self.model
        elif isinstance(kind, str) and kind in _CALLS:
            call = self.start_call(index, word(block.get("name")), word(block.get("id")))
            self.set_arguments(call, block.get("input"))

    def _read_odd_delta(self, index: int, delta: object) -> None:
        if isinstance(delta, dict):
            if delta.get("type") == "text_delta":
                self.add_text(index, text(delta.get("text")))
            elif delta.get("type") == "input_json_delta":
                self.continue_call(index, text(delta.get("partial_json")))

    def _update_usage(self, usage: object) -> None:
        if isinstance(usage, dict):
            given = {name: value for name, value in usage.items() if value is not None}
            self.usage = given if self.usage is None else self.usage | given


def anthropic_usage(fields: dict[str, Any]) -> Usage | None:
    """Read token counts. Cached parts of the prompt are not included in `input_tokens`."""
    if "input_tokens" not in fields and "output_tokens" not in fields:
        return None
    rounds = [fields]
    if "iterations" in fields:
        # A compaction on the way is a separate request to the model, and not included in the totals.
        rounds += [
            item
            for item in as_list(fields["iterations"])
            if isinstance(item, dict) and item.get("type") == "compaction"
        ]
    sent = received = read = written = 0
    for one in rounds:
        sent += tokens(one, "input_tokens")
        received += tokens(one, "output_tokens")
        if not _CACHE_COUNTS.isdisjoint(one):
            read += tokens(one, "cache_read_input_tokens")
            written += tokens(one, "cache_creation_input_tokens")
    thinking = tokens(fields.get("output_tokens_details"), "thinking_tokens")
    return _new(Usage, (sent + read + written, received, read, written, thinking, None))
