"""`breakloop setup NAME`: point a coding agent or a proxy at the gateway, by a change to its own configuration file.

The file is changed in place and keeps everything else. What it was is kept in the data directory, for `--undo`.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from difflib import unified_diff
from hashlib import sha256
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Final, NamedTuple, NoReturn
from urllib.parse import urlsplit

import click

from breakloop.cli.config_edit import edit_config, read_config, value_at
from breakloop.cli.init import own_command
from breakloop.cli.main import PROBLEM, UNREACHABLE
from breakloop.cli.output import end, fail, fail_problems
from breakloop.cli.setup_clients import CLIENTS, Client, Machine, Setting
from breakloop.errors import BundleError
from breakloop.policy.documents import path_text
from breakloop.sdk.context import data_dir, gateway_url
from breakloop.store.data_dir import DataDir, write_whole

FOLDER: Final = "setup"
_TIMEOUT_S: Final = 15.0
_SHOWN: Final = 300


class Plan(NamedTuple):
    """What is to be done to a file."""

    name: str
    file: Path
    before: bytes | None  # None: there is no file
    after: bytes
    settings: list[Setting]
    notes: list[str]

    @property
    def client(self) -> Client:
        return CLIENTS[self.name]

    @property
    def is_done(self) -> bool:
        return (self.before or b"") == self.after


def machine_for(name: str, url: str) -> Machine:
    """Return what the settings of a client depend on. A URL without a path gets the name of the agent."""
    env = dict(os.environ)  # noqa: TID251 - programs are found by their own variables
    base = (url or gateway_url()).rstrip("/")
    parts = urlsplit(base)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise click.UsageError(f"--url {base}: write it like http://127.0.0.1:8787")
    named = base if parts.path else f"{base}/agents/{name.removesuffix('-hooks')}"
    return Machine(env, named, own_command(), f" --url {shlex.quote(base)}" if url else "")


def plan(name: str, machine: Machine, file: Path) -> Plan:
    """Return what `breakloop setup NAME` does to a file. Raises `BundleError`, and `OSError` if it cannot be read."""
    client = CLIENTS[name]
    before = file.read_bytes() if file.exists() else None
    try:
        text = (before or b"").decode("utf-8")
    except UnicodeDecodeError:
        fail(f"{file}: is not UTF-8; nothing was changed")
    data = read_config(text.removeprefix("\ufeff"), client.kind, str(file))
    settings = client.settings(data, machine)
    after = edit_config(text, client.kind, str(file), [one.change for one in settings]).encode()
    notes = [*client.notes(data), *_replaced(data, settings, machine)]
    return Plan(name, file, before, after, settings, notes)


def _replaced(data: object, settings: list[Setting], machine: Machine) -> list[str]:
    """Return notes about addresses that were set before: the gateway does not know them."""
    found = []
    for change, provider in settings:
        old = None if change.append else value_at(data, change.path)
        if provider and isinstance(old, str) and old and not old.startswith(machine.url):
            found.append(
                f"{path_text(change.path)} was {old}; to go on using that server: "
                f"breakloop serve --upstream {provider}={old.rstrip('/').removesuffix('/v1')}"
            )
    return found


class Kept:
    """What a file was before it was changed, below the data directory."""

    def __init__(self, name: str, file: Path) -> None:
        place = sha256(str(file.absolute()).encode()).hexdigest()[:12]
        self.path = data_dir() / FOLDER / f"{name}-{place}.json"

    def read(self) -> tuple[bytes | None, str] | None:
        """Return the bytes before (None: no file) and the digest of those after; None if nothing is kept."""
        try:
            found = json.loads(self.path.read_bytes())
        except (OSError, ValueError):
            return None
        before = found["before"]
        return (None if before is None else base64.b64decode(before)), found["after"]

    def write(self, made: Plan) -> None:
        """Keep the file as it is. If breakloop has made it so, what was there before is kept."""
        before, known = made.before, self.read()
        if known is not None and before is not None and _digest(before) == known[1]:
            before = known[0]
        content = {
            "file": str(made.file.absolute()),
            "before": None if before is None else base64.b64encode(before).decode(),
            "after": _digest(made.after),
        }
        root = DataDir(self.path.parent.parent)
        if root.path is None:
            fail(f"{made.file}: not changed, because it could not be restored: {root.warnings[0]}")
        self.path.parent.mkdir(mode=0o700, exist_ok=True)
        write_whole(self.path, json.dumps(content).encode(), mode=0o600)


def _digest(content: bytes) -> str:
    return sha256(content).hexdigest()


@click.command(name="setup", epilog="Names: " + ", ".join(CLIENTS) + ". Exit code: 2 if the gateway was not reached.")
@click.argument("name", required=False, default="")
@click.option("--url", default="", help="URL of the gateway.  [BREAKLOOP_URL, or http://127.0.0.1:8787]")
@click.option("--file", "path", default="", metavar="PATH", help="The configuration file, if it is another one.")
@click.option("--dry-run", is_flag=True, help="Print the change, and make none.")
@click.option("--verify", is_flag=True, help="Send one request, without a key, the way that was set up.")
@click.option("--undo", is_flag=True, help="Restore the file as it was.")
def command(name: str, *, url: str, path: str, dry_run: bool, verify: bool, undo: bool) -> None:
    """Point a coding agent or a proxy at the gateway, by a change to its configuration file. Without a NAME, list the
    programs that are installed, and ask which of them to set up.
    """
    if dry_run + verify + undo > 1:
        raise click.UsageError("give one of --dry-run, --verify and --undo")
    if not name:
        if path or verify or undo:
            raise click.UsageError(f"give a name: {', '.join(CLIENTS)}")
        _offer(url, dry_run=dry_run)
        return
    if name not in CLIENTS:
        raise click.UsageError(f"{name}: not one of {', '.join(CLIENTS)}")
    machine = machine_for(name, url)
    file = Path(path) if path else CLIENTS[name].file(machine)
    if file is None:
        raise click.UsageError(f"name the configuration file of {CLIENTS[name].label} with --file")
    if undo:
        _undo(name, file)
    else:
        again = [*(["--url", url] if url else []), *(["--file", path] if path else [])]
        _run(name, machine, file, shlex.join(["breakloop", "setup", name, *again]), dry_run=dry_run, verify=verify)


def _run(name: str, machine: Machine, file: Path, again: str, *, dry_run: bool = False, verify: bool = False) -> None:
    """Do what was asked; `again` is the command line of it."""
    try:
        made = plan(name, machine, file)
        if verify:
            _verify(made, again)
        elif not made.settings and CLIENTS[name].nothing:
            fail(f"{file}: {CLIENTS[name].nothing}; nothing was changed")
        elif made.is_done:
            click.echo(f"{file}: is set up already")
        elif dry_run:
            _show_difference(made)
        else:
            _apply(made, again)
    except BundleError as error:
        fail_problems(error.problems)
    except OSError as error:
        fail(f"{error.filename or file}: {error.strerror}; nothing was changed")


def _apply(made: Plan, again: str) -> None:
    made.file.parent.mkdir(parents=True, exist_ok=True)
    Kept(made.name, made.file).write(made)
    if (made.file.read_bytes() if made.file.exists() else None) != made.before:
        fail(f"{made.file}: was changed by another program just now; nothing was changed: run the command again")
    write_whole(made.file, made.after)
    click.echo(f"{'created' if made.before is None else 'changed'} {made.file}")
    for change, _ in made.settings:
        sign = "+=" if change.append else "="
        click.echo(f"  {path_text(change.path)} {sign} {json.dumps(change.value, ensure_ascii=False)}")
    for note in made.notes:
        click.echo(f"note: {note}")
    click.echo("\nNext:")
    if any(provider for _, provider in made.settings):
        click.echo("  breakloop serve  # run the gateway, unless it runs already")
    click.echo(f"  {again} --verify  # check it\n  {again} --undo  # restore the file as it was")


def _show_difference(made: Plan) -> None:
    before, after = [(one or b"").decode().splitlines(keepends=True) for one in (made.before, made.after)]
    for line in unified_diff(before, after, str(made.file), str(made.file)):
        click.echo((_without_secret(line) if line.startswith(" ") else line).rstrip("\r\n"))


def _without_secret(line: str) -> str:
    return re.sub(r"(?i)((?:key|token|secret|password)\w*[\"']?\s*[:=]\s*)\S.*", r"\1...", line)


def _undo(name: str, file: Path) -> None:
    kept = Kept(name, file)
    known = kept.read()
    if known is None:
        fail(f"{file}: nothing to undo: `breakloop setup {name}` has not changed it")
    before, after = known
    now = file.read_bytes() if file.exists() else None
    try:
        if now == before:
            click.echo(f"{file}: is as it was already")
        elif now is None or _digest(now) != after:
            _changed_since(file, before)
        elif before is None:
            file.resolve().unlink()
            click.echo(f"removed {file}, which was not there before")
        else:
            write_whole(file, before)
            click.echo(f"restored {file}")
        kept.path.unlink()
    except OSError as error:
        fail(f"{error.filename or file}: cannot be restored: {error.strerror}")


def _changed_since(file: Path, before: bytes | None) -> NoReturn:
    """Refuse to restore, and show what the file was, except for what is the same."""
    click.echo(f"{file}: was changed since, so it is not restored: your changes would be lost.", err=True)
    if before is None:
        click.echo("It was not there before. Remove what you do not need by hand.", err=True)
    elif file.exists():
        click.echo("These lines differ from what it was:", err=True)
        then, now = [one.decode(errors="replace").splitlines() for one in (before, file.read_bytes())]
        for line in unified_diff(now, then, "now", "before", n=0, lineterm=""):
            click.echo(_without_secret(line), err=True)
    end(PROBLEM)


def _offer(url: str, *, dry_run: bool) -> None:
    """List what is installed and, on a terminal, ask what to set up."""
    ask = sys.stdin.isatty() and sys.stdout.isatty()
    found = 0
    for name, client in CLIENTS.items():
        machine = machine_for(name, url)
        file = client.file(machine)
        if file is None or not (shutil.which(client.program, path=machine.env.get("PATH")) or file.exists()):
            continue
        found += 1
        try:
            made = plan(name, machine, file)
        except (BundleError, OSError) as error:
            click.echo(f"{name:<18} {client.label}: {str(error).splitlines()[0]}")
            continue
        state = "is set up" if made.is_done and made.settings else "can be set up" if made.settings else client.nothing
        click.echo(f"{name:<18} {client.label} ({file}): {state or 'is set up'}")
        if ask and made.settings and not made.is_done and click.confirm("  Set it up?", default=False):
            _run(name, machine, file, f"breakloop setup {name}{machine.hook_options}", dry_run=dry_run)
    if not found:
        click.echo(f"Found none of {', '.join(CLIENTS)}. To set one up, run breakloop setup NAME.")
    elif not ask:
        click.echo("To set one up, run breakloop setup NAME.")


# -- --verify


def _verify(made: Plan, again: str) -> None:
    if not made.is_done or made.before is None:
        fail(f"{made.file}: is not set up; run {again}")
    if made.name == "claude-code-hooks":
        _verify_hook(made)
        return
    urls = {provider: str(change.value).rpartition("=")[2] for change, provider in made.settings if provider}
    if not urls:  # a client that starts breakloop itself
        _verify_commands(made)
        click.echo(f"{made.file}: is set up; breakloop starts with the program")
        return
    worst = max([_verify_url(provider, url) for provider, url in urls.items()])
    if worst:
        end(worst)


def _verify_url(provider: str, url: str) -> int:
    """Ask a provider for its models, without a key, and print what came back."""
    parts = urlsplit(url)
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    path = parts.path.rstrip("/")
    path += "/models" if path.endswith(("/v1", "/v1beta")) else "/v1/models"
    connection = kind(parts.hostname or "", parts.port, timeout=_TIMEOUT_S)
    fields = {"anthropic-version": "2023-06-01"} if provider == "anthropic" else {}
    try:
        connection.request("GET", path, headers={"Accept": "application/json", **fields})
        answer = connection.getresponse()
        content = answer.read(_SHOWN).decode("utf-8", "replace")
    except (OSError, HTTPException) as error:
        why = getattr(error, "strerror", "") or type(error).__name__
        click.echo(f"{provider}: {url}: {why}; start the gateway with `breakloop serve`", err=True)
        return UNREACHABLE
    finally:
        connection.close()
    request_id = answer.getheader("X-Breakloop-Request-Id")
    if not request_id:
        click.echo(f"{provider}: {url}: something else than breakloop answered ({answer.status})", err=True)
        return PROBLEM
    if answer.status >= 500:
        click.echo(f"{provider}: breakloop answered, the provider did not ({answer.status}): {content}", err=True)
        return PROBLEM
    asks = "; no key was sent, and the provider asks for one" if answer.status in {401, 403} else ""
    click.echo(f"{provider}: {answer.status} through breakloop (request {request_id}){asks}")
    return 0


def _plain_environment() -> dict[str, str]:
    """Return the environment of a shell in which no virtual environment is active."""
    env = dict(os.environ)  # noqa: TID251 - as a program of the user is started
    active = [env.pop(name, "") for name in ("VIRTUAL_ENV", "CONDA_PREFIX")]
    kept = [
        one
        for one in env.get("PATH", os.defpath).split(os.pathsep)
        if str(Path(one).parent) not in active and not Path(one).with_name("pyvenv.cfg").exists()
    ]
    return {**env, "PATH": os.pathsep.join(kept)}


def _not_started(line: str, why: str, made: Plan) -> NoReturn:
    """Report a command that Claude Code or Cursor would not find."""
    remedy = f"write its full path into {made.file}: {own_command()}"
    if own_command() == "breakloop":
        remedy = "install breakloop, or put it on the PATH"
    fail(f"{line}: cannot be started in a shell without your virtual environment: {why}; {remedy}", code=PROBLEM)


def _verify_commands(made: Plan) -> None:
    """Look for the commands in front of MCP servers."""
    for change, _ in made.settings:
        found = str(change.value)
        if change.path[-1] == "command" and not shutil.which(found, path=_plain_environment()["PATH"]):
            _not_started(found, "not found", made)


def _verify_hook(made: Plan) -> None:
    """Run the hook as Claude Code does, with an event that it has no opinion about."""
    data = read_config(made.after.decode(), "json", str(made.file))
    found = [
        str(value_at(one, ("command",)))
        for matcher in value_at(data, ("hooks", "PreToolUse")) or []
        for one in value_at(matcher, ("hooks",)) or []
    ]
    line = next(one for one in found if "breakloop" in one)
    command = shlex.split(line)
    try:
        done = subprocess.run(  # noqa: S603 - as Claude Code runs it
            command,
            input=b"{}",
            capture_output=True,
            timeout=_TIMEOUT_S * 4,
            check=False,
            env=_plain_environment(),
        )
    except OSError as error:
        _not_started(line, error.strerror or str(error), made)
    if done.returncode or done.stderr:
        said = done.stderr.decode("utf-8", "replace").strip()[:_SHOWN]
        fail(f"{line}: ended with {done.returncode}: {said}", code=PROBLEM)
    click.echo(f"{line}: runs")
