"""Logs with one request, or one conversation, per line.

Request logs of gateways and wrappers: `request` and `response`, or a bare body with its response beside it. LiteLLM
logs: its standard logging payload, and rows of its spend logs with prompts. Conversations, as for fine-tuning:
`messages` that end with a response; a line that starts with all messages of an earlier line continues that session.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import PurePath
from typing import Any, Final
from urllib.parse import urlsplit

from breakloop.dialects import anthropic, registry, session_ids
from breakloop.dialects.content import arguments, as_list, clean, content, json_text, text
from breakloop.model.call import SECRET_HEADERS, Answer, ToolCall
from breakloop.policy.descriptors import canonical_header
from breakloop.policy.identity import CONVERSATION_HEADERS
from breakloop.replay.formats.base import (
    AGENTS,
    ANTHROPIC,
    CHAT,
    RESPONSES,
    SESSIONS,
    TIMES,
    TRACES,
    Dialogue,
    FormatReader,
    decoded,
    first,
    mapping,
    named,
    seconds,
    tool_call,
    usage_of,
)
from breakloop.replay.sessions import RecordedBody, RecordedSession, RecordedTurn, SessionSlice, json_bytes

COMPLETIONS_PATH: Final = "/v1/completions"
_REQUESTS: Final = ("request", "request_body", "req", "body", "kwargs")
_RESPONSES: Final = ("response", "response_body", "res", "completion", "output", "answer")
_STATUSES: Final = ("status_code", "status", "response_status", "http_status")
# Credentials are not needed, and lengths and encodings describe bytes that no longer exist.
_DROPPED: Final = SECRET_HEADERS | {"content-length", "content-encoding", "content-type", "host"}


class RequestLogReader(FormatReader):
    """Reads one request per record. Sessions without an id are told apart as the gateway does it."""

    format = "requests"

    @staticmethod
    def fits(record: Mapping[str, Any]) -> bool:
        return _body_of(record) is not None

    def take(self, record: Mapping[str, Any]) -> Sequence[SessionSlice]:
        body = _body_of(record)
        if body is None:
            raise ValueError("has no request body with messages, input or prompt")
        envelope = mapping(first(record, _REQUESTS))
        response = first(record, _RESPONSES)
        url = first(envelope, ("path", "url")) or first(record, ("path", "url", "endpoint"))
        path = urlsplit(url).path if isinstance(url, str) and url else ""
        if not registry.of_path(path):
            path = path_of(body, decoded(response))
        headers = _headers(envelope.get("headers") or record.get("request_headers") or record.get("headers"))
        turn = RecordedTurn(
            RecordedBody(path, json_bytes(body)),
            answer_of(registry.of_path(path), response, _failed(record)),
            named(record, AGENTS),
            seconds(first(record, TIMES)),
            headers,
        )
        session = session_of(turn, self._name, named(record, SESSIONS), named(record, TRACES))
        return [SessionSlice(session, [turn], whole=False)]


def session_of(turn: RecordedTurn, name: str, session_id: str, trace: str = "") -> RecordedSession:
    """Return the session of a request: a recorded id, an id in the request, its trace, or the start of its
    conversation.

    A trace may cover a run or a single request, so trace and start only name the session: the engine sees what a
    gateway would see.
    """
    assert isinstance(turn.request, RecordedBody)  # noqa: S101 - logs hold whole requests
    path, body = turn.request
    if not session_id:
        header = next((turn.headers[one] for one in CONVERSATION_HEADERS if turn.headers.get(one)), b"")
        session_id = (
            header.decode("utf-8", "replace") or session_ids.find_in(mapping(body.decode("utf-8", "replace"))).session
        )
    if session_id:
        return RecordedSession(session_id, name, turn.agent)
    if trace:
        return RecordedSession(trace, name, turn.agent, named=False, gateway=name)
    parsed = registry.parse("POST", path, body)
    opening = "" if parsed is None else parsed.opening()
    digest = blake2b(f"{turn.agent}\0{opening}".encode("utf-8", "replace"), digest_size=6).hexdigest()
    return RecordedSession(f"opening:{digest}", name, turn.agent, named=False, gateway=name)


def answer_of(dialect: str, response: object, failed: int = 0) -> Answer:
    """Read a response: a body, a map with status and body, a list of streamed chunks, or text."""
    response, status = decoded(response), failed or 200
    if isinstance(response, dict) and ("body" in response or "status_code" in response):
        found = first(response, _STATUSES)
        status = found if isinstance(found, int) else status
        response = decoded(response.get("body"))
    if response is None:
        return Answer(failed or 0)
    if isinstance(response, str) and not response.startswith(("data:", "event:")):
        return Answer(status, response, complete=status < 400)
    reader = registry.reader(dialect, b"")
    if reader is None:
        return Answer(status, complete=True)
    reader.feed(_bytes(dialect, response))
    return reader.answer(status, complete=True)


def _bytes(dialect: str, response: object) -> bytes:
    if isinstance(response, str):
        return response.encode("utf-8", "replace")
    if isinstance(response, list):
        return b"".join(b"data: %s\n\n" % json_bytes(chunk) for chunk in response)
    if isinstance(response, dict) and "role" in response and dialect != anthropic.NAME:
        response = {"choices": [{"message": response}]}  # only the message
    return json_bytes(response)


def _body_of(record: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the request body: in a field of the record, in a map with headers, or the record itself."""
    for value in (first(record, _REQUESTS), record):
        body = mapping(value) if value is not record else dict(record)
        inner = mapping(body.get("body")) if value is not record else {}
        for one in (inner, body):
            if is_request(one):
                return {name: said for name, said in one.items() if value is not record or name not in _BESIDE}
    return None


