"""Answers as Gemini gives them: `generateContent`, streamed as events or as a JSON array, the counting of tokens, and
its errors. The model stands in the path."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import parse_qs

from breakloop.testing.answer import Failure, ToolUse
from breakloop.testing.providers.base import EVENTS, ProviderRequest, arguments, broken_off, dump, tokens
from breakloop.testing.sending import Rendered

JSON: Final = "application/json; charset=UTF-8"
STREAM: Final = ":streamGenerateContent"
_FINISH: Final = {"stop": "STOP", "tools": "STOP", "length": "MAX_TOKENS", "filter": "SAFETY"}
_STATUSES: Final = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}

Json = dict[str, Any]


def error(failure: Failure, status: int) -> Json:
    """Return the body of an error."""
    name = failure.kind or _STATUSES.get(status, "INTERNAL")
    return {"error": {"code": status, "message": failure.message, "status": name}}


def generate_content(asked: ProviderRequest) -> Rendered:
    """Answer `:generateContent` and `:streamGenerateContent`."""
    streamed = asked.seen.path.endswith(STREAM) if asked.answer.stream is None else asked.answer.stream
    if not streamed:
        return Rendered([dump(_response(asked, _parts(asked), last=True))], JSON)
    if parse_qs(asked.seen.query).get("alt") == ["sse"]:
        return Rendered((b"data: %b\r\n\r\n" % dump(one) for one in _responses(asked)), EVENTS, streamed=True)
    return Rendered(_array(_responses(asked)), JSON, streamed=True)


def count_tokens(asked: ProviderRequest) -> Rendered:
    """Answer `:countTokens`."""
    used = asked.answer.usage.input_tokens if asked.answer.usage else tokens(len(asked.seen.body))
    return Rendered([dump({"totalTokens": used})], JSON)


def _array(responses: Iterator[Json]) -> Iterator[bytes]:
    for number, one in enumerate(responses):
        yield (b",\r\n" if number else b"[") + dump(one)
    yield b"\n]\n"


def _responses(asked: ProviderRequest) -> Iterator[Json]:
    failure = asked.answer.failure
    return broken_off(_parts_of_stream(asked), failure, error(failure, 503) if failure else {})


def _parts_of_stream(asked: ProviderRequest) -> Iterator[Json]:
    pieces = [[{"text": text}] for text in asked.answer.chunks]
    pieces += [[_call(asked, index)] for index in range(len(asked.answer.tools))]
    for number, parts in enumerate(pieces or [[{"text": ""}]]):
        yield _response(asked, parts, last=number >= len(pieces) - 1)


def _parts(asked: ProviderRequest) -> list[Json]:
    text = asked.answer.text
    parts: list[Json] = [{"text": text}] if text or not asked.answer.tools else []
    return parts + [_call(asked, index) for index in range(len(asked.answer.tools))]


def _call(asked: ProviderRequest, index: int) -> Json:
    tool = asked.answer.tools[index]
    call = {"name": tool.name, "args": _args(tool)}
    return {"functionCall": call | ({"id": tool.id} if tool.id else {})}


def _args(tool: ToolUse) -> Json:
    found = json.loads(arguments(tool) or "{}")
    return found if isinstance(found, dict) else {}


def _response(asked: ProviderRequest, parts: list[Json], *, last: bool) -> Json:
    candidate: Json = {"content": {"parts": parts, "role": "model"}, "index": 0}
    if last:
        candidate["finishReason"] = asked.finish(_FINISH)
    return {
        "candidates": [candidate],
        "usageMetadata": _usage(asked, last=last),
        "modelVersion": asked.seen.path.rpartition("/")[2].partition(":")[0],
        "responseId": asked.name("standin-"),
    }


def _usage(asked: ProviderRequest, *, last: bool) -> Json:
    """Thinking is counted beside the candidates; before the last part of a stream, only the prompt is known."""
    used = asked.usage
    made: Json = {"promptTokenCount": used.input_tokens, "totalTokenCount": used.input_tokens}
    if last:
        made["candidatesTokenCount"] = used.output_tokens - used.reasoning_tokens
        made["totalTokenCount"] = used.input_tokens + used.output_tokens
    if used.cached_tokens:
        made["cachedContentTokenCount"] = used.cached_tokens
    if last and used.reasoning_tokens:
        made["thoughtsTokenCount"] = used.reasoning_tokens
    return made
