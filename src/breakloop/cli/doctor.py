"""`breakloop doctor`: print every setting with its origin, and check the configuration.

The checks only read. Problems set exit code 1; warnings and notes leave it at 0.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from ipaddress import ip_network
from pathlib import Path

import click

from breakloop._version import __version__
from breakloop.app.build import context, loop_guard, policy_source, policy_verifier, price_list
from breakloop.cli.doctor_network import DoctorFinding, examine_proxy, examine_redis, is_loopback
from breakloop.cli.serve import settings_options
from breakloop.clock import Clock, SystemClock
from breakloop.config.loader import LoadedSettings, effective_settings, load_settings
from breakloop.config.settings import Settings
from breakloop.errors import BundleError, SettingsError
from breakloop.policy.compile import compile_bundle
from breakloop.policy.compiled import CompiledBundle, CompiledPolicy
from breakloop.policy.descriptors import Descriptors
from breakloop.policy.load import LoadedBundle, load_fetched
from breakloop.policy.schema.bundle import Bundle
from breakloop.policy.watch import LastGood
from breakloop.store.redis.url import is_redis_url
from breakloop.store.snapshot import SnapshotView, look
from breakloop.store.snapshot_file import FILE

_ABOUT = "data_dir"
_AHEAD_S = 60.0


def examine_state(settings: Settings, clock: Clock) -> Iterator[DoctorFinding]:
    """Inspect `state.db`, which exists only for a process with in-memory counters."""
    if settings.shard_by == "agent" and "+cluster" not in settings.state.partition("://")[0]:
        why = "spreads nothing, for state names no cluster; limits that agents share cost a script more"
        yield DoctorFinding(
            "note", "shard_by", f"agent {why if is_redis_url(settings.state) else 'means nothing to memory://'}"
        )
    folder = Path(settings.data_dir)
    if not settings.state.startswith("memory:"):
        return
    try:
        found = look(folder)
        aside = sorted(path.name for path in folder.glob(f"{FILE}.*") if not path.name.endswith(("-wal", "-shm")))
    except OSError as error:
        yield DoctorFinding("warning", _ABOUT, f"{folder / FILE} cannot be looked at: {error.strerror}")
        return
    if found is not None:
        yield _judged(found, clock.now())
    if aside:
        message = f"holds {', '.join(aside)}: state that could not be used; look at it, or remove it"
        yield DoctorFinding("note", _ABOUT, message)


def _judged(found: SnapshotView, now: float) -> DoctorFinding:
    size, age_s = f"{found.size / 1e6:.1f} MB", max(0.0, now - found.changed_at)
    if found.wrong:
        message = f"{found.path} cannot be used ({found.wrong}): a start sets it aside, and counters begin anew"
        return DoctorFinding("warning", _ABOUT, message)
    if found.latest > now + _AHEAD_S:
        message = (
            f"{found.path} is {found.latest - now:.0f} s ahead of this clock: until then nothing refills or expires"
        )
        return DoctorFinding("warning", _ABOUT, f"{message} (set the clock right, or stop and remove the file)")
    message = f"{found.path} keeps the counters: up to {found.entries:,} entries, {size}, saved {_ago(age_s)} ago"
    return DoctorFinding("note", _ABOUT, message)


def _ago(age_s: float) -> str:
    for unit_s, name in ((86_400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if age_s >= 2 * unit_s:
            return f"{age_s / unit_s:.0f} {name}"
    return f"{age_s:.0f} s"


_SECRET_MIN = 16
_ROUTES_SHOWN = 20
_PRICES_SHOWN = 10


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The findings, and the bundle if it is valid."""

    findings: list[DoctorFinding]
    bundle: LoadedBundle | None


