"""Reads OpenAI Chat Completions answers (Azure's, OpenRouter's and all the other compatible ones), streamed or whole.

An ordinary piece of text costs one typed decoding; whatever is rare or odd goes through `whole`, as plain values.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from breakloop.model.answer import Usage
from breakloop.wire.content import as_list, content, load, text
from breakloop.wire.gathered import Gathered, PartOfCall, number, tokens, word

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


class ChatAnswer(Gathered):
    """One answer. Texts are numbered 2n for choice n, and 2n + 1 for what it refuses."""

    __slots__ = ("_last", "_slots")

    def __init__(self) -> None:
        super().__init__()
        self._slots: dict[tuple[int, int], PartOfCall] = {}  # by choice and index
        self._last: PartOfCall | None = None

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

    def _slot(self, choice: int, index: object, call_id: str) -> PartOfCall:
        """Find the call that a piece belongs to. Some servers number all calls 0, or none, but ids are their own."""
        place = index if isinstance(index, int) else -2
        call = self._last if place == -2 else self._slots.get((choice, place))
        if call is not None and (not call_id or not call.call_id or call_id == call.call_id):
            return call
        call = self._last = self._slots[choice, place] = self.begin(choice * _CHOICE + len(self._calls), "", call_id)
        return call


def failed_of(gathered: Gathered, fields: dict[str, Any]) -> None:
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
