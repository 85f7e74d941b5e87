"""Reads a stream as `answer` does, and tells a listener piece by piece what is said and thought in it, and which of its
answers have ended. Keeps what ending the stream needs. Who listens, and what follows, is not known here.

What a model thinks aloud in a stream, event by event. The readers of answers pass over it, because nothing is judged
by it; the stream guard has to see it, for models repeat themselves there most of all.

Ends a stream that is cut (SPEC LD-8) as its dialect ends one that ran into its limit of tokens, so that SDKs take
what has come for an answer cut short, and not for a broken connection.

When to cut is `detect.stream`'s business, and to cut between two events the caller's. Only what is needed to write an
end is kept of what passed; nothing here raises, whatever that was.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Protocol

import msgspec

from breakloop.dialects import anthropic, gemini, openai_chat, openai_legacy, openai_responses
from breakloop.dialects.answers import DONE, AnswerBuilder, PartialCall, number, word
from breakloop.dialects.anthropic import AnthropicAnswer
from breakloop.dialects.base import arguments, load
from breakloop.dialects.gemini import GeminiAnswer
from breakloop.dialects.openai_chat import ChatAnswer
from breakloop.dialects.openai_legacy import CompletionsAnswer
from breakloop.dialects.openai_responses import ResponsesAnswer
from breakloop.dialects.reader import StreamReader
from breakloop.model.call import CHARS_A_TOKEN, Usage

_PARTS: Final = 1000  # thoughts of a response are numbered by their item, and within it by their part
_REASONED: Final = frozenset(("response.reasoning_text.delta", "response.reasoning_summary_text.delta"))

Thoughts = Sequence[tuple[int, str]]  # the number of a choice, a block or a part, and the piece
_NOTHING: Final[Thoughts] = ()


class _ChatDelta(msgspec.Struct, gc=False):
    reasoning_content: Any = None  # DeepSeek, and most who serve open models
    reasoning: Any = None  # OpenRouter, Groq


class _ChatChoice(msgspec.Struct, gc=False):
    delta: _ChatDelta | None = None
    index: int = 0


class _ChatChunk(msgspec.Struct, gc=False):
    choices: list[_ChatChoice]


class _BlockDelta(msgspec.Struct, gc=False):
    thinking: str = ""


class _BlockEvent(msgspec.Struct, gc=False):
    delta: _BlockDelta
    index: int = 0


class _ReasoningEvent(msgspec.Struct, gc=False):
    type: str
    delta: str = ""
    output_index: int = 0
    content_index: int = 0
    summary_index: int = 0


class _Part(msgspec.Struct, gc=False):
    text: str = ""
    thought: bool = False


class _Content(msgspec.Struct, gc=False):
    parts: list[_Part] | None = None


class _Candidate(msgspec.Struct, gc=False):
    content: _Content | None = None
    index: int = 0


class _Candidates(msgspec.Struct, gc=False):
    candidates: list[_Candidate]


_decode_chunk: Final = msgspec.json.Decoder(_ChatChunk).decode
_decode_block: Final = msgspec.json.Decoder(_BlockEvent).decode
_decode_reasoning: Final = msgspec.json.Decoder(_ReasoningEvent).decode
_decode_candidates: Final = msgspec.json.Decoder(_Candidates).decode


def reader_of_thoughts(dialect: str) -> tuple[bytes, Callable[[bytes], Thoughts]]:
    """Return what stands in every event that may hold a thought, and what reads such an event.

    The caller looks for the former, because that is all that most events cost; the latter raises nothing.
    """
    mark, read = _READERS[dialect]
    return mark, partial(_tolerantly, read)


def _tolerantly(read: Callable[[bytes], Thoughts], payload: bytes) -> Thoughts:
    try:
        return read(payload)
    except (ValueError, RecursionError):
        return _NOTHING


def _chat_reasoning(payload: bytes) -> Thoughts:
    found: list[tuple[int, str]] = []
    for choice in _decode_chunk(payload).choices:
        delta = choice.delta
        if delta is not None:
            piece = delta.reasoning_content or delta.reasoning  # some servers send both, and the same in both
            if isinstance(piece, str) and piece:
                found.append((choice.index, piece))
    return found


def _anthropic_reasoning(payload: bytes) -> Thoughts:
    event = _decode_block(payload)
    return ((event.index, event.delta.thinking),) if event.delta.thinking else _NOTHING


def _responses_reasoning(payload: bytes) -> Thoughts:
    event = _decode_reasoning(payload)
    if event.type not in _REASONED or not event.delta:
        return _NOTHING
    return ((event.output_index * _PARTS + event.content_index + event.summary_index, event.delta),)


def _gemini_reasoning(payload: bytes) -> Thoughts:
    return [
        (candidate.index, part.text)
        for candidate in _decode_candidates(payload).candidates
        if candidate.content is not None
        for part in candidate.content.parts or ()
        if part.thought and part.text
    ]


_READERS: Final[dict[str, tuple[bytes, Callable[[bytes], Thoughts]]]] = {
    openai_chat.DIALECT: (b'"reasoning', _chat_reasoning),
    openai_legacy.COMPLETIONS: (b'"reasoning', _chat_reasoning),
    openai_responses.DIALECT: (b'"response.reasoning', _responses_reasoning),
    anthropic.DIALECT: (b'"thinking_delta"', _anthropic_reasoning),
    gemini.DIALECT: (b'"thought"', _gemini_reasoning),
}


ITEMS_MAX_BYTES: Final = 1024 * 1024
_PING_MAX_BYTES: Final = 20
_ITEM_DONE: Final = b'"response.output_item.done"'
_END: Final = b"data: [DONE]\n\n"
_ENVELOPE: Final = ("id", "object", "created", "model", "service_tier", "system_fingerprint")
_GEMINI_ENVELOPE: Final = ("usageMetadata", "modelVersion", "responseId")
_BLOCK_OPEN: Final = frozenset(("content_block_start", "content_block_delta"))
_OVER: Final = frozenset(
    ("response.completed", "response.incomplete", "response.failed", "response.cancelled", "error")
)
# What a response has in any case, for streams that did not begin with one.
_RESPONSE: Final[dict[str, Any]] = {
    "id": "",
    "object": "response",
    "created_at": 0,
    "model": "",
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
}

Json = dict[str, Any]


class StreamState:
    """What is kept of a stream while it passes: its first and its last event, and the items of a response so far."""

    __slots__ = ("_room", "first", "items", "last")

    def __init__(self) -> None:
        self.first = b""
        self.last = b""
        self.items: list[bytes] = []
        self._room = ITEMS_MAX_BYTES

    def note(self, payload: bytes) -> None:
        """Take the data of the next event."""
        if not self.first:
            self.first = payload
        if _ITEM_DONE in payload and len(payload) <= self._room:
            self._room -= len(payload)
            self.items.append(payload)
        if len(payload) > _PING_MAX_BYTES or b"ping" not in payload:  # which says nothing, and comes at any time
            self.last = payload


def can_end(dialect: str) -> bool:
    """Tell whether streams of a dialect can be ended at all."""
    return dialect in _WRITERS


def final_event(
    dialect: str, passed: StreamState, text: str = "", *, usage: Usage | None = None, choices: Sequence[int] = (0,)
) -> bytes:
    """Return the events that end the stream; nothing where it has ended, or where no dialect says how.

    `text` is that of the part which is cut, for Responses repeats it; `choices` are the numbers of those answers in the
    stream that have not ended yet.
    """
    write = _WRITERS.get(dialect)
    last = _fields(passed.last)
    return b"" if write is None or not last else write(passed, last, text, usage, choices)


def _finish_chat(_passed: StreamState, last: Json, _text: str, usage: Usage | None, choices: Sequence[int]) -> bytes:
    return _openai(last, {"delta": {}, "logprobs": None, "finish_reason": "length"}, usage, choices)


def _completions(_passed: StreamState, last: Json, _text: str, usage: Usage | None, choices: Sequence[int]) -> bytes:
    return _openai(last, {"text": "", "logprobs": None, "finish_reason": "length"}, usage, choices)


def _openai(last: Json, finished: Json, usage: Usage | None, choices: Sequence[int]) -> bytes:
    envelope: Json = {name: last[name] for name in _ENVELOPE if name in last}
    written = b""
    if choices:
        written = _event({**envelope, "choices": [{"index": index, **finished} for index in choices]})
        if usage is not None and "usage" in last:  # the client asked for a count
            count = {
                "prompt_tokens": usage.input_tokens,
                "completion_tokens": usage.output_tokens,
                "total_tokens": usage.input_tokens + usage.output_tokens,
            }
            written += _event({**envelope, "choices": [], "usage": count})
    return written + _END


def _finish_anthropic(
    _passed: StreamState, last: Json, text: str, usage: Usage | None, _choices: Sequence[int]
) -> bytes:
    kind = word(last.get("type"))
    if kind in {"message_stop", "error"}:
        return b""
    written = b""
    if kind in _BLOCK_OPEN:
        written = _named({"type": "content_block_stop", "index": number(last.get("index"))})
    if kind != "message_delta":
        count = len(text) // CHARS_A_TOKEN if usage is None else usage.output_tokens  # SDKs insist on one
        delta = {"stop_reason": "max_tokens", "stop_sequence": None}
        written += _named({"type": "message_delta", "delta": delta, "usage": {"output_tokens": count}})
    return written + _named({"type": "message_stop"})


def _finish_gemini(_passed: StreamState, last: Json, _text: str, _usage: Usage | None, choices: Sequence[int]) -> bytes:
    if not choices:
        return b""  # there is no end mark
    content = {"parts": [{"text": ""}], "role": "model"}
    ended = [{"content": content, "finishReason": "MAX_TOKENS", "index": index} for index in choices]
    return _event({"candidates": ended} | {name: last[name] for name in _GEMINI_ENVELOPE if name in last})


def _finish_responses(
    passed: StreamState, last: Json, text: str, usage: Usage | None, _choices: Sequence[int]
) -> bytes:
    kind = word(last.get("type"))
    if kind in _OVER:
        return b""
    items = [item for payload in passed.items if isinstance(item := _fields(payload).get("item"), dict)]
    closing = _part_closed(last, kind, text)
    if closing:
        items.append(closing[-1]["item"])
    begun = _fields(passed.first).get("response")
    response = {
        **_RESPONSE,
        **(begun if isinstance(begun, dict) else {}),
        "status": "incomplete",
        "incomplete_details": {"reason": "max_output_tokens"},
        "output": items,
        "usage": None if usage is None else _responses_usage(usage),
    }
    sequence = number(last.get("sequence_number"))
    events = [*closing, {"type": "response.incomplete", "response": response}]
    return b"".join([_named(event | {"sequence_number": sequence + 1 + at}) for at, event in enumerate(events)])


def _part_closed(last: Json, kind: str, text: str) -> list[Json]:
    """What closes the part of a message that the last event belongs to, and the message."""
    refused = kind == "response.refusal.delta"
    if not refused and kind != "response.output_text.delta":
        return []
    said: Json = {"refusal": text} if refused else {"text": text, "logprobs": []}
    part: Json = {"type": "refusal", **said} if refused else {"type": "output_text", "annotations": [], **said}
    item_id, item_at = word(last.get("item_id")), {"output_index": number(last.get("output_index"))}
    part_at = {"item_id": item_id, **item_at, "content_index": number(last.get("content_index"))}
    item = {"id": item_id, "type": "message", "status": "incomplete", "role": "assistant", "content": [part]}
    return [
        {"type": kind.removesuffix("delta") + "done", **part_at, **said},
        {"type": "response.content_part.done", **part_at, "part": part},
        {"type": "response.output_item.done", **item_at, "item": item},
    ]


def _responses_usage(usage: Usage) -> Json:
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": usage.cache_write_tokens},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }


def _fields(payload: bytes) -> Json:
    """The fields of an event; none of the end mark, or of what is no JSON object."""
    found = None if not payload or payload.startswith(DONE) else load(payload)
    return found if isinstance(found, dict) else {}


def _event(fields: Json) -> bytes:
    return b"data: " + json.dumps(fields, separators=(",", ":")).encode("ascii") + b"\n\n"


def _named(fields: Json) -> bytes:
    return b"event: " + str(fields["type"]).encode("ascii", "replace") + b"\n" + _event(fields)


_WRITERS: Final[dict[str, Callable[[StreamState, Json, str, Usage | None, Sequence[int]], bytes]]] = {
    openai_chat.DIALECT: _finish_chat,
    openai_legacy.COMPLETIONS: _completions,
    openai_responses.DIALECT: _finish_responses,
    anthropic.DIALECT: _finish_anthropic,
    gemini.DIALECT: _finish_gemini,
}


class StreamListener(Protocol):
    """Whoever wants to know."""

    def said(self, choice: int, part: int, piece: str) -> None:
        """Take the next piece of a text: which of the answers in the stream it belongs to, and which part of that."""
        ...

    def thought(self, choice: int, part: int, piece: str) -> None:
        """Take the next piece of what a model thinks aloud."""
        ...

    def argued(self, choice: int, piece: str) -> None:
        """Take the next piece of a call's arguments; only who asks for `calls` is told."""
        ...

    def ended(self, choice: int) -> None:
        """One of the answers has come to its end."""
        ...


