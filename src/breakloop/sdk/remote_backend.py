"""Asks a decision service (`breakloop serve`): `/v1/decision` before a request, and if the service awaits the result,
`/v1/decision/{result_id}/result` after it.

Standard library only. Errors are raised; that a failed question allows the request is decided by `core`. Also what the
drop-in clients `breakloop.openai` and `breakloop.anthropic` share: they read the denials of a gateway.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar
from urllib.parse import urlsplit

from breakloop.errors import SettingsError
from breakloop.exceptions import DeniedError
from breakloop.model.call import CREDENTIAL_HEADERS, Answer, Call
from breakloop.model.decision import LOOP, LOOP_ERROR, Decision
from breakloop.sdk.context import AGENT_HEADER, AgentContext, current_agent, gateway_url
from breakloop.sdk.requests import BODY_MAX_BYTES, DecisionHandle, handle_of

if TYPE_CHECKING:
    from http.client import HTTPConnection

T = TypeVar("T")

TIMEOUT_S: Final = 2.0
_IDLE_MAX: Final = 32
# The service would hold a throttled answer back; with `wait=client` it returns the delay instead.
_DECISION: Final = "/v1/decision?wait=client"
_CONNECTION_HEADERS: Final = frozenset(
    ("host", "content-length", "transfer-encoding", "connection", "expect", "accept", "upgrade", "te")
)
_PREFIX: Final = "x-breakloop-"
_DENIAL_HEADERS: Final = ("retry-after", "x-should-retry")
_REQUEST_ID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]+")


class UnreadableAnswerError(Exception):
    """A response that is not a decision. The message describes it without quoting it."""


class RemoteBackend:
    """A decision service at a URL. `where` is that URL without its password."""

    blocking = True

    def __init__(self, url: str, token: str = "", timeout_s: float = TIMEOUT_S) -> None:
        at = urlsplit(url)
        try:
            usable = at.scheme in {"http", "https"} and bool(at.hostname) and at.port != 0
        except ValueError:
            usable = False
        if not usable:
            raise SettingsError("url: is not the URL of a decision service; use for example http://127.0.0.1:8787")
        self.where = f"{at.scheme}://{at.netloc.rpartition('@')[2]}{at.path}"
        from http import client  # noqa: PLC0415 - a `Guard` that decides itself does not need it

        connection = client.HTTPSConnection if at.scheme == "https" else client.HTTPConnection
        self._gone = ConnectionError, client.BadStatusLine
        self._connect = partial(connection, at.hostname or "", at.port, timeout=timeout_s)
        self._base = at.path.rstrip("/")
        self._token = token
        self._idle: list[HTTPConnection] = []

    def decide(self, call: Call) -> Decision:
        """Ask about a call. Raises OSError, HTTPException or UnreadableAnswerError."""
        headers = {
            name: value.decode("latin-1") for name, value in call.headers.items() if name not in _CONNECTION_HEADERS
        }
        target = call.path + (f"?{call.query}" if call.query else "")
        headers |= {"X-Original-Method": call.method, "X-Original-URI": target, "Accept": "application/json"}
        if call.host:
            headers["X-Original-Host"] = call.host
        if call.path_agent:
            headers[AGENT_HEADER] = call.path_agent
        if self._token:
            headers["X-Breakloop-Key"] = self._token
            if not any(name in headers for name in CREDENTIAL_HEADERS):
                headers["Authorization"] = f"Bearer {self._token}"
        status, fields, body = self._post(_DECISION, headers, call.body)
        decision = decision_from_response(status, fields, body, call)
        call.request_id = decision.request_id
        return decision

    def settle(self, decision: Decision, answer: Answer) -> None:
        """Report the result if it is awaited. A service that no longer knows the request answers 404, which is not an
        error."""
        result_id = handle_of(decision).result_id
        if not result_id:
            return
        result: dict[str, object] = {"status": answer.status, "text": answer.text}
        if answer.calls:
            result["tool_calls"] = [{"name": made.name, "arguments": made.arguments} for made in answer.calls]
        if answer.usage is not None:
            result["usage"] = answer.usage._asdict()
        headers = {"Content-Type": "application/json"}
        if self._token:
            headers["X-Breakloop-Key"] = self._token
        body = json.dumps(result).encode()
        status, _, _ = self._post(f"/v1/decision/{result_id}/result", headers, body)
        if status not in {204, 404}:
            raise UnreadableAnswerError(f"a reported result got status {status}")

    def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            self._idle.pop().close()

    def _post(self, path: str, headers: Mapping[str, str], body: bytes) -> tuple[int, Mapping[str, str], bytes]:
        """POST once, and once more if an idle connection turns out to be closed."""
        try:
            connection = self._idle.pop()
        except IndexError:
            return self._post_on(self._connect(), path, headers, body)
        try:
            return self._post_on(connection, path, headers, body)
        except self._gone:
            return self._post_on(self._connect(), path, headers, body)

    def _post_on(
        self, connection: HTTPConnection, path: str, headers: Mapping[str, str], body: bytes
    ) -> tuple[int, Mapping[str, str], bytes]:
        try:
            connection.request("POST", self._base + path, body, dict(headers))
            response = connection.getresponse()
            content = response.read(BODY_MAX_BYTES)
            fields = {name.lower(): value for name, value in response.getheaders()}
        except BaseException:
            connection.close()
            raise
        if response.isclosed() and len(self._idle) < _IDLE_MAX:
            self._idle.append(connection)  # append and pop of a list are thread-safe
        else:
            connection.close()
        return response.status, fields, content


def decision_from_response(status: int, headers: Mapping[str, str], body: bytes, call: Call | None = None) -> Decision:
    """Return the decision in a response of the decision service, or in a denial of the gateway.

    Header names are in lower case and may begin with any `header_prefix`. Raises `UnreadableAnswerError` if the
    response is no decision.
    """
    get = headers.get
    detail = denial_detail(body)
    prefix = _denial_prefix(headers, detail)
    if not prefix:
        prefix = _allowed_prefix(headers, body) if status == 200 else ""
        if not prefix:
            raise UnreadableAnswerError(f"got status {status} instead of a decision")
        return Decision(
            delay_seconds=(_number(get(prefix + "loop-delay")) or 0) / 1000,
            warning=get(prefix + "warning", ""),
            note=get(prefix + "note", ""),
            landed=get(prefix + "action") == "land",
            hit_count=_number(get(prefix + "loop-count")) or 0,
            request_id=headers[prefix + "request-id"],
            tree_usd_left=_dollars(get(prefix + "tree-usd-left")),
            tree_tokens_left=_number(get(prefix + "tree-tokens-left")),
            _handle=DecisionHandle(call, result_id=get(prefix + "result-id", "")),
        )
    shown = tuple((name, value) for name, value in headers.items() if _is_for_client(name, prefix))
    return Decision(
        allowed=False,
        reason=headers[prefix + "reason"],
        status=status,
        message=_field(detail, "message", str) or _shown_message(body) or "Denied.",
        retry_after=_number(get("retry-after")),
        kind=_field(detail, "kind", str),
        hit_count=_field(detail, "hit_count", int),
        cooldown_seconds=_field(detail, "cooldown_seconds", int),
        fingerprint=_field(detail, "fingerprint", str),
        evidence=_field(detail, "evidence", str),
        request_id=get(prefix + "request-id", ""),
        tree_usd_left=_dollars(get(prefix + "tree-usd-left")),
        tree_tokens_left=_number(get(prefix + "tree-tokens-left")),
        _handle=DecisionHandle(call, body=body, headers=shown),
    )


def denial_detail(body: bytes) -> Mapping[str, Any]:
    """Return the `detail` object of a denial's body; empty if there is none."""
    return _object_in(body, "detail")


