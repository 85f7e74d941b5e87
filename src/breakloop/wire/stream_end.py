"""Ends a stream that is cut (SPEC LD-8) as its dialect ends one that ran into its limit of tokens, so that SDKs take
what has come for an answer cut short, and not for a broken connection.

When to cut is `detect.stream`'s business, and to cut between two events the caller's. Only what is needed to write an
end is kept of what passed; nothing here raises, whatever that was.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Final

from breakloop.model.answer import Usage
from breakloop.model.prompt import CHARS_A_TOKEN
from breakloop.wire import anthropic_messages, gemini, openai_chat, openai_completions, openai_responses
from breakloop.wire.content import load
from breakloop.wire.gathered import DONE, number, word

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


class Passed:
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
    dialect: str, passed: Passed, text: str = "", *, usage: Usage | None = None, choices: Sequence[int] = (0,)
) -> bytes:
    """Return the events that end the stream; nothing where it has ended, or where no dialect says how.

    `text` is that of the part which is cut, for Responses repeats it; `choices` are the numbers of those answers in the
    stream that have not ended yet.
    """
    write = _WRITERS.get(dialect)
    last = _fields(passed.last)
    return b"" if write is None or not last else write(passed, last, text, usage, choices)


def _chat(_passed: Passed, last: Json, _text: str, usage: Usage | None, choices: Sequence[int]) -> bytes:
    return _openai(last, {"delta": {}, "logprobs": None, "finish_reason": "length"}, usage, choices)


def _completions(_passed: Passed, last: Json, _text: str, usage: Usage | None, choices: Sequence[int]) -> bytes:
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


def _anthropic(_passed: Passed, last: Json, text: str, usage: Usage | None, _choices: Sequence[int]) -> bytes:
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


def _gemini(_passed: Passed, last: Json, _text: str, _usage: Usage | None, choices: Sequence[int]) -> bytes:
    if not choices:
        return b""  # there is no end mark
    content = {"parts": [{"text": ""}], "role": "model"}
    ended = [{"content": content, "finishReason": "MAX_TOKENS", "index": index} for index in choices]
    return _event({"candidates": ended} | {name: last[name] for name in _GEMINI_ENVELOPE if name in last})


def _responses(passed: Passed, last: Json, text: str, usage: Usage | None, _choices: Sequence[int]) -> bytes:
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


_WRITERS: Final[dict[str, Callable[[Passed, Json, str, Usage | None, Sequence[int]], bytes]]] = {
    openai_chat.DIALECT: _chat,
    openai_completions.DIALECT: _completions,
    openai_responses.DIALECT: _responses,
    anthropic_messages.DIALECT: _anthropic,
    gemini.DIALECT: _gemini,
}
