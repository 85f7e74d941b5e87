"""What a model thinks aloud in a stream, event by event. The readers of answers pass over it, because nothing is judged
by it; the stream guard has to see it, for models repeat themselves there most of all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import msgspec

from breakloop.wire import anthropic_messages, gemini, openai_chat, openai_completions, openai_responses

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


def _chat(payload: bytes) -> Thoughts:
    found: list[tuple[int, str]] = []
    for choice in _decode_chunk(payload).choices:
        delta = choice.delta
        if delta is not None:
            piece = delta.reasoning_content or delta.reasoning  # some servers send both, and the same in both
            if isinstance(piece, str) and piece:
                found.append((choice.index, piece))
    return found


def _anthropic(payload: bytes) -> Thoughts:
    event = _decode_block(payload)
    return ((event.index, event.delta.thinking),) if event.delta.thinking else _NOTHING


def _responses(payload: bytes) -> Thoughts:
    event = _decode_reasoning(payload)
    if event.type not in _REASONED or not event.delta:
        return _NOTHING
    return ((event.output_index * _PARTS + event.content_index + event.summary_index, event.delta),)


def _gemini(payload: bytes) -> Thoughts:
    return [
        (candidate.index, part.text)
        for candidate in _decode_candidates(payload).candidates
        if candidate.content is not None
        for part in candidate.content.parts or ()
        if part.thought and part.text
    ]


_READERS: Final[dict[str, tuple[bytes, Callable[[bytes], Thoughts]]]] = {
    openai_chat.DIALECT: (b'"reasoning', _chat),
    openai_completions.DIALECT: (b'"reasoning', _chat),
    openai_responses.DIALECT: (b'"response.reasoning', _responses),
    anthropic_messages.DIALECT: (b'"thinking_delta"', _anthropic),
    gemini.DIALECT: (b'"thought"', _gemini),
}
