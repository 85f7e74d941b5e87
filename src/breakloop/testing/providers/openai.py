"""Answers as OpenAI gives them: Chat Completions, Completions, Embeddings, errors. `responses` does Responses."""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator
from typing import Any, Final

from breakloop.model.call import Usage
from breakloop.testing.answer import Failure
from breakloop.testing.providers.base import EVENTS, ProviderRequest, arguments, broken_off, dump, event, halves, tokens
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


def error(failure: Failure, status: int) -> Json:
    """Return the body of an error."""
    kind = failure.kind or _KINDS.get(status, "server_error")
    code = failure.code or _CODES.get(status)
    return {"error": {"message": failure.message, "type": kind, "param": None, "code": code}}


def usage(used: Usage) -> Json:
    """Return tokens as chat and completions report them."""
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


def chat(asked: ProviderRequest) -> Rendered:
    """Answer `/chat/completions`."""
    if asked.streamed:
        events = broken_off(_chat_events(asked), asked.answer.failure, _failed(asked))
        return Rendered(events, EVENTS, streamed=True)
    said = asked.answer.text
    message: Json = {"role": "assistant", "content": said if said or not asked.answer.tools else None}
    message |= {"refusal": None, "annotations": []}
    if asked.answer.tools:
        message["tool_calls"] = [_tool(asked, index) for index in range(len(asked.answer.tools))]
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": asked.finish(_FINISH)}
    return Rendered([dump(_envelope(asked, "chat.completion", [choice]) | {"usage": usage(asked.usage)})])


def _envelope(asked: ProviderRequest, kind: str, choices: list[Json]) -> Json:
    return {
        "id": asked.name("chatcmpl-"),
        "object": kind,
        "created": asked.created,
        "model": asked.model,
        "choices": choices,
        "service_tier": "default",
        "system_fingerprint": "fp_standin",
    }


def _tool(asked: ProviderRequest, index: int) -> Json:
    tool = asked.answer.tools[index]
    function = {"name": tool.name, "arguments": arguments(tool)}
    return {"id": asked.tool_id(index, "call_"), "type": "function", "function": function}


def _wants_usage(asked: ProviderRequest) -> bool:
    options = asked.fields.get("stream_options")
    return isinstance(options, dict) and options.get("include_usage") is True


def _chat_events(asked: ProviderRequest) -> Iterator[bytes]:
    with_usage = _wants_usage(asked)
    # Dumped once with a mark where what changes goes: a stream has many chunks, and all are alike but for that.
    shell = _envelope(asked, "chat.completion.chunk", []) | ({"usage": None} if with_usage else {})
    before, _, after = event(shell).partition(b'"choices":[]')

    def chunk(delta: Json, finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return b'%b"choices":[%b]%b' % (before, dump(choice), after)

    yield chunk({"role": "assistant", "content": "", "refusal": None})
    for text in asked.answer.chunks:
        yield chunk({"content": text})
    for index in range(len(asked.answer.tools)):
        made = _tool(asked, index)
        whole = made["function"]["arguments"]
        yield chunk({"tool_calls": [{"index": index, **made, "function": {**made["function"], "arguments": ""}}]})
        for part in halves(whole):
            yield chunk({"tool_calls": [{"index": index, "function": {"arguments": part}}]})
    yield chunk({}, asked.finish(_FINISH))
    if with_usage:
        yield event(shell | {"usage": usage(asked.usage)})
    yield DONE


def _failed(asked: ProviderRequest) -> bytes:
    return event(error(asked.answer.failure, 500)) if asked.answer.failure else b""


def completions(asked: ProviderRequest) -> Rendered:
    """Answer `/completions`."""
    if asked.streamed:
        events = broken_off(_completion_events(asked), asked.answer.failure, _failed(asked))
        return Rendered(events, EVENTS, streamed=True)
    choice = {"index": 0, "text": asked.answer.text, "logprobs": None, "finish_reason": asked.finish(_FINISH)}
    return Rendered([dump(_completion(asked, [choice]) | {"usage": usage(asked.usage)})])


def _completion(asked: ProviderRequest, choices: list[Json]) -> Json:
    head = {"id": asked.name("cmpl-"), "object": "text_completion", "created": asked.created}
    return head | {"model": asked.model, "choices": choices}


def _completion_events(asked: ProviderRequest) -> Iterator[bytes]:
    empty: Json = {"usage": None} if _wants_usage(asked) else {}
    for text in asked.answer.chunks:
        choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": None}
        yield event(_completion(asked, [choice]) | empty)
    last = {"index": 0, "text": "", "logprobs": None, "finish_reason": asked.finish(_FINISH)}
    yield event(_completion(asked, [last]) | empty)
    if empty:
        yield event(_completion(asked, []) | {"usage": usage(asked.usage)})
    yield DONE


def embeddings(asked: ProviderRequest) -> Rendered:
    """Answer `/embeddings`: a vector for each input, as numbers or in base64."""
    given = asked.fields.get("input")
    one = not isinstance(given, list) or (bool(given) and isinstance(given[0], int))  # a text, or one list of tokens
    packed = asked.fields.get("encoding_format") == "base64"
    data = [
        {"object": "embedding", "index": index, "embedding": _vector(index, packed=packed)}
        for index in range(1 if one else len(given or ()))
    ]
    used = asked.answer.usage.input_tokens if asked.answer.usage else tokens(len(asked.seen.body))
    counted = {"prompt_tokens": used, "total_tokens": used}
    return Rendered([dump({"object": "list", "data": data, "model": asked.model, "usage": counted})])


def _vector(index: int, *, packed: bool) -> list[float] | str:
    vector = [0.0] * _EMBEDDING_SIZE
    vector[index % _EMBEDDING_SIZE] = 1.0
    return base64.b64encode(struct.pack(f"<{_EMBEDDING_SIZE}f", *vector)).decode() if packed else vector
