"""OpenAI Chat Completions, and the many APIs that are compatible with it (Azure, OpenRouter and others).

Ids and cache marks never become part of a message, because a retry carries new ones. Results have no error flag, so
their own text decides (`steps.result_error`). An ordinary event of a stream costs one typed decoding; rare and odd ones
are read as plain values.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec

from breakloop.dialects import denial
from breakloop.dialects.answers import (
    ARGUMENTS_MAX_CHARS,
    CALLS_MAX,
    TEXT_MAX_CHARS,
    TOKENS_MAX,
    WORD_MAX,
    AnswerBuilder,
    Json,
    PartialCall,
    Rewrite,
    StreamEnd,
    StreamListener,
    event_fields,
    number,
    sse_event,
    tokens,
    word,
)
from breakloop.dialects.base import (
    SMALL_BODY,
    BodyFields,
    Dialect,
    NamedTool,
    ParsedBody,
    are_objects,
    follows_answer,
    item_at,
)
from breakloop.dialects.body_changes import JsonBody, request_usage
from breakloop.dialects.chat_turns import ASSISTANT, RARE_FIELDS, RESULTS, add_turns
from breakloop.dialects.content import (
    ARGUMENTS_MAX,
    ITEMS_MAX,
    KEPT_MAX,
    arguments,
    arguments_share,
    as_list,
    at_least_one,
    content,
    count,
    more,
    respelled_short,
    text,
    truth,
    without_ids,
)
from breakloop.dialects.session_ids import BodyModel
from breakloop.dialects.steps import NAME_MAX, TEXT_MAX, StepBuilder, result, without_additions
from breakloop.dialects.text_events import TextPiece
from breakloop.model.call import Answer, Call, Message, Step, ToolCall, Usage
from breakloop.model.verdict import Verdict

NAME: Final = "openai_chat"
# Roles of other frameworks, which their clients should translate and some do not.
_ANSWERS: Final = frozenset((ASSISTANT, "ai", "model"))
_CALLS: Final = frozenset(("tool-call", "tool_call", "function_call"))  # what the answer before it calls
_new: Final = tuple.__new__  # creates a named tuple in half the time of calling its class
# Mistral, Codestral, Devstral, Mixtral and others: their API rejects a message of the user after one of a tool.
_NO_USER_AFTER_TOOL: Final = "tral"
_ERROR_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "insufficient_quota",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "server_error",
}
_ENVELOPE: Final = ("id", "object", "created", "model", "service_tier", "system_fingerprint")
_DONE_EVENT: Final = b"data: [DONE]\n\n"


class ChatTool(msgspec.Struct, gc=False):
    function: NamedTool | None = None
    custom: NamedTool | None = None


class ChatBody(BodyModel, gc=False, kw_only=True):
    """The fields of a request that are read."""

    messages: list[msgspec.Raw]
    tools: list[ChatTool] | None = None
    functions: list[NamedTool] | None = None
    model: str | None = None
    stream: bool | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: int | None = None


class _SmallBody(ChatBody, gc=False, kw_only=True):
    messages: list[Any]


_decode_body = msgspec.json.Decoder(ChatBody).decode
_decode_small = msgspec.json.Decoder(_SmallBody).decode


class OpenAI(Dialect):
    """What all dialects of OpenAI share."""

    provider = "openai"

    def error_fields(self, verdict: Verdict, call: Call) -> dict[str, object]:  # noqa: ARG002
        error: dict[str, object] = {
            "message": denial.message(verdict),
            "type": denial.error_type(_ERROR_TYPES, verdict.status),
            "param": None,
            "code": denial.error_code(verdict),
        }
        return {"error": error}


class OpenAIChat(OpenAI):
    name = NAME
    path_endings: tuple[str, ...] = ("/chat/completions", "/chat/completions/")
    answer_field = "choices"
    ends_streams = True
    plain_messages = True

    def read_fields(self, body: bytes) -> BodyFields:
        fields = _decode_body(body) if len(body) > SMALL_BODY else _decode_whole_body(body)
        limit, answers = fields.max_completion_tokens, fields.n
        return BodyFields(
            fields.model or "",
            fields.messages,
            fields.stream or False,
            fields.max_tokens if limit is None else limit,
            None,
            fields,
            0,
            1 if answers is None else at_least_one(answers),
        )

    def read_fields_leniently(self, fields: dict[str, Any]) -> BodyFields | None:
        get = fields.get
        limit = get("max_completion_tokens")
        return BodyFields(
            text(get("model")),
            as_list(get("messages")),
            truth(get("stream")),
            count(get("max_tokens") if limit is None else limit),
            fields=fields,
            answers=at_least_one(get("n")),
        )

    def flatten(self, item: Any) -> Message:
        return _flatten(item)

    def newest_messages(self, parts: BodyFields, tail: int) -> list[Message]:
        """Return the last messages. The results of parallel calls count as one, as they do in the other dialects.

        Otherwise the last three messages after a round of three calls would be results only, and rounds of different
        calls that all return "ok" would look like a loop.
        """
        found: list[Message] = []
        at = add_turns(found, parts, tail)
        if len(found) < tail:
            self._add_messages(found, parts, at, tail)
        found.reverse()
        return found

    def _add_messages(self, found: list[Message], parts: BodyFields, end: int, tail: int) -> None:
        """Add the messages before a position, the last one first, until there are as many as needed."""
        results: list[Message] = []
        items = parts.items
        for at in range(end - 1, -1, -1):
            item = items[at]
            message = _flatten(item if type(item) is dict else item_at(items, at))
            if message[0] in RESULTS:
                if not results:
                    results = [message]
                    continue
                if len(results) < ITEMS_MAX:
                    results.append(message)
                    continue
            if results:
                found.append(_join_results(results) if len(results) > 1 else results[0])
                if len(found) >= tail:
                    results = []
                    break
                results = []
            if message[2] and parts.newest_calls is None and message[0] == ASSISTANT:
                parts.newest_calls = at, message  # the step needs the spelling of the arguments again
            found.append(message)
            if len(found) >= tail:
                break
        if results and len(found) < tail:
            found.append(_join_results(results))

    def read_step(self, parsed: ParsedBody) -> Step | None:
        """A call and its result, as most steps are, take a third of the time of others."""
        parts = parsed.parts
        newest = parts.newest_turn
        if newest is None:
            return super().read_step(parsed)
        (_, said, calls), call_id, (_, found, _), result_id = newest
        name, given = calls[0]
        if len(name) > NAME_MAX or len(given) > TEXT_MAX:
            return super().read_step(parsed)
        if type(call_id) is not str:
            call_id = text(call_id)
        said, ids = without_additions(said) if said else "", (call_id,) if call_id else ()
        results, tools = (result(found, result_id),), (*parts.tools, *self.tool_names(parts.fields))
        return _new(
            Step, (said, calls, ids, results, (), tools, len(parts.items), len(parsed.body), False, None, False)
        )

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
                continue
            role = item.get("role")
            if role == ASSISTANT:
                if at == size - 1 and _is_prefill(item, items, found):
                    continue
                _add_answer(found, item, parts.calls_at(at))
                break
            if type(role) is not str:
                found.users.append((text(role), item.get("content")))
            elif role in RESULTS:
                found.results.append(result(item.get("content"), item.get("tool_call_id")))
            elif role in _ANSWERS:
                _add_answer(found, item, None)
                break
            elif role in _CALLS:
                _add_calls_apart(found, items, at)
                break
            else:
                found.users.append((role, item.get("content")))
        return found

    def tool_names(self, fields: ChatBody | dict[str, Any]) -> list[str]:
        if isinstance(fields, dict):
            return _tool_names_leniently(fields)
        names: list[str] = []
        for tool in (fields.tools or ())[:ITEMS_MAX]:
            named = tool.function or tool.custom
            if named is not None and named.name:
                names.append(named.name)
        if fields.functions:
            names.extend([named.name for named in fields.functions[:ITEMS_MAX] if named.name])
        return names

    def insert_note(self, json: JsonBody, note: str) -> bytes | None:
        messages = json.fields["messages"]
        _, last = json.items_at(messages)
        message = json.fields_at(last)
        role = json.value(message, "role")
        if role == ASSISTANT or not isinstance(role, str):  # calls that wait for results, or a prefill
            return None
        strict = role in RESULTS and _NO_USER_AFTER_TOOL in str(json.value(json.fields, "model")).lower()
        if role == "user" or strict:
            return json.with_content(message["content"], {"type": "text", "text": note}, note)
        return json.with_item(messages, {"role": "user", "content": note})

    def switch_off_tools(self, json: JsonBody) -> bytes:
        # Without tools, the API refuses the field.
        if json.has_items("tools"):
            return json.with_field("tool_choice", "none")
        return json.with_field("function_call", "none") if json.has_items("functions") else json.body

    def request_usage(self, body: bytes) -> bytes | None:
        return request_usage(body)

    def read_answer(self, body: bytes, status: int, *, complete: bool) -> Answer | None:
        """An ordinary answer takes a third of the time of an odd one."""
        try:
            whole = _decode_whole(body)
        except (ValueError, RecursionError):
            return None
        choice, usage = whole.choices[0], whole.usage
        if _ERROR in (whole.object, choice.object):
            return None
        message, finish = choice.message, choice.finish_reason or ""
        calls = () if message.tool_calls is None else _whole_calls(message.tool_calls)
        if calls is None:
            return None
        counts = None if usage is None else openai_usage(usage)
        said, model, name = message.content or "", whole.model or "", whole.id or ""
        return _new(Answer, (status, said, calls, counts, model, name, finish, "", complete, 0, ()))

    def answer_builder(self, listener: StreamListener | None = None) -> AnswerBuilder:
        return ChatAnswer(listener)

    def end_stream(self, end: StreamEnd) -> bytes:
        return end_openai_stream(end, {"delta": {}, "logprobs": None, "finish_reason": "length"})

    def resume_stream(self, end: StreamEnd) -> tuple[bytes, Rewrite] | None:
        last = event_fields(end.state.last)
        envelope: Json = {name: last[name] for name in ("id", "created") if name in last}
        return b"", lambda event: {**event, **envelope}


def end_openai_stream(end: StreamEnd, finished: Json) -> bytes:
    """Return a last chunk whose choices are `finished`, the token counts if the client asked for them, and `[DONE]`."""
    last = event_fields(end.state.last)
    if not last:
        return b""
    envelope: Json = {name: last[name] for name in _ENVELOPE if name in last}
    events = b""
    if end.choices:
        events = sse_event({**envelope, "choices": [{"index": index, **finished} for index in end.choices]})
        usage = end.usage
        if usage is not None and "usage" in last:
            counts = {
                "prompt_tokens": usage.input_tokens,
                "completion_tokens": usage.output_tokens,
                "total_tokens": usage.input_tokens + usage.output_tokens,
            }
            events += sse_event({**envelope, "choices": [], "usage": counts})
    return events + _DONE_EVENT


def _decode_whole_body(body: bytes) -> ChatBody:
    """Decode a small body with all its messages, which takes half the time of decoding them one by one. If a message is
    odd, all are left undecoded, so that its reader notices."""
    try:
        fields = _decode_small(body)
    except (ValueError, RecursionError):
        return _decode_body(body)
    return fields if are_objects(fields.messages) else _decode_body(body)


def _flatten(item: Any) -> Message:
    if type(item) is not dict:
        return Message("", text(item))
    role, said = item.get("role"), item.get("content")
    if type(role) is not str:
        role = text(role)
    if said is None:
        said = ""
    elif type(said) is not str:
        said = content(said)
    if RARE_FIELDS.isdisjoint(item):
        return _new(Message, (role, said, ()))
    refusal, calls, legacy = item.get("refusal"), item.get("tool_calls"), item.get("function_call")
    if refusal:
        said = f"{said}\n{text(refusal)}" if said else text(refusal)
    if type(calls) is list and len(calls) == 1 and not legacy:
        return _new(Message, (role, said, (_tool_call(calls[0], ARGUMENTS_MAX),)))
    return _new(Message, (role, said, _flatten_calls(calls, legacy) if calls or legacy else ()))


def _flatten_calls(calls: object, legacy: object) -> tuple[ToolCall, ...]:
    made = as_list(calls)
    most = arguments_share(len(made))
    found = [_tool_call(item, most) for item in (made if len(made) <= ITEMS_MAX else made[:ITEMS_MAX])]
    if len(made) > ITEMS_MAX:
        found.append(ToolCall("", more(made)))
    if legacy:
        found.append(_tool_call({"function": legacy}, most))
    return tuple(found)


def _tool_call(item: object, most: int) -> ToolCall:
    if not isinstance(item, dict):
        return ToolCall("", text(item))
    function = item.get("function")
    if type(function) is dict:
        name, given = function.get("name"), function.get("arguments")
        if type(name) is not str:
            name = text(name)
        if type(given) is str and len(given) <= KEPT_MAX <= most:
            return _new(ToolCall, (name, respelled_short(given)))  # as `arguments` does
        return _new(ToolCall, (name, arguments(given, most)))
    custom = item.get("custom")
    if isinstance(custom, dict):
        return ToolCall(text(custom.get("name")), text(custom.get("input")))
    return ToolCall("", text(without_ids(item)))


def _join_results(results: list[Message]) -> Message:
    if len(results) == 1:
        return results[0]
    return Message(results[0].role, "\n<result>\n".join([result.text for result in reversed(results)]))


def _tool_names_leniently(fields: dict[str, Any]) -> list[str]:
    tools = [tool for tool in as_list(fields.get("tools"))[:ITEMS_MAX] if isinstance(tool, dict)]
    declared = [tool.get("function") or tool.get("custom") for tool in tools]
    declared += as_list(fields.get("functions"))[:ITEMS_MAX]
    return [name for named in declared if isinstance(named, dict) and (name := text(named.get("name")))]


def _is_prefill(item: dict[str, Any], items: list[Any], found: StepBuilder) -> bool:
    if item.get("tool_calls") or item.get("function_call"):
        return False
    return found.is_prefill(item.get("content")) and not follows_answer(items)


def _add_answer(found: StepBuilder, item: dict[str, Any], flattened: Message | None) -> None:
    found.answered = True
    refusal, said = item.get("refusal"), item.get("content")
    if refusal is not None or said is not None:
        found.texts = [one for one in (text(refusal), content(said)) if one]
    made, legacy = item.get("tool_calls"), item.get("function_call")
    if type(made) is not list:
        made = as_list(made)
    if flattened is not None and len(made) == 1 and not legacy and found.add_read_call(made[0], flattened.calls[0]):
        return
    if legacy:
        made = [*made, {"function": legacy}]
    if len(made) > ITEMS_MAX:
        found.add_raw_call("", more(made), "")
        made = made[:ITEMS_MAX]
    for at in range(len(made) - 1, -1, -1):
        _add_call(found, made[at], None if flattened is None else flattened.calls[at].arguments)


def _add_calls_apart(found: StepBuilder, items: list[Any], at: int) -> None:
    """Add calls that are a message of their own, as text, and the answer before it."""
    calls = content(item_at(items, at).get("content"))
    before = item_at(items, at - 1) if at else None
    if isinstance(before, dict) and text(before.get("role")) in _ANSWERS:
        _add_answer(found, before, None)
    found.answered = True
    found.texts = [calls, *found.texts] if calls else found.texts


def _add_call(found: StepBuilder, call: object, spelled: str | None) -> None:
    if not isinstance(call, dict):
        found.add_raw_call("", text(call), "")
        return
    function, call_id = call.get("function"), call.get("id")
    if isinstance(function, dict):
        found.add_call(function.get("name"), function.get("arguments"), call_id, spelled)
        return
    custom = call.get("custom")
    if isinstance(custom, dict):
        found.add_raw_call(custom.get("name"), text(custom.get("input")), call_id)
    else:
        found.add_raw_call("", text(without_ids(call)), call_id)


_CHOICE: Final = 1 << 20  # calls are numbered within their choice
_ERROR: Final = "error"
_USD_MAX: Final = 100_000  # a larger cost cannot be that of one answer
_COUNTS: Final = frozenset(("prompt_tokens", "input_tokens", "completion_tokens", "output_tokens", "total_tokens"))
_DETAILS: Final = frozenset((
    "prompt_tokens_details", "input_tokens_details", "completion_tokens_details", "output_tokens_details",
    "reasoning_tokens", "cached_tokens", "prompt_cache_hit_tokens", "cache_creation_input_tokens", "cost",
))  # fmt: skip


class _Delta(msgspec.Struct, gc=False):
    content: str | None = None
    refusal: Any = None
    tool_calls: Any = None
    function_call: Any = None
    audio: Any = None
    reasoning_content: Any = None  # DeepSeek, and most servers of open models
    reasoning: Any = None  # OpenRouter, Groq


class _Choice(msgspec.Struct, gc=False):
    delta: _Delta | None = None
    index: int = 0
    finish_reason: str | None = None


class _Chunk(msgspec.Struct, gc=False):
    """An ordinary chunk; any other is read leniently."""

    choices: list[_Choice]
    id: str | None = None
    model: str | None = None
    usage: dict[str, Any] | None = None
    error: Any = None
    x_groq: Any = None


# An ordinary answer in one body, which has one choice. Any other is read leniently: the decoder raises for fields that
# have a value here only in an odd answer, and for texts that are longer than what is kept.
_Word = Annotated[str, msgspec.Meta(max_length=WORD_MAX)]


class _Function(msgspec.Struct, gc=False):
    name: _Word
    arguments: str


class _Call(msgspec.Struct, gc=False):
    function: _Function
    id: Annotated[str, msgspec.Meta(min_length=1, max_length=WORD_MAX)]
    index: None = None  # of a piece of a stream


class _Message(msgspec.Struct, gc=False):
    content: Annotated[str, msgspec.Meta(max_length=TEXT_MAX_CHARS)] | None = None
    refusal: None = None
    tool_calls: Annotated[list[_Call], msgspec.Meta(max_length=CALLS_MAX)] | None = None
    function_call: None = None
    audio: None = None


class _WholeChoice(msgspec.Struct, gc=False):
    message: _Message
    index: Literal[0] | None = None
    finish_reason: _Word | None = None
    error: None = None
    object: Any = None


class _Whole(msgspec.Struct, gc=False):
    choices: Annotated[list[_WholeChoice], msgspec.Meta(min_length=1, max_length=1)]
    id: _Word | None = None
    model: _Word | None = None
    usage: dict[str, Any] | None = None
    error: None = None
    object: Any = None
    x_groq: None = None


_decode_chunk: Final = msgspec.json.Decoder(_Chunk).decode
_decode_whole: Final = msgspec.json.Decoder(_Whole).decode


class ChatAnswer(AnswerBuilder):
    """Texts are numbered 2n for choice n, and 2n + 1 for its refusal."""

    __slots__ = ("_last", "_slots")

    VALUES_ONCE = True

    def __init__(self, listener: StreamListener | None = None) -> None:
        super().__init__(listener)
        self._slots: dict[tuple[int, int], PartialCall] = {}  # by choice and index
        self._last: PartialCall | None = None

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
            delta = choice.delta
            if delta is not None:
                if delta.content:
                    self.add_text(choice.index * 2, delta.content)
                elif self.listener is not None:
                    self._add_reasoning(choice.index, delta.reasoning_content, delta.reasoning)
                if delta.tool_calls is not None:
                    self._add_calls(choice.index, delta.tool_calls)
                if delta.refusal is not None or delta.function_call is not None or delta.audio is not None:
                    self._add_rare(choice.index, delta.refusal, delta.function_call, delta.audio)
            if choice.finish_reason:
                self.finish_choice(choice.index, choice.finish_reason)
        if chunk.usage is not None or chunk.x_groq is not None:
            self._set_usage(chunk.usage, chunk.x_groq)
        if not self.model:
            self.model, self.response_id = word(chunk.model), word(chunk.id)

    def text_piece(self, payload: bytes) -> TextPiece | None:
        chunk = _decode_chunk(payload)
        if chunk.error is not None or chunk.usage is not None or chunk.x_groq is not None or len(chunk.choices) != 1:
            return None
        if not self.model:  # the next event may set it
            return None
        choice = chunk.choices[0]
        delta, at = choice.delta, choice.index
        if delta is None or choice.finish_reason or delta.tool_calls is not None or delta.audio is not None:
            return None
        if delta.refusal is not None or delta.function_call is not None:
            return None
        if delta.content:
            return TextPiece(at * 2, delta.content, b"content", at, 0)
        for field, piece in ((b"reasoning_content", delta.reasoning_content), (b"reasoning", delta.reasoning)):
            if piece and isinstance(piece, str):
                return TextPiece(at, piece, field, at, 0, is_reasoning=True)
        return None

    def read_fields(self, fields: dict[str, Any]) -> None:
        get = fields.get
        read_error(self, fields)
        self.model, self.response_id = word(get("model")) or self.model, word(get("id")) or self.response_id
        self._set_usage(get("usage"), get("x_groq"))
        for position, choice in enumerate(as_list(get("choices"))):
            if isinstance(choice, dict):
                self._read_choice(number(choice.get("index"), position), choice)

    def read_usage(self, fields: dict[str, Any]) -> Usage | None:
        return openai_usage(fields)

    def report_text(self, listener: StreamListener, number: int, piece: str) -> None:
        listener.on_text(number >> 1, number & 1, piece)

    def _set_usage(self, usage: object, groq: object) -> None:
        if usage is None and isinstance(groq, dict):
            usage = groq.get("usage")
        if isinstance(usage, dict):
            self.usage = usage

    def _read_choice(self, index: int, choice: dict[str, Any]) -> None:
        read_error(self, choice)
        message = choice.get("message")
        if message is None:
            message = choice.get("delta")
        if isinstance(message, dict):
            get = message.get
            said = get("content")
            if said:
                self.add_text(index * 2, content(said))
            else:
                self._add_reasoning(index, get("reasoning_content"), get("reasoning"))
            self._add_calls(index, get("tool_calls"))
            self._add_rare(index, get("refusal"), get("function_call"), get("audio"))
        self.finish_choice(index, choice.get("finish_reason"))

    def _add_reasoning(self, index: int, piece: object, other: object) -> None:
        piece = piece or other  # some servers send the same piece in both fields
        if isinstance(piece, str) and piece:
            self.add_reasoning(index, piece)

    def _add_rare(self, index: int, refusal: object, function: object, audio: object) -> None:
        if refusal:
            self.add_text(index * 2 + 1, text(refusal))
        if isinstance(audio, dict):
            self.add_text(index * 2, word(audio.get("transcript")))
        if isinstance(function, dict):  # a legacy call
            self._add_calls(index, [{"index": -1, "function": function}])

    def _add_calls(self, choice: int, items: object) -> None:
        for item in as_list(items):
            if not isinstance(item, dict):
                continue
            made = item.get("function")
            if not isinstance(made, dict):
                made = item.get("custom")
                if not isinstance(made, dict):
                    made = {}
            call = self._slot(choice, item.get("index"), word(item.get("id")))
            if not call.name:
                call.name = word(made.get("name"))
            given = made.get("arguments")
            if given is None:
                given = made.get("input")
            if isinstance(given, str):
                self.add_arguments(call, given, choice)
            elif given is not None:
                self.set_arguments(call, given, choice)

    def _slot(self, choice: int, index: object, call_id: str) -> PartialCall:
        """Find the call that a piece belongs to. Some servers number all calls 0, or none, but their ids differ."""
        position = index if isinstance(index, int) else -2
        call = self._last if position == -2 else self._slots.get((choice, position))
        if call is not None and (not call_id or not call.call_id or call_id == call.call_id):
            return call
        call = self.start_call(choice * _CHOICE + len(self._calls), "", call_id, choice)
        self._last = self._slots[choice, position] = call
        return call


def _whole_calls(made: list[_Call]) -> tuple[ToolCall, ...] | None:
    """Return the calls of an answer; None if they are too long to be kept, or two in a row have the same id."""
    found: list[ToolCall] = []
    before, room = "", ARGUMENTS_MAX_CHARS
    for call in made:
        function, call_id = call.function, call.id
        given = function.arguments
        room -= len(given)
        if room < 0 or call_id == before:
            return None
        before = call_id
        spelled = respelled_short(given) if len(given) <= KEPT_MAX else arguments(given)
        found.append(_new(ToolCall, (function.name, spelled)))
    return tuple(found)


def read_error(builder: AnswerBuilder, fields: dict[str, Any]) -> None:
    """Note the error of an answer, a chunk or a choice, if it has one in one of OpenAI's shapes."""
    error = fields.get("error")
    if isinstance(error, dict) and error:
        builder.set_error(error.get("code"), error.get("type"))
    elif error or fields.get("object") == "error":
        builder.set_error(fields.get("code"), fields.get("type"))