class _Told(AnswerBuilder):
    """One of the readers, which also tells what it reads. Its texts are answers of their own, unless `ONE` says no."""

    ONE: bool = False  # the stream is one answer, whose texts follow each other
    listener: StreamListener  # mixed in with classes that have slots, so this one has none
    spoke = False  # in the event that is being read

    def say(self, number: int, piece: str) -> None:
        """Tell before keeping it, because what is kept is bounded."""
        self.spoke = True
        self.listener.said(number, 0, piece)
        AnswerBuilder.say(self, number, piece)

    def current(self) -> str:
        """Return the text that is being written."""
        text = None if self._text is None else self._texts.get(self._text)
        return "" if text is None else text.text()


class _ToldAsOne(_Told):
    ONE = True

    def say(self, number: int, piece: str) -> None:
        self.spoke = True
        self.listener.said(0, number, piece)
        AnswerBuilder.say(self, number, piece)


class _Chat(_Told, ChatAnswer):
    def say(self, number: int, piece: str) -> None:
        self.spoke = True
        self.listener.said(number >> 1, number & 1, piece)  # a choice, and what it refuses
        AnswerBuilder.say(self, number, piece)

    def _finished(self, index: int, reason: object) -> None:
        if reason:
            self.listener.ended(index)
        super()._finished(index, reason)