def examine(settings: Settings, clock: Clock) -> Diagnosis:
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
        findings.append(DoctorFinding("problem", "settings", str(error)))
    else:
        if why:
            findings.append(DoctorFinding("problem", "jwt", f"keys cannot be read: {why}"))
        findings += _loop_detection(settings, compiled)
    findings += _tokens(settings, loaded.bundle if loaded else None)
    return Diagnosis(findings, loaded)


def _trust(settings: Settings) -> Iterator[DoctorFinding]:
    for entry in settings.trusted_proxies:
        if entry != "unix" and ip_network(entry, strict=False).prefixlen == 0:
            message = f"{entry} believes everybody's X-Forwarded-For: any client can pretend to be any address"
            yield DoctorFinding("warning", "trusted_proxies", message)


def _admin(settings: Settings) -> Iterator[DoctorFinding]:
    if settings.admin_port and not is_loopback(settings.admin_host):
        hint = "put a reverse proxy with TLS in front, or keep it on 127.0.0.1"
        yield DoctorFinding(
            "warning", "admin_host", f"the admin plane speaks plain HTTP on {settings.admin_host}: {hint}"
        )


def _secrets(settings: Settings) -> Iterator[DoctorFinding]:
    for name, secret in (("secret", settings.secret), ("debug_secret", settings.debug_secret)):
        if 0 < len(secret.get_secret_value()) < _SECRET_MIN:
            yield DoctorFinding("warning", name, f"is shorter than {_SECRET_MIN} characters and can be guessed")
    if not settings.secret.get_secret_value() and not settings.secret_file:
        kept = Path(settings.data_dir, "secret")
        yield DoctorFinding(
            "note", "secret", f"is {'kept' if kept.exists() else 'made at the first start and kept'} in {kept}"
        )
    if settings.secret_file and not os.access(settings.secret_file, os.R_OK):
        yield DoctorFinding("problem", "secret_file", f"{settings.secret_file} cannot be read")
    for file in (Path(settings.secret_file or "."), Path(settings.data_dir, "secret")):
        if file.is_file() and file.stat().st_mode & 0o077:
            message = f"{file} can be read by others than its owner (chmod 600 {file})"
            yield DoctorFinding("warning", "secret_file" if settings.secret_file else "secret", message)


