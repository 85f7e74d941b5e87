"""`breakloop bundle keygen`, `sign` and `verify`: detached signatures of bundles (SPEC B-4). How they are made is
`policy.sign`'s; where a server looks for them is its sources'."""

from __future__ import annotations

import os
from pathlib import Path

import click

from breakloop.cli.output import config_option, fail, fail_problems, json_option, print_json, settings_of
from breakloop.errors import BundleError, SettingsError
from breakloop.policy.load import load_fetched
from breakloop.policy.sign import Signer, Verifier, make_keys, read_private_key, read_public_keys, shared_secret
from breakloop.policy.source_file import read_path, signature_path
from breakloop.policy_source import policy_verifier

_FILE = click.Path(exists=True, dir_okay=False)
_SECRET_HELP = "File with a shared secret, for HMAC-SHA256."


@click.command(
    name="keygen",
    short_help="Make a pair of keys.",
    epilog="Exit code 0: both files are written; 1: one of them is there already.",
)
@click.argument("name", default="policy")
@json_option
def keygen(name: str, *, as_json: bool) -> None:
    """Make a pair of keys: NAME.key signs and stays secret, NAME.pub is for `policy_public_key_file`."""
    private, public = make_keys()
    try:
        _write_new(f"{name}.key", private, 0o600)
        _write_new(f"{name}.pub", public, 0o644)
    except OSError as error:
        fail(f"{error.filename}: cannot be written: {error.strerror}", as_json=as_json)
    if as_json:
        print_json({"ok": True, "private_key": f"{name}.key", "public_key": f"{name}.pub"})
    else:
        click.echo(f"{name}.key signs bundles: keep it secret, away from the servers\n{name}.pub goes to the servers")


@click.command(name="sign", short_help="Sign a bundle.", epilog="Exit code 0: it is signed; 1: a problem was found.")
@click.argument("path", metavar="FILE", type=click.Path(exists=True))
@click.option("--key", type=_FILE, metavar="FILE", default=None, help="Private key of Ed25519, PEM.")
@click.option("--secret-file", type=_FILE, metavar="FILE", default=None, help=_SECRET_HELP)
@click.option("--add", is_flag=True, help="Keep the signatures that are there, for a change of keys.")
@json_option
def sign(path: str, *, key: str | None, secret_file: str | None, add: bool, as_json: bool) -> None:
    """Sign a bundle: its signature is written to FILE.sig, of a directory to bundle.sig in it.

    Only a valid bundle is signed.
    """
    target = signature_path(Path(path))
    try:
        signer = _signer(key, secret_file)
        fetched = read_path(Path(path), signed=add)
        load_fetched(fetched)
        kept = "".join(f"{line}\n" for line in fetched.signature.split())
        target.write_text(kept + signer.sign(fetched), encoding="ascii")
    except BundleError as error:
        fail_problems(error.problems, as_json=as_json)
    except (SettingsError, OSError) as error:
        fail(str(error), as_json=as_json)
    if as_json:
        print_json({"ok": True, "signature": str(target), "algorithm": signer.algorithm})
    else:
        click.echo(f"{target}: signed with {signer.algorithm}")


@click.command(
    name="verify",
    short_help="Verify a bundle's signature.",
    epilog="Exit code 0: it is signed with one of the keys; 1: it is not.",
)
@click.argument("path", metavar="FILE", type=click.Path(exists=True))
@click.option("--public-key", type=_FILE, metavar="FILE", default=None, help="Public keys of Ed25519, PEM or base64.")
@click.option("--secret-file", type=_FILE, metavar="FILE", default=None, help=_SECRET_HELP)
@config_option
@json_option
def verify(path: str, *, public_key: str | None, secret_file: str | None, config: str, as_json: bool) -> None:
    """Tell whether a bundle is signed as a server wants it: with a key given here, else with those in the settings."""
    try:
        verifier = _verifier(public_key, secret_file)
        if verifier is None:
            verifier = policy_verifier(settings_of(config, as_json=as_json).settings)
        if verifier is None:
            raise click.UsageError("give --public-key or --secret-file, or set policy_public_key_file")
        verifier.check(read_path(Path(path), signed=True), path)
    except BundleError as error:
        fail_problems(error.problems, as_json=as_json)
    except (SettingsError, OSError) as error:
        fail(str(error), as_json=as_json)
    if as_json:
        print_json({"ok": True})
    else:
        click.echo(f"{path}: its signature fits")


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
    """Write a file that is not there yet: a key that is lost by a typing mistake cannot be made again."""
    descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
