"""Makes the source of the bundle, and what verifies it, out of the settings (SPEC B-3, B-4), for the server and for
commands alike. What is done with a source is `policy.source`'s."""

from __future__ import annotations

import secrets
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Final

from breakloop.clock import Clock
from breakloop.errors import SettingsError
from breakloop.model.events import Publish
from breakloop.policy.fetched import Source
from breakloop.policy.http_get import HttpGet
from breakloop.policy.load import LoadedBundle, load_fetched
from breakloop.policy.pace import Pace
from breakloop.policy.sign import Verifier, read_public_keys, shared_secret
from breakloop.policy.source import BundleSource
from breakloop.policy.source_file import FileSource
from breakloop.policy.source_http import HttpSource
from breakloop.policy.source_redis import RedisSource
from breakloop.settings import Settings
from breakloop.settings_checks import POLICY_REDIS
from breakloop.state.redis_shelf import open_shelf

_URL_MOST_S: Final = 60.0  # how rarely a URL that fails is asked
_REDIS_EVERY_S: Final = 0.5  # a push is in force within a second
_REDIS_MOST_S: Final = 5.0


def bundle_source(
    settings: Settings,
    clock: Clock,
    data_dir: Path | None,
    *,
    on_bundle: Callable[[LoadedBundle], None],
    publish: Publish,
) -> BundleSource | None:
    """Return the source that a process watches, or None if none is set. Raises `SettingsError`."""
    verifier = policy_verifier(settings)
    source = policy_source(settings, clock, signed=verifier is not None)
    if source is None:
        return None
    return BundleSource(
        source,
        load=lambda fetched: load_fetched(fetched, now=clock.now()),
        on_bundle=on_bundle,
        clock=clock,
        publish=publish,
        data_dir=data_dir,
        verifier=verifier,
    )


def policy_source(settings: Settings, clock: Clock, *, signed: bool) -> Source | None:
    """Return where the bundle comes from, or None if none is set. Connects to nothing yet; raises `SettingsError`."""
    chance = secrets.SystemRandom().random
    if not settings.policy:
        return None
    if settings.policy == POLICY_REDIS:
        return RedisSource(open_shelf(settings.state), Pace(_REDIS_EVERY_S, _REDIS_MOST_S, chance))
    if "://" not in settings.policy:
        return FileSource(Path(settings.policy), signed=signed)
    given = settings.policy_token.get_secret_value()
    token = _secret(given, settings.policy_token_file, "policy_token_file").decode("utf-8", "replace")
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise SettingsError("policy_token: holds more than a token (a space, or several lines)")
    get = HttpGet(clock, token=token, tls=policy_tls(settings))
    return HttpSource(settings.policy, get, Pace(settings.policy_poll_seconds, _URL_MOST_S, chance), signed=signed)


def policy_verifier(settings: Settings) -> Verifier | None:
    """Return what bundles have to be signed with, or None if they need not be. Raises `SettingsError`."""
    where = settings.policy_public_key_file
    keys = read_public_keys(_read(where, "policy_public_key_file"), f"policy_public_key_file: {where}") if where else ()
    given, file = settings.policy_hmac_secret.get_secret_value(), settings.policy_hmac_secret_file
    secret = b""
    if given or file:
        secret = shared_secret(_secret(given, file, "policy_hmac_secret_file"), "policy_hmac_secret")
    return Verifier(keys, secret) if keys or secret else None


def policy_tls(settings: Settings) -> ssl.SSLContext | None:
    """Return what the server of a URL has to show, or None where there is no TLS."""
    if not settings.policy.startswith("https://"):
        return None
    made = ssl.create_default_context()
    if settings.policy_ca_file:
        try:
            made.load_verify_locations(settings.policy_ca_file)
        except ssl.SSLError:
            raise SettingsError("policy_ca_file: holds no certificate in PEM form") from None
        except OSError as error:
            why = f"{settings.policy_ca_file}: cannot be read: {error.strerror}"
            raise SettingsError(f"policy_ca_file: {why}") from None
    return made


def _secret(given: str, file: str, name: str) -> bytes:
    """Return a secret as it was given, or out of its file; empty without either."""
    if given or not file:
        return given.encode()
    secret = _read(file, name).strip()
    if not secret:
        raise SettingsError(f"{name}: {file}: is empty")
    return secret


def _read(file: str, name: str) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise SettingsError(f"{name}: {file}: cannot be read: {error.strerror}") from None
