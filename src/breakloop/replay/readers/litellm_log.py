"""LiteLLM's logs: its standard logging payload (as its callbacks and buckets have it), and rows of its spend logs with
prompts kept. Bodies and answers are read as those of other request logs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from breakloop.replay.conversations import json_bytes
from breakloop.replay.readers import anthropic_log, openai_log
from breakloop.replay.readers.fields import SESSIONS, TRACES, decoded, first, mapping, named, seconds
from breakloop.replay.readers.request_log import answer_of, session_of, text_of
from breakloop.replay.sessions import Body, Piece, Turn
from breakloop.wire import dialects

FORMAT = "litellm"
_WRAPPERS: Final = ("standard_logging_object", "standard_logging_payload", "payload")
_PATHS: Final = {
    "completion": openai_log.CHAT,
    "acompletion": openai_log.CHAT,
    "text_completion": openai_log.COMPLETIONS,
    "atext_completion": openai_log.COMPLETIONS,
    "responses": openai_log.RESPONSES,
    "aresponses": openai_log.RESPONSES,
    "anthropic_messages": anthropic_log.PATH,
}
_INPUTS: Final = {openai_log.COMPLETIONS: "prompt", openai_log.RESPONSES: "input"}
_AGENTS: Final = ("agent", "agent_id", "user_api_key_alias", "user_api_key_hash", "api_key")


class LitellmReader:
    """Reads one request a record."""

    def __init__(self, name: str) -> None:
        self._name = name

    @staticmethod
    def fits(record: Mapping[str, Any]) -> bool:
        """Tell whether this is the format of a record."""
        entry = _unwrapped(record)
        return "call_type" in entry and ("startTime" in entry or "response_cost" in entry or "spend" in entry)

    def take(self, record: Mapping[str, Any]) -> Sequence[Piece]:
        """Read one request; what is no call of a language model is passed over, and ValueError if prompts are gone."""
        entry = _unwrapped(record)
        path = _PATHS.get(text_of(entry.get("call_type")))
        if path is None:
            return []
        body = _body(entry, path)
        if body is None:
            raise ValueError("has no messages: LiteLLM keeps them in spend logs only when it is told to")
        turn = Turn(
            Body(path, json_bytes(body)),
            answer_of(dialects.of_path(path), _response(entry), 500 if entry.get("status") == "failure" else 0),
            named(entry, _AGENTS),
            seconds(first(entry, ("startTime", "start_time"))),
        )
        return [Piece(session_of(turn, self._name, *_session(entry)), [turn], whole=False)]

    def end(self) -> Sequence[Piece]:
        """Nothing is under way between two records."""
        return ()


def _unwrapped(record: Mapping[str, Any]) -> Mapping[str, Any]:
    inner = first(record, _WRAPPERS)
    return inner if isinstance(inner, dict) and "call_type" in inner else record


def _session(entry: Mapping[str, Any]) -> tuple[str, str]:
    """The session and the trace that the client named. LiteLLM makes up a trace for each request that has none."""
    asked = mapping(mapping(entry.get("metadata")).get("requester_metadata"))
    own = {entry.get("id"), entry.get("request_id"), entry.get("litellm_call_id")}
    found = [named(entry, SESSIONS) or named(asked, SESSIONS), named(asked, TRACES) or named(entry, TRACES)]
    session, trace = ("" if one in own else one for one in found)
    return session, trace


def _body(entry: Mapping[str, Any], path: str) -> dict[str, Any] | None:
    sent = mapping(entry.get("proxy_server_request"))
    for body in (mapping(sent.get("body")), sent):
        if openai_log.fits(body):
            return body
    said = decoded(entry.get("messages"))
    if not said:
        return None
    if isinstance(said, dict):  # some calls are kept whole
        said = first(said, ("messages", "input", "prompt")) or said
    name = _INPUTS.get(path, "messages")
    if name == "messages" and not isinstance(said, list):
        said = [said if isinstance(said, dict) else {"role": "user", "content": said}]
    tools = mapping(entry.get("model_parameters")).get("tools")
    body = {"model": text_of(entry.get("model")), name: said}
    return {**body, "tools": tools} if tools else body


def _response(entry: Mapping[str, Any]) -> object:
    response = decoded(entry.get("response"))
    return response or None
