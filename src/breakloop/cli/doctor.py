"""`breakloop doctor`: print every setting with its origin, and check the configuration.

The checks only read; only those of Redis open connections. Problems set exit code 1, warnings and notes do not.
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from ipaddress import ip_network
from pathlib import Path
from typing import Final, Literal

import click

from breakloop._version import __version__
from breakloop.app.build import context, loop_guard, policy_source, policy_verifier, price_list, too_few_files
from breakloop.app.memory import memory_limit, too_many_entries
from breakloop.cli.serve import settings_options
from breakloop.clock import Clock, SystemClock
from breakloop.config.loader import LoadedSettings, effective_settings, load_settings, masked, provider_keys
from breakloop.config.settings import Settings
from breakloop.errors import BundleError, SettingsError, StateError
from breakloop.formatting import plural
from breakloop.model.events import API_UNKNOWN
from breakloop.model.upstream import Upstream, upstreams
from breakloop.policy.client import is_loopback
from breakloop.policy.compile import compile_bundle
from breakloop.policy.compiled import CompiledBundle, CompiledPolicy
from breakloop.policy.descriptors import Descriptors
from breakloop.policy.load import LoadedBundle, load_fetched
from breakloop.policy.schema.bundle import Bundle
from breakloop.policy.watch import LastGood
from breakloop.store.data_dir import exposures, planted_link
from breakloop.store.redis.connection import ConnectOptions, RedisConnection, RedisError, door_for, open_link
from breakloop.store.redis.topology import SLOTS, Sentinels, finder_for, read_shares
from breakloop.store.redis.url import Address, RedisUrl, is_redis_url, parse_redis_url
from breakloop.store.snapshot import SnapshotView, look
from breakloop.store.snapshot_file import FILE

_FREE_MIN_BYTES: Final = 64 * 1024 * 1024
_SECRET_MIN: Final = 16
_ROUTES_SHOWN: Final = 20
_PRICES_SHOWN: Final = 10
_APIS_SHOWN: Final = 20

Level = Literal["problem", "warning", "note"]


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """A result of a check. A `problem` keeps breakloop from working, a `warning` is unsafe, a `note` is informative."""

    level: Level
    about: str
    message: str


problem = partial(DoctorFinding, "problem")
warning = partial(DoctorFinding, "warning")
note = partial(DoctorFinding, "note")


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The findings, and the bundle if it is valid."""

    findings: list[DoctorFinding]
    bundle: LoadedBundle | None


def examine(settings: Settings, clock: Clock) -> Diagnosis:
    findings = [*examine_proxy(settings), *_trust(settings), *_admin(settings)]
    findings += [*_secrets(settings), *_data_dir(settings), *examine_state(settings, clock)]
    findings += _prices(settings, clock)
    findings += _unknown_apis(settings)
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
        findings.append(problem("settings", str(error)))
    else:
        if why:
            findings.append(problem("jwt", f"keys cannot be read: {why}"))
        findings += _loop_detection(settings, compiled)
        findings += _pauses(settings, bundle)
    findings += _tokens(settings, loaded.bundle if loaded else None)
    return Diagnosis(findings, loaded)


def _pauses(settings: Settings, bundle: Bundle | None) -> Iterator[DoctorFinding]:
    """Warn if runs are paused and nobody can answer, or nobody is told."""
    if bundle is None or not bundle.pauses:
        return
    if not settings.admin_port:
        hint = "set admin_port, or use another action"
        yield warning("pause", f"the bundle pauses runs, and without an admin port nobody can answer: {hint}")
    elif not any({"pause", "any", "run.paused"} & set(rule.type) for rule in settings.alerts):
        yield note("pause", "the bundle pauses runs, and no alert rule has the type pause: only the dashboard asks")


def _trust(settings: Settings) -> Iterator[DoctorFinding]:
    for entry in settings.trusted_proxies:
        if entry != "unix" and ip_network(entry, strict=False).prefixlen == 0:
            message = f"{entry} trusts X-Forwarded-For from any address: clients can forge their address"
            yield warning("trusted_proxies", message)


def _admin(settings: Settings) -> Iterator[DoctorFinding]:
    if settings.admin_port and not is_loopback(settings.admin_host):
        hint = "put a reverse proxy with TLS in front, or listen on 127.0.0.1"
        yield warning("admin_host", f"the admin port serves plain HTTP on {settings.admin_host}: {hint}")


