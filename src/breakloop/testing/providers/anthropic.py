"""Answers as Anthropic gives them: Messages, the counting of tokens, and its errors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from breakloop.testing.answer import Failure, ToolUse
from breakloop.testing.providers.base import EVENTS, ProviderRequest, arguments, broken_off, dump, event, halves, tokens
from breakloop.testing.sending import Rendered

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

Json = dict[str, Any]


def error(failure: Failure, status: int, request_id: str) -> Json:
    """Return the body of an error."""
    kind = failure.kind or _KINDS.get(status, "api_error")
    return {"type": "error", "error": {"type": kind, "message": failure.message}, "request_id": request_id}


def messages(asked: ProviderRequest) -> Rendered:
    """Answer `/messages`."""
    if asked.streamed:
        events = broken_off(_events(asked), asked.answer.failure, _failed(asked))
        return Rendered(events, EVENTS, streamed=True)
    made = _message(asked, _content(asked), asked.finish(_FINISH), asked.usage.output_tokens)
    return Rendered([dump(made)])


def count_tokens(asked: ProviderRequest) -> Rendered:
    """Answer `/messages/count_tokens`."""
    used = asked.answer.usage.input_tokens if asked.answer.usage else tokens(len(asked.seen.body))
    return Rendered([dump({"input_tokens": used})])


def _message(asked: ProviderRequest, content: list[Json], stop_reason: str | None, output_tokens: int) -> Json:
    return {
        "id": asked.name("msg_"),
        "type": "message",
        "role": "assistant",
        "model": asked.model,
        "content": content,
        "stop_reason": stop_reason,
        "stop_sequence": None,
        "usage": _usage(asked, output_tokens) | {"service_tier": "standard"},
    }


def _usage(asked: ProviderRequest, output_tokens: int) -> Json:
    """Here the tokens that were read from the cache, or written to it, are not part of the input."""
    used = asked.usage
    return {
        "input_tokens": max(used.input_tokens - used.cached_tokens - used.cache_write_tokens, 0),
        "cache_creation_input_tokens": used.cache_write_tokens,
        "cache_read_input_tokens": used.cached_tokens,
        "output_tokens": output_tokens,
    }


def _content(asked: ProviderRequest) -> list[Json]:
    text = asked.answer.text
    blocks: list[Json] = [{"type": "text", "text": text}] if text or not asked.answer.tools else []
    return blocks + [_tool(asked, index, _input(tool)) for index, tool in enumerate(asked.answer.tools)]


def _tool(asked: ProviderRequest, index: int, given: Json) -> Json:
    name = asked.answer.tools[index].name
    return {"type": "tool_use", "id": asked.tool_id(index, "toolu_"), "name": name, "input": given}


def _input(tool: ToolUse) -> Json:
    found = json.loads(arguments(tool) or "{}")
    return found if isinstance(found, dict) else {}


def _events(asked: ProviderRequest) -> Iterator[bytes]:
    for content in _sequence(asked):
        yield event(content, content["type"])


def _sequence(asked: ProviderRequest) -> Iterator[Json]:
    yield {"type": "message_start", "message": _message(asked, [], None, 1)}
    index = 0
    if asked.answer.text or not asked.answer.tools:
        yield {"type": "content_block_start", "index": index, "content_block": {"type": "text", "text": ""}}
        yield {"type": "ping"}
        for text in asked.answer.chunks:
            yield {"type": "content_block_delta", "index": index, "delta": {"type": "text_delta", "text": text}}
        yield {"type": "content_block_stop", "index": index}
        index += 1
    for number, tool in enumerate(asked.answer.tools):
        yield {"type": "content_block_start", "index": index, "content_block": _tool(asked, number, {})}
        for part in ["", *halves(arguments(tool))]:
            delta = {"type": "input_json_delta", "partial_json": part}
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
        index += 1
    end: Json = {"stop_reason": asked.finish(_FINISH), "stop_sequence": None}
    yield {"type": "message_delta", "delta": end, "usage": _usage(asked, asked.usage.output_tokens)}
    yield {"type": "message_stop"}


def _failed(asked: ProviderRequest) -> bytes:
    failure = asked.answer.failure
    if failure is None:
        return b""
    return event(error(failure, 529, asked.name("req_")), "error")
