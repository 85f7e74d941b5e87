"""What the drop-in clients share: where the gateway is, who is speaking, and which of an SDK's errors are denials."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from breakloop.model.decision import Decision
from breakloop.sdk import core
from breakloop.sdk.environment import gateway_url
from breakloop.sdk.naming import Names, current


def options(given: Mapping[str, Any], path: str, agent: str, session: str) -> dict[str, Any]:
    """Return a client's options with the gateway as its base URL, unless one is given, and with its names."""
    made = dict(given)
    if made.get("base_url") is None:
        made["base_url"] = gateway_url() + path
    named = Names(agent, session).headers()
    if named:
        made["default_headers"] = {**named, **(made.get("default_headers") or {})}
    return made


def named(headers: Mapping[str, Any]) -> dict[str, Any]:
    """Return default header fields, with the names of the `with` block around for whoever has none of its own."""
    return {**current().headers(), **headers}


def denial_in(response: Any) -> Decision | None:
    """Return the denial that an SDK is about to raise an error for, if it is one of ours."""
    if response.is_closed and not response.is_stream_consumed:
        return None
    try:
        return core.from_answer(response.status_code, dict(response.headers), response.content)
    except core.AnswerError:
        return None
