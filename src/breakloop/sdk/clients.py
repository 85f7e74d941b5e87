"""Shared by the drop-in clients `breakloop.openai` and `breakloop.anthropic`. Loads no engine: the gateway decides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from breakloop.model.verdict import Decision
from breakloop.sdk.context import AgentContext, current_agent, gateway_url
from breakloop.sdk.remote_backend import UnreadableAnswerError, decision_from_response


def client_options(given: Mapping[str, Any], path: str, agent: str, session: str) -> dict[str, Any]:
    """Return the options of a client, with the gateway as its base URL unless one is given, and with its names."""
    options = dict(given)
    if options.get("base_url") is None:
        options["base_url"] = gateway_url() + path
    named = AgentContext(agent, session).headers()
    if named:
        options["default_headers"] = {**named, **(options.get("default_headers") or {})}
    return options


def with_agent_headers(headers: Mapping[str, Any]) -> dict[str, Any]:
    """Return default header fields, with the names of the enclosing `with agent(...)` block unless they have their
    own."""
    return {**current_agent().headers(), **headers}


def denial_in(response: Any) -> Decision | None:
    """Return the denial in a response of the gateway; None if the response is not a denial of ours."""
    if response.is_closed and not response.is_stream_consumed:
        return None
    try:
        return decision_from_response(response.status_code, dict(response.headers), response.content)
    except UnreadableAnswerError:
        return None
