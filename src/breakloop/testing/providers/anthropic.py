"""Anthropic: Messages, token counting, models and errors."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

from breakloop.testing.answer import Failure
from breakloop.testing.connection import Rendered
from breakloop.testing.providers.base import (
    MODELS,
    MODELS_CREATED,
    Json,
    Provider,
    ProviderRequest,
    arguments,
    dump,
    event,
    halves,
    parsed_arguments,
)

_FINISH: Final = {"stop": "end_turn", "length": "max_tokens", "tools": "tool_use", "filter": "refusal"}
_KINDS: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}


def error(failure: Failure, status: int, request_id: str = "") -> Json:
    kind = failure.kind or _KINDS.get(status, "api_error")
    return {"type": "error", "error": {"type": kind, "message": failure.message}, "request_id": request_id}


def messages(request: ProviderRequest) -> Rendered:
    if request.streamed:
        events = (event(content, content["type"]) for content in _sequence(request))
        return request.stream(events, lambda failure: event(error(failure, 529, request.name("req_")), "error"))
    made = _message(request, _content(request), request.finish(_FINISH), request.usage.output_tokens)
    return Rendered([dump(made)])


def count_tokens(request: ProviderRequest) -> Rendered:
    return Rendered([dump({"input_tokens": request.usage.input_tokens})])


def _message(request: ProviderRequest, content: list[Json], stop_reason: str | None, output_tokens: int) -> Json:
    return {
        "id": request.name("msg_"),
        "type": "message",
        "role": "assistant",
        "model": request.model,
        "content": content,
        "stop_reason": stop_reason,
        "stop_sequence": None,
        "usage": _usage(request, output_tokens) | {"service_tier": "standard"},
    }


def _usage(request: ProviderRequest, output_tokens: int) -> Json:
    """Tokens read from or written to the cache are not included in the input."""
    used = request.usage
    return {
        "input_tokens": max(used.input_tokens - used.cached_tokens - used.cache_write_tokens, 0),
        "cache_creation_input_tokens": used.cache_write_tokens,
        "cache_read_input_tokens": used.cached_tokens,
        "output_tokens": output_tokens,
    }


def _content(request: ProviderRequest) -> list[Json]:
    text = request.answer.text
    blocks: list[Json] = [{"type": "text", "text": text}] if text or not request.answer.tools else []
    return blocks + [_tool(request, index, parsed_arguments(tool)) for index, tool in enumerate(request.answer.tools)]


def _tool(request: ProviderRequest, index: int, given: Json) -> Json:
    name = request.answer.tools[index].name
    return {"type": "tool_use", "id": request.tool_id(index, "toolu_"), "name": name, "input": given}


def _sequence(request: ProviderRequest) -> Iterator[Json]:
    yield {"type": "message_start", "message": _message(request, [], None, 1)}
    index = 0
    if request.answer.text or not request.answer.tools:
        yield {"type": "content_block_start", "index": index, "content_block": {"type": "text", "text": ""}}
        yield {"type": "ping"}
        for text in request.answer.chunks:
            yield {"type": "content_block_delta", "index": index, "delta": {"type": "text_delta", "text": text}}
        yield {"type": "content_block_stop", "index": index}
        index += 1
    for number, tool in enumerate(request.answer.tools):
        yield {"type": "content_block_start", "index": index, "content_block": _tool(request, number, {})}
        for part in ["", *halves(arguments(tool))]:
            delta = {"type": "input_json_delta", "partial_json": part}
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
        index += 1
    end: Json = {"stop_reason": request.finish(_FINISH), "stop_sequence": None}
    yield {"type": "message_delta", "delta": end, "usage": _usage(request, request.usage.output_tokens)}
    yield {"type": "message_stop"}


def _model(name: str) -> Json:
    created = datetime.fromtimestamp(MODELS_CREATED, tz=UTC).isoformat().replace("+00:00", "Z")
    return {"type": "model", "id": name, "display_name": name, "lifecycle": "active", "created_at": created}


ANTHROPIC: Final = Provider(
    endpoints={
        "/messages": messages,
        "/messages/count_tokens": count_tokens,
        "/count-tokens:rawPredict": count_tokens,
        ":rawPredict": messages,
        ":streamRawPredict": messages,
    },
    error=error,
    model=_model,
    models={"data": [_model(name) for name in MODELS], "has_more": False, "first_id": MODELS[0], "last_id": MODELS[-1]},
    is_client=lambda seen: seen.header("anthropic-version") is not None,
    request_id_header="request-id",
)
