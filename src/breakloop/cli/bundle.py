"""`breakloop bundle`: push bundles to Redis, create key pairs, sign bundles and verify signatures."""

from __future__ import annotations

import getpass
import os
import socket
from pathlib import Path

import click

from breakloop.app.build import policy_verifier
from breakloop.cli.main import UNREACHABLE
from breakloop.cli.output import config_option, fail, json_option, print_json, settings_of
from breakloop.clock import SystemClock
from breakloop.config.settings import Settings
from breakloop.errors import StateError
from breakloop.policy.load import BundleBytes, LoadedBundle, load_fetched, read_path, signature_path
from breakloop.policy.signing import Signer, Verifier, make_keys, read_private_key, read_public_keys, shared_secret
from breakloop.policy.sources import to_push
from breakloop.store.redis.bundle import NoPushedBundleError, PushDeniedError, PushedBundle, moment, open_shelf

_STATE = "URL of the Redis; else `state` in the settings."
_EPILOG = "Exit code 0: pushed, or already there; 1: a problem, or Redis has a newer bundle; 2: Redis is unreachable."


@click.command(name="push", short_help="Push a bundle to Redis, for every instance.", epilog=_EPILOG)
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option("--state", metavar="URL", default="", help=_STATE)
@click.option("--force", is_flag=True, help="Push even a lower version, or other content with the same version.")
@click.option("--by", metavar="NAME", default="", help="Who pushes it.  [user@host]")
@config_option
@json_option
def push(file: str, *, state: str, force: bool, by: str, config: str, as_json: bool) -> None:
    """Push a bundle to Redis. Every instance with `--policy redis` loads it within a second.

    The bundle is validated first, and its signature is verified if the settings name a key. The signature (FILE.sig)
    is pushed with it.
    """
    settings = settings_of(config).settings
    fetched, loaded, verifier = _checked(Path(file), settings)
    shelf = open_shelf(state or settings.state)
    bundle = to_push(fetched, loaded, by=by or _somebody(), force=force)
    try:
        changed = shelf.push(bundle)
    except PushDeniedError as error:
        fail(f"{file}: not pushed: {error} (or --force)")
    except StateError as error:
        fail(f"{shelf.name}: {error}", code=UNREACHABLE)
    finally:
        shelf.close()
    if as_json:
        print_json({"ok": True, "changed": changed, **_facts(bundle)})
        return
    click.echo(f"{file}: {'pushed' if changed else 'already pushed'}, version {bundle.version}, {shelf.name}")
    if force and verifier is not None:
        click.echo("note: instances that verify signatures reject a lower version even with --force", err=True)


@click.command(
    name="show", epilog="Exit code 0: Redis has a bundle; 1: no bundle was pushed yet; 2: Redis is unreachable."
)
@click.option("--state", metavar="URL", default="", help=_STATE)
@click.option("--content", is_flag=True, help="Print the bundle itself, as it was pushed.")
@config_option
@json_option
def show(*, state: str, content: bool, config: str, as_json: bool) -> None:
    """Show which bundle was pushed, when and by whom."""
    shelf = open_shelf(state or settings_of(config).settings.state)
    try:
        found = shelf.fetch(None)
    except NoPushedBundleError as error:
        fail(f"{shelf.name}: {error}")
    except StateError as error:
        fail(f"{shelf.name}: {error}", code=UNREACHABLE)
    finally:
        shelf.close()
    assert found is not None  # noqa: S101 - only a known bundle is None
    if content:
        click.echo(found.data, nl=False)  # the bytes as they are
    elif as_json:
        print_json({"ok": True, **_facts(found)})
    else:
        signed = "signed" if found.signature else "not signed"
        forced = ", forced" if found.forced else ""
        click.echo(f"version {found.version}, {len(found.data):,} bytes, {signed}{forced}, sha256 {found.digest}")
        click.echo(f"pushed by {found.pushed_by or 'unknown'} at {moment(found.pushed_at)}")


def _checked(file: Path, settings: Settings) -> tuple[BundleBytes, LoadedBundle, Verifier | None]:
    """Read, verify and load a file; exit if it cannot be read."""
    try:
        verifier = policy_verifier(settings)
        fetched = read_path(file, signed=True)
    except OSError as error:
        fail(str(error))
    if verifier is not None:
        verifier.check(fetched, str(file))
    return fetched, load_fetched(fetched, now=SystemClock().now()), verifier


def _facts(found: PushedBundle) -> dict[str, object]:
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


