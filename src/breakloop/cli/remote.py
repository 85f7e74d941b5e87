"""Commands that call the admin API of a running instance: `status`, `events`, `agents`, `kill`, `release`, `pauses`,
`switch`.

`AdminClient` sends the requests. Its errors are `AdminError`s, with a remedy and an exit code. Names come from clients
and agents, so control characters are escaped before they are printed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from pathlib import Path
from threading import Event as Pause
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

import click
from rich import box
from rich.table import Table

from breakloop._version import __version__
from breakloop.cli.main import PROBLEM, UNREACHABLE, USAGE
from breakloop.cli.output import Command, config_option, end, fail, json_option, print_json, print_table, settings_of
from breakloop.clock import SystemClock
from breakloop.errors import BreakloopError
from breakloop.formatting import duration, money, plural, timestamp

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
                self._check_server(connection)
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

    def _check_server(self, connection: HTTPConnection) -> None:
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
        why = "timed out" if isinstance(error, TimeoutError) else getattr(error, "strerror", None) or str(error)
        hint = "is `breakloop serve` running there, with its admin port? use --url for another address"
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


_PORT: Final = 8788
URL: Final = f"http://127.0.0.1:{_PORT}"
_ANY_HOST: Final = frozenset(("0.0.0.0", "::"))  # noqa: S104 - compared with, not bound
TOKEN_FILE: Final = "admin-token"
EPILOG: Final = "Exit code 0: done; 1: rejected; 2: the admin API is unreachable; 3: wrong usage."
_SPAN: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd]?)")
_DURATION_UNITS: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_SPAN_MAX_S: Final = 10 * 366 * 86_400


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


def admin_options(function: Command) -> Command:
    """Add `--url`, `--token`, `--config` and `--json`. The command is called with `client` and `as_json`."""

    @wraps(function)
    def called(*, url: str, token: str, config: str, as_json: bool, **more: Any) -> Any:
        try:
            client = AdminClient(url or _own_url(config), token or _kept_token(config))
            return function(client=client, as_json=as_json, **more)
        except AdminError as error:
            fail(str(error), code=error.code)

    token_text = "Token; by default BREAKLOOP_ADMIN_TOKEN, the settings, or the file admin-token in the data directory."
    options = (
        click.option("--url", metavar="URL", default="", help=f"URL of the admin API; else of the settings.  [{URL}]"),
        click.option("--token", metavar="TOKEN", default="", help=token_text),
        config_option,
        json_option,
    )
    for option in reversed(options):
        called = option(called)
    return called  # type: ignore[return-value]  # it is called as the command is


project_option: Final = click.option(
    "--project", metavar="NAME", default="", help="Project; by default the default project."
)


def _own_url(config: str) -> str:
    """Return the URL of the admin API that the settings describe."""
    settings = settings_of(config).settings
    host = settings.admin_host
    if not settings.admin_port or host in _ANY_HOST:
        host = "127.0.0.1"
    return f"http://{f'[{host}]' if ':' in host else host}:{settings.admin_port or _PORT}"


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
_UNSAID: Final = frozenset({"agent", "caller", "steps", "score"})  # fields of events shown elsewhere, or too long
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


@click.command(name="status", epilog=EPILOG.replace("rejected", "rejected, or the instance has a problem"))
@admin_options
def status_command(client: AdminClient, *, as_json: bool) -> None:
    """Show the status of a running instance: its bundle, its state, what it denied and saved in 24 hours."""
    status, bundle = client.get("/status"), client.get("/bundle")
    totals, held = client.get("/totals")["totals"], client.get("/quarantine")["holds"]
    troubles = _troubles(status, bundle)
    if as_json:
        shown = {name: value for name, value in bundle.items() if name != "text"}
        more = {"bundle": shown, "totals": totals, "held": len(held)}
        print_json({"ok": not troubles, "troubles": troubles, **status, **more})
    else:
        _show_status(status, bundle, totals, len(held))
        for trouble in troubles:
            click.echo(f"! {trouble}")
    if troubles:
        end(PROBLEM)


def _show_status(status: dict[str, Any], bundle: dict[str, Any], totals: dict[str, Any], held: int) -> None:
    click.echo(f"breakloop {clean(status.get('version', ''))} on {clean(status.get('url', ''))}")
    state = clean(status.get("state", "")) + (", degraded" if status.get("degraded") else "")
    denied = f", {totals['denied']:,} of them denied" if totals["denied"] else ""
    rows = {
        "up": duration(status.get("uptime_seconds", 0.0)),
        "processes": str(status.get("workers", 1)),
        "bundle": _bundle(bundle),
        "state": state,
        "requests": f"{totals['requests']:,}{denied}",
        "agents": f"{totals['agents']:,}" + (f", {held:,} held" if held else ""),
        "loops": f"{totals['loops']:,}, {totals['incidents_open']:,} of them open",
        "spent": dollars(totals["cost_microusd"]),
        "saved": f"{dollars(totals['saved_microusd'])}, {plural(totals['saved_requests'], 'request')} stopped",
    }
    for name, value in rows.items():
        click.echo(f"  {name:<10} {value}")


def _bundle(bundle: dict[str, Any]) -> str:
    version = bundle.get("version")
    if version is None:
        return "none"
    loaded = moment(bundle.get("loaded_at")) if bundle.get("loaded_at") else ""
    return f"version {version} from {clean(bundle.get('origin', ''))}" + (f", loaded {loaded}" if loaded else "")


def _troubles(status: dict[str, Any], bundle: dict[str, Any]) -> list[str]:
    found = []
    if status.get("degraded"):
        found.append("the shared store is unavailable: each instance counts on its own")
    problems = bundle.get("problems") or []
    if bundle.get("version") is None:
        found.append("no bundle is loaded: requests get 503")
    elif problems:
        found.append(f"the new bundle is rejected ({plural(len(problems), 'problem')}); an older one is in force")
    return found


_MOST: Final = 50
_BEFORE: Final = 10  # shown before --follow starts
_TRIES: Final = 10  # attempts to reconnect
_PAUSE_S: Final = 1.0


@click.command(name="events", epilog=EPILOG)
@click.option("--follow", "-f", is_flag=True, help="Stream new events until Ctrl-C.")
@click.option("--name", "names", metavar="EVENT", multiple=True, help="Only events of this name. Repeatable.")
@click.option("--agent", metavar="NAME", default="", help="Only events of this agent.")
@click.option("--incident", metavar="ID", default="", help="Only events of this incident.")
@click.option("--since", "since_s", type=SPAN, metavar="SPAN", help="Only events of the last 30m, 1h, 7d.")
@click.option("--most", type=click.IntRange(0, 500), metavar="N", help=f"Maximum number.  [{_MOST}; {_BEFORE} with -f]")
@project_option
@admin_options
def events_command(
    client: AdminClient, *, follow: bool, names: Sequence[str], since_s: float | None, most: int | None, as_json: bool,
    **query: str,
) -> None:  # fmt: skip
    """Show the newest events, oldest first."""
    asked: dict[str, Any] = {"name": list(names), **query}
    if most is None:
        most = _BEFORE if follow else _MOST
    since = {} if since_s is None else {"since": SystemClock().now() - since_s}
    found = client.get("/events", {**asked, **since, "most": most})["events"][::-1] if most else []
    if follow:
        _follow(client, asked, found, as_json=as_json)
    elif as_json or not found:
        nothing = "no events" + (" that match" if any(asked.values()) or since else " yet")
        _tell({"events": found}, nothing, as_json=as_json)
    else:
        show_table(("time", "event", "agent", "what"), [_event_row(event) for event in found])


def _follow(client: AdminClient, asked: dict[str, Any], found: list[dict[str, Any]], *, as_json: bool) -> None:
    for event in found:
        _print(event, as_json=as_json)
    last_id = str(found[-1]["id"]) if found else ""
    tries = 0
    try:
        while True:
            lost = AdminError(f"{client.url}: closed the stream", UNREACHABLE)
            try:
                for event_id, event in client.follow("/events", {**asked, "follow": "true"}, last_id):
                    last_id, tries = event_id, 0
                    _print(event, as_json=as_json)
            except AdminError as error:
                lost = error
            tries += 1
            if lost.code != UNREACHABLE or tries > _TRIES:
                raise lost
            Pause().wait(_PAUSE_S)
    except KeyboardInterrupt:
        return


def _print(event: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(event, ensure_ascii=True))
    else:
        time, name, agent, what = _event_row(event)
        click.echo(f"{time}  {name:<18}  {agent:<20}  {what}".rstrip())


def _event_row(event: dict[str, Any]) -> list[str]:
    return [moment(event["at"]), clean(event["name"]), clean(event["agent"], 40), words(event["data"])]


_HEADS = ("agent", "last seen", "requests", "denied", "loops", "today", "in all", "saved", "held")
_NUMBERS = ("requests", "denied", "loops", "today", "in all", "saved")


@click.command(name="agents", epilog=EPILOG)
@click.argument("name", required=False, default="")
@click.option("--find", metavar="TEXT", default="", help="Only agents with this in their name.")
@click.option("--most", type=click.IntRange(1, 500), default=50, show_default=True, help="Maximum number.")
@project_option
@admin_options
def agents_command(client: AdminClient, *, name: str, find: str, most: int, project: str, as_json: bool) -> None:
    """List agents, the last seen first, or show one by its NAME."""
    if name:
        agent = client.get(f"/agents/{part(name)}", {"project": project})
        if as_json:
            print_json({"ok": True, **agent})
        else:
            _show_agent(agent)
        return
    found = client.get("/agents", {"project": project, "find": find, "most": most})["agents"]
    if as_json or not found:
        _tell({"agents": found}, "no agents" + (" match" if find else " yet"), as_json=as_json)
    else:
        now = SystemClock().now()
        show_table(_HEADS, [_agent_row(agent, now) for agent in found], _NUMBERS)


def _agent_row(agent: dict[str, Any], now: float) -> list[str]:
    return [
        clean(agent["agent"], 40),
        ago(agent["last_at"], now),
        f"{agent['requests']:,}",
        f"{agent['denied']:,}",
        f"{agent['loops']:,}",
        dollars(agent["today_microusd"]),
        dollars(agent["cost_microusd"]),
        dollars(agent["saved_microusd"]),
        "held" if agent["holds"] else "kill switch" if agent["stopped_by"] else "",
    ]


def _show_agent(agent: dict[str, Any]) -> None:
    click.echo(f"{clean(agent['agent'])} in project {clean(agent['project'])}")
    rows = {
        "first seen": moment(agent["first_at"]) or "never",
        "last seen": moment(agent["last_at"]) or "never",
        "model": clean(agent["model"]),
        "callers": f"{agent['callers']:,}",
        "requests": f"{agent['requests']:,}, {agent['denied']:,} of them denied",
        "loops": f"{agent['loops']:,}",
        "tokens": f"{agent['input_tokens']:,} in, {agent['output_tokens']:,} out",
        "spent": f"{dollars(agent['cost_microusd'])}, {dollars(agent['today_microusd'])} of it today",
        "saved": dollars(agent["saved_microusd"]),
    }
    for name, value in rows.items():
        click.echo(f"  {name:<10} {value}")
    for name, value in sorted(agent["settings"].items()):
        click.echo(f"  set        {clean(name)}: {clean(value)}")
    if agent["stopped_by"]:
        click.echo(f"  stopped    by {clean(agent['stopped_by'])}: all its requests are denied")
    for hold in agent["holds"]:
        by = f" by {clean(hold['by'])}" if hold["by"] else ""
        click.echo(f"  held       {until(hold['until'])}{by}: {clean(hold['reason'], 200)}")


def _tell(answer: dict[str, Any], *lines: str, as_json: bool) -> None:
    """Print the answer as JSON, or these lines about it."""
    if as_json:
        print_json({"ok": True, **answer})
        return
    for line in lines:
        click.echo(line)
    if not answer.get("shared", True):
        click.echo("note: other instances are unreachable; they apply the change when they are back")


def _in_flight(done: Mapping[str, Any]) -> list[str]:
    """Return a line about calls in flight that an order has stopped; none if the server does not tell."""
    stopped = done.get("stopped")
    if not isinstance(stopped, dict):
        return []
    calls, streams = plural(stopped["calls"], "call"), plural(stopped["streams"], "stream")
    return [f"stopped in flight: {calls} ({streams}) of {plural(len(stopped['agents']), 'agent')}"]


def _switch_off(
    client: AdminClient, scope: tuple[str, str], reason: str, expires_at: float | None, *, as_json: bool
) -> None:
    """Set a kill switch in place of a hold, for what has no name of an agent."""
    body = {"scope_key": scope[0], "scope_value": scope[1], "reason": reason, "expires_at": expires_at}
    done = client.post("/kill-switches", body)
    what, name = "all agents" if scope[0] == "project:id" else f"session {clean(scope[1])}", clean(done["id"])
    lines = [f"{what} stopped; to release: breakloop switch lift {name}", *_in_flight(done)]
    _tell(done, *lines, as_json=as_json)


def _tree_place(client: AdminClient, root: str, caller: str, project: str) -> dict[str, str]:
    """Return project, caller, root and session of the tree with this session at its top."""
    found = [
        one
        for one in client.get("/trees")["trees"]
        if one["root"] == root and caller in {"", one["caller"]} and project in {"", one["project"]}
    ]
    if not found:
        raise click.UsageError(f"no tree has the root {clean(root)}: `GET /api/v1/trees` lists them")
    if len(found) > 1:
        callers = ", ".join(sorted({clean(one["caller"]) for one in found}))
        raise click.UsageError(f"several callers have a tree {clean(root)}: add --caller, one of {callers}")
    return {name: found[0][name] for name in ("project", "caller", "root")} | {"session": root}


@click.command(name="kill", epilog=EPILOG)
@click.argument("agent", required=False, default="")
@click.option("--session", metavar="ID", default="", help="One session, instead of an agent.")
@click.option("--tree", metavar="ROOT", default="", help="A tree of agents, by the session at its top.")
@click.option("--all", "everything", is_flag=True, help="Everything in the project.")
@click.option("--reason", metavar="TEXT", default="stopped from the command line", show_default=True, help="Why.")
@click.option(
    "--for", "for_s", type=SPAN, metavar="SPAN", help="Duration, such as 30m or 1h; by default until it is released."
)
@click.option("--caller", metavar="ID", default="", help="Only the agent of this caller, by the id in events.")
@project_option
@admin_options
def kill_command(
    client: AdminClient, *, agent: str, reason: str, for_s: float | None, caller: str, as_json: bool, **scope: Any
) -> None:
    """Stop an AGENT, a session, a tree of agents or everything: calls in flight are ended, and requests are denied, on
    every instance, until it is released."""
    session, tree, project = scope["session"], scope["tree"], scope["project"]
    if sum(map(bool, (agent, session, tree, scope["everything"]))) != 1:
        raise click.UsageError("give one of AGENT, --session, --tree and --all")
    if tree and for_s is not None:
        raise click.UsageError("--for does not apply to --tree: a tree is held until it is released")
    if caller and (session or scope["everything"]):
        raise click.UsageError("--caller goes with AGENT or --tree")
    expires_at = None if for_s is None else SystemClock().now() + for_s
    if tree:
        done = client.post("/tree/kill", {**_tree_place(client, tree, caller, project), "reason": reason})
        held = f"{plural(done['sessions'], 'session')} held; to release: breakloop release --tree {clean(tree)}"
        _tell(done, held, *_in_flight(done), as_json=as_json)
        return
    if not agent:
        wanted = ("agent:session", session) if session else ("project:id", project or "default")
        _switch_off(client, wanted, reason, expires_at, as_json=as_json)
        return
    body = {"reason": reason, "expires_at": expires_at} | ({"caller": caller} if caller else {})
    done = client.post(f"/agents/{part(agent)}/kill", body, {"project": project})
    hold, meant = done["hold"], done["did_you_mean"]
    lines = [f"{clean(hold['agent'])} in project {clean(hold['project'])} is held {until(hold['until'])}"]
    if not done["seen"]:
        lines.append("note: no agent with this name is known" + (f"; did you mean {clean(meant)}?" if meant else ""))
    _tell(done, *lines, *_in_flight(done), as_json=as_json)


@click.command(name="release", epilog=EPILOG)
@click.argument("agent", required=False, default="")
@click.option(
    "--caller", metavar="ID", default="", help="Release everything of a caller, by the id in `agents` and events."
)
@click.option("--run", metavar="ID", default="", help="Release a run that reached its limit.")
@click.option("--tree", metavar="ROOT", default="", help="Release a tree of agents, by the session at its top.")
@project_option
@admin_options
def release_command(
    client: AdminClient, *, agent: str, caller: str, run: str, tree: str, project: str, as_json: bool
) -> None:
    """Release an AGENT: ends its holds, unblocks its loops and clears its counters."""
    if not (agent or caller or run or tree):
        raise click.UsageError("give an AGENT, --caller, --run or --tree")
    if tree:
        done = client.post("/tree/release", _tree_place(client, tree, caller, project))
        _tell(done, f"{plural(done['sessions'], 'session')} of the tree released", as_json=as_json)
        return
    query = {"project": project}
    if caller or run:
        done = client.post("/quarantine/release", {"agent": agent, "caller": caller, "run": run}, query)
    else:
        done = client.post(f"/agents/{part(agent)}/release", {}, query)
    ended, loops = len(done["released"]), done["loops"]
    what = [f"{plural(ended, 'hold')} ended"] if ended else []
    what += [f"{plural(loops, 'blocked loop')} cleared"] if loops else []
    nothing = "was not held" if run else "was neither quarantined nor blocked; its loop counters are cleared"
    said = f"is released: {', '.join(what)}" if what else nothing
    _tell(done, f"{clean(agent or caller or run)} {said}", as_json=as_json)


@click.command(name="pauses", epilog=EPILOG)
@click.argument("pause", metavar="[ID", required=False, default="")
@click.argument("answer", metavar="ANSWER]", required=False, default="")
@admin_options
def pauses_command(client: AdminClient, *, pause: str, answer: str, as_json: bool) -> None:
    """List the runs that wait for an answer, or answer for one by its ID (or the beginning of it).

    \b
    ANSWER is one of:
      once   go on; if the run is detected again, you are asked again
      5usd   go on until the run has spent this much more
      1h     go on, and do not ask again for this long (30m, 1h)
      land   finish: two more requests pass, without tools
      kill   stop the run
    """  # noqa: D301 - click needs the character, not its spelling
    found = client.get("/pauses")["pauses"]
    if pause and not answer:
        raise click.UsageError(f"give an answer: breakloop pauses {pause} once|5usd|1h|land|kill")
    if pause:
        same = [one for one in found if one["id"].startswith(pause)]
        if len(same) > 1:
            raise AdminError(f"{clean(pause)}: is the beginning of several ids; write more of it")
        done = client.post(f"/pauses/{part(same[0]['id'] if same else pause)}/answer", {"answer": answer})
        who = clean(same[0]["agent"]) if same else clean(pause)
        _tell(done, f"{who}: the answer {clean(answer)} is in force", as_json=as_json)
    elif as_json or not found:
        _tell({"pauses": found}, "no run waits for an answer", as_json=as_json)
    else:
        show_table(("id", "agent", "since", "answer by", "then", "why"), [_pause_row(one) for one in found])


def _pause_row(one: dict[str, Any]) -> list[str]:
    names = clean(one["id"]), clean(one["agent"], 40), moment(one["since"]), moment(one["answer_by"])
    return [*names, clean(one["then"]), clean(one["reason"], 200)]


@click.command(name="set", short_help="Deny requests by the value of a descriptor.", epilog=EPILOG)
@click.argument("descriptor")
@click.argument("value")
@click.option("--route", metavar="PATH", default="", help="Only this path, or a prefix: /v1/*")
@click.option("--reason", metavar="TEXT", default="", help="Why.")
@click.option(
    "--for", "for_s", type=SPAN, metavar="SPAN", help="Duration, such as 30m or 1h; by default until it is lifted."
)
@admin_options
def set_switch(
    client: AdminClient, *, descriptor: str, value: str, for_s: float | None, as_json: bool, **more: str
) -> None:
    """Deny all requests with this VALUE of a DESCRIPTOR, on every instance: `switch set agent:id scraper`."""
    expires_at = None if for_s is None else SystemClock().now() + for_s
    body = {"scope_key": descriptor, "scope_value": value, "expires_at": expires_at, **more}
    done = client.post("/kill-switches", body)
    ends, name = f"until {moment(expires_at)}" if expires_at else "until it is lifted", clean(done["id"])
    _tell(done, f"{name} is set, {ends}: breakloop switch lift {name}", *_in_flight(done), as_json=as_json)


@click.command(name="list", epilog=EPILOG)
@admin_options
def list_switches(client: AdminClient, *, as_json: bool) -> None:
    """List the kill switches that were set at run time."""
    found = client.get("/kill-switches")["kill_switches"]
    if as_json or not found:
        nothing = "no kill switches are set at run time (the bundle may have its own)"
        _tell({"kill_switches": found}, nothing, as_json=as_json)
    else:
        rows = [
            [
                clean(one["id"]),
                f"{clean(one['scope_key'])}={clean(one['scope_value'])}",
                clean(one["route"]) or "all",
                moment(one["since"]),
                moment(one["expires_at"]) or "lifted",
                clean(one["by"]),
                clean(one["reason"], 200),
            ]
            for one in found
        ]
        show_table(("id", "stops", "paths", "since", "until", "by", "reason"), rows)


@click.command(name="lift", epilog=EPILOG)
@click.argument("switch")
@admin_options
def lift(client: AdminClient, *, switch: str, as_json: bool) -> None:
    """Lift a SWITCH by its id."""
    done = client.delete(f"/kill-switches/{part(switch)}")
    _tell(done, f"{clean(switch)} is lifted", as_json=as_json)


@click.group(name="switch", commands=[set_switch, list_switches, lift])
def switch_command() -> None:
    """Set, list and lift kill switches at run time."""
