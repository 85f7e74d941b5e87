"""Model ids as they stand in requests and answers, and the names under which price tables know them: who serves the
model, and its name, the closest first. Tables are looked through in that order by `prices`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

_PREFIXES_MAX: Final = 3
NAME_MAX: Final = 200  # longer ones are no model; they would only keep regular expressions busy

# Names of upstreams, and prefixes that gateways put before a model -> who serves it, as tables call them.
PROVIDERS: Final = {
    "azure_ai": "azure",
    "azure_openai": "azure",
    "bedrock": "aws",
    "bedrock_converse": "aws",
    "claude": "anthropic",
    "fireworks_ai": "fireworks",
    "gemini": "google",
    "grok": "x-ai",
    "mistralai": "mistral",
    "moonshot": "moonshotai",
    "text-completion-openai": "openai",
    "together_ai": "together",
    "vertex": "google",
    "vertex_ai": "google",
    "xai": "x-ai",
}
# us.anthropic.claude-opus-4-5-20251101-v1:0: where, who made it, what it is.
_BEDROCK: Final = re.compile(
    r"^(?:[a-z]{2,6}(?:-gov)?\.)?"
    r"(?:ai21|amazon|anthropic|cohere|deepseek|google|meta|minimax|mistral|moonshotai?|nvidia|openai|qwen|writer|zai)\.[a-z]"
)
_VERTEX: Final = re.compile(r"^(?:projects/.+/)?publishers/[^/]+/models/")  # whoever made it, Google serves it
_ARN: Final = re.compile(r"^arn:aws[a-z-]*:bedrock:[^/]+/")
_VARIANT: Final = re.compile(r"(?::(?:beta|exacto|extended|floor|nitro|online|thinking)|\[[0-9a-z]+\])$")
_VERSION: Final = re.compile(r"(?:[-@](?:20\d\d-\d\d-\d\d|20\d{6})|[-@:]latest|@default)$")


class Named(NamedTuple):
    """One way to look for a model; the provider is empty when it is not known."""

    provider: str
    model: str


def canonical_provider(name: str) -> str:
    """Return the name under which tables know who serves a model."""
    folded = name.strip().lower()
    return PROVIDERS.get(folded, folded)


def ways(provider: str, model: str) -> Iterator[Named]:
    """Return the ways to look for a model, the closest first, none twice."""
    seen: set[Named] = set()
    for named in _ways(canonical_provider(provider), model.strip().lower()):
        if named.model and named not in seen:
            seen.add(named)
            yield named


def _ways(provider: str, model: str) -> Iterator[Named]:
    for name in _spellings(model):
        yield Named(provider, name)
        if _BEDROCK.match(name):
            yield Named("aws", name)
        rest = name
        for _ in range(_PREFIXES_MAX):  # openrouter/anthropic/claude-opus-4.5: each part may be who serves it
            prefix, slash, after = rest.partition("/")
            if not slash:
                break
            rest = after
            yield Named(canonical_provider(prefix), rest)
        yield Named("", name)
        yield Named("", rest)


def _spellings(model: str) -> Iterator[str]:
    """The id itself, then without what says where, how or since when it is served."""
    yield model
    plain = _ARN.sub("", model)
    plain = _VERTEX.sub("google/", plain).removeprefix("models/")
    yield plain
    plain = _VARIANT.sub("", plain)
    yield plain
    yield _VERSION.sub("", plain)
