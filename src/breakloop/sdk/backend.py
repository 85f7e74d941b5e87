"""The library's core, without any input or output: requests become `Call`s, verdicts and a decision service's answers
become `Decision`s. Who asks whom, and when, is `local`'s, `remote`'s and `guard`'s business.

Who is speaking: agent and session for everything that happens inside a `with` block, in this thread or task and
those it starts. What is passed by name to a call goes before it.

Says in the log that a `Guard` could not decide: where it asked and why that failed, the first time and then once a
minute. Nothing of what was asked about is in it (SPEC Y-1); counting and allowing is `guard`'s.
"""

from __future__ import annotations

import http.client
import json
import logging
import re
import socket
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, NamedTuple

from breakloop.clock import Clock, SystemClock
from breakloop.errors import RequestError, SettingsError
from breakloop.exceptions import DeniedError
from breakloop.model.call import Answer, Call, ToolCall, Usage
from breakloop.model.verdict import LOOP, LOOP_ERROR, Decision, Verdict
from breakloop.observe.log import log
from breakloop.policy.paths import normalise, normalise_host, strip_agent

AGENT_HEADER: Final = "X-Agent-Id"
SESSION_HEADER: Final = "X-Agent-Session"


class AgentContext(NamedTuple):
    """An agent and a session; "" is: not named."""

    agent: str = ""
    session: str = ""

    def over(self, below: AgentContext) -> AgentContext:
        """Return these, and where they name nothing, those below."""
        return AgentContext(self.agent or below.agent, self.session or below.session)

    def headers(self) -> dict[str, str]:
        """Return them as header fields. They have to be ASCII to travel, so other characters are written as escapes."""
        named = {AGENT_HEADER: _ascii(self.agent), SESSION_HEADER: _ascii(self.session)}
        return {name: value for name, value in named.items() if value}


_NOBODY: Final = AgentContext()
_CURRENT: Final[ContextVar[AgentContext]] = ContextVar("breakloop_names", default=_NOBODY)


def current() -> AgentContext:
    """Return who is speaking here and now."""
    return _CURRENT.get()


@contextmanager
def agent(name: str = "", *, session: str = "") -> Iterator[AgentContext]:
    """Name the agent, the session, or both for all requests and steps inside of a `with` block."""
    named = AgentContext(name, session).over(current())
    token = _CURRENT.set(named)
    try:
        yield named
    finally:
        _CURRENT.reset(token)


def _ascii(name: str) -> str:
    if name.isascii() and name.isprintable():
        return name.strip()
    kept = name.encode("ascii", "backslashreplace").decode()
    return "".join(character if character.isprintable() else "?" for character in kept).strip()


CHAT_PATH: Final = "/v1/chat/completions"
TOOLS_PATH: Final = "/mcp"
BODY_MAX_BYTES: Final = 10 * 1024 * 1024  # larger ones pass unread
_JSON: Final = b"application/json"
_PREFIX: Final = "x-breakloop-"
_OF_DENIALS: Final = ("retry-after", "x-should-retry")
_ID_FORM: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]+")  # request ids of a server: `parts.judging`

# Judged by steps alone: for programs that serve many people, of whom several may well send the same words in a minute.
STEPS_ONLY: Final[Mapping[str, Any]] = {
    "bundle_version": 1,
    "policies": [],
    "defaults": {"loop_detection": {"similarity": "steps"}},
}

Headers = Mapping[str, str] | Iterable[tuple[str | bytes, str | bytes]]


class UnreadableAnswerError(Exception):
    """What a decision service said is no decision; the message says what it was, and repeats none of it."""


def request_call(
    method: str, target: str | bytes, headers: Headers = (), body: bytes = b"", *, host: str = "", peer: str = ""
) -> Call:
    """Return a request as the engine takes it. `target` is the path with its query; agent and session come from the
    header fields, else from the `with` block around."""
    raw = target if isinstance(target, bytes) else target.encode("utf-8", "replace")
    path, _, query = raw.partition(b"?")
    fields, repeated = _fields(headers)
    try:
        agent, plain = strip_agent(normalise(path or b"/"))
    except RequestError:  # one that is read in two ways is the receiver's to refuse
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


def chat_call(body: bytes, names: AgentContext, path: str = CHAT_PATH) -> Call:
    """Return an LLM request that was never sent over HTTP, of an agent in a session."""
    return request_call("POST", path, {"content-type": _JSON.decode(), **names.headers()}, body, host="localhost")