# Fields of a log record that can stand beside those of a bare body.
_BESIDE: Final = frozenset((*_RESPONSES, *TIMES, *SESSIONS, *TRACES, *AGENTS, *_STATUSES, "label", "error"))


def is_request(body: Mapping[str, Any]) -> bool:
    """Return whether this can be a request body of OpenAI or Anthropic."""
    if isinstance(body.get("messages"), list):
        return True
    # `input` or `prompt` alone can be anything; with a model it is a request.
    return isinstance(body.get("model"), str) and isinstance(body.get("input", body.get("prompt")), str | list)


def path_of(body: Mapping[str, Any], response: object) -> str:
    """Return the path of a request that was recorded without one."""
    if is_theirs(body, response):
        return ANTHROPIC.path
    if "messages" in body:
        return CHAT.path
    return RESPONSES.path if "input" in body else COMPLETIONS_PATH


def is_theirs(body: Mapping[str, Any], response: object) -> bool:
    """Return whether a request without a path was sent to Anthropic."""
    if isinstance(response, dict):
        if "choices" in response:
            return False
        if response.get("type") == "message":
            return True
    if isinstance(response, list) and response and isinstance(response[0], dict):
        return response[0].get("type") == "message_start"
    return registry.is_anthropic(body)


def _failed(record: Mapping[str, Any]) -> int:
    """Return the status of a failed request, as far as it was recorded; else 0."""
    status = first(record, _STATUSES)
    if isinstance(status, int) and not isinstance(status, bool):
        return status if status >= 400 else 0
    return 500 if record.get("error") or status in ("failure", "error", "failed") else 0


def _headers(value: object) -> dict[str, bytes]:
    listed = {canonical_header(str(name)): str(said) for name, said in mapping(value).items()}
    return {name: said.encode("utf-8", "replace") for name, said in listed.items() if name not in _DROPPED}


_WRAPPERS: Final = ("standard_logging_object", "standard_logging_payload", "payload")
_PATHS: Final = {
    "completion": CHAT.path,
    "acompletion": CHAT.path,
    "text_completion": COMPLETIONS_PATH,
    "atext_completion": COMPLETIONS_PATH,
    "responses": RESPONSES.path,
    "aresponses": RESPONSES.path,
    "anthropic_messages": ANTHROPIC.path,
}
_INPUTS: Final = {COMPLETIONS_PATH: "prompt", RESPONSES.path: "input"}
_AGENTS: Final = ("agent", "agent_id", "user_api_key_alias", "user_api_key_hash", "api_key")


class LitellmReader(FormatReader):
    """Reads one request per record."""

    format = "litellm"

    @staticmethod
    def fits(record: Mapping[str, Any]) -> bool:
        entry = _unwrapped(record)
        return "call_type" in entry and ("startTime" in entry or "response_cost" in entry or "spend" in entry)

    def take(self, record: Mapping[str, Any]) -> Sequence[SessionSlice]:
        """Read one request. Other calls than LLM calls are skipped. Raises ValueError if the prompts were removed."""
        entry = _unwrapped(record)
        path = _PATHS.get(text(entry.get("call_type")))
        if path is None:
            return []
        body = _body(entry, path)
        if body is None:
            raise ValueError("has no messages: LiteLLM stores them in spend logs only if configured to")
        turn = RecordedTurn(
            RecordedBody(path, json_bytes(body)),
            answer_of(
                registry.of_path(path),
                decoded(entry.get("response")) or None,
                500 if entry.get("status") == "failure" else 0,
            ),
            named(entry, _AGENTS),
            seconds(first(entry, ("startTime", "start_time"))),
        )
        return [SessionSlice(session_of(turn, self._name, *_session(entry)), [turn], whole=False)]


def _unwrapped(record: Mapping[str, Any]) -> Mapping[str, Any]:
    inner = first(record, _WRAPPERS)
    return inner if isinstance(inner, dict) and "call_type" in inner else record