def _object_in(body: bytes, name: str) -> Mapping[str, Any]:
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    found = content.get(name) if isinstance(content, dict) else None
    return found if isinstance(found, dict) else {}


def _shown_message(body: bytes) -> str:
    """Return the message of the dialect's error object, without the code behind it: SDKs that show all of a body get
    the sentence there only."""
    message = _field(_object_in(body, "error"), "message", str)
    return message.rpartition(" (")[0] if message.endswith(")") else message


def _is_for_client(name: str, prefix: str) -> bool:
    """Tell whether to pass a header field of a service's denial on to the program's own client."""
    return name in {prefix + "reason", prefix + "request-id", *_DENIAL_HEADERS} or name.startswith("ratelimit")


def _denial_prefix(headers: Mapping[str, str], detail: Mapping[str, Any]) -> str:
    """Return the prefix of our header fields in a denial; "" if the response is none.

    A server with another `header_prefix` does not announce it. Its denials have what no other server sends: a reason,
    a request id with the same prefix, and a body whose `detail.error` is that reason.
    """
    if headers.get(_PREFIX + "reason"):
        return _PREFIX
    for name, reason in headers.items():
        prefix = name.removesuffix("reason")
        if not reason or not name.endswith("-reason") or prefix + "request-id" not in headers:
            continue
        if detail.get("error") == (LOOP_ERROR if reason == LOOP else reason):
            return prefix
    return ""