class _Completions(_Told, CompletionsAnswer):
    def _finished(self, index: int, reason: object) -> None:
        if reason:
            self.listener.ended(index)
        super()._finished(index, reason)


class _Gemini(_Told, GeminiAnswer):
    def _finished(self, index: int, reason: object) -> None:
        if reason:
            self.listener.ended(index)
        super()._finished(index, reason)


class _Anthropic(_ToldAsOne, AnthropicAnswer):
    """Blocks, one after the other."""


class _Responses(_ToldAsOne, ResponsesAnswer):
    """Parts of items, one after the other."""


class _Argued(_Told):
    """Tells of calls too."""

    choice = 0  # whose calls are being read

    def argue(self, call: PartialCall, piece: str) -> None:
        self.listener.argued(self.choice, piece)
        AnswerBuilder.argue(self, call, piece)


class _ArguedAtOnce(_Argued):
    """Values may come whole, and are not repeated at the end."""

    def settle(self, call: PartialCall, value: object) -> None:
        if value is not None:
            self.listener.argued(self.choice, arguments(value))
        AnswerBuilder.settle(self, call, value)


class _ArguedChat(_ArguedAtOnce, _Chat):
    def _calls_of(self, choice: int, items: object) -> None:
        self.choice = choice
        super()._calls_of(choice, items)


