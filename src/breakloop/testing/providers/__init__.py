"""The table of providers, and rendering an answer in the format of the provider that a request addresses."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from breakloop.testing.answer import DEFAULT_TEXT, FINAL_TEXT, Answer, Failure, filler, say
from breakloop.testing.connection import Rendered
from breakloop.testing.http import SeenRequest
from breakloop.testing.providers.anthropic import ANTHROPIC
from breakloop.testing.providers.base import Provider, ProviderRequest, dump, echo, tools_off
from breakloop.testing.providers.bedrock import BEDROCK
from breakloop.testing.providers.cohere import COHERE
from breakloop.testing.providers.gemini import GEMINI
from breakloop.testing.providers.mistral import MISTRAL
from breakloop.testing.providers.ollama import OLLAMA
from breakloop.testing.providers.openai import OPENAI

# Of two whose endings match, the first renders; unknown paths get errors and models of OpenAI.
PROVIDERS: tuple[Provider, ...] = (MISTRAL, OPENAI, ANTHROPIC, GEMINI, OLLAMA, COHERE, BEDROCK)
_CONVERSATION: Final = re.compile(r"(?<=/conversations)/[^/]+(?:/restart)?$")
_COUNTS_BYTES: Final = 32  # token counts may grow by this much with the text


def render(seen: SeenRequest, answer: Answer | None, created: int) -> Rendered:
    """Return the answer in the format of the request's provider; without a script, a default text or an echo."""
    path = _CONVERSATION.sub("", seen.path.removesuffix("/"))
    provider = next((one for one in PROVIDERS if one.endpoint(path)), None) if seen.method == "POST" else None
    if answer is not None and answer.body is not None:
        body = answer.body
        return Rendered(body.content, body.content_type, answer.status, streamed=len(body.content) > 1)
    if answer is not None and answer.failure is not None and answer.failure.at is None:
        return _failed(seen, answer.failure, answer.status, provider)
    endpoint = None if provider is None else provider.endpoint(path)
    if endpoint is None:
        return _plain(seen, path, answer)
    given = answer or say(DEFAULT_TEXT)
    if given.tools and tools_off(seen.fields):
        given = replace(given, tools=(), chunks=given.chunks or say(FINAL_TEXT).chunks)
    request = ProviderRequest(seen, seen.fields, given, created)
    rendered = _render_to_size(endpoint, request) if request.answer.size_bytes else endpoint(request)
    return replace(rendered, headers=(*rendered.headers, *_request_id_header(seen, provider)))


def models(seen: SeenRequest) -> Rendered:
    """Render `/models` and `/models/<name>` for the provider whose SDK sent the request."""
    provider = next((one for one in PROVIDERS if one.is_client(seen)), OPENAI)
    name = seen.path.rstrip("/").rpartition("/")[2]
    return Rendered([dump(provider.models if name == "models" else provider.model(name))])


def _plain(seen: SeenRequest, path: str, answer: Answer | None) -> Rendered:
    if answer is not None and answer.size_bytes:
        return Rendered([filler(answer.size_bytes).encode()], "text/plain")
    if answer is not None and answer.chunks:
        pieces = [chunk.encode() for chunk in answer.chunks]
        return Rendered(pieces, "text/plain; charset=utf-8", answer.status, streamed=bool(answer.stream))
    if seen.method == "GET" and (path.endswith("/models") or path.rpartition("/")[0].endswith("/models")):
        return models(seen)
    return echo(seen)


def _request_id_header(seen: SeenRequest, provider: Provider | None) -> tuple[tuple[str, str], ...]:
    name = "" if provider is None else provider.request_id_header
    return ((name, _request_id(seen)),) if name else ()


def _request_id(seen: SeenRequest) -> str:
    return f"req_{seen.number:08d}"


def _failed(seen: SeenRequest, failure: Failure, status: int, provider: Provider | None) -> Rendered:
    content = (provider or OPENAI).error(failure, status, _request_id(seen))
    return Rendered([dump(content)], status=status, headers=_request_id_header(seen, provider))


def _render_to_size(endpoint: Callable[[ProviderRequest], Rendered], request: ProviderRequest) -> Rendered:
    """Render a body of the scripted size: the text is as long as necessary, and white space fills the rest. A stream
    keeps its text."""
    if request.streamed:
        return endpoint(request)
    size = request.answer.size_bytes
    empty = endpoint(replace(request, answer=replace(request.answer, chunks=())))
    text = filler(max(size - len(b"".join(empty.pieces)) - _COUNTS_BYTES, 0))
    rendered = endpoint(replace(request, answer=replace(request.answer, chunks=(text,))))
    return replace(rendered, pieces=[b"".join(rendered.pieces).ljust(size)])
