"""Ollama: chat, generate and errors. Streams are one JSON object a line."""

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
    dump,
    fail_at,
    parsed_arguments,
)

_LINES: Final = "application/x-ndjson"
_CREATED: Final = "2026-01-01T00:00:00.000000Z"


def error(failure: Failure, _status: int, _request_id: str = "") -> Json:
    return {"error": failure.message}


def chat(request: ProviderRequest) -> Rendered:
    calls = [
        {"function": {"name": tool.name, "arguments": parsed_arguments(tool)}, "id": request.tool_id(index, "call_")}
        for index, tool in enumerate(request.answer.tools)
    ]
    pieces: list[Json] = [{"message": _message(text)} for text in request.answer.chunks]
    if calls:
        pieces.append({"message": _message("") | {"tool_calls": calls}})
    whole = _message(request.answer.text) | ({"tool_calls": calls} if calls else {})
    return _render(request, pieces, {"message": whole}, {"message": _message("")})


def generate(request: ProviderRequest) -> Rendered:
    pieces: list[Json] = [{"response": text} for text in request.answer.chunks]
    return _render(request, pieces, {"response": request.answer.text}, {"response": ""})


def _render(request: ProviderRequest, pieces: list[Json], whole: Json, last: Json) -> Rendered:
    head: Json = {"model": request.model, "created_at": _CREATED}
    done: Json = {
        "done": True,
        "done_reason": request.finish({"tools": "stop"}),
        "total_duration": 2_000_000,
        "prompt_eval_count": request.usage.input_tokens,
        "eval_count": request.usage.output_tokens,
    }
    asked = request.fields.get("stream") is not False
    if not (asked if request.answer.stream is None else request.answer.stream):
        return Rendered([dump(head | whole | done)])

    def lines() -> Iterator[bytes]:
        for piece in pieces:
            yield dump(head | piece | {"done": False}) + b"\n"
        yield dump(head | last | done) + b"\n"

    made = fail_at(lines(), request.answer.failure, lambda failure: dump(error(failure, 500)) + b"\n")
    return Rendered(made, _LINES, streamed=True)


def _message(text: str) -> Json:
    return {"role": "assistant", "content": text}


def _model(name: str) -> Json:
    return {"name": name, "model": name, "size": 1, "digest": "", "details": {"format": "gguf", "family": "stand-in"}}


OLLAMA: Final = Provider(
    endpoints={"/api/chat": chat, "/api/generate": generate},
    error=error,
    model=_model,
    models={"models": [_model(name) for name in MODELS]},
)