class _ArguedGemini(_ArguedAtOnce, _Gemini):
    """Calls of any candidate count, and are taken for the first one's."""


class _ArguedAnthropic(_Argued, _Anthropic):
    """Arguments come in pieces."""


class _ArguedResponses(_Argued, _Responses):
    """Arguments come in pieces, and again whole."""


_WITH_CALLS: Final[dict[str, Callable[[], _Told]]] = {
    openai_chat.DIALECT: _ArguedChat,
    openai_responses.DIALECT: _ArguedResponses,
    anthropic.DIALECT: _ArguedAnthropic,
    gemini.DIALECT: _ArguedGemini,
}
_DIALECTS: Final[dict[str, Callable[[], _Told]]] = {
    openai_chat.DIALECT: _Chat,
    openai_legacy.COMPLETIONS: _Completions,
    openai_responses.DIALECT: _Responses,
    anthropic.DIALECT: _Anthropic,
    gemini.DIALECT: _Gemini,
}


class ListeningReader(StreamReader):
    """Reads events as they come, of a dialect that `stream_end.can_end` knows."""

    __slots__ = ("_dialect", "_event", "_listener", "_mark", "_passed", "_stopped", "_thoughts", "_told")

    def __init__(self, dialect: str, listener: StreamListener, *, calls: bool = False) -> None:
        told = (_WITH_CALLS.get(dialect, _DIALECTS[dialect]) if calls else _DIALECTS[dialect])()
        told.listener = listener
        super().__init__(told)
        self._dialect = dialect
        self._listener = listener
        self._told = told
        self._passed = StreamState()
        self._event = told.event
        self._mark, self._thoughts = reader_of_thoughts(dialect)
        self._read = self._hear
        self._stopped = False

    def _hear(self, payload: bytes) -> None:
        told = self._told
        told.spoke = False
        self._event(payload)
        if told.spoke:  # as in most events; then there is hardly anything else in it, and searching costs
            self._passed.last = payload
            return
        self._passed.note(payload)
        if self._mark in payload:
            for number, piece in self._thoughts(payload):
                choice, part = (0, number) if told.ONE else (number, 0)
                self._listener.thought(choice, part, piece)

    def _stop(self) -> None:
        super()._stop()
        self._stopped = True

    def ending(self, choices: Sequence[int], chars: int) -> bytes:
        """Return what would end the stream now; nothing where that cannot be done, or it has ended.

        `choices` are the answers that are still open, `chars` the length of all that was said and thought.
        """
        told = self._told
        if self._stopped or told.ended or told.error or not choices or (told.ONE and told.finish):
            return b""
        usage = None if told.usage is None else told.tokens(told.usage)
        if self._dialect == anthropic.DIALECT:  # which has counted no more than the prompt so far
            known = usage or Usage()
            usage = known._replace(output_tokens=max(known.output_tokens, chars // CHARS_A_TOKEN))
        return final_event(self._dialect, self._passed, told.current(), usage=usage, choices=choices)