def _data_dir(settings: Settings) -> Iterator[DoctorFinding]:
    path = Path(settings.data_dir).absolute()
    nearest = next(folder for folder in (path, *path.parents) if folder.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        message = f"{path} cannot be written to: secret and last good bundle are not kept over a restart"
        yield DoctorFinding("warning", "data_dir", message)
    else:
        yield from _last_good(path, settings)


def _last_good(path: Path, settings: Settings) -> Iterator[DoctorFinding]:
    try:
        verifier = policy_verifier(settings)
        source = policy_source(settings, SystemClock(), signed=verifier is not None)
        kept = LastGood(path, source.key).read(verifier) if source is not None else None
    except BundleError as error:
        yield DoctorFinding("warning", "data_dir", error.problems[0].message)
    except SettingsError:
        return  # reported where the bundle is loaded
    else:
        if kept is not None:
            yield DoctorFinding(
                "note", "data_dir", f"holds version {kept.bundle.bundle_version} as the last good bundle"
            )


def _prices(settings: Settings, clock: Clock) -> Iterator[DoctorFinding]:
    try:
        problems = price_list(settings, clock).problems
    except SettingsError as error:
        yield DoctorFinding("problem", "prices.file", str(error).removeprefix("prices.file: "))
        return
    for problem in problems[:_PRICES_SHOWN]:
        yield DoctorFinding("warning", "prices.file", str(problem))
    if len(problems) > _PRICES_SHOWN:
        message = f"and {len(problems) - _PRICES_SHOWN} more entries with problems (`breakloop prices` lists them)"
        yield DoctorFinding("warning", "prices.file", message)


def _load(settings: Settings, clock: Clock) -> tuple[LoadedBundle | None, list[DoctorFinding]]:
    if not settings.policy:
        message = "none is set: only the built-in loop protection is on, no limits (`breakloop init` writes a bundle)"
        return None, [DoctorFinding("warning", "policy", message)]
    try:
        loaded = _fetch(settings, clock)
    except BundleError as error:
        return None, [DoctorFinding("problem", "policy", str(problem)) for problem in error.problems]
    except SettingsError as error:
        return None, [DoctorFinding("problem", "policy", str(error))]
    except OSError as error:
        return None, [DoctorFinding("problem", "policy", f"{settings.policy} cannot be read: {error.strerror}")]
    found = [*_on_the_way(settings), *(DoctorFinding("note", "policy", str(note)) for note in loaded.notes)]
    expires = loaded.bundle.expires_at
    if expires is not None and expires.timestamp() <= clock.now():
        message = f"the bundle expired at {expires.isoformat()}; it is enforced until it is replaced"
        found.append(DoctorFinding("warning", "policy", message))
    return loaded, found


def _fetch(settings: Settings, clock: Clock) -> LoadedBundle:
    verifier = policy_verifier(settings)
    source = policy_source(settings, clock, signed=verifier is not None)
    assert source is not None  # noqa: S101 - a policy is set
    fetched = source.fetch(None)
    assert fetched is not None  # noqa: S101 - nothing was known before
    if verifier is not None:
        verifier.check(fetched, source.name)
    return load_fetched(fetched, now=clock.now())


def _on_the_way(settings: Settings) -> Iterator[DoctorFinding]:
    if not settings.policy.startswith("http://"):
        return
    if policy_verifier(settings) is None:
        message = "is fetched without TLS and not signed: whoever sits between can change the rules"
        yield DoctorFinding("warning", "policy", message)
    if settings.policy_token.get_secret_value() or settings.policy_token_file:
        yield DoctorFinding("warning", "policy_token", "is sent without TLS: anyone on the network path can read it")


def _loop_detection(settings: Settings, compiled: CompiledBundle) -> Iterator[DoctorFinding]:
    if settings.loop_guard.max_hits == 0:
        yield DoctorFinding("warning", "loop_guard.max_hits", "0 switches the built-in loop protection off")
    if not compiled.default_loops:
        message = "LLM calls that no policy's own loop_detection covers are not watched for loops"
        yield DoctorFinding("warning", "loop_detection", message)
    without = [policy for policy in compiled.policies if _unwatched(policy, compiled)]
    for policy in without[:_ROUTES_SHOWN]:
        yield DoctorFinding("warning", "loop_detection", f"none on {_route(policy)} (policy {policy.id})")
    if len(without) > _ROUTES_SHOWN:
        yield DoctorFinding("warning", "loop_detection", f"and {len(without) - _ROUTES_SHOWN} more routes without it")


def _unwatched(policy: CompiledPolicy, compiled: CompiledBundle) -> bool:
    if policy.decides_loops and not policy.shadow:
        return not policy.loops
    return not compiled.default_loops


def _route(policy: CompiledPolicy) -> str:
    selector = policy.selector
    path = selector.exact or (f"{selector.prefix}*" if selector.prefix else "*")
    methods = ",".join(sorted(selector.methods))
    hosts = ",".join(selector.hosts)
    return " ".join(word for word in (methods, hosts + path if hosts else path) if word)


def _tokens(settings: Settings, bundle: Bundle | None) -> Iterator[DoctorFinding]:
    jwt = settings.jwt
    if jwt.jwks_url.startswith("http://"):
        yield DoctorFinding(
            "warning", "jwt.jwks_url", "is fetched without TLS: anyone on the network path can forge tokens"
        )
    if jwt.secret.get_secret_value() or jwt.jwks_file or jwt.jwks_url:
        return
    used = sorted(name for name in _descriptors(settings, bundle) if name.startswith("jwt:"))
    if used:
        message = f"tokens are not verified, and {', '.join(used)} is used: any client can claim anything"
        yield DoctorFinding("warning", "jwt", f"{message} (set jwt.jwks_url, jwt.jwks_file or jwt.secret)")


def _descriptors(settings: Settings, bundle: Bundle | None) -> set[str]:
    names = {settings.project_descriptor}
    if bundle is not None:
        names |= {switch.scope_key for switch in bundle.kill_switches}
        for policy in bundle.policies:
            spec = policy.spec
            for rule in (*spec.rules, *([spec.fallback_limit] if spec.fallback_limit else [])):
                names |= {*rule.limit_keys, *rule.match}
    return names


_MARKS = {"problem": ("x", "red"), "warning": ("!", "yellow"), "note": ("-", "cyan")}


@click.command(name="doctor", help="Show every setting with its origin, and check the configuration.")
@settings_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(*, as_json: bool, **flags: object) -> int:
    loaded: LoadedSettings | None = None
    try:
        loaded = load_settings(flags)
    except SettingsError as error:
        diagnosis = Diagnosis([DoctorFinding("problem", "settings", line) for line in str(error).splitlines()], None)
    else:
        diagnosis = examine(loaded.settings, SystemClock())
        diagnosis.findings[:0] = [DoctorFinding("warning", "environment", warning) for warning in loaded.warnings]
    if as_json:
        click.echo(json.dumps(_content(loaded, diagnosis), indent=2))
    else:
        _print(loaded, diagnosis)
    return 1 if _problems(diagnosis) else 0


def _problems(diagnosis: Diagnosis) -> int:
    return sum(finding.level == "problem" for finding in diagnosis.findings)


def _content(loaded: LoadedSettings | None, diagnosis: Diagnosis) -> dict[str, object]:
    bundle = diagnosis.bundle
    return {
        "version": __version__,
        "ok": not _problems(diagnosis),
        "settings_file": loaded.file if loaded else "",
        "settings": [one._asdict() for one in effective_settings(loaded.settings)] if loaded else [],
        "bundle": {"version": bundle.bundle.bundle_version, "digest": bundle.digest} if bundle else None,
        "findings": [asdict(finding) for finding in diagnosis.findings],
    }


def _print(loaded: LoadedSettings | None, diagnosis: Diagnosis) -> None:
    click.echo(f"breakloop {__version__}\n")
    if loaded is not None:
        _print_settings(loaded)
    if diagnosis.bundle is not None:
        bundle = diagnosis.bundle
        count = len(bundle.bundle.policies)
        click.echo(
            f"Bundle: version {bundle.bundle.bundle_version}, {count} {'policy' if count == 1 else 'policies'}, "
            f"digest {bundle.digest[:12]}\n"
        )
    for level, (mark, colour) in _MARKS.items():
        for finding in diagnosis.findings:
            if finding.level == level:
                click.echo(f"{click.style(mark + ' ' + level, fg=colour)} {finding.about}: {finding.message}")
    click.echo(("\n" if diagnosis.findings else "") + _verdict(diagnosis))


def _print_settings(loaded: LoadedSettings) -> None:
    rows = effective_settings(loaded.settings)
    click.echo(click.style(f"Settings{f' (file: {loaded.file})' if loaded.file else ''}", bold=True))
    name_width = max(len(row.name) for row in rows)
    value_width = min(40, max(len(row.value) for row in rows))
    for row in rows:
        line = f"  {row.name:<{name_width}}  {row.value:<{value_width}}  {row.origin}"
        click.echo(line if row.origin != "default" else click.style(line, dim=True))
    click.echo()


def _verdict(diagnosis: Diagnosis) -> str:
    problems = _problems(diagnosis)
    warnings = sum(finding.level == "warning" for finding in diagnosis.findings)
    if problems:
        return f"{problems} problem{'s' * (problems != 1)}, {warnings} warning{'s' * (warnings != 1)}."
    return f"No problems, {warnings} warning{'s' * (warnings != 1)}."
