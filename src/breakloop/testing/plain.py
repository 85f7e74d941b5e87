"""Answers beside the dialects: the list of models, in the words of whoever asks, and an echo for everything else."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from breakloop.testing.asked import dump
from breakloop.testing.http import SeenRequest
from breakloop.testing.steps import Rendered

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
