"""Which renderer answers a request, by the end of its path; and errors in that renderer's dialect."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from breakloop.testing.answer import DEFAULT_TEXT, Answer, Failure, filler, say
from breakloop.testing.http import SeenRequest
from breakloop.testing.providers import anthropic, base, gemini, openai
from breakloop.testing.providers.base import ProviderRequest, dump
from breakloop.testing.providers.openai_responses import responses
from breakloop.testing.sending import Rendered

Render = Callable[[ProviderRequest], Rendered]

_ENDINGS: Final[tuple[tuple[str, Render, str], ...]] = (
    ("/chat/completions", openai.chat, "openai"),
    ("/completions", openai.completions, "openai"),
    ("/responses", responses, "openai"),
    ("/embeddings", openai.embeddings, "openai"),
    ("/messages", anthropic.messages, "anthropic"),
    ("/messages/count_tokens", anthropic.count_tokens, "anthropic"),
    (":generateContent", gemini.generate_content, "gemini"),
    (gemini.STREAM, gemini.generate_content, "gemini"),
    (":countTokens", gemini.count_tokens, "gemini"),
)
_COUNTS_BYTES: Final = 32  # by so much the counts of tokens may grow with the text


def render(seen: SeenRequest, answer: Answer | None, created: int) -> Rendered:
    """Return the answer in the dialect of the request; without one, a default sentence or an echo."""
    path = seen.path.removesuffix("/")
    found = next((row for row in _ENDINGS if path.endswith(row[0])), None) if seen.method == "POST" else None
    provider = found[2] if found else ""
    if answer is not None and answer.body is not None:
        body = answer.body
        return Rendered(body.content, body.content_type, answer.status, streamed=len(body.content) > 1)
    if answer is not None and answer.failure is not None and answer.failure.at is None:
        return _failed(seen, answer.failure, answer.status, provider)
    if found is None:
        return _plain(seen, path, answer)
    asked = ProviderRequest(seen, seen.fields, answer or say(DEFAULT_TEXT), created)
    rendered = _fitted(found[1], asked) if asked.answer.size_bytes else found[1](asked)
    return replace(rendered, headers=(*rendered.headers, *_request_id(seen, provider)))


def _plain(seen: SeenRequest, path: str, answer: Answer | None) -> Rendered:
    last = path.rpartition("/")[0]
    if answer is not None and answer.size_bytes:
        return Rendered([filler(answer.size_bytes).encode()], "text/plain")
    if answer is not None and answer.chunks:
        pieces = [chunk.encode() for chunk in answer.chunks]
        return Rendered(pieces, "text/plain; charset=utf-8", answer.status, streamed=bool(answer.stream))
    if seen.method == "GET" and (path.endswith("/models") or last.endswith("/models")):
        return base.models(seen)
    return base.echo(seen)


def _request_id(seen: SeenRequest, provider: str) -> tuple[tuple[str, str], ...]:
    name = {"openai": "x-request-id", "anthropic": "request-id"}.get(provider)
    return ((name, f"req_{seen.number:08d}"),) if name else ()


def _failed(seen: SeenRequest, failure: Failure, status: int, provider: str) -> Rendered:
    content: dict[str, Any]
    if provider == "anthropic":
        content = anthropic.error(failure, status, f"req_{seen.number:08d}")
    elif provider == "gemini":
        content = gemini.error(failure, status)
    else:
        content = openai.error(failure, status)
    return Rendered([dump(content)], status=status, headers=_request_id(seen, provider))


def _fitted(render: Render, asked: ProviderRequest) -> Rendered:
    """Make the text as long as the body's size needs, and white space of the rest; a stream keeps its text."""
    if asked.streamed:
        return render(asked)
    wanted = asked.answer.size_bytes
    empty = render(replace(asked, answer=replace(asked.answer, chunks=())))
    text = filler(max(wanted - len(b"".join(empty.pieces)) - _COUNTS_BYTES, 0))
    rendered = render(replace(asked, answer=replace(asked.answer, chunks=(text,))))
    return replace(rendered, pieces=[b"".join(rendered.pieces).ljust(wanted)])