def _allowed_prefix(headers: Mapping[str, str], body: bytes) -> str:
    """Return the prefix in a decision that allows: it has no body, and a request id in a server's format."""
    if headers.get(_PREFIX + "request-id"):
        return _PREFIX
    for name, value in headers.items():
        if not body and name.endswith("-request-id") and _REQUEST_ID.fullmatch(value):
            return name.removesuffix("request-id")
    return ""


def _field(detail: Mapping[str, Any], name: str, kind: type[T]) -> T:
    value = detail.get(name)
    return value if type(value) is kind else kind()


def _number(value: str | None) -> int | None:
    return int(value) if value is not None and value.isascii() and value.isdigit() else None


def _dollars(value: str | None) -> float | None:
    return float(value) if value is not None and value.isascii() and value.replace(".", "", 1).isdigit() else None


class GatewayClient:
    """The first base of a drop-in client; the second is the client of an SDK."""

    _gateway_path: ClassVar[str]
    _denials: ClassVar[tuple[type[DeniedError], type[DeniedError]]]  # for a denial that is not a loop, and for a loop

    def __init__(self, *, agent: str = "", session: str = "", **options: Any) -> None:
        if options.get("base_url") is None:
            options["base_url"] = gateway_url() + self._gateway_path
        named = AgentContext(agent, session).headers()
        if named:
            options["default_headers"] = {**named, **(options.get("default_headers") or {})}
        super().__init__(**options)

    @property
    def default_headers(self) -> dict[str, Any]:
        """The header fields of every request, with the names of the enclosing `with agent(...)` block."""
        return {**current_agent().headers(), **super().default_headers}  # type: ignore[misc]

    def _make_status_error_from_response(self, response: Any) -> Any:
        """Return the error of the SDK; if the gateway denied the request, as one that is a `DeniedError` too."""
        error = super()._make_status_error_from_response(response)  # type: ignore[misc]
        decision = _denial_in(response)
        if decision is None:
            return error
        # The text of the SDK's own error may be the whole body, as a dict.
        text = f"Error code: {response.status_code} - {decision.message} ({decision.error})"
        denied = self._denials[decision.is_loop](decision, text)
        vars(denied).update({**vars(error), **vars(denied)})
        return denied


def _denial_in(response: Any) -> Decision | None:
    if response.is_closed and not response.is_stream_consumed:
        return None
    try:
        return decision_from_response(response.status_code, dict(response.headers), response.content)
    except UnreadableAnswerError:
        return None
