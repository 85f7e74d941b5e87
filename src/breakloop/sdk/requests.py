"""Builds the values that a backend decides about, from what a program or framework has at hand: HTTP requests, bodies
of LLM requests, tool calls with their results, answers of a model.

Light to import, and without any input or output: `breakloop hook` uses it too.
"""

from __future__ import annotations

import json
import secrets
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from breakloop.errors import RequestError
from breakloop.model.call import Answer, Call, ToolCall, Usage
from breakloop.model.decision import Decision
from breakloop.model.verdict import Verdict
from breakloop.policy.paths import normalise, normalise_host, strip_agent
from breakloop.sdk.context import PARENT_HEADER, SESSION_HEADER, UNNAMED, AgentContext, current_agent

CHAT_PATH: Final = "/v1/chat/completions"
TOOLS_PATH: Final = "/mcp"
BODY_MAX_BYTES: Final = 10 * 1024 * 1024  # larger bodies are not read
RESULT_MAX_CHARS: Final = 8 * 1024
_JSON: Final = "application/json"
_TRANSCRIPT_MAX_BYTES: Final = 128 * 1024
_TRANSCRIPT_KEPT_BYTES: Final = 16 * 1024  # of the newest messages, when a transcript is cut

# A policy that looks at steps alone. For programs that serve many people: two of them may well send the same words
# within a minute.
STEPS_ONLY: Final[Mapping[str, Any]] = {
    "bundle_version": 1,
    "policies": [],
    "defaults": {"loop_detection": {"similarity": "steps"}},
}

Headers = Mapping[str, str] | Iterable[tuple[str | bytes, str | bytes]]
ToolInvocation = tuple[str, Any]  # name and arguments


class DecisionHandle(NamedTuple):
    """What the library keeps of a decision beyond its public fields."""

    call: Call | None = None
    verdict: Verdict | None = None  # if the decision was made in this process
    body: bytes = b""  # of a denial by a decision service
    headers: tuple[tuple[str, str], ...] = ()  # of a denial
    result_id: str = ""  # under which a decision service awaits the result; "": it awaits none


def handle_of(decision: Decision) -> DecisionHandle:
    handle = decision._handle
    return handle if isinstance(handle, DecisionHandle) else DecisionHandle()


def request_call(
    method: str, target: str | bytes, headers: Headers = (), body: bytes = b"", *, host: str = "", peer: str = ""
) -> Call:
    """Return an HTTP request as a `Call`. `target` is the path with its query. Agent and session come from the header
    fields, or else from the enclosing `with agent(...)` block."""
    raw = target if isinstance(target, bytes) else target.encode("utf-8", "replace")
    path, _, query = raw.partition(b"?")
    fields, repeated = _fields(headers)
    try:
        agent, plain = strip_agent(normalise(path or b"/"))
    except RequestError:  # an ambiguous path: the receiver of the request has to reject it
        agent, plain = "", path.decode("latin-1")
    call = Call(
        method.upper(),
        plain,
        normalise_host(host or fields.get("host", b"")),
        query.decode("latin-1"),
        fields,
        peer or "127.0.0.1",
        body,
        path_agent=agent,
        repeated=repeated,
    )
    call.tracked = True
    return call


def _fields(headers: Headers) -> tuple[dict[str, bytes], tuple[tuple[str, bytes], ...]]:
    pairs: Iterable[tuple[str | bytes, str | bytes]] = headers.items() if isinstance(headers, Mapping) else headers
    first: dict[str, bytes] = {}
    repeated: list[tuple[str, bytes]] = []
    for name, value in pairs:
        key = (name.decode("latin-1") if isinstance(name, bytes) else name).strip().lower().replace("_", "-")
        content = value if isinstance(value, bytes) else value.encode("utf-8", "replace")
        if key in first:
            repeated.append((key, content))
        else:
            first[key] = content
    around = current_agent()
    if around != UNNAMED:
        session, parent = [first.get(name.lower(), b"").decode("latin-1") for name in (SESSION_HEADER, PARENT_HEADER)]
        for name, named in AgentContext("", session, parent).with_defaults(around).headers().items():
            first.setdefault(name.lower(), named.encode("ascii"))
    return first, tuple(repeated)


def chat_call(body: bytes, context: AgentContext, path: str = CHAT_PATH) -> Call:
    """Return an LLM request that is not sent over HTTP."""
    return request_call("POST", path, {"content-type": _JSON, **context.headers()}, body, host="localhost")


