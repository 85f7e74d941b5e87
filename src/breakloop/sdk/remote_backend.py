"""Asks a decision service (`breakloop serve`) instead of deciding here: `/v1/decision` before, `/{id}/result` after.
Standard library only, a few idle connections. What goes wrong is raised; that it allows is `guard`'s rule."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from breakloop.errors import SettingsError
from breakloop.model.call import CREDENTIAL_HEADERS, Answer, Call
from breakloop.model.verdict import Decision
from breakloop.sdk import backend

TIMEOUT_S: Final = 2.0
_IDLE_MAX: Final = 32
# The service would hold a throttled answer back; we return the delay instead (SPEC D-4).
_DECISION: Final = "/v1/decision?wait=client"
_OWN: Final = frozenset(
    ("host", "content-length", "transfer-encoding", "connection", "expect", "accept", "upgrade", "te")
)


class RemoteBackend:
    """A decision service at a URL."""

    blocking = True

    def __init__(self, url: str, token: str = "", timeout_s: float = TIMEOUT_S) -> None:
        at = urlsplit(url)
        try:
            usable = at.scheme in {"http", "https"} and bool(at.hostname) and at.port != 0
        except ValueError:
            usable = False
        if not usable:
            raise SettingsError("url: is no URL of a decision service; write for example http://127.0.0.1:8787")
        self.where = f"{at.scheme}://{at.netloc.rpartition('@')[2]}{at.path}"  # for people: without anybody's password
        self._kind = http.client.HTTPSConnection if at.scheme == "https" else http.client.HTTPConnection
        self._host, self._port = at.hostname or "", at.port
        self._base = at.path.rstrip("/")
        self._token = token
        self._timeout_s = timeout_s
        self._idle: list[http.client.HTTPConnection] = []

    def decide(self, call: Call) -> Decision:
        """Ask about a call. Raises OSError, HTTPException or AnswerError."""
        headers = {name: value.decode("latin-1") for name, value in call.headers.items() if name not in _OWN}
        target = call.path + (f"?{call.query}" if call.query else "")
        headers |= {"X-Original-Method": call.method, "X-Original-URI": target, "Accept": "application/json"}
        if call.host:
            headers["X-Original-Host"] = call.host
        if call.path_agent:
            headers["X-Agent-Id"] = call.path_agent
        if self._token:
            headers["X-Breakloop-Key"] = self._token
            if not any(name in headers for name in CREDENTIAL_HEADERS):
                headers["Authorization"] = f"Bearer {self._token}"
        status, fields, body = self._ask(_DECISION, headers, call.body)
        decision = backend.from_answer(status, fields, body, call)
        call.request_id = decision.request_id
        return decision

    def settle(self, decision: Decision, answer: Answer) -> None:
        """Report how it ended. That nobody waits for it is no fault."""
        told: dict[str, object] = {"status": answer.status, "text": answer.text}
        if answer.calls:
            told["tool_calls"] = [{"name": made.name, "arguments": made.arguments} for made in answer.calls]
        if answer.usage is not None:
            told["usage"] = answer.usage._asdict()
        headers = {"Content-Type": "application/json"}
        if self._token:
            headers["X-Breakloop-Key"] = self._token
        body = json.dumps(told).encode()
        status, _, _ = self._ask(f"/v1/decision/{decision.request_id}/result", headers, body)
        if status not in {204, 404}:
            raise backend.UnreadableAnswerError(f"a result was answered with status {status}")

    def close(self) -> None:
        """Close the connections that are idle."""
        while self._idle:
            self._idle.pop().close()

    def _ask(self, path: str, headers: Mapping[str, str], body: bytes) -> tuple[int, Mapping[str, str], bytes]:
        """POST once; once more where a connection that had been idle turns out to be closed."""
        try:
            connection = self._idle.pop()
        except IndexError:
            return self._post(self._connection(), path, headers, body)
        try:
            return self._post(connection, path, headers, body)
        except (ConnectionError, http.client.BadStatusLine):
            return self._post(self._connection(), path, headers, body)

    def _post(
        self, connection: http.client.HTTPConnection, path: str, headers: Mapping[str, str], body: bytes
    ) -> tuple[int, Mapping[str, str], bytes]:
        try:
            connection.request("POST", self._base + path, body, dict(headers))
            answer = connection.getresponse()
            content = answer.read(backend.BODY_MAX_BYTES)
            fields = {name.lower(): value for name, value in answer.getheaders()}
        except BaseException:
            connection.close()
            raise
        if answer.isclosed() and len(self._idle) < _IDLE_MAX:
            self._idle.append(connection)  # a list's append and pop are safe among threads
        else:
            connection.close()
        return answer.status, fields, content

    def _connection(self) -> http.client.HTTPConnection:
        return self._kind(self._host, self._port, timeout=self._timeout_s)
