"""What `doctor` looks at: settings that are unsafe or do nothing, and whether what they name can be used.
Looks only, changes nothing; printing is `doctor`'s."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_network
from pathlib import Path

from breakloop.cli.doctor_findings import Finding
from breakloop.cli.doctor_proxy import examine_proxy, is_loopback
from breakloop.cli.doctor_redis import examine_redis
from breakloop.cli.doctor_state import examine_state
from breakloop.clock import Clock, SystemClock
from breakloop.errors import BundleError, SettingsError
from breakloop.parts import context, loop_guard
from breakloop.policy.compile import compile_bundle
from breakloop.policy.compiled import CompiledBundle, Policy
from breakloop.policy.descriptors import Descriptors
from breakloop.policy.last_good import LastGood
from breakloop.policy.load import LoadedBundle, load_fetched
from breakloop.policy.schema import Bundle
from breakloop.policy_source import policy_source, policy_verifier
from breakloop.price_list import price_list
from breakloop.settings import Settings
from breakloop.state.redis_url import is_redis_url

_SECRET_MIN = 16
_ROUTES_SHOWN = 20
_PRICES_SHOWN = 10


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Everything that was found, and the bundle if it is valid."""

    findings: list[Finding]
    bundle: LoadedBundle | None


def examine(settings: Settings, clock: Clock) -> Diagnosis:
    """Look at everything."""
    findings = [*examine_proxy(settings), *_trust(settings), *_admin(settings)]
    findings += [*_secrets(settings), *_data_dir(settings), *examine_state(settings, clock)]
    findings += _prices(settings, clock)
    if is_redis_url(settings.state):
        findings += examine_redis(settings.state)
    loaded, found = _load(settings, clock)
    findings += found
    try:
        descriptors = Descriptors(context(settings, b"doctor"), clock)
        bundle = loaded.bundle if loaded else None
        compiled = compile_bundle(bundle, "", descriptors, b"doctor", loop_guard(settings))
        why = descriptors.tokens.refresh() if settings.jwt.jwks_file else ""
    except (SettingsError, ValueError) as error:
        findings.append(Finding("problem", "settings", str(error)))
    else:
        if why:
            findings.append(Finding("problem", "jwt", f"keys cannot be read: {why}"))
        findings += _loop_detection(settings, compiled)
    findings += _tokens(settings, loaded.bundle if loaded else None)
    return Diagnosis(findings, loaded)


def _trust(settings: Settings) -> Iterator[Finding]:
    for entry in settings.trusted_proxies:
        if entry != "unix" and ip_network(entry, strict=False).prefixlen == 0:
            message = f"{entry} believes everybody's X-Forwarded-For: any client can pretend to be any address"
            yield Finding("warning", "trusted_proxies", message)


def _admin(settings: Settings) -> Iterator[Finding]:
    if settings.admin_port and not is_loopback(settings.admin_host):
        hint = "put a reverse proxy with TLS in front, or keep it on 127.0.0.1"
        yield Finding("warning", "admin_host", f"the admin plane speaks plain HTTP on {settings.admin_host}: {hint}")


def _secrets(settings: Settings) -> Iterator[Finding]:
    for name, secret in (("secret", settings.secret), ("debug_secret", settings.debug_secret)):
        if 0 < len(secret.get_secret_value()) < _SECRET_MIN:
            yield Finding("warning", name, f"is shorter than {_SECRET_MIN} characters and can be guessed")
    if not settings.secret.get_secret_value() and not settings.secret_file:
        kept = Path(settings.data_dir, "secret")
        yield Finding(
            "note", "secret", f"is {'kept' if kept.exists() else 'made at the first start and kept'} in {kept}"
        )
    if settings.secret_file and not os.access(settings.secret_file, os.R_OK):
        yield Finding("problem", "secret_file", f"{settings.secret_file} cannot be read")
    for file in (Path(settings.secret_file or "."), Path(settings.data_dir, "secret")):
        if file.is_file() and file.stat().st_mode & 0o077:
            message = f"{file} can be read by others than its owner (chmod 600 {file})"
            yield Finding("warning", "secret_file" if settings.secret_file else "secret", message)


