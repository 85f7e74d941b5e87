"""Gemini: `generateContent`, streamed as events or as a JSON array, token counting, models and errors.

The path names the model.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from urllib.parse import parse_qs

from breakloop.testing.answer import Failure
from breakloop.testing.connection import Rendered
from breakloop.testing.providers.base import (
    EVENTS,
    MODELS,
    Json,
    Provider,
    ProviderRequest,
    dump,
    fail_at,
    parsed_arguments,
)

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


def error(failure: Failure, status: int, _request_id: str = "") -> Json:
    name = failure.kind or _STATUSES.get(status, "INTERNAL")
    return {"error": {"code": status, "message": failure.message, "status": name}}


def generate_content(request: ProviderRequest) -> Rendered:
    """Render `:generateContent` and `:streamGenerateContent`."""
    streamed = request.seen.path.endswith(STREAM) if request.answer.stream is None else request.answer.stream
    if not streamed:
        return Rendered([dump(_response(request, _parts(request), last=True))], JSON)
    if parse_qs(request.seen.query).get("alt") == ["sse"]:
        return Rendered((b"data: %b\r\n\r\n" % dump(one) for one in _responses(request)), EVENTS, streamed=True)
    return Rendered(_array(_responses(request)), JSON, streamed=True)


def count_tokens(request: ProviderRequest) -> Rendered:
    return Rendered([dump({"totalTokens": request.usage.input_tokens})], JSON)


def _array(responses: Iterator[Json]) -> Iterator[bytes]:
    for number, one in enumerate(responses):
        yield (b",\r\n" if number else b"[") + dump(one)
    yield b"\n]\n"


def _responses(request: ProviderRequest) -> Iterator[Json]:
    return fail_at(_parts_of_stream(request), request.answer.failure, lambda failure: error(failure, 503))


def _parts_of_stream(request: ProviderRequest) -> Iterator[Json]:
    pieces = [[{"text": text}] for text in request.answer.chunks]
    pieces += [[_call(request, index)] for index in range(len(request.answer.tools))]
    for number, parts in enumerate(pieces or [[{"text": ""}]]):
        yield _response(request, parts, last=number >= len(pieces) - 1)


def _parts(request: ProviderRequest) -> list[Json]:
    text = request.answer.text
    parts: list[Json] = [{"text": text}] if text or not request.answer.tools else []
    return parts + [_call(request, index) for index in range(len(request.answer.tools))]


def _call(request: ProviderRequest, index: int) -> Json:
    tool = request.answer.tools[index]
    call = {"name": tool.name, "args": parsed_arguments(tool)}
    return {"functionCall": call | ({"id": tool.id} if tool.id else {})}


def _response(request: ProviderRequest, parts: list[Json], *, last: bool) -> Json:
    candidate: Json = {"content": {"parts": parts, "role": "model"}, "index": 0}
    if last:
        candidate["finishReason"] = request.finish(_FINISH)
    return {
        "candidates": [candidate],
        "usageMetadata": _usage(request, last=last),
        "modelVersion": request.seen.path.rpartition("/")[2].partition(":")[0],
        "responseId": request.name("standin-"),
    }


def _usage(request: ProviderRequest, *, last: bool) -> Json:
    """Thoughts are not included in the candidates. Before its last part, a stream only counts the prompt."""
    used = request.usage
    made: Json = {"promptTokenCount": used.input_tokens, "totalTokenCount": used.input_tokens}
    if last:
        made["candidatesTokenCount"] = used.output_tokens - used.reasoning_tokens
        made["totalTokenCount"] = used.input_tokens + used.output_tokens
    if used.cached_tokens:
        made["cachedContentTokenCount"] = used.cached_tokens
    if last and used.reasoning_tokens:
        made["thoughtsTokenCount"] = used.reasoning_tokens
    return made


def _model(name: str) -> Json:
    limits = {"inputTokenLimit": 1_048_576, "outputTokenLimit": 65_536}
    methods = ["generateContent", "countTokens"]
    return {"name": f"models/{name}", "displayName": name, "supportedGenerationMethods": methods, **limits}


GEMINI: Final = Provider(
    endpoints={":generateContent": generate_content, STREAM: generate_content, ":countTokens": count_tokens},
    error=error,
    model=_model,
    models={"models": [_model(name) for name in MODELS]},
    is_client=lambda seen: "/v1beta" in seen.path or seen.header("x-goog-api-key") is not None,
)