def openai_usage(fields: dict[str, Any]) -> Usage | None:
    """Read token counts by OpenAI's names, the older and the newer ones."""
    plain = _DETAILS.isdisjoint(fields)
    sent, received = fields.get("prompt_tokens"), fields.get("completion_tokens")
    if plain and type(sent) is int and type(received) is int and 0 <= sent <= TOKENS_MAX >= received >= 0:
        return _new(Usage, (sent, received, 0, 0, 0, None))  # as below, in a quarter of the time
    if _COUNTS.isdisjoint(fields):
        return None
    sent = tokens(fields, "prompt_tokens", "input_tokens")
    received = tokens(fields, "completion_tokens", "output_tokens")
    if plain:
        return Usage(sent, received)
    given = fields.get("prompt_tokens_details") or fields.get("input_tokens_details")
    made = fields.get("completion_tokens_details") or fields.get("output_tokens_details")
    reasoning = tokens(made, "reasoning_tokens") or tokens(fields, "reasoning_tokens")
    # xAI counts reasoning in addition to the completion, which only the total shows.
    if reasoning and tokens(fields, "total_tokens") == sent + received + reasoning:
        received += reasoning
    return Usage(
        sent,
        received,
        tokens(given, "cached_tokens") or tokens(fields, "prompt_cache_hit_tokens", "cached_tokens"),
        tokens(given, "cache_write_tokens") or tokens(fields, "cache_creation_input_tokens"),
        reasoning,
        _stated_cost(fields) if "cost" in fields else None,
    )


def _stated_cost(fields: dict[str, Any]) -> int | None:
    """Return what OpenRouter charges, in millionths of a dollar. With a key of the user's own at the provider, that is
    its fee, and the provider's charge is stated beside it."""
    details = fields.get("cost_details")
    charged = details.get("upstream_inference_cost") if fields.get("is_byok") and isinstance(details, dict) else None
    total = 0.0
    for part in (fields.get("cost"), 0 if charged is None else charged):
        if not isinstance(part, int | float) or isinstance(part, bool) or not 0 <= part <= _USD_MAX:
            return None
        total += part
    return round(total * 1_000_000)
