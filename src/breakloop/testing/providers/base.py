"""What the renderers of all dialects start from: the request, the answer it is to get, and numbers made from counters,
so that the same traffic gets the same answers.

Answers beside the dialects: the list of models, in the words of whoever asks, and an echo for everything else.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from breakloop.model.call import CHARS_A_TOKEN, Usage
from breakloop.testing.answer import Answer, Failure, ToolUse
from breakloop.testing.http import SeenRequest
from breakloop.testing.sending import Rendered

EVENTS: Final = "text/event-stream; charset=utf-8"

T = TypeVar("T")


def dump(content: object) -> bytes:
    """Return JSON as providers write it: compact, UTF-8."""
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()


def event(content: object, name: str = "") -> bytes:
    """Return a server-sent event."""
    lead = b"event: %b\n" % name.encode() if name else b""
    return lead + b"data: " + dump(content) + b"\n\n"


def tokens(size: int) -> int:
    """Return how many tokens a text of that size is taken for."""
    return -(-size // CHARS_A_TOKEN)


def broken_off(events: Iterable[T], failure: Failure | None, last: T) -> Iterator[T]:
    """Return a stream, with `last` instead of whatever comes after the chunk where it fails."""
    if failure is None or failure.at is None:
        yield from events
        return
    for number, piece in enumerate(events):
        if number == failure.at:
            break
        yield piece
    yield last


@dataclass(frozen=True, slots=True)
class ProviderRequest:
    """One request and the answer it is to get."""

    seen: SeenRequest
    fields: Mapping[str, Any]  # the body's JSON object
    answer: Answer
    created: int

    @property
    def model(self) -> str:
        """The model that was asked for."""
        model = self.fields.get("model")
        return model if isinstance(model, str) and model else "stand-in"

    @property
    def streamed(self) -> bool:
        """Whether the answer comes as a stream."""
        return self.fields.get("stream") is True if self.answer.stream is None else self.answer.stream

    @property
    def usage(self) -> Usage:
        """What was given, else the sizes of question and answer by the rule of thumb."""
        if self.answer.usage is not None:
            return self.answer.usage
        said = len(self.answer.text) + sum(len(tool.name) + len(arguments(tool)) for tool in self.answer.tools)
        return Usage(tokens(len(self.seen.body)), tokens(said))

    def name(self, prefix: str, index: int | None = None) -> str:
        """Return an id, from the number of the request."""
        return f"{prefix}{self.seen.number:08d}" + ("" if index is None else f"_{index}")

    def tool_id(self, index: int, prefix: str) -> str:
        """Return the id of a tool call: its own, or one from the numbers of request and call."""
        return self.answer.tools[index].id or self.name(prefix, index)

    def finish(self, words: Mapping[str, str]) -> str:
        """Return why the model stopped, in the dialect's word for "stop", "length", "filter" or "tools"."""
        kind = self.answer.finish or ("tools" if self.answer.tools else "stop")
        return words.get(kind, kind)


def arguments(tool: ToolUse) -> str:
    """Return a call's arguments as the JSON text that travels; what was given as text goes as it is, valid or not."""
    if isinstance(tool.arguments, str):
        return tool.arguments
    return json.dumps(tool.arguments, separators=(",", ":"), ensure_ascii=False)


def halves(text: str) -> list[str]:
    """Return a text in two parts, as arguments are streamed."""
    middle = len(text) // 2
    return [part for part in (text[:middle], text[middle:]) if part]


MODELS: Final = ("stand-in", "stand-in-mini")
_CREATED: Final = 1_800_000_000

Json = dict[str, Any]


def echo(seen: SeenRequest, status: int = 200) -> Rendered:
    """Tell what was asked. The body comes back as its digest only."""
    headers = [[name.decode("latin-1"), value.decode("latin-1")] for name, value in seen.headers]
    told = {"method": seen.method, "path": seen.path, "query": seen.query, "headers": headers}
    return Rendered([dump(told | {"body_bytes": len(seen.body), "body_sha256": seen.digest})], status=status)


def models(seen: SeenRequest) -> Rendered:
    """Answer `/models` and `/models/<name>`; `anthropic-version` and Gemini's paths tell who asks."""
    name = seen.path.rstrip("/").rpartition("/")[2]
    if seen.header("anthropic-version") is not None:
        listed = [_anthropic(model) for model in MODELS]
        whole: Json = {"data": listed, "has_more": False, "first_id": MODELS[0], "last_id": MODELS[-1]}
        return Rendered([dump(whole if name == "models" else _anthropic(name))])
    if "/v1beta" in seen.path or seen.header("x-goog-api-key") is not None:
        return Rendered([dump({"models": [_gemini(model) for model in MODELS]} if name == "models" else _gemini(name))])
    whole = {"object": "list", "data": [_openai(model) for model in MODELS]}
    return Rendered([dump(whole if name == "models" else _openai(name))])


def _openai(name: str) -> Json:
    return {"id": name, "object": "model", "created": _CREATED, "owned_by": "stand-in"}


def _anthropic(name: str) -> Json:
    made = {"type": "model", "id": name, "display_name": name, "lifecycle": "active"}
    return made | {"created_at": datetime.fromtimestamp(_CREATED, tz=UTC).isoformat().replace("+00:00", "Z")}


def _gemini(name: str) -> Json:
    limits = {"inputTokenLimit": 1_048_576, "outputTokenLimit": 65_536}
    methods = ["generateContent", "countTokens"]
    return {"name": f"models/{name}", "displayName": name, "supportedGenerationMethods": methods, **limits}
