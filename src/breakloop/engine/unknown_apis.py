"""Requests that look like those of an LLM API, but of none that is known: they pass and are not judged, and this counts
and publishes them, so that an operator knows."""

from __future__ import annotations

import re
from typing import Final

from breakloop.clock import Clock
from breakloop.model.call import Call
from breakloop.model.events import API_UNKNOWN, Event, Publish

# What the models read, and what names a model. A body needs one of each, or a path that names a model.
_TEXTS: Final = (b'"messages"', b'"prompt"', b'"contents"', b'"inputs"', b'"inputText"', b'"input"', b'"chat_history"')
_MODELS: Final = (b'"model"', b'"model_id"', b'"modelId"', b'"agent_id"')
_MODEL_IN_PATH: Final = re.compile(r"/(?:models?|engines|deployments)/[^/]+")
# Other endpoints of LLM APIs: nothing loops there.
_OTHERS: Final = re.compile(
    r"count.?tokens|tokenize|embed|rerank|moderat|batch|/files|/images|/audio|/videos|fine.?tun|classif", re.IGNORECASE
)
_ID: Final = re.compile(r"(?<=/)(?=[^/]*\d)[^/:]{12,}|(?<=/)\d+(?=/|$)|(?<=/models/)[^/:]+|(?<=/model/)[^/:]+")
_SEARCHED_BYTES: Final = 256 * 1024  # at either end of a body
_TOLD_MAX: Final = 50
_PATH_MAX: Final = 100


def resembles_llm(path: str, body: bytes) -> bool:
    """Return whether a request of no known dialect looks like one of an LLM API."""
    if len(body) > 2 * _SEARCHED_BYTES:
        body = body[:_SEARCHED_BYTES] + body[-_SEARCHED_BYTES:]
    if body.lstrip()[:1] != b"{" or _OTHERS.search(path):
        return False
    names_model = any(name in body for name in _MODELS) or _MODEL_IN_PATH.search(path) is not None
    return names_model and any(name in body for name in _TEXTS)


def shape_of(path: str) -> str:
    """Return a path with ids and names of models replaced, so that requests to one endpoint have one shape."""
    return _ID.sub("*", path)[:_PATH_MAX]


class UnknownApis:
    """`counts` are by upstream. Each endpoint is published once."""

    def __init__(self, counts: dict[str, int], publish: Publish, clock: Clock) -> None:
        self._counts = counts
        self._publish = publish
        self._clock = clock
        self._told: set[tuple[str, str]] = set()

    def note(self, call: Call) -> None:
        if not resembles_llm(call.path, call.body):
            return
        upstream = call.upstream or "none"
        self._counts[upstream] = self._counts.get(upstream, 0) + 1
        endpoint = upstream, shape_of(call.path)
        if endpoint not in self._told and len(self._told) < _TOLD_MAX:
            self._told.add(endpoint)
            data: dict[str, object] = {"path": endpoint[1], "upstream": upstream}
            self._publish(Event(API_UNKNOWN, self._clock.now(), data, call.identity.project, call.request_id))
