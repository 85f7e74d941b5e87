"""What the providers of the stand-in LLM share: `Provider`, the request that one renders, and helpers.

Ids and times come from counters, so that the same traffic gets the same answers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, TypeVar

from breakloop.model.call import CHARS_A_TOKEN, Usage
from breakloop.testing.answer import Answer, Failure, ToolUse
from breakloop.testing.connection import Rendered
from breakloop.testing.http import SeenRequest

EVENTS: Final = "text/event-stream; charset=utf-8"

T = TypeVar("T")
Json = dict[str, Any]


def dump(content: object) -> bytes:
    """Return compact JSON in UTF-8, as providers write it."""
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()


def event(content: object, name: str = "") -> bytes:
    lead = b"event: %b\n" % name.encode() if name else b""
    return lead + b"data: " + dump(content) + b"\n\n"


def tokens(size: int) -> int:
    return -(-size // CHARS_A_TOKEN)


def fail_at(events: Iterable[T], failure: Failure | None, last: Callable[[Failure], T]) -> Iterator[T]:
    """Yield events up to the one where the stream fails, then the last one; all events if it does not fail."""
    if failure is None or failure.at is None:
        yield from events
        return
    yield from islice(events, failure.at)
    yield last(failure)


@dataclass(frozen=True, slots=True)
class ProviderRequest:
    seen: SeenRequest
    fields: Mapping[str, Any]  # the body's JSON object
    answer: Answer
    created: int

    @property
    def model(self) -> str:
        model = self.fields.get("model")
        return model if isinstance(model, str) and model else "stand-in"

    @property
    def streamed(self) -> bool:
        """Whether the answer is streamed: as scripted, else as requested."""
        return self.fields.get("stream") is True if self.answer.stream is None else self.answer.stream

    @property
    def usage(self) -> Usage:
        """The scripted token counts, else estimates from the sizes of request and answer."""
        if self.answer.usage is not None:
            return self.answer.usage
        said = len(self.answer.text) + sum(len(tool.name) + len(arguments(tool)) for tool in self.answer.tools)
        return Usage(tokens(len(self.seen.body)), tokens(said))

    def name(self, prefix: str, index: int | None = None) -> str:
        """Return an id made from the number of the request."""
        return f"{prefix}{self.seen.number:08d}" + ("" if index is None else f"_{index}")

    def tool_id(self, index: int, prefix: str) -> str:
        """Return the id of a tool call: as scripted, or made from the numbers of request and call."""
        return self.answer.tools[index].id or self.name(prefix, index)

    def finish(self, words: Mapping[str, str]) -> str:
        """Return the finish reason: the provider's word for "stop", "length", "filter" or "tools"."""
        kind = self.answer.finish or ("tools" if self.answer.tools else "stop")
        return words.get(kind, kind)

    def stream(self, events: Iterable[bytes], error: Callable[[Failure], bytes]) -> Rendered:
        """Return a stream of events, up to the one where it is scripted to fail."""
        return Rendered(fail_at(events, self.answer.failure, error), EVENTS, streamed=True)


def arguments(tool: ToolUse) -> str:
    """Return the arguments of a call as JSON text. Text is sent unchanged, valid or not."""
    if isinstance(tool.arguments, str):
        return tool.arguments
    return json.dumps(tool.arguments, separators=(",", ":"), ensure_ascii=False)


def parsed_arguments(tool: ToolUse) -> Json:
    """Return the arguments of a call as an object."""
    found = json.loads(arguments(tool) or "{}")
    return found if isinstance(found, dict) else {}


def halves(text: str) -> list[str]:
    """Return a text in two parts, as arguments are streamed."""
    middle = len(text) // 2
    return [part for part in (text[:middle], text[middle:]) if part]


def tools_off(fields: Mapping[str, Any]) -> bool:
    """Return whether a request allows no tool call, though tools may be declared."""
    choice = fields.get("tool_choice") or fields.get("function_call")
    if (
        fields.get("tools") == []
        or choice in ("none", "NONE")
        or (isinstance(choice, dict) and choice.get("type") == "none")
    ):
        return True
    completion = fields.get("completion_args")
    if isinstance(completion, dict) and completion.get("tool_choice") == "none":
        return True
    config = fields.get("toolConfig") or fields.get("tool_config")
    if config and [tool for tool in config.get("tools", ()) if tool.get("toolSpec", {}).get("name") == NO_TOOL]:
        return True
    calling = config.get("functionCallingConfig") or config.get("function_calling_config") if config else None
    return isinstance(calling, dict) and calling.get("mode") == "NONE"


NO_TOOL: Final = "no_tool_available"  # as `dialects.bedrock` replaces tools
MODELS: Final = ("stand-in", "stand-in-mini")
MODELS_CREATED: Final = 1_800_000_000


@dataclass(frozen=True, slots=True)
class Provider:
    """One provider: its endpoints by the end of their path, and the shape of its errors and models."""

    endpoints: Mapping[str, Callable[[ProviderRequest], Rendered]]
    error: Callable[[Failure, int, str], Json]  # failure, status, request id
    model: Callable[[str], Json]
    models: Json  # the list of all models
    is_client: Callable[[SeenRequest], bool] = lambda _seen: False  # whether a request for models comes from its SDK
    request_id_header: str = ""

    def endpoint(self, path: str) -> Callable[[ProviderRequest], Rendered] | None:
        return next((render for ending, render in self.endpoints.items() if path.endswith(ending)), None)


def echo(seen: SeenRequest, status: int = 200) -> Rendered:
    """Return the request as JSON, its body as a digest."""
    headers = [[name.decode("latin-1"), value.decode("latin-1")] for name, value in seen.headers]
    content = {"method": seen.method, "path": seen.path, "query": seen.query, "headers": headers}
    return Rendered([dump(content | {"body_bytes": len(seen.body), "body_sha256": seen.digest})], status=status)
