"""Amazon Bedrock: Converse, InvokeModel with the bodies of Anthropic and of OpenAI Chat Completions, and errors. Its
streams are those of AWS."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from breakloop.dialects.aws_events import aws_event
from breakloop.dialects.framing import SseParser
from breakloop.testing.answer import Failure
from breakloop.testing.connection import Rendered
from breakloop.testing.providers import anthropic, openai
from breakloop.testing.providers.base import (
    MODELS,
    Json,
    Provider,
    ProviderRequest,
    arguments,
    dump,
    fail_at,
    halves,
    parsed_arguments,
)

_EVENTS: Final = "application/vnd.amazon.eventstream"
_FINISH: Final = {"stop": "end_turn", "length": "max_tokens", "tools": "tool_use", "filter": "content_filtered"}
_KINDS: Final = {
    400: "ValidationException",
    403: "AccessDeniedException",
    404: "ResourceNotFoundException",
    429: "ThrottlingException",
    503: "ServiceUnavailableException",
}


def error(failure: Failure, status: int, _request_id: str = "") -> Json:
    return {"__type": failure.kind or _KINDS.get(status, "InternalServerException"), "message": failure.message}


def converse(request: ProviderRequest) -> Rendered:
    text = request.answer.text
    blocks: list[Json] = [{"text": text}] if text or not request.answer.tools else []
    for index, tool in enumerate(request.answer.tools):
        used = {"toolUseId": request.tool_id(index, "tooluse_"), "name": tool.name, "input": parsed_arguments(tool)}
        blocks.append({"toolUse": used})
    output = {"message": {"role": "assistant", "content": blocks}}
    ended = {"stopReason": request.finish(_FINISH), "usage": _usage(request), "metrics": {"latencyMs": 12}}
    return Rendered([dump({"output": output, **ended})])


def converse_stream(request: ProviderRequest) -> Rendered:
    return _stream(request, (aws_event(kind, dump(fields)) for kind, fields in _sequence(request)))


def invoke(request: ProviderRequest) -> Rendered:
    return _model_api(request)


def invoke_stream(request: ProviderRequest) -> Rendered:
    streamed = replace(request, answer=replace(request.answer, stream=True, failure=None))
    sent = b"".join(_model_api(streamed).pieces)
    payloads = [one for one in SseParser().feed(sent) if one.startswith(b"{")]
    counts = {"inputTokenCount": request.usage.input_tokens, "outputTokenCount": request.usage.output_tokens}
    payloads[-1] = dump(json.loads(payloads[-1]) | {"amazon-bedrock-invocationMetrics": counts})
    return _stream(request, (_chunk(one) for one in payloads))


def _model_api(request: ProviderRequest) -> Rendered:
    return (anthropic.messages if "anthropic_version" in request.fields else openai.chat)(request)


def _chunk(payload: bytes) -> bytes:
    return aws_event("chunk", dump({"bytes": b64encode(payload).decode(), "p": "abcd"}))


def _stream(request: ProviderRequest, events: Iterator[bytes]) -> Rendered:
    def failed(failure: Failure) -> bytes:
        return aws_event("throttlingException", dump({"message": failure.message}), exception=True)

    return Rendered(fail_at(events, request.answer.failure, failed), _EVENTS, streamed=True)


def _usage(request: ProviderRequest) -> Json:
    used = request.usage
    counts = {"inputTokens": used.input_tokens - used.cached_tokens, "outputTokens": used.output_tokens}
    return {**counts, "totalTokens": sum(counts.values()), "cacheReadInputTokens": used.cached_tokens}


def _sequence(request: ProviderRequest) -> Iterator[tuple[str, Json]]:
    yield "messageStart", {"role": "assistant"}
    index = 0
    if request.answer.text or not request.answer.tools:
        for text in request.answer.chunks:
            yield "contentBlockDelta", {"contentBlockIndex": index, "delta": {"text": text}}
        yield "contentBlockStop", {"contentBlockIndex": index}
        index += 1
    for number, tool in enumerate(request.answer.tools):
        used = {"toolUseId": request.tool_id(number, "tooluse_"), "name": tool.name}
        yield "contentBlockStart", {"contentBlockIndex": index, "start": {"toolUse": used}}
        for part in halves(arguments(tool)):
            yield "contentBlockDelta", {"contentBlockIndex": index, "delta": {"toolUse": {"input": part}}}
        yield "contentBlockStop", {"contentBlockIndex": index}
        index += 1
    yield "messageStop", {"stopReason": request.finish(_FINISH)}
    yield "metadata", {"usage": _usage(request), "metrics": {"latencyMs": 12}}


def _model(name: str) -> Json:
    return {"modelId": name, "modelName": name, "providerName": "stand-in"}


BEDROCK: Final = Provider(
    endpoints={
        "/converse": converse,
        "/converse-stream": converse_stream,
        "/invoke": invoke,
        "/invoke-with-response-stream": invoke_stream,
    },
    error=error,
    model=_model,
    models={"modelSummaries": [_model(name) for name in MODELS]},
    is_client=lambda seen: (seen.header("authorization") or "").startswith("AWS4-"),
    request_id_header="x-amzn-RequestId",
)
