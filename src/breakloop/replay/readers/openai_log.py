"""Bodies of OpenAI's three interfaces in request logs: which it is, and the path it went to. The record around a body
is `request_log`'s business."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"
COMPLETIONS = "/v1/completions"


def fits(body: Mapping[str, Any]) -> bool:
    """Tell whether this may be a request body at all."""
    if isinstance(body.get("messages"), list):
        return True
    # An `input` or `prompt` alone may be anything; with a model it is a request.
    return isinstance(body.get("model"), str) and isinstance(body.get("input", body.get("prompt")), str | list)


def path_of(body: Mapping[str, Any]) -> str:
    """Return where such a body goes."""
    if "messages" in body:
        return CHAT
    return RESPONSES if "input" in body else COMPLETIONS
