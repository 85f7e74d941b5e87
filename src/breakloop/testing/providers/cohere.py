"""Cohere: `/v2/chat` and errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from breakloop.testing.answer import Failure
from breakloop.testing.connection import Rendered
from breakloop.testing.providers.base import (
    MODELS,
    Json,
    Provider,
    ProviderRequest,
    arguments,
    dump,
    event,
    halves,
)

_FINISH: Final = {"stop": "COMPLETE", "length": "MAX_TOKENS", "tools": "TOOL_CALL", "filter": "ERROR_TOXIC"}


def error(failure: Failure, _status: int, request_id: str = "") -> Json:
    return {"id": request_id, "message": failure.message}


def chat(request: ProviderRequest) -> Rendered:
    if request.streamed:
        events = (event(content, content["type"]) for content in _sequence(request))
        return request.stream(events, lambda failure: event(_end(request, "ERROR") | {"error": failure.message}))
    message: Json = {"role": "assistant"}
    if request.answer.tools:
        message |= {"tool_plan": request.answer.text, "tool_calls": _calls(request)}
    else:
        message["content"] = [{"type": "text", "text": request.answer.text}]
    ended = {"finish_reason": request.finish(_FINISH), "usage": _usage(request)}
    return Rendered([dump({"id": request.name("co-"), "message": message, **ended})])


def _calls(request: ProviderRequest) -> list[Json]:
    return [
        {
            "id": request.tool_id(index, f"{tool.name}_"),
            "type": "function",
            "function": {"name": tool.name, "arguments": arguments(tool)},
        }
        for index, tool in enumerate(request.answer.tools)
    ]


def _usage(request: ProviderRequest) -> Json:
    """The template of the prompt is read, but not billed."""
    used = request.usage
    billed = {"input_tokens": used.input_tokens, "output_tokens": used.output_tokens}
    return {"billed_units": billed, "tokens": {**billed, "input_tokens": used.input_tokens + 70}}


def _end(request: ProviderRequest, reason: str) -> Json:
    return {"type": "message-end", "delta": {"finish_reason": reason, "usage": _usage(request)}}


def _sequence(request: ProviderRequest) -> Iterator[Json]:
    empty = {"role": "assistant", "content": [], "tool_plan": "", "tool_calls": [], "citations": []}
    yield {"type": "message-start", "id": request.name("co-"), "delta": {"message": empty}}
    if request.answer.tools:
        for text in request.answer.chunks:
            yield {"type": "tool-plan-delta", "delta": {"message": {"tool_plan": text}}}
    else:
        start = {"message": {"content": {"type": "text", "text": ""}}}
        yield {"type": "content-start", "index": 0, "delta": start}
        for text in request.answer.chunks:
            yield {"type": "content-delta", "index": 0, "delta": {"message": {"content": {"text": text}}}}
        yield {"type": "content-end", "index": 0}
    for index, made in enumerate(_calls(request)):
        whole = made["function"]["arguments"]
        begun = {**made, "function": {**made["function"], "arguments": ""}}
        yield {"type": "tool-call-start", "index": index, "delta": {"message": {"tool_calls": begun}}}
        for part in halves(whole):
            piece = {"message": {"tool_calls": {"function": {"arguments": part}}}}
            yield {"type": "tool-call-delta", "index": index, "delta": piece}
        yield {"type": "tool-call-end", "index": index}
    yield _end(request, request.finish(_FINISH))


def _model(name: str) -> Json:
    return {"name": name, "endpoints": ["chat"], "context_length": 128_000}


COHERE: Final = Provider(
    endpoints={"/v2/chat": chat},
    error=error,
    model=_model,
    models={"models": [_model(name) for name in MODELS]},
)
