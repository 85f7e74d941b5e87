"""Logs of requests, one a line with its answer, as gateways and home-made wrappers write them: `request` and `response`
(bodies, or maps with `body`), or a bare request body with its answer beside it. What a body of one provider looks like
is known to `openai_log` and `anthropic_log`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final
from urllib.parse import urlsplit

from breakloop.model.answer import Answer
from breakloop.model.call import SECRET_HEADERS
from breakloop.policy.descriptors import canonical_header
from breakloop.policy.identity import CONVERSATION_HEADERS
from breakloop.replay.conversations import json_bytes
from breakloop.replay.readers import anthropic_log, openai_log
from breakloop.replay.readers.fields import AGENTS, SESSIONS, TIMES, TRACES, decoded, first, mapping, named, seconds
from breakloop.replay.sessions import Body, Piece, Session, Turn
from breakloop.wire import answer as answers
from breakloop.wire import dialects, session_ids

FORMAT = "requests"
_REQUESTS: Final = ("request", "request_body", "req", "body", "kwargs")
_RESPONSES: Final = ("response", "response_body", "res", "completion", "output", "answer")
_STATUSES: Final = ("status_code", "status", "response_status", "http_status")
# Keys and cookies are of no use here, and lengths and codings speak of bytes that are no more.
_DROPPED: Final = SECRET_HEADERS | {"content-length", "content-encoding", "content-type", "host"}


class RequestLogReader:
    """Reads one request a record. Those without the id of a session are told apart as a gateway does it."""

    def __init__(self, name: str) -> None:
        self._name = name

    @staticmethod
    def fits(record: Mapping[str, Any]) -> bool:
        """Tell whether this is the format of a record."""
        return _body_of(record) is not None

    def take(self, record: Mapping[str, Any]) -> Sequence[Piece]:
        """Read one request; ValueError when there is none in the record."""
        body = _body_of(record)
        if body is None:
            raise ValueError("has no request body with messages, input or prompt")
        envelope = mapping(first(record, _REQUESTS))
        response = first(record, _RESPONSES)
        url = first(envelope, ("path", "url")) or first(record, ("path", "url", "endpoint"))
        path = urlsplit(url).path if isinstance(url, str) and url else ""
        if not dialects.of_path(path):
            path = _path(body, decoded(response))
        headers = _headers(envelope.get("headers") or record.get("request_headers") or record.get("headers"))
        turn = Turn(
            Body(path, json_bytes(body)),
            answer_of(dialects.of_path(path), response, _failed(record)),
            named(record, AGENTS),
            seconds(first(record, TIMES)),
            headers,
        )
        session = session_of(turn, self._name, named(record, SESSIONS), named(record, TRACES))
        return [Piece(session, [turn], whole=False)]

    def end(self) -> Sequence[Piece]:
        """Nothing is under way between two records."""
        return ()


def session_of(turn: Turn, name: str, session_id: str, trace: str = "") -> Session:
    """Return whose turn it is: by a recorded id, one in the request, else by its trace or how its conversation opens.

    A trace may cover a run or one request, so the last two only name it: the engine sees what a gateway would see.
    """
    assert isinstance(turn.request, Body)  # noqa: S101 - logs hold whole requests
    path, body = turn.request
    if not session_id:
        header = next((turn.headers[one] for one in CONVERSATION_HEADERS if turn.headers.get(one)), b"")
        session_id = header.decode("utf-8", "replace") or session_ids.find(dialects.of_path(path), body).session
    if session_id:
        return Session(session_id, name, turn.agent)
    if trace:
        return Session(trace, name, turn.agent, named=False, lane=name)
    opening = dialects.opening("POST", path, body)
    digest = blake2b(f"{turn.agent}\0{opening}".encode("utf-8", "replace"), digest_size=6).hexdigest()
    return Session(f"opening:{digest}", name, turn.agent, named=False, lane=name)


def answer_of(dialect: str, response: object, failed: int = 0) -> Answer:
    """Read an answer: a body, a map with its status and body, a list of streamed chunks, or a text."""
    response, status = decoded(response), failed or 200
    if isinstance(response, dict) and ("body" in response or "status_code" in response):
        found = first(response, _STATUSES)
        status = found if isinstance(found, int) else status
        response = decoded(response.get("body"))
    if response is None:
        return Answer(failed or 0)
    if isinstance(response, str) and not response.startswith(("data:", "event:")):
        return Answer(status, response, complete=status < 400)
    reader = answers.reader(dialect, b"")
    if reader is None:
        return Answer(status, complete=True)
    reader.feed(_bytes(dialect, response))
    return reader.answer(status, complete=True)


def _bytes(dialect: str, response: object) -> bytes:
    if isinstance(response, str):
        return response.encode("utf-8", "replace")
    if isinstance(response, list):
        return b"".join(b"data: %s\n\n" % json_bytes(chunk) for chunk in response)
    if isinstance(response, dict) and "role" in response and dialect != anthropic_log.DIALECT:
        response = {"choices": [{"message": response}]}  # the message alone
    return json_bytes(response)


def _body_of(record: Mapping[str, Any]) -> dict[str, Any] | None:
    """The body of the request: in a field of the record, in a map with its head, or the record itself."""
    for value in (first(record, _REQUESTS), record):
        body = mapping(value) if value is not record else dict(record)
        inner = mapping(body.get("body")) if value is not record else {}
        for one in (inner, body):
            if openai_log.fits(one) or anthropic_log.fits(one):
                return {name: said for name, said in one.items() if value is not record or name not in _BESIDE}
    return None


# What may stand beside the fields of a bare body, and is none of them.
_BESIDE: Final = frozenset((*_RESPONSES, *TIMES, *SESSIONS, *TRACES, *AGENTS, *_STATUSES, "label", "error"))


def _path(body: Mapping[str, Any], response: object) -> str:
    if anthropic_log.is_theirs(body, response):
        return anthropic_log.PATH
    return openai_log.path_of(body)


def _failed(record: Mapping[str, Any]) -> int:
    """The status of a request that failed, as far as the record says so; else 0."""
    status = first(record, _STATUSES)
    if isinstance(status, int) and not isinstance(status, bool):
        return status if status >= 400 else 0
    return 500 if record.get("error") or status in ("failure", "error", "failed") else 0


def _headers(value: object) -> dict[str, bytes]:
    listed = {canonical_header(str(name)): str(said) for name, said in mapping(value).items()}
    return {name: said.encode("utf-8", "replace") for name, said in listed.items() if name not in _DROPPED}


def text_of(value: object) -> str:
    """Return a text, or "" for anything else."""
    return value if isinstance(value, str) else ""