def tool_call(name: str, arguments: Any, context: AgentContext) -> Call:
    """Return a tool call that is about to be made, as an MCP client would send it.

    It gets a session of its own, because the conversation's session will show the same call again, with its result.
    """
    params = {"name": name, "arguments": arguments}
    body = arguments_text({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
    separate = AgentContext(context.agent, f"{context.session}/tools" if context.session else "")
    return chat_call(body.encode("utf-8", "replace"), separate, TOOLS_PATH)


def is_readable(content_type: str, length: str) -> bool:
    """Tell whether to read a body before it is passed on: JSON of a known length that is small enough. Both are values
    of header fields."""
    kind = content_type.partition(";")[0].strip().lower()
    return (kind == _JSON or kind.endswith("+json")) and length.isdecimal() and 0 < int(length) <= BODY_MAX_BYTES


def denial_details(decision: Decision) -> dict[str, Any]:
    """Return the facts of a denial as plain values, without any content of the conversation."""
    names = (
        "reason", "stop_reason", "kind", "hit_count", "cooldown_seconds", "retry_after", "fingerprint", "evidence",
        "request_id",
    )  # fmt: skip
    return {"error": decision.error, **{name: getattr(decision, name) for name in names}}


def json_body(body: Mapping[str, Any]) -> bytes:
    """Return the body of an LLM request as JSON; b"" if it cannot be written, because it could not be sent either."""
    try:
        return json.dumps(dict(body), default=_plain).encode()
    except (TypeError, ValueError, RecursionError):
        return b""


def _plain(value: Any) -> Any:
    """Return an object of an SDK among plain messages as plain values."""
    dump = getattr(value, "model_dump", None)
    return dump(exclude_none=True) if callable(dump) else repr(value)


def make_answer(
    status: int = 200, text: str = "", calls: Iterable[ToolInvocation] = (), usage: Mapping[str, int] | None = None
) -> Answer:
    """Return a model's answer, from plain values."""
    known = {name: value for name, value in (usage or {}).items() if name in Usage._fields}
    made = tuple(ToolCall(name, arguments_text(arguments)) for name, arguments in calls)
    return Answer(status, text=text, calls=made, usage=Usage(**known) if known else None, complete=status != 0)


def arguments_text(arguments: Any) -> str:
    """Return the arguments of a call as LLM APIs send them: a text as it is, anything else as JSON with sorted keys.
    Never raises, whatever the objects of other people do when they are read."""
    if isinstance(arguments, str):
        return arguments
    try:
        return json.dumps(arguments, ensure_ascii=False, sort_keys=True, separators=(",", ":"), default=repr)
    except Exception:  # noqa: BLE001 - keys of different types, cycles, a `__repr__` that fails
        return _repr(arguments)


def _repr(value: Any) -> str:
    try:
        return repr(value)
    except Exception:  # noqa: BLE001 - as in `arguments_text`
        return f"<{type(value).__name__}>"


def result_text(result: Any) -> str:
    """Return what a tool returned or raised as a model would read it. Long results are cut; a digest of the whole text
    keeps different ones different."""
    if isinstance(result, str):
        text = result
    elif isinstance(result, BaseException):
        text = f"Error: {type(result).__name__}: {_message(result)}"
    elif isinstance(result, bytes | bytearray):
        text = f"<{len(result)} bytes {blake2b(result, digest_size=8).hexdigest()}>"
    else:
        text = arguments_text(result)
    if len(text) <= RESULT_MAX_CHARS:
        return text
    whole = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return f"{text[:RESULT_MAX_CHARS]}\n<{len(text) - RESULT_MAX_CHARS} more characters, {whole}>"


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - the `__str__` of a foreign error may fail
        return ""


class Transcript:
    """The steps of a run, written as the chat request that would come next, so that detectors see what they would see
    in LLM traffic. Bounded: when it grows too long, the oldest steps are dropped."""

    def __init__(self, model: str, task: str) -> None:
        opening = {"role": "user", "content": task or "Begin."}
        self._head = b'{"model":%s,"messages":[%s' % (_json(model or "unknown"), _json(opening))
        self._messages: deque[bytes] = deque()
        self._size = 0
        self._token = secrets.token_hex(6)  # so that no two runs have the same ids of calls
        self._calls = 0

    def add(self, calls: Sequence[ToolInvocation], results: Sequence[Any], text: str, user: str) -> bytes:
        """Add a step and return the whole request. Raises `TypeError` if `calls` are not (name, arguments)."""
        check_calls(calls)
        message: dict[str, Any] = {"role": "assistant", "content": text}
        ids = [self._next_id() for _ in calls]
        if calls:
            message["tool_calls"] = [
                {"id": one, "type": "function", "function": {"name": name, "arguments": arguments_text(arguments)}}
                for one, (name, arguments) in zip(ids, calls, strict=True)
            ]
        self._append(message)
        for index, result in enumerate(results):
            call_id = ids[index] if index < len(ids) else self._next_id()
            self._append({"role": "tool", "tool_call_id": call_id, "content": result_text(result)})
        if user or not results:
            self._append({"role": "user", "content": user})
        self._cut()
        return b"%s,%s]}" % (self._head, b",".join(self._messages))

    def opening(self) -> bytes:
        """Return the first request, before any step."""
        return self._head + b"]}"

    def _append(self, message: dict[str, Any]) -> None:
        written = _json(message)
        self._messages.append(written)
        self._size += len(written)

    def _cut(self) -> None:
        """Cut rarely and deep: a conversation that shrinks with every step would look like one that loses context."""
        if self._size > _TRANSCRIPT_MAX_BYTES:
            while self._size > _TRANSCRIPT_KEPT_BYTES and len(self._messages) > 1:
                self._size -= len(self._messages.popleft())
            while len(self._messages) > 1 and not self._messages[0].startswith(b'{"role":"assistant"'):
                self._size -= len(self._messages.popleft())

    def _next_id(self) -> str:
        self._calls += 1
        return f"call_{self._token}{self._calls}"


def check_calls(calls: Any) -> None:
    """Raise `TypeError` if `calls` is not a list of (name, arguments)."""
    if not isinstance(calls, str | bytes | Mapping) and all(
        isinstance(one, tuple | list) and len(one) == 2 and isinstance(one[0], str) for one in calls
    ):
        return
    raise TypeError('calls: must be a list of (name, arguments), such as [("search", {"query": "x"})]')


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
