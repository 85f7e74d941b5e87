"""Talks to the admin API (SPEC X-1), over the standard library's HTTP. What goes wrong becomes an `AdminError` with
what to do about it and the exit code it ends with; what is asked and how it is shown is each command's."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator, Mapping
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

from breakloop._version import __version__
from breakloop.cli.main import PROBLEM, UNREACHABLE, USAGE
from breakloop.errors import BreakloopError

PREFIX: Final = "/api/v1"
TIMEOUT_S: Final = 15.0  # a stream that has nothing to say says so every 15 s
_STREAM_TIMEOUT_S: Final = 45.0
_ANSWER_MAX: Final = 64 * 1024 * 1024
_PLANE: Final = "X-Breakloop-Plane"
_REMEDIES: Final = {
    401: "give the token with --token, in BREAKLOOP_ADMIN_TOKEN, or in the file admin-token of the data directory",
    403: "use the token of an operator",
    421: "call it by a name or address that it listens on",
}

Query = Mapping[str, Any]


class AdminError(BreakloopError):
    """What was asked cannot be had. `code` is the exit code."""

    def __init__(self, message: str, code: int = PROBLEM) -> None:
        super().__init__(message)
        self.code = code


class Sent(NamedTuple):
    """One message of a stream of events."""

    id: str
    data: Any


class AdminClient:
    """One admin plane. Every call is a connection of its own: commands ask once or twice."""

    def __init__(self, url: str, token: str) -> None:
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in {"http", "https"} or not parts.hostname or port == -1:
            raise AdminError(f"--url {url}: write it like http://127.0.0.1:8788", USAGE)
        if not token.isascii() or not token.isprintable():
            raise AdminError("the token has characters in it that no token has: copy it again", USAGE)
        self.url = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        self._tls = parts.scheme == "https"
        self._host, self._port = parts.hostname, port or (443 if self._tls else 8788)
        self._path = parts.path.rstrip("/")
        self._base = self._path + PREFIX
        self._token = token
        self._known = not token  # it is an admin plane, as far as that matters

    def get(self, path: str, query: Query | None = None) -> Any:
        """Ask for something."""
        return self._ask("GET", path, query)

    def post(self, path: str, body: Mapping[str, Any], query: Query | None = None) -> Any:
        """Order something."""
        return self._ask("POST", path, query, json.dumps(body).encode())

    def delete(self, path: str) -> Any:
        """Take something away."""
        return self._ask("DELETE", path, None)

    def follow(self, path: str, query: Query, last_id: str = "") -> Iterator[Sent]:
        """Yield what happens, until the connection ends."""
        more = {"Accept": "text/event-stream"} | ({"Last-Event-ID": last_id} if last_id else {})
        connection = self._connection(_STREAM_TIMEOUT_S)
        try:
            response = self._send(connection, "GET", self._target(path, query), None, more)
            if response.status != 200:
                raise self._refused(response.status, response.read(_ANSWER_MAX))
            yield from _events(response)
        except ValueError:
            raise self._stranger() from None
        except (OSError, HTTPException) as error:
            raise self._unreachable(error) from None
        finally:
            connection.close()

    def _ask(self, method: str, path: str, query: Query | None, body: bytes | None = None) -> Any:
        connection = self._connection(TIMEOUT_S)
        try:
            response = self._send(connection, method, self._target(path, query or {}), body, {})
            data = response.read(_ANSWER_MAX)
        except (OSError, HTTPException) as error:
            raise self._unreachable(error) from None
        finally:
            connection.close()
        if not 200 <= response.status < 300:
            raise self._refused(response.status, data)
        try:
            return json.loads(data)
        except ValueError:
            raise self._stranger() from None

    def _connection(self, timeout_s: float) -> HTTPConnection:
        if self._tls:
            return HTTPSConnection(self._host, self._port, timeout=timeout_s, context=ssl.create_default_context())
        return HTTPConnection(self._host, self._port, timeout=timeout_s)

    def _target(self, path: str, query: Query) -> str:
        given = {name: value for name, value in query.items() if value not in ("", None, ())}
        return self._base + path + (f"?{urlencode(given, doseq=True)}" if given else "")

    def _send(
        self, connection: HTTPConnection, method: str, target: str, body: bytes | None, more: Mapping[str, str]
    ) -> HTTPResponse:
        headers = {"User-Agent": f"breakloop/{__version__}", "Accept": "application/json", **more}
        if not self._known:
            self._meet(connection)
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        if body is not None:
            headers["Content-Type"] = "application/json"
        connection.request(method, target, body, headers)
        return connection.getresponse()

    def _meet(self, connection: HTTPConnection) -> None:
        """Ask who is there before the token is shown: the traffic port would hand it to a provider."""
        connection.request("GET", f"{self._path}/livez", headers={"User-Agent": f"breakloop/{__version__}"})
        response = connection.getresponse()
        data = response.read(_ANSWER_MAX)
        if response.status != 200:
            raise self._refused(response.status, data)
        if response.getheader(_PLANE) != "admin":
            raise self._stranger()
        self._known = True

    def _refused(self, status: int, data: bytes) -> AdminError:
        try:
            error = json.loads(data)["error"]
            message, field = str(error["message"]), str(error.get("field", ""))
        except (ValueError, KeyError, TypeError):
            return self._stranger()
        named = not field or message.startswith(f"{field}: ")  # an order that is refused says it by itself
        said = message if named else f"{field}: {message}"
        remedy = _REMEDIES.get(status)
        return AdminError(f"{self.url}: {said}" + (f" ({remedy})" if remedy else ""))

    def _stranger(self) -> AdminError:
        return AdminError(f"{self.url}: does not answer like the admin API of breakloop (is it the traffic port?)")

    def _unreachable(self, error: Exception) -> AdminError:
        why = "no answer in time" if isinstance(error, TimeoutError) else getattr(error, "strerror", None) or str(error)
        hint = "is `breakloop serve` running there, with its admin port? --url names another"
        return AdminError(f"{self.url}: cannot be reached: {why} ({hint})", UNREACHABLE)


def part(name: str) -> str:
    """Return a name as one part of a path, whatever is in it."""
    return quote(name, safe="")


def _events(response: HTTPResponse) -> Iterator[Sent]:
    last_id, data = "", ""
    while line := response.readline(_ANSWER_MAX):
        field, _, value = line.decode("utf-8", "replace").rstrip("\r\n").partition(":")
        if field == "id":
            last_id = value.strip()
        elif field == "data":
            data += value.strip()
        elif not field and not value and data:
            yield Sent(last_id, json.loads(data))
            data = ""