def tool_call(name: str, arguments: Any, names: AgentContext) -> Call:
    """Return a tool call that is about to be made, as an MCP client would send it. Its session is not the one of the
    conversation, which shows the same call again, with its result."""
    params = {"name": name, "arguments": arguments}
    body = arguments_text({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
    apart = names._replace(session=f"{names.session}/tools" if names.session else "")
    return chat_call(body.encode("utf-8", "replace"), apart, TOOLS_PATH)


def is_readable(content_type: str | bytes, length: int | None) -> bool:
    """Tell whether a body is worth reading before it is passed on: JSON, of a size that is known and can be judged."""
    kind = content_type if isinstance(content_type, bytes) else content_type.encode("latin-1", "replace")
    kind = kind.partition(b";")[0].strip().lower()
    return (kind == _JSON or kind.endswith(b"+json")) and length is not None and 0 < length <= BODY_MAX_BYTES


def from_verdict(verdict: Verdict, call: Call, fields: Iterable[tuple[str, str]] = ()) -> Decision:
    """Return what the engine said as the library says it. `fields` are the header fields of a denial."""
    loop = verdict.loop
    return Decision(
        allowed=verdict.allowed,
        reason=verdict.reason,
        status=verdict.status,
        message=verdict.message,
        retry_after=None if verdict.allowed else verdict.retry_after_s,
        delay_seconds=verdict.delay_ms / 1000,
        warning=verdict.warning,
        note=verdict.note,
        kind=loop.kind if loop else "",
        hit_count=loop.hit_count if loop else 0,
        cooldown_seconds=loop.cooldown_s if loop else 0,
        fingerprint=loop.fingerprint if loop else "",
        evidence=loop.evidence if loop else "",
        policy=verdict.policy,
        request_id=call.request_id,
        degraded=verdict.degraded,
        call=call,
        verdict=verdict,
        fields=tuple(fields),
    )


def from_answer(status: int, headers: Mapping[str, str], body: bytes, call: Call | None = None) -> Decision:
    """Return the decision in an answer of ours: of the decision service, or of the gateway where it denies. Header
    names are in lower case and may begin with any `header_prefix`. Raises `UnreadableAnswerError` for anything else."""
    get = headers.get
    told = detail(body)
    prefix = _denial_prefix(headers, told)
    if not prefix:
        prefix = _allowed_prefix(headers, body) if status == 200 else ""
        if not prefix:
            raise UnreadableAnswerError(f"no decision, but status {status}")
        return Decision(
            delay_seconds=(_number(get(prefix + "loop-delay")) or 0) / 1000,
            warning=get(prefix + "warning", ""),
            note=get(prefix + "note", ""),
            hit_count=_number(get(prefix + "loop-count")) or 0,
            request_id=headers[prefix + "request-id"],
            call=call,
        )
    return Decision(
        allowed=False,
        reason=headers[prefix + "reason"],
        status=status,
        message=_text(told, "message") or "Denied.",
        retry_after=_number(get("retry-after")),
        kind=_text(told, "kind"),
        hit_count=_count(told, "hit_count"),
        cooldown_seconds=_count(told, "cooldown_seconds"),
        fingerprint=_text(told, "fingerprint"),
        evidence=_text(told, "evidence"),
        request_id=get(prefix + "request-id", ""),
        call=call,
        body=body,
        fields=tuple((name, value) for name, value in headers.items() if _is_shown(name, prefix)),
    )


def _is_shown(name: str, prefix: str) -> bool:
    """Tell whether a field of a service's denial is for the client of whoever asked."""
    return name in {prefix + "reason", prefix + "request-id", *_OF_DENIALS} or name.startswith("ratelimit")


def _denial_prefix(headers: Mapping[str, str], told: Mapping[str, Any]) -> str:
    """Return what the names of our fields begin with in a denial; "" where it is none.

    A server with another `header_prefix` does not announce it. Its denials are known by what no other server sends: a
    reason, a request id under the same prefix, and a body whose `detail.error` is that reason.
    """
    if headers.get(_PREFIX + "reason"):
        return _PREFIX
    for name, reason in headers.items():
        prefix = name.removesuffix("reason")
        if not reason or not name.endswith("-reason") or prefix + "request-id" not in headers:
            continue
        if told.get("error") == (LOOP_ERROR if reason == LOOP else reason):
            return prefix
    return ""


def _allowed_prefix(headers: Mapping[str, str], body: bytes) -> str:
    """The same for a decision that allows: no body, and a request id in the form that a server gives it."""
    if headers.get(_PREFIX + "request-id"):
        return _PREFIX
    for name, value in headers.items():
        if not body and name.endswith("-request-id") and _ID_FORM.fullmatch(value):
            return name.removesuffix("request-id")
    return ""


def facts(decision: Decision) -> dict[str, Any]:
    """Return what a program may want to know of a denial, in plain values: nothing that was said is among them."""
    names = ("reason", "kind", "hit_count", "cooldown_seconds", "retry_after", "fingerprint", "evidence", "request_id")
    return {"error": decision.error, **{name: getattr(decision, name) for name in names}}


def detail(body: bytes) -> Mapping[str, Any]:
    """Return the `detail` of a denial's body (SPEC A-3); empty where there is none."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    told = content.get("detail") if isinstance(content, dict) else None
    return told if isinstance(told, dict) else {}


def answer_of(
    status: int = 200, text: str = "", calls: Iterable[tuple[str, Any]] = (), usage: Mapping[str, int] | None = None
) -> Answer:
    """Return an answer of a model, told in plain values."""
    known = {name: value for name, value in (usage or {}).items() if name in Usage._fields}
    made = tuple(ToolCall(name, arguments_text(arguments)) for name, arguments in calls)
    return Answer(status, text=text, calls=made, usage=Usage(**known) if known else None, complete=status != 0)


def arguments_text(arguments: Any) -> str:
    """Return a call's arguments as the wire has them: a text as it is, or JSON in one spelling. Never raises, whatever
    somebody's objects do when they are looked at."""
    if isinstance(arguments, str):
        return arguments
    try:
        return json.dumps(arguments, ensure_ascii=False, sort_keys=True, separators=(",", ":"), default=repr)
    except Exception:  # noqa: BLE001 - an outermost edge: keys of two kinds, rings, a `__repr__` that fails
        return _repr(arguments)


def _repr(value: Any) -> str:
    try:
        return repr(value)
    except Exception:  # noqa: BLE001 - as in `arguments_text`
        return f"<{type(value).__name__}>"


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
    for name, named in current().headers().items():
        first.setdefault(name.lower(), named.encode("ascii"))
    return first, tuple(repeated)


def _text(told: Mapping[str, Any], name: str) -> str:
    value = told.get(name)
    return value if isinstance(value, str) else ""


def _count(told: Mapping[str, Any], name: str) -> int:
    value = told.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _number(value: str | None) -> int | None:
    return int(value) if value is not None and value.isascii() and value.isdigit() else None


EVERY_S: Final = 60.0


class FailOpen:
    """`with guard.fail_open():` around code of ours on somebody's path: what it raises is counted and logged, and the
    program goes on after the block. A denial is no fault and passes."""

    __slots__ = ("_fault",)

    def __init__(self, fault: Callable[[Exception], object]) -> None:
        self._fault = fault

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        if not isinstance(error, Exception) or isinstance(error, DeniedError):
            return False
        self._fault(error)
        return True


class FaultLog:
    """The faults of one `Guard`. `where` is the URL that it asks; "" where it decides itself."""

    def __init__(self, where: str = "", clock: Clock | None = None) -> None:
        self._where = where
        self._clock = clock or SystemClock()
        self._told_at = -EVERY_S
        self._left_out = 0

    def tell(self, error: Exception) -> None:
        """Log a fault, or count it for the next line."""
        now = self._clock.now()
        if 0 <= now - self._told_at < EVERY_S:
            self._left_out += 1
            return
        more: dict[str, object] = {"url": self._where} if self._where else {}
        if self._left_out:
            more["left_out"] = self._left_out
        self._told_at, self._left_out = now, 0
        log(logging.ERROR, "guard.fault", {"error": f"{cause(error)}; allowed, and so is what follows", **more})


def cause(error: Exception) -> str:
    """Return why something failed, in words that cannot hold what was asked about: of errors that are not known, only
    their kind."""
    kind = type(error).__name__
    if isinstance(error, UnreadableAnswerError):
        return f"{error} (is that the traffic port of breakloop?)"
    if isinstance(error, SettingsError):
        return str(error)
    if isinstance(error, TimeoutError):
        return f"{kind}: no answer in time"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"{kind}: {error.verify_message}"
    if isinstance(error, socket.gaierror):
        return f"{kind}: the host name cannot be resolved"
    if isinstance(error, ConnectionError) and not isinstance(error, http.client.HTTPException) and error.strerror:
        return f"{kind}: {error.strerror}"
    return kind