def _secrets(settings: Settings) -> Iterator[DoctorFinding]:
    for name, secret in (("secret", settings.secret), ("debug_secret", settings.debug_secret)):
        if 0 < len(secret.get_secret_value()) < _SECRET_MIN:
            yield warning(name, f"is shorter than {_SECRET_MIN} characters and can be guessed")
    if not settings.secret.get_secret_value() and not settings.secret_file:
        kept = Path(settings.data_dir, "secret")
        yield note("secret", f"is {'stored' if kept.exists() else 'generated at the first start and stored'} in {kept}")
    if settings.secret_file and not os.access(settings.secret_file, os.R_OK):
        yield problem("secret_file", f"{settings.secret_file} cannot be read")
    for file in (Path(settings.secret_file or "."), Path(settings.data_dir, "secret")):
        if file.is_file():
            yield from _private("secret_file" if settings.secret_file else "secret", file)


def _private(about: str, file: str | Path, what: str = "") -> Iterator[DoctorFinding]:
    """Warn if others than the owner can read a file."""
    if Path(file).stat().st_mode & 0o077:
        yield warning(about, f"{what or file} can be read by other users (chmod 600 {file})")


def _data_dir(settings: Settings) -> Iterator[DoctorFinding]:
    path = Path(settings.data_dir).absolute()
    nearest = next(folder for folder in (path, *path.parents) if folder.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        message = f"{path} is not writable: the secret and the last valid bundle are lost at a restart"
        yield warning("data_dir", message)
        return
    free = os.statvfs(nearest)
    if free.f_bavail * free.f_frsize < _FREE_MIN_BYTES:
        left = f"{free.f_bavail * free.f_frsize / 1e6:.0f} MB"
        message = f"{path}: the disk has {left} left; when it is full, counters, orders and history are not saved"
        yield warning("data_dir", message)
    if nearest == path:
        if why := planted_link(path):
            yield problem("data_dir", f"{path} is not used: {why}")
        yield from (warning("data_dir", one.removeprefix("data_dir ")) for one in exposures(path))
    yield from _last_good(path, settings)


def _last_good(path: Path, settings: Settings) -> Iterator[DoctorFinding]:
    try:
        verifier = policy_verifier(settings)
        source = policy_source(settings, SystemClock(), signed=verifier is not None)
        kept = LastGood(path, source.key).read(verifier) if source is not None else None
    except BundleError as error:
        yield warning("data_dir", error.problems[0].message)
    except SettingsError:
        return  # reported where the bundle is loaded
    else:
        if kept is not None:
            yield note("data_dir", f"contains the last valid bundle, version {kept.bundle.bundle_version}")


def _prices(settings: Settings, clock: Clock) -> Iterator[DoctorFinding]:
    try:
        problems = price_list(settings, clock).problems
    except SettingsError as error:
        yield problem("prices.file", str(error).removeprefix("prices.file: "))
        return
    for entry in problems[:_PRICES_SHOWN]:
        yield warning("prices.file", str(entry))
    if len(problems) > _PRICES_SHOWN:
        message = f"and {len(problems) - _PRICES_SHOWN} more entries with problems (`breakloop prices` lists them)"
        yield warning("prices.file", message)


def _unknown_apis(settings: Settings) -> Iterator[DoctorFinding]:
    """Read from the history what was passed and not judged."""
    from breakloop.app.operations import HISTORY_FILE  # noqa: PLC0415 - heavy, as the next one
    from breakloop.history.events import read_from_file  # noqa: PLC0415

    file = Path(settings.history or Path(settings.data_dir) / HISTORY_FILE)
    if "://" in str(file) or not file.is_file():
        return
    found = read_from_file(file, API_UNKNOWN, _APIS_SHOWN)
    for upstream, path in dict.fromkeys((str(one.get("upstream")), str(one.get("path"))) for one in found):
        message = (
            f"requests to {path} ({upstream}) look like those of an LLM API that is not known, and were not judged"
        )
        yield warning("dialects", message)


def _load(settings: Settings, clock: Clock) -> tuple[LoadedBundle | None, list[DoctorFinding]]:
    if not settings.policy:
        message = "none is set: only the built-in loop protection is on, no limits (`breakloop init` writes a bundle)"
        return None, [warning("policy", message)]
    try:
        loaded = _fetch(settings, clock)
    except BundleError as error:
        return None, [problem("policy", str(one)) for one in error.problems]
    except SettingsError as error:
        return None, [problem("policy", str(error))]
    except OSError as error:
        return None, [problem("policy", f"{masked(settings.policy)} cannot be read: {error.strerror}")]
    found = [*_on_the_way(settings), *(note("policy", str(one)) for one in loaded.notes)]
    expires = loaded.bundle.expires_at
    if expires is not None and expires.timestamp() <= clock.now():
        message = f"the bundle expired at {expires.isoformat()}; it is enforced until it is replaced"
        found.append(warning("policy", message))
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
        yield warning(
            "policy", "is not signed and fetched without TLS: anyone on the network path can change the rules"
        )
    if settings.policy_token.get_secret_value() or settings.policy_token_file:
        yield warning("policy_token", "is sent without TLS: anyone on the network path can read it")


def _loop_detection(settings: Settings, compiled: CompiledBundle) -> Iterator[DoctorFinding]:
    if settings.loop_guard.max_hits == 0:
        yield warning("loop_guard.max_hits", "0 switches the built-in loop protection off")
    if not compiled.default_loops:
        message = "LLM calls that no policy's own loop_detection covers are not watched for loops"
        yield warning("loop_detection", message)
    without = [policy for policy in compiled.policies if _unwatched(policy, compiled)]
    for policy in without[:_ROUTES_SHOWN]:
        yield warning("loop_detection", f"none on {_route(policy)} (policy {policy.id})")
    if len(without) > _ROUTES_SHOWN:
        yield warning("loop_detection", f"and {len(without) - _ROUTES_SHOWN} more routes without it")


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
        yield warning("jwt.jwks_url", "is fetched without TLS: anyone on the network path can forge tokens")
    if jwt.secret.get_secret_value() or jwt.jwks_file or jwt.jwks_url:
        return
    used = sorted(name for name in _descriptors(settings, bundle) if name.startswith("jwt:"))
    if used:
        message = f"tokens are not verified, and {', '.join(used)} is used: clients can forge claims"
        yield warning("jwt", f"{message} (set jwt.jwks_url, jwt.jwks_file or jwt.secret)")


def _descriptors(settings: Settings, bundle: Bundle | None) -> set[str]:
    names = {settings.project_descriptor}
    if bundle is not None:
        names |= {switch.scope_key for switch in bundle.kill_switches}
        for policy in bundle.policies:
            spec = policy.spec
            for rule in (*spec.rules, *([spec.fallback_limit] if spec.fallback_limit else [])):
                names |= {*rule.limit_keys, *rule.match}
    return names


def examine_state(settings: Settings, clock: Clock) -> Iterator[DoctorFinding]:
    """Inspect `state.db`, which exists only for a process with in-memory counters."""
    if settings.shard_by == "agent" and "+cluster" not in settings.state.partition("://")[0]:
        why = "has no effect, because `state` is not a cluster; limits shared by agents need an extra script call"
        yield note("shard_by", f"agent {why if is_redis_url(settings.state) else 'has no effect with memory://'}")
    folder = Path(settings.data_dir)
    if not settings.state.startswith("memory:"):
        return
    try:
        found = look(folder)
        aside = sorted(path.name for path in folder.glob(f"{FILE}.*") if not path.name.endswith(("-wal", "-shm")))
    except OSError as error:
        yield warning("data_dir", f"{folder / FILE} cannot be read: {error.strerror}")
        return
    if found is not None:
        yield _judged(found, clock.now())
    if aside:
        yield note("data_dir", f"contains {', '.join(aside)}: unusable state files; inspect or delete them")


def _judged(found: SnapshotView, now: float) -> DoctorFinding:
    # Failed attempts to write change the time of the file, so the content counts.
    size, age_s = f"{found.size / 1e6:.1f} MB", max(0.0, now - (found.latest or found.changed_at))
    if found.wrong:
        message = f"{found.path} cannot be used ({found.wrong}): the next start renames it; counters start from zero"
        return warning("data_dir", message)
    message = (
        f"{found.path} stores the counters: up to {found.entries:,} entries, {size}, the last of {_ago(age_s)} ago"
    )
    return note("data_dir", message)


def _ago(age_s: float) -> str:
    for unit_s, name in ((86_400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if age_s >= 2 * unit_s:
            return f"{age_s / unit_s:.0f} {name}"
    return f"{age_s:.0f} s"


def examine_proxy(settings: Settings) -> Iterator[DoctorFinding]:
    yield from _reach(settings)
    yield from _open_files(settings)
    yield from _memory(settings)
    yield from _keys(settings)
    yield from _upstreams(settings)
    yield from _certificates(settings)


def _memory(settings: Settings) -> Iterator[DoctorFinding]:
    problem_found = too_many_entries(settings, memory_limit())
    if problem_found:
        yield warning("memory_max_entries", problem_found)


def _open_files(settings: Settings) -> Iterator[DoctorFinding]:
    problem_found = too_few_files(settings)
    if problem_found:
        yield warning("limits.connections", problem_found)


def _reach(settings: Settings) -> Iterator[DoctorFinding]:
    host = settings.host
    if is_loopback(host):
        return
    if settings.callers:
        if not settings.tls.cert_file:
            message = f"{host} is reachable from other machines, and keys are sent without TLS (set tls)"
            yield warning("tls", message)
    elif settings.upstream_keys:
        names = ", ".join(entry.partition("=")[0] for entry in settings.upstream_keys)
        message = f"anyone who can reach {host} can use the provider keys ({names}): set callers, or listen on"
        yield warning("callers", f"{message} 127.0.0.1")
    else:
        yield warning(
            "host",
            f"{host} is reachable from other machines, and no key is required: set callers, or keep it behind "
            "a firewall or a gateway",
        )


def _keys(settings: Settings) -> Iterator[DoctorFinding]:
    try:
        keys = provider_keys(settings)
    except SettingsError as error:
        about, _, message = str(error).partition(": ")
        yield problem(about, message)
        return
    for upstream in upstreams(settings.upstream):
        if upstream.name in keys and not upstream.tls and not is_loopback(upstream.host):
            yield warning("upstream_keys", f"the key of {upstream.name} is sent to {upstream.url} without TLS")
    for entry in settings.upstream_keys:
        name, _, file = entry.partition("=file:")
        if file:
            yield from _private("upstream_keys", file, f"the key of {name}")


def _upstreams(settings: Settings) -> Iterator[DoctorFinding]:
    if settings.mode == "decision":
        for name in ("upstream", "upstream_keys"):
            if getattr(settings, name):
                yield note(name, "is not used: mode decision forwards nothing")
        return
    for upstream in upstreams(settings.upstream):
        if _is_ourselves(upstream, settings):
            yield problem("upstream", f"{upstream.name} points back at this port: requests to it get status 508")


def _is_ourselves(upstream: Upstream, settings: Settings) -> bool:
    everywhere = settings.host in {"0.0.0.0", "::"}  # noqa: S104 - compared with, not listened on
    same = upstream.host == settings.host or (is_loopback(upstream.host) and (everywhere or is_loopback(settings.host)))
    return same and upstream.port == settings.port


def _certificates(settings: Settings) -> Iterator[DoctorFinding]:
    tls = settings.tls
    if tls.cert_file:
        try:
            # Without a passphrase prompt: a service has no terminal at start.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(tls.cert_file, tls.key_file, lambda: "")
        except (OSError, ValueError) as error:
            yield problem("tls", f"{tls.cert_file} and {tls.key_file} cannot be used: {_why(error)}")
        else:
            yield from _private("tls.key_file", tls.key_file)
    if settings.upstream_ca_file:
        try:
            ssl.create_default_context(cafile=settings.upstream_ca_file)
        except (OSError, ValueError) as error:
            yield problem("upstream_ca_file", f"{settings.upstream_ca_file} cannot be used: {_why(error)}")


def _why(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or "not PEM").lower().replace("_", " ")
    return (error.strerror if isinstance(error, OSError) else None) or "unknown format"


_STATE: Final = "state"
_OLDEST: Final = (6, 2)
_PINGS: Final = 20
_FULL: Final = 0.8

Facts = dict[str, str]


def examine_redis(url: str) -> list[DoctorFinding]:
    try:
        parsed = parse_redis_url(url)
        return [*exposure(parsed), *asyncio.run(_examine(parsed))]
    except (SettingsError, StateError) as error:
        return [problem(_STATE, str(error))]


def exposure(url: RedisUrl) -> Iterator[DoctorFinding]:
    """Report what other machines on the network could see or do."""
    if all(is_loopback(address.host) for address in url.addresses):
        return
    if not url.tls:
        what = "the password and everything else is" if url.password else "everything is"
        yield warning(_STATE, f"{what} sent to Redis without TLS (rediss://)")
    if not url.password:
        yield warning(_STATE, "no password: anyone who can reach Redis can release agents and clear counters")


async def _examine(url: RedisUrl) -> list[DoctorFinding]:
    door = door_for(url, asyncio.get_running_loop())
    if url.kind != "cluster":
        finder = finder_for(url, door)
        try:
            findings = await _server(url, door, await finder.find())
            return findings + (await _quorum(url, finder) if isinstance(finder, Sentinels) else [])
        finally:
            finder.close()
    masters, findings = await _masters(url, door)
    for address in masters:
        try:
            findings += await _server(url, door, address)
        except StateError as error:
            findings.append(problem(_STATE, str(error)))
    return findings


async def _masters(url: RedisUrl, door: ConnectOptions) -> tuple[list[Address], list[DoctorFinding]]:
    """Ask the first node that responds for the masters."""
    findings: list[DoctorFinding] = []
    for seed in url.addresses:
        try:
            link = await open_link(door, seed)
        except StateError as error:
            findings.append(warning(_STATE, str(error)))
            continue
        answer = await link.call(b"CLUSTER", b"SLOTS")
        link.end("asked")
        if not isinstance(answer, list):
            raise StateError(f"{seed} is not a cluster, or denies CLUSTER SLOTS: write redis:// for a single server")
        shares = read_shares(answer, seed)
        missing = SLOTS - sum(share.last - share.first + 1 for share in shares)
        if missing:
            findings.append(problem(_STATE, f"{missing} slots of the cluster have no owner"))
        return sorted({share.owner for share in shares}), findings
    raise StateError("no node of the cluster responds: " + "; ".join(finding.message for finding in findings))


async def _quorum(url: RedisUrl, sentinels: Sentinels) -> list[DoctorFinding]:
    findings: list[DoctorFinding] = []
    for address in url.addresses:
        try:
            answer = await sentinels.ask(address, b"CKQUORUM")
        except StateError as error:
            findings.append(warning(_STATE, f"a Sentinel cannot be queried: {error}"))
            continue
        if isinstance(answer, RedisError):
            findings.append(warning(_STATE, f"Sentinel {address} could not replace the master: {answer}"))
    return findings


async def _server(url: RedisUrl, door: ConnectOptions, address: Address) -> list[DoctorFinding]:
    link = await open_link(door, address)
    try:
        facts = await _facts(link)
        findings = [*judge(url, facts)]
        allowed = await link.call(b"EVAL", b"return 1", b"0")
        if isinstance(allowed, RedisError):
            findings.append(problem(_STATE, f"scripts are not allowed: {allowed}"))
        findings.append(await _latency(link, url))
    finally:
        link.end("asked")
    return [DoctorFinding(one.level, one.about, f"{address}: {one.message}") for one in findings]


async def _facts(link: RedisConnection) -> Facts:
    """Return the relevant fields of INFO, completed from CONFIG. Managed services may hide both."""
    info = await link.call(b"INFO")
    if isinstance(info, StateError) and not isinstance(info, RedisError):
        raise info
    lines = info.decode("utf-8", "replace").splitlines() if isinstance(info, bytes) else []
    facts = {name: value for name, _, value in (line.partition(":") for line in lines) if value}
    for name in ("save", "appendfsync"):
        answer = await link.call(b"CONFIG", b"GET", name.encode())
        if isinstance(answer, list) and len(answer) == 2:
            facts[name] = bytes(answer[1]).decode()
    return facts


async def _latency(link: RedisConnection, url: RedisUrl) -> DoctorFinding:
    loop = asyncio.get_running_loop()
    took: list[float] = []
    for _ in range(_PINGS):
        begun = loop.time()
        await link.call(b"PING")
        took.append((loop.time() - begun) * 1000)
    slowest, usual = max(took), sorted(took)[_PINGS // 2]
    text = f"latency {usual:.1f} ms, at most {slowest:.1f} ms; the time budget is {url.time_budget_ms} ms"
    if slowest > url.time_budget_ms / 2:
        hint = "decisions may fall back to local state; use a Redis with lower latency, or raise ?time_budget_ms="
        return warning(_STATE, f"{text}: {hint}")
    return note(_STATE, text)


def judge(url: RedisUrl, facts: Facts) -> Iterator[DoctorFinding]:
    if not facts:
        yield note(_STATE, "INFO is not allowed: version, eviction and persistence were not checked")
        return
    yield from _version(facts)
    if url.kind != "cluster" and facts.get("cluster_enabled") == "1":
        yield problem(_STATE, "is a node of a cluster: write redis+cluster://")
    yield from _eviction(facts)
    yield from _persistence(facts)


def _version(facts: Facts) -> Iterator[DoctorFinding]:
    if facts.get("valkey_version"):
        yield note(_STATE, f"Valkey {facts['valkey_version']}")
        return
    version = facts.get("redis_version", "")
    parts = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if parts and parts < _OLDEST:
        yield problem(_STATE, f"Redis {version} is too old: the minimum is 6.2")
    elif version:
        yield note(_STATE, f"Redis {version}")


def _eviction(facts: Facts) -> Iterator[DoctorFinding]:
    policy, most, used = facts.get("maxmemory_policy", "noeviction"), _number(facts, "maxmemory"), "used_memory"
    if policy != "noeviction":
        what = "counters, budgets and sessions" if policy.startswith("volatile") else "any key"
        when = "when memory is full" if most else "once maxmemory is set"
        message = f"maxmemory-policy {policy} evicts {what} {when}, which resets limits; set it to noeviction"
        yield DoctorFinding("warning" if most else "note", _STATE, message)
    if most and _number(facts, used) > _FULL * most:
        percent = 100 * _number(facts, used) // most
        yield warning(_STATE, f"its memory is {percent} % full; when it is full, writes fail (raise maxmemory)")


def _persistence(facts: Facts) -> Iterator[DoctorFinding]:
    if facts.get("aof_enabled") != "1":
        if facts.get("save"):
            message = "has snapshots only: a restart loses changes since the last snapshot (set appendonly yes)"
        else:
            message = "has no persistence: a restart loses kill switches, holds and budgets (set appendonly yes)"
        yield warning(_STATE, message)
    elif facts.get("appendfsync") == "no":
        yield note(_STATE, "appendfsync no: a crash of the machine may lose about 30 s of changes")
    if "err" in (facts.get("aof_last_write_status"), facts.get("rdb_last_bgsave_status")):
        yield warning(_STATE, "the last write to disk failed; see the log of Redis")


def _number(facts: Facts, name: str) -> int:
    value = facts.get(name, "")
    return int(value) if value.isdigit() else 0


_MARKS = {"problem": ("x", "red"), "warning": ("!", "yellow"), "note": ("-", "cyan")}


@click.command(name="doctor", help="Show every setting with its origin, and check the configuration.")
@settings_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(*, as_json: bool, **flags: object) -> int:
    loaded: LoadedSettings | None = None
    try:
        loaded = load_settings(flags)
    except SettingsError as error:
        diagnosis = Diagnosis([problem("settings", line) for line in str(error).splitlines()], None)
    else:
        diagnosis = examine(loaded.settings, SystemClock())
        diagnosis.findings[:0] = [warning("environment", one) for one in loaded.warnings]
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
        bundle = diagnosis.bundle.bundle
        policies = plural(len(bundle.policies), "policy", "policies")
        click.echo(f"Bundle: version {bundle.bundle_version}, {policies}, digest {diagnosis.bundle.digest[:12]}\n")
    for level, (mark, colour) in _MARKS.items():
        for finding in diagnosis.findings:
            if finding.level == level:
                click.echo(f"{click.style(mark + ' ' + level, fg=colour)} {finding.about}: {finding.message}")
    problems = _problems(diagnosis)
    warnings = sum(finding.level == "warning" for finding in diagnosis.findings)
    verdict = f"{plural(problems, 'problem') if problems else 'No problems'}, {plural(warnings, 'warning')}."
    click.echo(("\n" if diagnosis.findings else "") + verdict)


def _print_settings(loaded: LoadedSettings) -> None:
    rows = effective_settings(loaded.settings)
    click.echo(click.style(f"Settings{f' (file: {loaded.file})' if loaded.file else ''}", bold=True))
    name_width = max(len(row.name) for row in rows)
    value_width = min(40, max(len(row.value) for row in rows))
    for row in rows:
        line = f"  {row.name:<{name_width}}  {row.value:<{value_width}}  {row.origin}"
        click.echo(line if row.origin != "default" else click.style(line, dim=True))
    click.echo()
