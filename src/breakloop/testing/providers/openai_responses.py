"""Answers as OpenAI's Responses API gives them, whole or as its sequence of numbered events."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from breakloop.model.call import Usage
from breakloop.testing.providers.base import EVENTS, ProviderRequest, arguments, broken_off, dump, event, halves
from breakloop.testing.sending import Rendered

_ECHOED: Final[
    dict[str, Any]
] = {  # what a response repeats of its request, and what stands there when the request had nothing
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
    """Return tokens as responses report them."""
    return {
        "input_tokens": used.input_tokens,
        "input_tokens_details": {"cached_tokens": used.cached_tokens, "cache_write_tokens": used.cache_write_tokens},
        "output_tokens": used.output_tokens,
        "output_tokens_details": {"reasoning_tokens": used.reasoning_tokens},
        "total_tokens": used.input_tokens + used.output_tokens,
    }


def responses(asked: ProviderRequest) -> Rendered:
    """Answer `/responses`."""
    if asked.streamed:
        events = broken_off(_events(asked), asked.answer.failure, _failed(asked))
        return Rendered(events, EVENTS, streamed=True)
    return Rendered([dump(_ended(asked))])


def _response(asked: ProviderRequest, status: str, output: list[Json]) -> Json:
    return {
        "id": asked.name("resp_"),
        "object": "response",
        "created_at": asked.created,
        "status": status,
        "background": False,
        "error": None,
        "incomplete_details": None,
        "model": asked.model,
        "output": output,
        "reasoning": {"effort": None, "summary": None},
        "text": {"format": {"type": "text"}},
        "usage": None,
        **{name: asked.fields.get(name, otherwise) for name, otherwise in _ECHOED.items()},
    }


def _ended(asked: ProviderRequest) -> Json:
    why = _INCOMPLETE.get(asked.answer.finish)
    made = _response(asked, "incomplete" if why else "completed", _output(asked))
    if why:
        made["incomplete_details"] = {"reason": why}
    return made | {"usage": usage(asked.usage)}


def _output(asked: ProviderRequest) -> list[Json]:
    items = [_message(asked, "completed", [_part(asked.answer.text)])] if _speaks(asked) else []
    return items + [_call(asked, index, "completed") for index in range(len(asked.answer.tools))]


def _speaks(asked: ProviderRequest) -> bool:
    return bool(asked.answer.text) or not asked.answer.tools


def _message(asked: ProviderRequest, status: str, content: list[Json]) -> Json:
    return {"id": asked.name("msg_"), "type": "message", "status": status, "content": content, "role": "assistant"}


def _part(text: str) -> Json:
    return {"type": "output_text", "annotations": [], "logprobs": [], "text": text}


def _call(asked: ProviderRequest, index: int, status: str) -> Json:
    tool = asked.answer.tools[index]
    said = arguments(tool) if status == "completed" else ""
    return {
        "id": asked.name("fc_", index),
        "type": "function_call",
        "status": status,
        "arguments": said,
        "call_id": asked.tool_id(index, "call_"),
        "name": tool.name,
    }


def _events(asked: ProviderRequest) -> Iterator[bytes]:
    for number, (kind, fields) in enumerate(_sequence(asked)):
        yield event({"type": kind, "sequence_number": number, **fields}, kind)


def _sequence(asked: ProviderRequest) -> Iterator[tuple[str, Json]]:
    begun = _response(asked, "in_progress", [])
    yield "response.created", {"response": begun}
    yield "response.in_progress", {"response": begun}
    if _speaks(asked):
        yield from _text(asked)
    first = 1 if _speaks(asked) else 0
    for index in range(len(asked.answer.tools)):
        yield from _call_made(asked, index, first + index)
    ended = _ended(asked)
    yield f"response.{ended['status']}", {"response": ended}


def _text(asked: ProviderRequest) -> Iterator[tuple[str, Json]]:
    where: Json = {"item_id": asked.name("msg_"), "output_index": 0, "content_index": 0}
    yield "response.output_item.added", {"output_index": 0, "item": _message(asked, "in_progress", [])}
    yield "response.content_part.added", {**where, "part": _part("")}
    for text in asked.answer.chunks:
        yield "response.output_text.delta", {**where, "delta": text, "logprobs": []}
    whole = asked.answer.text
    yield "response.output_text.done", {**where, "text": whole, "logprobs": []}
    yield "response.content_part.done", {**where, "part": _part(whole)}
    yield "response.output_item.done", {"output_index": 0, "item": _message(asked, "completed", [_part(whole)])}


def _call_made(asked: ProviderRequest, index: int, place: int) -> Iterator[tuple[str, Json]]:
    where: Json = {"item_id": asked.name("fc_", index), "output_index": place}
    whole = arguments(asked.answer.tools[index])
    yield "response.output_item.added", {"output_index": place, "item": _call(asked, index, "in_progress")}
    for part in halves(whole):
        yield "response.function_call_arguments.delta", {**where, "delta": part}
    name = asked.answer.tools[index].name
    yield "response.function_call_arguments.done", {**where, "name": name, "arguments": whole}
    yield "response.output_item.done", {"output_index": place, "item": _call(asked, index, "completed")}


def _failed(asked: ProviderRequest) -> bytes:
    failure = asked.answer.failure
    if failure is None or failure.at is None:
        return b""
    made = _response(asked, "failed", [])
    made["error"] = {"code": failure.code or "server_error", "message": failure.message}
    content = {"type": "response.failed", "sequence_number": failure.at, "response": made}
    return event(content, "response.failed")
