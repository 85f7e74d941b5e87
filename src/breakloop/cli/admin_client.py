"""Client of the admin API, with the options and the formatting of the commands that use it.

Errors are `AdminError`s, with a remedy and an exit code. Names come from clients and agents, so control characters
are escaped before they are printed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import click
from rich import box
from rich.table import Table

from breakloop._version import __version__
from breakloop.cli.main import PROBLEM, UNREACHABLE, USAGE
from breakloop.cli.output import config_option, fail, json_option, print_table, settings_of
from breakloop.errors import BreakloopError
from breakloop.formatting import duration, money, timestamp

PREFIX: Final = "/api/v1"
TIMEOUT_S: Final = 15.0  # an idle event stream sends a comment every 15 s
_STREAM_TIMEOUT_S: Final = 45.0
_ANSWER_MAX: Final = 64 * 1024 * 1024
_PLANE: Final = "X-Breakloop-Plane"
_USER_AGENT: Final = f"breakloop/{__version__}"
_REMEDIES: Final = {
    401: "give the token with --token, in BREAKLOOP_ADMIN_TOKEN, or in the file admin-token of the data directory",
    403: "use the token of an operator",
    421: "use a host name or address that it listens on",
}

Query = Mapping[str, Any]


class AdminError(BreakloopError):
    """A request to the admin API failed. `code` is the exit code of the command."""

    def __init__(self, message: str, code: int = PROBLEM) -> None:
        super().__init__(message)
        self.code = code


class AdminClient:
    """A client of one admin API. Each call opens a connection: commands make one or two."""

    def __init__(self, url: str, token: str) -> None:
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in {"http", "https"} or not parts.hostname or port == -1:
            raise AdminError(f"--url {url}: write it like http://127.0.0.1:8788", USAGE)
        if not token.isascii() or not token.isprintable():
            raise AdminError("the token contains invalid characters: copy it again", USAGE)
        self.url = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        self._tls = parts.scheme == "https"
        self._host, self._port = parts.hostname, port or (443 if self._tls else 8788)
        self._path = parts.path.rstrip("/")
        self._token = token
        self._known = not token  # whether the server is known to be an admin API, so that the token may be sent

    def get(self, path: str, query: Query | None = None) -> Any:
        return self._ask("GET", path, query)

    def post(self, path: str, body: Mapping[str, Any], query: Query | None = None) -> Any:
        return self._ask("POST", path, query, json.dumps(body).encode())

    def delete(self, path: str) -> Any:
        return self._ask("DELETE", path, None)

    def follow(self, path: str, query: Query, last_id: str = "") -> Iterator[tuple[str, Any]]:
        """Yield the id and the content of each message of an event stream."""
        more = {"Accept": "text/event-stream"} | ({"Last-Event-ID": last_id} if last_id else {})
        with self._sent("GET", path, query, more=more, timeout_s=_STREAM_TIMEOUT_S) as response:
            yield from _events(response)

    def _ask(self, method: str, path: str, query: Query | None, body: bytes | None = None) -> Any:
        with self._sent(method, path, query or {}, body) as response:
            return json.loads(response.read(_ANSWER_MAX))

    @contextmanager
    def _sent(
        self,
        method: str,
        path: str,
        query: Query,
        body: bytes | None = None,
        *,
        more: Mapping[str, str] | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> Iterator[HTTPResponse]:
        """Send a request. All errors, also those of reading the response, become `AdminError`s."""
        given = {name: value for name, value in query.items() if value not in ("", None, ())}
        target = self._path + PREFIX + path + (f"?{urlencode(given, doseq=True)}" if given else "")
        headers = {"User-Agent": _USER_AGENT, "Accept": "application/json", **(more or {})}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        if body is not None:
            headers["Content-Type"] = "application/json"
        kind = HTTPSConnection if self._tls else HTTPConnection
        connection = kind(self._host, self._port, timeout=timeout_s)
        try:
            if not self._known:
                self._meet(connection)
            connection.request(method, target, body, headers)
            response = connection.getresponse()
            if not 200 <= response.status < 300:
                raise self._refused(response.status, response.read(_ANSWER_MAX))
            yield response
        except ValueError:
            raise self._stranger() from None
        except (OSError, HTTPException) as error:
            raise self._unreachable(error) from None
        finally:
            connection.close()

    def _meet(self, connection: HTTPConnection) -> None:
        """Check that the server is an admin API before sending the token. The traffic port would forward it to a
        provider.
        """
        connection.request("GET", f"{self._path}/livez", headers={"User-Agent": _USER_AGENT})
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
        named = not field or message.startswith(f"{field}: ")  # the message names the field already
        said = message if named else f"{field}: {message}"
        remedy = _REMEDIES.get(status)
        return AdminError(f"{self.url}: {said}" + (f" ({remedy})" if remedy else ""))

    def _stranger(self) -> AdminError:
        return AdminError(f"{self.url}: is not the admin API of breakloop (is it the traffic port?)")

    def _unreachable(self, error: Exception) -> AdminError:
        why = "no answer in time" if isinstance(error, TimeoutError) else getattr(error, "strerror", None) or str(error)
        hint = "is `breakloop serve` running there, with its admin port? --url names another"
        return AdminError(f"{self.url}: cannot be reached: {why} ({hint})", UNREACHABLE)


def part(name: str) -> str:
    """Return a name as one segment of a path."""
    return quote(name, safe="")


def _events(response: HTTPResponse) -> Iterator[tuple[str, Any]]:
    last_id, data = "", ""
    while line := response.readline(_ANSWER_MAX):
        field, _, value = line.decode("utf-8", "replace").rstrip("\r\n").partition(":")
        if field == "id":
            last_id = value.strip()
        elif field == "data":
            data += value.strip()
        elif not field and not value and data:
            yield last_id, json.loads(data)
            data = ""


URL: Final = "http://127.0.0.1:8788"
TOKEN_FILE: Final = "admin-token"
EPILOG: Final = "Exit code 0: done; 1: rejected; 2: the admin API is unreachable; 3: wrong usage."
_SPAN: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd]?)")
_DURATION_UNITS: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_SPAN_MAX_S: Final = 10 * 366 * 86_400

F = TypeVar("F", bound=Callable[..., Any])


class DurationParam(click.ParamType[float]):
    """A duration: 90, 30s, 10m, 1h, 7d."""

    name = "span"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found = _SPAN.fullmatch(str(value).strip().lower())
        seconds = float(found[1]) * _DURATION_UNITS[found[2]] if found else 0.0
        if not 0 < seconds <= _SPAN_MAX_S:
            self.fail(f"{value!r} is not a duration: use 30s, 10m, 1h or 7d", param, ctx)
        return seconds


SPAN: Final = DurationParam()


def admin_options(function: F) -> F:
    """Add `--url`, `--token`, `--config` and `--json`. The command is called with `client` and `as_json`."""

    @wraps(function)
    def called(*, url: str, token: str, config: str, as_json: bool, **more: Any) -> Any:
        try:
            client = AdminClient(url, token or _kept_token(config))
            return function(client=client, as_json=as_json, **more)
        except AdminError as error:
            fail(str(error), code=error.code)

    token_text = "Token; by default BREAKLOOP_ADMIN_TOKEN, the settings, or the file admin-token in the data directory."
    options = (
        click.option("--url", metavar="URL", default=URL, show_default=True, help="URL of the admin API."),
        click.option("--token", metavar="TOKEN", default="", help=token_text),
        config_option,
        json_option,
    )
    for option in reversed(options):
        called = option(called)
    return called  # type: ignore[return-value]  # it is called as the command is


def project_option(function: F) -> F:
    return click.option("--project", metavar="NAME", default="", help="Project; by default the default project.")(
        function
    )


def _kept_token(config: str) -> str:
    settings = settings_of(config).settings
    given = settings.admin_token.get_secret_value()
    if given or not settings.data_dir:
        return given
    file = Path(settings.data_dir) / TOKEN_FILE
    try:
        return file.read_text("utf-8").strip()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise AdminError(f"{file}: cannot be read: {why}", USAGE) from None


_TEXT_MAX: Final = 60
_DIGEST: Final = re.compile(r"(?:\w+:)?[0-9a-f]{16,}(?:\.\.\.)?")
_DIGEST_SHOWN: Final = 12
_UNSAID: Final = frozenset(
    {"agent", "caller", "steps", "score"}
)  # fields of events that are shown elsewhere or too long
# the most important fields first
_FIRST: Final = ("kind", "action", "policy", "rule", "reason", "hit_count", "evidence")


def clean(text: object, most: int = _TEXT_MAX) -> str:
    """Return text of unknown origin as one printable line."""
    plain = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in str(text))
    return plain if len(plain) <= most else plain[: most - 3] + "..."


def moment(at: float | None) -> str:
    return "" if at is None else timestamp(at).replace(" UTC", "Z")


def until(at: float | None) -> str:
    return "until it is released" if at is None else f"until {moment(at)}"


def ago(at: float | None, now: float) -> str:
    return "never" if not at else f"{duration(now - at)} ago"


def dollars(microusd: int) -> str:
    return money(microusd / 1e6)


def words(data: Mapping[str, Any]) -> str:
    """Return the fields of an event, the most important first."""
    names = [name for name in _FIRST if name in data] + [name for name in data if name not in _FIRST]
    said = [
        f"{name}={_value(name, data[name])}" for name in names if name not in _UNSAID and data[name] not in ("", None)
    ]
    return " ".join(said)


def _value(name: str, value: object) -> str:
    """Format timestamps as times, numbers with four significant digits, and only the beginning of digests."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        if name.endswith("_at"):
            return moment(value).replace(" ", "T")
        return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"
    text = clean(value)
    return f"{text[:_DIGEST_SHOWN]}..." if _DIGEST.fullmatch(text) else text


def show_table(heads: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[str] = ()) -> None:
    """Print a table; columns in `right` are aligned to the right."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for head in heads:
        table.add_column(head, justify="right" if head in right else "left", no_wrap=head != heads[-1])
    for row in rows:
        table.add_row(*row)
    print_table(table)
