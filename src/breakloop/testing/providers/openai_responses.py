"""OpenAI's Responses API: one body, or a sequence of numbered events."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from breakloop.model.call import Usage
from breakloop.testing.providers.base import EVENTS, ProviderRequest, arguments, dump, event, fail_at, halves
from breakloop.testing.sending import Rendered

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

Json = dict[str, Any]


def usage(used: Usage) -> Json:
    """Return token counts."""
    return {
        "input_tokens": used.input_tokens,
        "input_tokens_details": {"cached_tokens": used.cached_tokens, "cache_write_tokens": used.cache_write_tokens},
        "output_tokens": used.output_tokens,
        "output_tokens_details": {"reasoning_tokens": used.reasoning_tokens},
        "total_tokens": used.input_tokens + used.output_tokens,
    }


def responses(request: ProviderRequest) -> Rendered:
    if request.streamed:
        events = fail_at(_events(request), request.answer.failure, _error_event(request))
        return Rendered(events, EVENTS, streamed=True)
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
    return made | {"usage": usage(request.usage)}


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


def _events(request: ProviderRequest) -> Iterator[bytes]:
    for number, (kind, fields) in enumerate(_sequence(request)):
        yield event({"type": kind, "sequence_number": number, **fields}, kind)


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


def _error_event(request: ProviderRequest) -> bytes:
    failure = request.answer.failure
    if failure is None or failure.at is None:
        return b""
    made = _response(request, "failed", [])
    made["error"] = {"code": failure.code or "server_error", "message": failure.message}
    content = {"type": "response.failed", "sequence_number": failure.at, "response": made}
    return event(content, "response.failed")
