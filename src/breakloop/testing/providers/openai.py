"""OpenAI: Chat Completions, Completions, Responses, Embeddings, models and errors."""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from breakloop.model.call import Usage
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
)

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


def error(failure: Failure, status: int, _request_id: str = "") -> Json:
    kind = failure.kind or _KINDS.get(status, "server_error")
    code = failure.code or _CODES.get(status)
    return {"error": {"message": failure.message, "type": kind, "param": None, "code": code}}


def usage(used: Usage) -> Json:
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
        return request.stream(_chat_events(request), _error_event)
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


def _error_event(failure: Failure) -> bytes:
    return event(error(failure, 500))


def completions(request: ProviderRequest) -> Rendered:
    if request.streamed:
        return request.stream(_completion_events(request), _error_event)
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
    used = request.usage.input_tokens
    counted = {"prompt_tokens": used, "total_tokens": used}
    return Rendered([dump({"object": "list", "data": data, "model": request.model, "usage": counted})])


def _vector(index: int, *, packed: bool) -> list[float] | str:
    vector = [0.0] * _EMBEDDING_SIZE
    vector[index % _EMBEDDING_SIZE] = 1.0
    return base64.b64encode(struct.pack(f"<{_EMBEDDING_SIZE}f", *vector)).decode() if packed else vector


# The fields that a response repeats from its request, and their defaults.
_ECHOED: Final[dict[str, Any]] = {
    "instructions": None,
    "max_output_tokens": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "temperature": 1.0,
    "tool_choice": "auto",
    "tools": [],
    "top_p": 1.0,
    "truncation": "disabled",
    "store": True,
}
_INCOMPLETE: Final = {"length": "max_output_tokens", "filter": "content_filter"}


def _response_usage(used: Usage) -> Json:
    return {
        "input_tokens": used.input_tokens,
        "input_tokens_details": {"cached_tokens": used.cached_tokens, "cache_write_tokens": used.cache_write_tokens},
        "output_tokens": used.output_tokens,
        "output_tokens_details": {"reasoning_tokens": used.reasoning_tokens},
        "total_tokens": used.input_tokens + used.output_tokens,
    }


def responses(request: ProviderRequest) -> Rendered:
    if request.streamed:
        sequence = enumerate(_sequence(request))
        events = (event({"type": kind, "sequence_number": at, **fields}, kind) for at, (kind, fields) in sequence)
        return request.stream(events, partial(_response_failed, request))
    return Rendered([dump(_final_response(request))])


def _response(request: ProviderRequest, status: str, output: list[Json]) -> Json:
    return {
        "id": request.name("resp_"),
        "object": "response",
        "created_at": request.created,
        "status": status,
        "background": False,
        "error": None,
        "incomplete_details": None,
        "model": request.model,
        "output": output,
        "reasoning": {"effort": None, "summary": None},
        "text": {"format": {"type": "text"}},
        "usage": None,
        **{name: request.fields.get(name, default) for name, default in _ECHOED.items()},
    }


def _final_response(request: ProviderRequest) -> Json:
    why = _INCOMPLETE.get(request.answer.finish)
    made = _response(request, "incomplete" if why else "completed", _output(request))
    if why:
        made["incomplete_details"] = {"reason": why}
    return made | {"usage": _response_usage(request.usage)}


def _output(request: ProviderRequest) -> list[Json]:
    items = [_message(request, "completed", [_part(request.answer.text)])] if _has_text(request) else []
    return items + [_call(request, index, "completed") for index in range(len(request.answer.tools))]


def _has_text(request: ProviderRequest) -> bool:
    return bool(request.answer.text) or not request.answer.tools


def _message(request: ProviderRequest, status: str, content: list[Json]) -> Json:
    return {"id": request.name("msg_"), "type": "message", "status": status, "content": content, "role": "assistant"}


def _part(text: str) -> Json:
    return {"type": "output_text", "annotations": [], "logprobs": [], "text": text}


def _call(request: ProviderRequest, index: int, status: str) -> Json:
    tool = request.answer.tools[index]
    said = arguments(tool) if status == "completed" else ""
    return {
        "id": request.name("fc_", index),
        "type": "function_call",
        "status": status,
        "arguments": said,
        "call_id": request.tool_id(index, "call_"),
        "name": tool.name,
    }


def _sequence(request: ProviderRequest) -> Iterator[tuple[str, Json]]:
    begun = _response(request, "in_progress", [])
    yield "response.created", {"response": begun}
    yield "response.in_progress", {"response": begun}
    if _has_text(request):
        yield from _text_events(request)
    first = 1 if _has_text(request) else 0
    for index in range(len(request.answer.tools)):
        yield from _call_events(request, index, first + index)
    final = _final_response(request)
    yield f"response.{final['status']}", {"response": final}


def _text_events(request: ProviderRequest) -> Iterator[tuple[str, Json]]:
    where: Json = {"item_id": request.name("msg_"), "output_index": 0, "content_index": 0}
    yield "response.output_item.added", {"output_index": 0, "item": _message(request, "in_progress", [])}
    yield "response.content_part.added", {**where, "part": _part("")}
    for text in request.answer.chunks:
        yield "response.output_text.delta", {**where, "delta": text, "logprobs": []}
    whole = request.answer.text
    yield "response.output_text.done", {**where, "text": whole, "logprobs": []}
    yield "response.content_part.done", {**where, "part": _part(whole)}
    yield "response.output_item.done", {"output_index": 0, "item": _message(request, "completed", [_part(whole)])}


def _call_events(request: ProviderRequest, index: int, place: int) -> Iterator[tuple[str, Json]]:
    where: Json = {"item_id": request.name("fc_", index), "output_index": place}
    whole = arguments(request.answer.tools[index])
    yield "response.output_item.added", {"output_index": place, "item": _call(request, index, "in_progress")}
    for part in halves(whole):
        yield "response.function_call_arguments.delta", {**where, "delta": part}
    name = request.answer.tools[index].name
    yield "response.function_call_arguments.done", {**where, "name": name, "arguments": whole}
    yield "response.output_item.done", {"output_index": place, "item": _call(request, index, "completed")}


def _response_failed(request: ProviderRequest, failure: Failure) -> bytes:
    made = _response(request, "failed", [])
    made["error"] = {"code": failure.code or "server_error", "message": failure.message}
    content = {"type": "response.failed", "sequence_number": failure.at, "response": made}
    return event(content, "response.failed")


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
