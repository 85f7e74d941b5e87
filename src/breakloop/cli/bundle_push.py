"""`breakloop bundle push` and `show`: the bundle in Redis that instances with `--policy redis` take (SPEC B-3)."""

from __future__ import annotations

import getpass
import socket
from pathlib import Path
from typing import NoReturn

import click

from breakloop.cli.main import PROBLEM, UNREACHABLE
from breakloop.cli.output import config_option, fail, fail_problems, json_option, print_json, settings_of
from breakloop.clock import SystemClock
from breakloop.errors import BundleError, SettingsError, StateError
from breakloop.policy.fetched import Fetched
from breakloop.policy.load import LoadedBundle, load_fetched
from breakloop.policy.sign import Verifier
from breakloop.policy.source_file import read_path
from breakloop.policy.source_redis import to_push
from breakloop.policy_source import policy_verifier
from breakloop.settings import Settings
from breakloop.state.redis_shelf import RedisShelf, open_shelf
from breakloop.state.shelf import EmptyShelfError, PushRefusedError, Shelved, moment

_STATE = "URL of the Redis; else `state` in the settings."
_EPILOG = "Exit code 0: it is there; 1: a problem was found, or a newer one is there; 2: Redis cannot be reached."


@click.command(name="push", short_help="Push a bundle to Redis, for every instance.", epilog=_EPILOG)
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option("--state", metavar="URL", default="", help=_STATE)
@click.option("--force", is_flag=True, help="Also a lower version, or another content with the same version.")
@click.option("--by", metavar="NAME", default="", help="Who pushes it.  [user@host]")
@config_option
@json_option
def push(file: str, *, state: str, force: bool, by: str, config: str, as_json: bool) -> None:
    """Push a bundle to Redis, where every instance with `--policy redis` takes it within a second.

    It is validated first, and verified where the settings name a key. Its signature (FILE.sig) goes with it.
    """
    settings = settings_of(config, as_json=as_json).settings
    fetched, loaded, verifier = _checked(Path(file), settings, as_json=as_json)
    shelf = _shelf(state or settings.state, as_json=as_json)
    bundle = to_push(fetched, loaded, by=by or _somebody(), force=force)
    try:
        changed = shelf.push(bundle)
    except PushRefusedError as error:
        fail(f"{file}: not pushed: {error} (or --force)", as_json=as_json)
    except StateError as error:
        _unreachable(shelf, error, as_json=as_json)
    finally:
        shelf.close()
    if as_json:
        print_json({"ok": True, "changed": changed, **_facts(bundle)})
        return
    click.echo(f"{file}: {'pushed' if changed else 'is there already'}, version {bundle.version}, {shelf.name}")
    if force and verifier is not None:
        click.echo("note: instances that verify signatures refuse a lower version, forced or not", err=True)


@click.command(name="show", epilog="Exit code 0: there is one; 1: nothing was pushed yet; 2: Redis cannot be reached.")
@click.option("--state", metavar="URL", default="", help=_STATE)
@click.option("--content", is_flag=True, help="Print the bundle itself, as it was pushed.")
@config_option
@json_option
def show(*, state: str, content: bool, config: str, as_json: bool) -> None:
    """Show which bundle was pushed, when and by whom."""
    shelf = _shelf(state or settings_of(config, as_json=as_json).settings.state, as_json=as_json)
    try:
        found = shelf.fetch(None)
    except EmptyShelfError as error:
        fail(f"{shelf.name}: {error}", as_json=as_json, code=PROBLEM)
    except StateError as error:
        _unreachable(shelf, error, as_json=as_json)
    finally:
        shelf.close()
    assert found is not None  # noqa: S101 - only a known bundle is None
    if content:
        click.echo(found.data, nl=False)  # bytes as they are
    elif as_json:
        print_json({"ok": True, **_facts(found)})
    else:
        signed = "signed" if found.signature else "not signed"
        forced = ", forced" if found.forced else ""
        click.echo(f"version {found.version}, {len(found.data):,} bytes, {signed}{forced}, sha256 {found.digest}")
        click.echo(f"pushed by {found.pushed_by or 'somebody'} at {moment(found.pushed_at)}")


def _checked(file: Path, settings: Settings, *, as_json: bool) -> tuple[Fetched, LoadedBundle, Verifier | None]:
    """Read, verify and load a file, or end the command with what is wrong with it."""
    try:
        verifier = policy_verifier(settings)
        fetched = read_path(file, signed=True)
        if verifier is not None:
            verifier.check(fetched, str(file))
        return fetched, load_fetched(fetched, now=SystemClock().now()), verifier
    except BundleError as error:
        fail_problems(error.problems, as_json=as_json)
    except (SettingsError, OSError) as error:
        fail(str(error), as_json=as_json)


def _shelf(state: str, *, as_json: bool) -> RedisShelf:
    try:
        return open_shelf(state)
    except SettingsError as error:
        fail(f"{error}", as_json=as_json)


def _unreachable(shelf: RedisShelf, error: StateError, *, as_json: bool) -> NoReturn:
    fail(f"{shelf.name}: {error}", as_json=as_json, code=UNREACHABLE)


def _facts(found: Shelved) -> dict[str, object]:
    facts: dict[str, object] = {"version": found.version, "sha256": found.digest, "bytes": len(found.data)}
    facts |= {"signed": bool(found.signature), "forced": found.forced, "pushed_by": found.pushed_by}
    if found.pushed_at:
        facts["pushed_at"] = moment(found.pushed_at)
    return facts


def _somebody() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as in many containers
        user = "somebody"
    return f"{user}@{socket.gethostname()}"