_FILE = click.Path(exists=True, dir_okay=False)
_SECRET_HELP = "File with a shared secret, for HMAC-SHA256."


@click.command(
    name="keygen",
    short_help="Create a key pair.",
    epilog="Exit code 0: both files are written; 1: one of them exists already.",
)
@click.argument("name", default="policy")
@json_option
def keygen(name: str, *, as_json: bool) -> None:
    """Create a key pair: NAME.key signs and stays secret, NAME.pub is for `policy_public_key_file`."""
    private, public = make_keys()
    try:
        _write_new(f"{name}.key", private, 0o600)
        _write_new(f"{name}.pub", public, 0o644)
    except OSError as error:
        fail(f"{error.filename}: cannot be written: {error.strerror}")
    if as_json:
        print_json({"ok": True, "private_key": f"{name}.key", "public_key": f"{name}.pub"})
    else:
        click.echo(f"{name}.key signs bundles: keep it secret and off the servers\n{name}.pub goes to the servers")


@click.command(name="sign", short_help="Sign a bundle.", epilog="Exit code 0: it is signed; 1: a problem was found.")
@click.argument("path", metavar="FILE", type=click.Path(exists=True))
@click.option("--key", type=_FILE, metavar="FILE", default=None, help="Private key of Ed25519, PEM.")
@click.option("--secret-file", type=_FILE, metavar="FILE", default=None, help=_SECRET_HELP)
@click.option("--add", is_flag=True, help="Keep existing signatures, for key rotation.")
@json_option
def sign(path: str, *, key: str | None, secret_file: str | None, add: bool, as_json: bool) -> None:
    """Sign a bundle. The signature is written to FILE.sig, or to bundle.sig in a directory.

    Only valid bundles are signed.
    """
    target = signature_path(Path(path))
    try:
        signer = _signer(key, secret_file)
        fetched = read_path(Path(path), signed=add)
        load_fetched(fetched)
        kept = "".join(f"{line}\n" for line in fetched.signature.split())
        target.write_text(kept + signer.sign(fetched), encoding="ascii")
    except OSError as error:
        fail(str(error))
    if as_json:
        print_json({"ok": True, "signature": str(target), "algorithm": signer.algorithm})
    else:
        click.echo(f"{target}: signed with {signer.algorithm}")


@click.command(
    name="verify", short_help="Verify a bundle's signature.", epilog="Exit code 0: signed with one of the keys; 1: not."
)
@click.argument("path", metavar="FILE", type=click.Path(exists=True))
@click.option("--public-key", type=_FILE, metavar="FILE", default=None, help="Public keys of Ed25519, PEM or base64.")
@click.option("--secret-file", type=_FILE, metavar="FILE", default=None, help=_SECRET_HELP)
@config_option
@json_option
def verify(path: str, *, public_key: str | None, secret_file: str | None, config: str, as_json: bool) -> None:
    """Verify the signature of a bundle with the given key, or with the keys in the settings."""
    try:
        verifier = _verifier(public_key, secret_file)
        if verifier is None:
            verifier = policy_verifier(settings_of(config).settings)
        if verifier is None:
            raise click.UsageError("give --public-key or --secret-file, or set policy_public_key_file")
        verifier.check(read_path(Path(path), signed=True), path)
    except OSError as error:
        fail(str(error))
    if as_json:
        print_json({"ok": True})
    else:
        click.echo(f"{path}: the signature is valid")


def _signer(key: str | None, secret_file: str | None) -> Signer:
    if (key is None) == (secret_file is None):
        raise click.UsageError("give one of --key and --secret-file")
    if key is not None:
        return Signer(read_private_key(Path(key).read_bytes(), key))
    return Signer(shared_secret(Path(str(secret_file)).read_bytes(), str(secret_file)))


def _verifier(public_key: str | None, secret_file: str | None) -> Verifier | None:
    keys = read_public_keys(Path(public_key).read_bytes(), public_key) if public_key else ()
    secret = shared_secret(Path(secret_file).read_bytes(), secret_file) if secret_file else b""
    return Verifier(keys, secret) if keys or secret else None


def _write_new(name: str, content: bytes, mode: int) -> None:
    """Write a file that does not exist yet. Overwriting a key by mistake would lose it."""
    descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


@click.group(name="bundle", commands=[push, show, keygen, sign, verify])
def command() -> None:
    """Push a bundle to every instance, show the pushed one, sign and verify bundles."""
