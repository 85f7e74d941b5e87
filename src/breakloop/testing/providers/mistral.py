"""Mistral: conversations, chats of agents, and errors. A conversation has an id, which the next request continues."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from breakloop.testing.answer import Failure
from breakloop.testing.connection import Rendered
from breakloop.testing.providers import openai
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


def error(failure: Failure, _status: int, _request_id: str = "") -> Json:
    kind = failure.kind or "internal_server_error"
    return {"object": "error", "message": failure.message, "type": kind, "param": None, "code": failure.code or None}


def conversations(request: ProviderRequest) -> Rendered:
    if request.streamed:
        events = (event(fields, str(fields["type"])) for fields in _sequence(request))
        return request.stream(events, lambda failure: event(_error_event(failure), "conversation.response.error"))
    outputs: list[Json] = []
    if request.answer.text or not request.answer.tools:
        said = {"role": "assistant", "content": request.answer.text, "model": request.model}
        outputs.append({"object": "entry", "type": "message.output", "id": request.name("msg_"), **said})
    for index, tool in enumerate(request.answer.tools):
        outputs.append(
            _call(request, index) | {"object": "entry", "type": "function.call", "arguments": arguments(tool)}
        )
    head = {"object": "conversation.response", "conversation_id": _conversation(request)}
    return Rendered([dump({**head, "outputs": outputs, "usage": _usage(request)})])


def agent_chat(request: ProviderRequest) -> Rendered:
    """Render a chat of an agent as OpenAI's, except that a streamed call comes in one piece, and counts always come."""
    if not request.streamed or not request.answer.tools:
        return openai.chat(replace(request, fields={**request.fields, "stream_options": {"include_usage": True}}))
    calls = [
        {
            "index": index,
            "id": request.tool_id(index, "call_"),
            "function": {"name": tool.name, "arguments": arguments(tool)},
        }
        for index, tool in enumerate(request.answer.tools)
    ]
    choice = {"index": 0, "delta": {"role": "assistant", "tool_calls": calls}, "finish_reason": "tool_calls"}
    head = {"id": request.name("cmpl-"), "object": "chat.completion.chunk", "created": request.created}
    sent = event({**head, "model": request.model, "choices": [choice], "usage": _usage(request)})
    return request.stream([sent, openai.DONE], lambda failure: event(error(failure, 500)))


def _conversation(request: ProviderRequest) -> str:
    """Return the id in the path, or a new one."""
    known = request.seen.path.removesuffix("/restart").rpartition("/conversations/")[2]
    return known if known and "/" not in known else request.name("conv_")


def _call(request: ProviderRequest, index: int) -> Json:
    call_id = request.tool_id(index, "call_")
    return {"id": request.name("fc_", index), "tool_call_id": call_id, "name": request.answer.tools[index].name}


def _usage(request: ProviderRequest) -> Json:
    used = request.usage
    total = used.input_tokens + used.output_tokens
    return {"prompt_tokens": used.input_tokens, "completion_tokens": used.output_tokens, "total_tokens": total}


def _sequence(request: ProviderRequest) -> Iterator[Json]:
    yield {"type": "conversation.response.started", "conversation_id": _conversation(request)}
    head = {"id": request.name("msg_"), "output_index": 0, "content_index": 0, "model": request.model}
    for text in request.answer.chunks:
        yield {"type": "message.output.delta", **head, "role": "assistant", "content": text}
    for index, tool in enumerate(request.answer.tools):
        for part in halves(arguments(tool)):
            yield {"type": "function.call.delta", "output_index": index, **_call(request, index), "arguments": part}
    yield {"type": "conversation.response.done", "usage": _usage(request)}


def _error_event(failure: Failure) -> Json:
    return {"type": "conversation.response.error", "message": failure.message, "code": 500}


def _model(name: str) -> Json:
    return {"id": name, "object": "model", "created": MODELS_CREATED, "owned_by": "stand-in"}


MISTRAL: Final = Provider(
    endpoints={"/conversations": conversations, "/agents/completions": agent_chat},
    error=error,
    model=_model,
    models={"object": "list", "data": [_model(name) for name in MODELS]},
)
