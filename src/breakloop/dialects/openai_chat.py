"""Reads OpenAI Chat Completions requests (Azure's and OpenRouter's too) into a `Chat`.

Ids never enter, because a retry carries new ones; neither do cache marks that gateways pass on.

Reads the newest step of an OpenAI Chat Completions request: the last message of the assistant, and behind it the
messages of tools and of the user. There is no error flag here; what a result says of itself is `result_forms`' part.

Reads OpenAI Chat Completions answers (Azure's, OpenRouter's and all the other compatible ones), streamed or whole.

An ordinary piece of text costs one typed decoding; whatever is rare or odd goes through `whole`, as plain values.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from breakloop.dialects.answers import AnswerBuilder, PartialCall, number, tokens, word
from breakloop.dialects.base import (
    ITEMS_MAX,
    BodyFields,
    BodyModel,
    ConversationReader,
    NamedTool,
    ParsedBody,
    arguments,
    as_list,
    at_least_one,
    content,
    count,
    item_at,
    load,
    more,
    text,
    truth,
    without_ids,
)
from breakloop.dialects.steps import StepBuilder, is_prefill, read_step, result
from breakloop.model.call import Message, Step, ToolCall, Usage

DIALECT: Final = "openai_chat"
_RESULTS: Final = frozenset(("tool", "function"))
_OBJECTS: Final = frozenset((dict,))
_SMALL: Final = 4096  # bytes
_new: Final = tuple.__new__  # makes a named tuple in half the time that its name takes, for the common case
_BESIDE: Final = frozenset(("refusal", "tool_calls", "function_call"))


class ChatTool(msgspec.Struct, gc=False):
    """A tool that is declared."""

    function: NamedTool | None = None
    custom: NamedTool | None = None


class ChatBody(BodyModel, gc=False, kw_only=True):
    """What is read of a request."""

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


def _typed(body: bytes) -> BodyFields:
    fields = _decode_body(body) if len(body) > _SMALL else _small(body)
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


def _small(body: bytes) -> ChatBody:
    """Decode a small body with all its messages, which takes half the time of one after the other. What is odd in it is
    left undecoded, for those who come across it."""
    try:
        fields = _decode_small(body)
    except (ValueError, RecursionError):
        return _decode_body(body)
    return fields if _OBJECTS.issuperset(map(type, fields.messages)) else _decode_body(body)


def _read_leniently(fields: dict[str, Any]) -> BodyFields:
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


def _flatten(item: Any) -> Message:
    if not isinstance(item, dict):
        return Message("", text(item))
    get = item.get
    role, said = get("role"), get("content")
    if type(role) is not str:
        role = text(role)
    if type(said) is not str:
        said = "" if said is None else content(said)
    if _BESIDE.isdisjoint(item):  # as most messages
        return _new(Message, (role, said, ()))
    refusal, calls, legacy = get("refusal"), get("tool_calls"), get("function_call")
    if refusal:
        said = f"{said}\n{text(refusal)}" if said else text(refusal)
    return _new(Message, (role, said, _calls(calls, legacy) if calls or legacy else ()))


def _calls(calls: object, legacy: object) -> tuple[ToolCall, ...]:
    made = calls if type(calls) is list else as_list(calls)
    if len(made) == 1 and not legacy:  # as most
        return (_tool_call(made[0]),)
    found = [_tool_call(item) for item in (made if len(made) <= ITEMS_MAX else made[:ITEMS_MAX])]
    if len(made) > ITEMS_MAX:
        found.append(ToolCall("", more(made)))
    if legacy:
        found.append(_tool_call({"function": legacy}))
    return tuple(found)


def _tool_call(item: object) -> ToolCall:
    if not isinstance(item, dict):
        return ToolCall("", text(item))
    function = item.get("function")
    if isinstance(function, dict):
        name, given = function.get("name"), function.get("arguments")
        if type(given) is str:  # spelled once for all who read it: see `step_parts.Gathered.called`
            given = function["arguments"] = (given, arguments(given))
        spelled = given[1] if type(given) is tuple else arguments(given)
        return _new(ToolCall, (name if type(name) is str else text(name), spelled))
    custom = item.get("custom")
    if isinstance(custom, dict):
        return ToolCall(text(custom.get("name")), text(custom.get("input")))
    return ToolCall("", text(without_ids(item)))


def _newest(items: list[Any], tail: int) -> list[Message]:
    """Return the last messages, where the results of parallel calls count as one, as they do in the other dialects.

    Else the last three messages after a round of three calls would be results alone, and rounds of different calls
    that all return "ok" would be taken for a loop.
    """
    found: list[Message] = []
    results: list[Message] = []
    at = len(items)
    while at and len(found) < tail:
        at -= 1
        item = items[at]
        message = _flatten(item if type(item) is dict else item_at(items, at))
        if message[0] in _RESULTS and len(results) < ITEMS_MAX:
            results.append(message)
            continue
        if results:
            found.append(results[0] if len(results) == 1 else _together(results))
            results = []
            if len(found) >= tail:
                break
        found.append(message)
    if results and len(found) < tail:
        found.append(_together(results))
    found.reverse()
    return found


def _together(results: list[Message]) -> Message:
    if len(results) == 1:
        return results[0]
    return Message(results[0].role, "\n<result>\n".join([result.text for result in reversed(results)]))


_conversation = ConversationReader(DIALECT, _typed, _read_leniently, _flatten, _newest)
take: Final = _conversation.take
read: Final = _conversation.read
opening: Final = _conversation.opening


_ASSISTANT: Final = "assistant"


def of(taken: ParsedBody) -> Step | None:
    """Return the newest step of a request; None where nothing can be read."""
    return read_step(taken, _gather, _tools)


def _tools(fields: ChatBody | dict[str, Any]) -> list[str]:
    """Return the names of the tools that are declared."""
    if isinstance(fields, dict):
        return _tools_leniently(fields)
    names: list[str] = []
    for tool in (fields.tools or ())[:ITEMS_MAX]:
        named = tool.function or tool.custom
        if named is not None and named.name:
            names.append(named.name)
    if fields.functions:
        names.extend([named.name for named in fields.functions[:ITEMS_MAX] if named.name])
    return names


def _tools_leniently(fields: dict[str, Any]) -> list[str]:
    tools = [tool for tool in as_list(fields.get("tools"))[:ITEMS_MAX] if isinstance(tool, dict)]
    declared = [tool.get("function") or tool.get("custom") for tool in tools]
    declared += as_list(fields.get("functions"))[:ITEMS_MAX]
    return [name for named in declared if isinstance(named, dict) and (name := text(named.get("name")))]


def _gather(items: list[Any], _lead: int) -> StepBuilder:
    found = StepBuilder()
    for back in range(1, min(len(items), ITEMS_MAX) + 1):
        item = items[-back]
        if type(item) is not dict:
            item = item_at(items, -back)
        if not isinstance(item, dict):
            found.users.append(("", item))
            continue
        role = item.get("role")
        if role == _ASSISTANT:
            if back == 1 and _is_prefill(item, items, found):
                continue
            _answer(found, item)
            break
        if type(role) is str and role in _RESULTS:
            found.results.append(result(item.get("content"), item.get("tool_call_id")))
        else:
            found.users.append((text(role), item.get("content")))
    return found


def _is_prefill(item: dict[str, Any], items: list[Any], found: StepBuilder) -> bool:
    if item.get("tool_calls") or item.get("function_call"):
        return False

    def answer_before() -> bool:
        before = item_at(items, -2) if len(items) > 1 else None
        return isinstance(before, dict) and before.get("role") == _ASSISTANT

    return is_prefill(item.get("content"), found, answer_before)


def _answer(found: StepBuilder, item: dict[str, Any]) -> None:
    get = item.get
    found.answered = True
    refusal, said = get("refusal"), get("content")
    if refusal is not None or said is not None:
        found.said = [one for one in (text(refusal), content(said)) if one]
    made = get("tool_calls")
    if type(made) is not list:
        made = as_list(made)
    legacy = get("function_call")
    if legacy:
        made = [*made, {"function": legacy}]
    if len(made) > ITEMS_MAX:
        found.call("", more(made), "")
        made = made[:ITEMS_MAX]
    for call in reversed(made):
        _add_call(found, call)


def _add_call(found: StepBuilder, call: object) -> None:
    if not isinstance(call, dict):
        found.call("", text(call), "")
        return
    function, call_id = call.get("function"), call.get("id")
    if isinstance(function, dict):
        found.called(function.get("name"), function.get("arguments"), call_id)
        return
    custom = call.get("custom")
    if isinstance(custom, dict):
        found.call(custom.get("name"), text(custom.get("input")), call_id)
    else:
        found.call("", text(without_ids(call)), call_id)


_CHOICE: Final = 1 << 20  # calls are numbered within their choice
_ERROR: Final = "error"
_NONE: Final = msgspec.Raw(b"null")
_COUNTS: Final = frozenset(("prompt_tokens", "input_tokens", "completion_tokens", "output_tokens", "total_tokens"))
_DETAILS: Final = frozenset((
    "prompt_tokens_details", "input_tokens_details", "completion_tokens_details", "output_tokens_details",
    "reasoning_tokens", "cached_tokens", "prompt_cache_hit_tokens", "cache_creation_input_tokens",
))  # fmt: skip


class _Delta(msgspec.Struct, gc=False):
    content: str | None = None
    refusal: Any = None
    tool_calls: Any = None
    function_call: Any = None
    audio: Any = None


class _Choice(msgspec.Struct, gc=False):
    delta: _Delta | None = None
    index: int = 0
    finish_reason: str | None = None


class _Chunk(msgspec.Struct, gc=False):
    """What is read of an ordinary chunk; any other is read tolerantly. Thinking has fields of its own, not here."""

    choices: list[_Choice]
    id: str | None = None
    model: str | None = None
    usage: dict[str, Any] | None = None
    error: Any = None
    x_groq: Any = None


class _Message(msgspec.Struct, gc=False):
    content: str | None = None
    refusal: str | None = None
    tool_calls: msgspec.Raw = _NONE  # read as the rest of an odd answer is: numbers may be of any size
    function_call: Any = None
    audio: Any = None

    @property
    def is_odd(self) -> bool:
        return self.function_call is not None or self.audio is not None


class _Made(msgspec.Struct, gc=False):
    """A choice of an ordinary answer in one piece."""

    message: _Message
    index: int | None = None
    finish_reason: str | None = None
    error: Any = None
    object: Any = None


class _Whole(msgspec.Struct, gc=False):
    """What is read of an ordinary answer in one piece; any other is read tolerantly."""

    choices: list[_Made]
    id: str | None = None
    model: str | None = None
    usage: dict[str, Any] | None = None
    error: Any = None
    object: Any = None
    x_groq: Any = None


_decode_chunk: Final = msgspec.json.Decoder(_Chunk).decode
_decode_whole: Final = msgspec.json.Decoder(_Whole).decode


class ChatAnswer(AnswerBuilder):
    """One answer. Texts are numbered 2n for choice n, and 2n + 1 for what it refuses."""

    __slots__ = ("_last", "_slots")

    def __init__(self) -> None:
        super().__init__()
        self._slots: dict[tuple[int, int], PartialCall] = {}  # by choice and index
        self._last: PartialCall | None = None

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
            delta = choice.delta
            if delta is not None:
                if delta.content:
                    self.say(choice.index * 2, delta.content)
                if delta.tool_calls is not None:
                    self._calls_of(choice.index, delta.tool_calls)
                if delta.refusal is not None or delta.function_call is not None or delta.audio is not None:
                    self._rare(choice.index, delta.refusal, delta.function_call, delta.audio)
            if choice.finish_reason:
                self._finished(choice.index, choice.finish_reason)
        if chunk.usage is not None or chunk.x_groq is not None:
            self._counted(chunk.usage, chunk.x_groq)
        if not self.model:
            self.model, self.response_id = word(chunk.model), word(chunk.id)

    def body(self, body: bytes) -> bool:
        """Read an answer in one piece: in half the time where it is an ordinary one."""
        try:
            whole = _decode_whole(body)
        except (ValueError, RecursionError):
            return super().body(body)
        if whole.error is not None or whole.object == _ERROR or whole.x_groq is not None:
            return super().body(body)
        for made in whole.choices:
            if made.error is not None or made.object == _ERROR or made.message.is_odd:
                return super().body(body)
        self.model, self.response_id = word(whole.model), word(whole.id)
        self.usage = whole.usage
        for place, made in enumerate(whole.choices):
            said, index = made.message, place if made.index is None else made.index
            if said.content:
                self.say(index * 2, said.content)
            if said.tool_calls is not _NONE:
                self._calls_of(index, load(bytes(said.tool_calls)))
            if said.refusal:
                self.say(index * 2 + 1, said.refusal)
            self._finished(index, made.finish_reason)
        return True

    def whole(self, fields: dict[str, Any]) -> None:
        """Read a whole answer or an odd chunk."""
        get = fields.get
        failed_of(self, fields)
        self.model, self.response_id = word(get("model")) or self.model, word(get("id")) or self.response_id
        self._counted(get("usage"), get("x_groq"))
        for place, choice in enumerate(as_list(get("choices"))):
            if isinstance(choice, dict):
                self._choice(number(choice.get("index"), place), choice)

    def tokens(self, fields: dict[str, Any]) -> Usage | None:
        """Read OpenAI's count."""
        return openai_tokens(fields)

    def _counted(self, usage: object, groq: object) -> None:
        if usage is None and isinstance(groq, dict):
            usage = groq.get("usage")
        if isinstance(usage, dict):
            self.usage = usage

    def _choice(self, index: int, choice: dict[str, Any]) -> None:
        failed_of(self, choice)
        message = choice.get("message")
        if message is None:
            message = choice.get("delta")
        if isinstance(message, dict):
            get = message.get
            said = get("content")
            if said:
                self.say(index * 2, content(said))
            self._calls_of(index, get("tool_calls"))
            self._rare(index, get("refusal"), get("function_call"), get("audio"))
        self._finished(index, choice.get("finish_reason"))

    def _finished(self, index: int, reason: object) -> None:
        if reason and (index == 0 or not self.finish):
            self.finish = word(reason)

    def _rare(self, index: int, refusal: object, function: object, audio: object) -> None:
        if refusal:
            self.say(index * 2 + 1, text(refusal))
        if isinstance(audio, dict):
            self.say(index * 2, word(audio.get("transcript")))
        if isinstance(function, dict):  # how calls were made before there were tools
            self._calls_of(index, [{"index": -1, "function": function}])

    def _calls_of(self, choice: int, items: object) -> None:
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
            said = made.get("arguments")
            if said is None:
                said = made.get("input")
            if isinstance(said, str):
                self.argue(call, said)
            elif said is not None:
                self.settle(call, said)

    def _slot(self, choice: int, index: object, call_id: str) -> PartialCall:
        """Find the call that a piece belongs to. Some servers number all calls 0, or none, but ids are their own."""
        place = index if isinstance(index, int) else -2
        call = self._last if place == -2 else self._slots.get((choice, place))
        if call is not None and (not call_id or not call.call_id or call_id == call.call_id):
            return call
        call = self._last = self._slots[choice, place] = self.begin(choice * _CHOICE + len(self._calls), "", call_id)
        return call


