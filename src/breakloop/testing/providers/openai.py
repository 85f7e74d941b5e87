"""OpenAI: Chat Completions, Completions, Embeddings, models and errors. `openai_responses` has the Responses API."""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator
from typing import Any, Final

from breakloop.model.call import Usage
from breakloop.testing.answer import Failure
from breakloop.testing.providers.base import (
    EVENTS,
    MODELS,
    MODELS_CREATED,
    Provider,
    ProviderRequest,
    arguments,
    dump,
    event,
    fail_at,
    halves,
    tokens,
)
from breakloop.testing.providers.openai_responses import responses
from breakloop.testing.sending import Rendered

DONE: Final = b"data: [DONE]\n\n"
_FINISH: Final = {"tools": "tool_calls", "filter": "content_filter"}
_KINDS: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "invalid_request_error",
    429: "requests",
}
_CODES: Final = {401: "invalid_api_key", 404: "model_not_found", 429: "rate_limit_exceeded"}
_EMBEDDING_SIZE: Final = 8

Json = dict[str, Any]


def error(failure: Failure, status: int, _request_id: str = "") -> Json:
    kind = failure.kind or _KINDS.get(status, "server_error")
    code = failure.code or _CODES.get(status)
    return {"error": {"message": failure.message, "type": kind, "param": None, "code": code}}


def usage(used: Usage) -> Json:
    """Return token counts of chat and text completions."""
    return {
        "prompt_tokens": used.input_tokens,
        "completion_tokens": used.output_tokens,
        "total_tokens": used.input_tokens + used.output_tokens,
        "prompt_tokens_details": {"cached_tokens": used.cached_tokens, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": used.reasoning_tokens,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }


def chat(request: ProviderRequest) -> Rendered:
    if request.streamed:
        events = fail_at(_chat_events(request), request.answer.failure, _error_event(request))
        return Rendered(events, EVENTS, streamed=True)
    said = request.answer.text
    message: Json = {"role": "assistant", "content": said if said or not request.answer.tools else None}
    message |= {"refusal": None, "annotations": []}
    if request.answer.tools:
        message["tool_calls"] = [_tool(request, index) for index in range(len(request.answer.tools))]
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": request.finish(_FINISH)}
    return Rendered([dump(_envelope(request, "chat.completion", [choice]) | {"usage": usage(request.usage)})])


def _envelope(request: ProviderRequest, kind: str, choices: list[Json]) -> Json:
    return {
        "id": request.name("chatcmpl-"),
        "object": kind,
        "created": request.created,
        "model": request.model,
        "choices": choices,
        "service_tier": "default",
        "system_fingerprint": "fp_standin",
    }


def _tool(request: ProviderRequest, index: int) -> Json:
    tool = request.answer.tools[index]
    function = {"name": tool.name, "arguments": arguments(tool)}
    return {"id": request.tool_id(index, "call_"), "type": "function", "function": function}


def _wants_usage(request: ProviderRequest) -> bool:
    options = request.fields.get("stream_options")
    return isinstance(options, dict) and options.get("include_usage") is True


def _chat_events(request: ProviderRequest) -> Iterator[bytes]:
    with_usage = _wants_usage(request)
    # Serialised once: the chunks of a stream differ in their choices only.
    shell = _envelope(request, "chat.completion.chunk", []) | ({"usage": None} if with_usage else {})
    before, _, after = event(shell).partition(b'"choices":[]')

    def chunk(delta: Json, finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return b'%b"choices":[%b]%b' % (before, dump(choice), after)

    yield chunk({"role": "assistant", "content": "", "refusal": None})
    for text in request.answer.chunks:
        yield chunk({"content": text})
    for index in range(len(request.answer.tools)):
        made = _tool(request, index)
        whole = made["function"]["arguments"]
        yield chunk({"tool_calls": [{"index": index, **made, "function": {**made["function"], "arguments": ""}}]})
        for part in halves(whole):
            yield chunk({"tool_calls": [{"index": index, "function": {"arguments": part}}]})
    yield chunk({}, request.finish(_FINISH))
    if with_usage:
        yield event(shell | {"usage": usage(request.usage)})
    yield DONE


def _error_event(request: ProviderRequest) -> bytes:
    return event(error(request.answer.failure, 500)) if request.answer.failure else b""


def completions(request: ProviderRequest) -> Rendered:
    if request.streamed:
        events = fail_at(_completion_events(request), request.answer.failure, _error_event(request))
        return Rendered(events, EVENTS, streamed=True)
    choice = {"index": 0, "text": request.answer.text, "logprobs": None, "finish_reason": request.finish(_FINISH)}
    return Rendered([dump(_completion(request, [choice]) | {"usage": usage(request.usage)})])


def _completion(request: ProviderRequest, choices: list[Json]) -> Json:
    head = {"id": request.name("cmpl-"), "object": "text_completion", "created": request.created}
    return head | {"model": request.model, "choices": choices}


def _completion_events(request: ProviderRequest) -> Iterator[bytes]:
    empty: Json = {"usage": None} if _wants_usage(request) else {}
    for text in request.answer.chunks:
        choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": None}
        yield event(_completion(request, [choice]) | empty)
    last = {"index": 0, "text": "", "logprobs": None, "finish_reason": request.finish(_FINISH)}
    yield event(_completion(request, [last]) | empty)
    if empty:
        yield event(_completion(request, []) | {"usage": usage(request.usage)})
    yield DONE


def embeddings(request: ProviderRequest) -> Rendered:
    """Return a vector for each input, as numbers or in base64."""
    given = request.fields.get("input")
    one = not isinstance(given, list) or (bool(given) and isinstance(given[0], int))  # a text, or the token ids of one
    packed = request.fields.get("encoding_format") == "base64"
    data = [
        {"object": "embedding", "index": index, "embedding": _vector(index, packed=packed)}
        for index in range(1 if one else len(given or ()))
    ]
    used = request.answer.usage.input_tokens if request.answer.usage else tokens(len(request.seen.body))
    counted = {"prompt_tokens": used, "total_tokens": used}
    return Rendered([dump({"object": "list", "data": data, "model": request.model, "usage": counted})])


def _vector(index: int, *, packed: bool) -> list[float] | str:
    vector = [0.0] * _EMBEDDING_SIZE
    vector[index % _EMBEDDING_SIZE] = 1.0
    return base64.b64encode(struct.pack(f"<{_EMBEDDING_SIZE}f", *vector)).decode() if packed else vector


def _model(name: str) -> Json:
    return {"id": name, "object": "model", "created": MODELS_CREATED, "owned_by": "stand-in"}


OPENAI: Final = Provider(
    endpoints={
        "/chat/completions": chat,
        "/completions": completions,
        "/responses": responses,
        "/embeddings": embeddings,
    },
    error=error,
    model=_model,
    models={"object": "list", "data": [_model(name) for name in MODELS]},
    request_id_header="x-request-id",
)