def _session(entry: Mapping[str, Any]) -> tuple[str, str]:
    """Return the session and the trace that the client named. LiteLLM generates a trace for requests without one."""
    asked = mapping(mapping(entry.get("metadata")).get("requester_metadata"))
    own = {entry.get("id"), entry.get("request_id"), entry.get("litellm_call_id")}
    found = [named(entry, SESSIONS) or named(asked, SESSIONS), named(asked, TRACES) or named(entry, TRACES)]
    session, trace = ("" if one in own else one for one in found)
    return session, trace


def _body(entry: Mapping[str, Any], path: str) -> dict[str, Any] | None:
    sent = mapping(entry.get("proxy_server_request"))
    for body in (mapping(sent.get("body")), sent):
        if is_request(body):
            return body
    said = decoded(entry.get("messages"))
    if not said:
        return None
    if isinstance(said, dict):  # some calls are recorded completely
        said = first(said, ("messages", "input", "prompt")) or said
    name = _INPUTS.get(path, "messages")
    if name == "messages" and not isinstance(said, list):
        said = [said if isinstance(said, dict) else {"role": "user", "content": said}]
    tools = mapping(entry.get("model_parameters")).get("tools")
    body = {"model": text(entry.get("model")), name: said}
    return {**body, "tools": tools} if tools else body


_ANSWERS: Final = ("response", "response_body", "res", "completion", "output", "answer", "choices")
_ASSISTANT: Final = "assistant"
_CHAINS_MAX: Final = 100_000  # number of conversation ends that are kept


class ChatLogReader(FormatReader):
    """Reads one conversation per record."""

    format = "chat"

    def __init__(self, name: str) -> None:
        super().__init__(PurePath(name).name)
        self._ends: dict[bytes, RecordedSession] = {}  # digest of a conversation -> its session
        self._open: dict[str, RecordedSession] = {}

    @staticmethod
    def fits(record: Mapping[str, Any]) -> bool:
        messages = record.get("messages")
        if not isinstance(messages, list) or len(messages) < 2 or first(record, _ANSWERS) is not None:
            return False
        last = messages[-1]
        return isinstance(last, dict) and last.get("role") == _ASSISTANT and is_request(record)

    def take(self, record: Mapping[str, Any]) -> Iterator[SessionSlice]:
        messages = record.get("messages")
        if not isinstance(messages, list) or not all(isinstance(one, dict) for one in messages):
            raise ValueError("has no list of messages")
        self._count += 1
        chain = _chain(messages)
        known = next((at for at in range(len(chain) - 1, -1, -1) if chain[at] in self._ends), -1)
        session = self._ends[chain[known]] if known >= 0 else self._session(record)
        if len(self._ends) < _CHAINS_MAX and chain:
            self._ends[chain[-1]] = session
        self._open[session.id] = session
        for at, turn in _turns(record, messages, session.model):
            if at > known:
                yield SessionSlice(session, (turn,), whole=False)

    def end(self) -> Iterator[SessionSlice]:
        for session in self._open.values():
            yield SessionSlice(session, (), whole=True)

    def _session(self, record: Mapping[str, Any]) -> RecordedSession:
        session_id = clean(named(record, SESSIONS)) or clean(text(record.get("id")))
        if not session_id or session_id in self._open:
            session_id = f"{session_id or self._name}#{self._count}"
        agent, model = clean(named(record, AGENTS)), text(record.get("model"))
        return RecordedSession(session_id, self.format, agent, model)


def _chain(messages: list[Any]) -> list[bytes]:
    """Return a digest of the conversation up to each message."""
    made: list[bytes] = []
    before = b""
    for message in messages:
        before = blake2b(before + json_text(message), digest_size=12).digest()
        made.append(before)
    return made


def _turns(record: Mapping[str, Any], messages: list[Any], model: str) -> Iterator[tuple[int, RecordedTurn]]:
    """Return each response with its position among the messages."""
    form = ANTHROPIC if is_theirs(record, None) else CHAT
    dialogue = Dialogue(form)
    if form is ANTHROPIC and record.get("system"):
        dialogue.hear({"role": "system", "content": record["system"]})
    for at, message in enumerate(messages):
        at_s = seconds(first(message, TIMES))
        if message.get("role") != _ASSISTANT:
            dialogue.hear(message, at_s)
            continue
        dialogue.begin(at_s)
        yield at, dialogue.answered([message], _answer(message, model), model)


def _answer(message: Mapping[str, Any], model: str) -> Answer:
    said = message.get("content")
    blocks = [block for block in as_list(said) if isinstance(block, dict)]
    made = [*as_list(message.get("tool_calls")), *as_list(message.get("function_call"))]
    calls = [tool_call(mapping(one)) for one in made]
    calls += [ToolCall(text(one.get("name")), arguments(one.get("input"))) for one in blocks if _is_call(one)]
    spoken: object = [one for one in blocks if not _is_call(one)] if blocks else said
    usage = usage_of(mapping(message.get("usage")))
    return Answer(200, content(spoken), tuple(calls), usage, text(message.get("model")) or model, complete=True)


def _is_call(block: Mapping[str, Any]) -> bool:
    return text(block.get("type")).endswith("tool_use")