def _data_dir(settings: Settings) -> Iterator[Finding]:
    path = Path(settings.data_dir).absolute()
    nearest = next(folder for folder in (path, *path.parents) if folder.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        message = f"{path} cannot be written to: secret and last good bundle are not kept over a restart"
        yield Finding("warning", "data_dir", message)
    else:
        yield from _last_good(path, settings)


def _last_good(path: Path, settings: Settings) -> Iterator[Finding]:
    try:
        verifier = policy_verifier(settings)
        source = policy_source(settings, SystemClock(), signed=verifier is not None)
        kept = LastGood(path, source.key).read(verifier) if source is not None else None
    except BundleError as error:
        yield Finding("warning", "data_dir", error.problems[0].message)
    except SettingsError:
        return  # said where the bundle is loaded
    else:
        if kept is not None:
            yield Finding("note", "data_dir", f"holds version {kept.bundle.bundle_version} as the last good bundle")


def _prices(settings: Settings, clock: Clock) -> Iterator[Finding]:
    try:
        problems = price_list(settings, clock).problems
    except SettingsError as error:
        yield Finding("problem", "prices.file", str(error).removeprefix("prices.file: "))
        return
    for problem in problems[:_PRICES_SHOWN]:
        yield Finding("warning", "prices.file", str(problem))
    if len(problems) > _PRICES_SHOWN:
        message = f"and {len(problems) - _PRICES_SHOWN} more entries with problems (`breakloop prices` lists them)"
        yield Finding("warning", "prices.file", message)


def _load(settings: Settings, clock: Clock) -> tuple[LoadedBundle | None, list[Finding]]:
    if not settings.policy:
        message = "none is set: only the built-in loop protection is on, no limits (`breakloop init` writes a bundle)"
        return None, [Finding("warning", "policy", message)]
    try:
        loaded = _fetch(settings, clock)
    except BundleError as error:
        return None, [Finding("problem", "policy", str(problem)) for problem in error.problems]
    except SettingsError as error:
        return None, [Finding("problem", "policy", str(error))]
    except OSError as error:
        return None, [Finding("problem", "policy", f"{settings.policy} cannot be read: {error.strerror}")]
    found = [*_on_the_way(settings), *(Finding("note", "policy", str(note)) for note in loaded.notes)]
    expires = loaded.bundle.expires_at
    if expires is not None and expires.timestamp() <= clock.now():
        message = f"the bundle expired at {expires.isoformat()}; it is enforced until it is replaced"
        found.append(Finding("warning", "policy", message))
    return loaded, found


def _fetch(settings: Settings, clock: Clock) -> LoadedBundle:
    """Look where the server would, once."""
    verifier = policy_verifier(settings)
    source = policy_source(settings, clock, signed=verifier is not None)
    assert source is not None  # noqa: S101 - a policy is set
    fetched = source.fetch(None)
    assert fetched is not None  # noqa: S101 - nothing was known before
    if verifier is not None:
        verifier.check(fetched, source.name)
    return load_fetched(fetched, now=clock.now())


def _on_the_way(settings: Settings) -> Iterator[Finding]:
    if not settings.policy.startswith("http://"):
        return
    if policy_verifier(settings) is None:
        message = "is fetched without TLS and not signed: whoever sits between can change the rules"
        yield Finding("warning", "policy", message)
    if settings.policy_token.get_secret_value() or settings.policy_token_file:
        yield Finding("warning", "policy_token", "is sent without TLS: whoever sits between can read it")


def _loop_detection(settings: Settings, compiled: CompiledBundle) -> Iterator[Finding]:
    if settings.loop_guard.max_hits == 0:
        yield Finding("warning", "loop_guard.max_hits", "0 switches the built-in loop protection off")
    if not compiled.default_loops:
        message = "LLM calls that no policy's own loop_detection covers are not watched for loops"
        yield Finding("warning", "loop_detection", message)
    without = [policy for policy in compiled.policies if _unwatched(policy, compiled)]
    for policy in without[:_ROUTES_SHOWN]:
        yield Finding("warning", "loop_detection", f"none on {_route(policy)} (policy {policy.id})")
    if len(without) > _ROUTES_SHOWN:
        yield Finding("warning", "loop_detection", f"and {len(without) - _ROUTES_SHOWN} more routes without it")


def _unwatched(policy: Policy, compiled: CompiledBundle) -> bool:
    if policy.decides_loops and not policy.shadow:
        return not policy.loops
    return not compiled.default_loops


def _route(policy: Policy) -> str:
    selector = policy.selector
    path = selector.exact or (f"{selector.prefix}*" if selector.prefix else "*")
    methods = ",".join(sorted(selector.methods))
    hosts = ",".join(selector.hosts)
    return " ".join(word for word in (methods, hosts + path if hosts else path) if word)


def _tokens(settings: Settings, bundle: Bundle | None) -> Iterator[Finding]:
    jwt = settings.jwt
    if jwt.jwks_url.startswith("http://"):
        yield Finding("warning", "jwt.jwks_url", "is fetched without TLS: whoever sits between can make tokens")
    if jwt.secret.get_secret_value() or jwt.jwks_file or jwt.jwks_url:
        return
    used = sorted(name for name in _descriptors(settings, bundle) if name.startswith("jwt:"))
    if used:
        message = f"tokens are not verified, and {', '.join(used)} is used: any client can claim anything"
        yield Finding("warning", "jwt", f"{message} (set jwt.jwks_url, jwt.jwks_file or jwt.secret)")


def _descriptors(settings: Settings, bundle: Bundle | None) -> set[str]:
    names = {settings.project_descriptor}
    if bundle is not None:
        names |= {switch.scope_key for switch in bundle.kill_switches}
        for policy in bundle.policies:
            spec = policy.spec
            for rule in (*spec.rules, *([spec.fallback_limit] if spec.fallback_limit else [])):
                names |= {*rule.limit_keys, *rule.match}
    return names