def failed_of(gathered: AnswerBuilder, fields: dict[str, Any]) -> None:
    """Note the error of an answer, a chunk or a choice in one of OpenAI's shapes, if there is one."""
    error = fields.get("error")
    if isinstance(error, dict) and error:
        gathered.fail(error.get("code"), error.get("type"))
    elif error or fields.get("object") == "error":
        gathered.fail(fields.get("code"), fields.get("type"))


def openai_tokens(fields: dict[str, Any]) -> Usage | None:
    """Read a count of tokens by OpenAI's names, the older and the newer ones."""
    if _COUNTS.isdisjoint(fields):
        return None
    sent = tokens(fields, "prompt_tokens", "input_tokens")
    received = tokens(fields, "completion_tokens", "output_tokens")
    if _DETAILS.isdisjoint(fields):
        return Usage(sent, received)
    given = fields.get("prompt_tokens_details") or fields.get("input_tokens_details")
    made = fields.get("completion_tokens_details") or fields.get("output_tokens_details")
    reasoning = tokens(made, "reasoning_tokens") or tokens(fields, "reasoning_tokens")
    # xAI counts reasoning beside the completion and not within it, which only the total tells.
    if reasoning and tokens(fields, "total_tokens") == sent + received + reasoning:
        received += reasoning
    return Usage(
        sent,
        received,
        tokens(given, "cached_tokens") or tokens(fields, "prompt_cache_hit_tokens", "cached_tokens"),
        tokens(given, "cache_write_tokens") or tokens(fields, "cache_creation_input_tokens"),
        reasoning,
    )
