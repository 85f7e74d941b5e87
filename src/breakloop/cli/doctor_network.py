"""Checks of `breakloop doctor`: exposure of the traffic port, upstreams, certificates, and the Redis that stores the
state.

Only the checks of Redis open connections.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Final, Literal

from breakloop.config.loader import provider_keys
from breakloop.config.settings import Settings
from breakloop.errors import SettingsError, StateError
from breakloop.model.upstream import Upstream, upstreams
from breakloop.store.redis.connection import ConnectOptions, RedisConnection, RedisError, door_for, open_link
from breakloop.store.redis.topology import SLOTS, Sentinels, finder_for, read_shares
from breakloop.store.redis.url import Address, RedisUrl, parse_redis_url

Level = Literal["problem", "warning", "note"]


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """A result of a check. A `problem` keeps breakloop from working, a `warning` is unsafe, a `note` is informative."""

    level: Level
    about: str
    message: str


def examine_proxy(settings: Settings) -> Iterator[DoctorFinding]:
    yield from _reach(settings)
    yield from _keys(settings)
    yield from _upstreams(settings)
    yield from _certificates(settings)


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach the host."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _reach(settings: Settings) -> Iterator[DoctorFinding]:
    host = settings.host
    if is_loopback(host):
        return
    if settings.callers and settings.mode == "all":
        message = (
            "guards what is forwarded; whoever reaches /v1/decision may still ask and report (mode: proxy closes it)"
        )
        yield DoctorFinding("warning", "callers", message)
    if settings.callers:
        if not settings.tls.cert_file:
            message = f"{host} can be reached from other machines, and their keys travel in the clear (set tls)"
            yield DoctorFinding("warning", "tls", message)
    elif settings.upstream_keys:
        names = ", ".join(entry.partition("=")[0] for entry in settings.upstream_keys)
        message = f"whoever reaches {host} spends the provider keys held here ({names}): set callers, or listen on"
        yield DoctorFinding("warning", "callers", f"{message} 127.0.0.1")
    else:
        yield DoctorFinding(
            "warning",
            "host",
            f"{host} can be reached from other machines, and nobody is asked for a key: set callers, or keep it behind "
            "a firewall or the gateway that asks it",
        )


def _keys(settings: Settings) -> Iterator[DoctorFinding]:
    try:
        keys = provider_keys(settings)
    except SettingsError as error:
        about, _, message = str(error).partition(": ")
        yield DoctorFinding("problem", about, message)
        return
    for upstream in upstreams(settings.upstream):
        if upstream.name in keys and not upstream.tls and not is_loopback(upstream.host):
            message = f"the key of {upstream.name} is sent to {upstream.url} without TLS"
            yield DoctorFinding("warning", "upstream_keys", message)
    for entry in settings.upstream_keys:
        name, _, file = entry.partition("=file:")
        if file and Path(file).stat().st_mode & 0o077:
            message = f"the key of {name} can be read by others than its owner (chmod 600 {file})"
            yield DoctorFinding("warning", "upstream_keys", message)


def _upstreams(settings: Settings) -> Iterator[DoctorFinding]:
    if settings.mode == "decision":
        for name in ("upstream", "upstream_keys"):
            if getattr(settings, name):
                yield DoctorFinding("note", name, "is not used: mode decision forwards nothing")
        return
    for upstream in upstreams(settings.upstream):
        if _is_ourselves(upstream, settings):
            message = f"{upstream.name} points back at this port: requests for it are answered 508"
            yield DoctorFinding("problem", "upstream", message)


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
            yield DoctorFinding("problem", "tls", f"{tls.cert_file} and {tls.key_file} cannot be used: {_why(error)}")
        else:
            if Path(tls.key_file).stat().st_mode & 0o077:
                message = f"{tls.key_file} can be read by others than its owner (chmod 600 {tls.key_file})"
                yield DoctorFinding("warning", "tls.key_file", message)
    if settings.upstream_ca_file:
        try:
            ssl.create_default_context(cafile=settings.upstream_ca_file)
        except (OSError, ValueError) as error:
            message = f"{settings.upstream_ca_file} cannot be used: {_why(error)}"
            yield DoctorFinding("problem", "upstream_ca_file", message)


def _why(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or "not PEM").lower().replace("_", " ")
    return (error.strerror if isinstance(error, OSError) else None) or "it is not understood"


_ABOUT: Final = "state"
_OLDEST: Final = (6, 2)
_PINGS: Final = 20
_FULL: Final = 0.8

Facts = dict[str, str]


def examine_redis(url: str) -> list[DoctorFinding]:
    try:
        parsed = parse_redis_url(url)
        return [*exposure(parsed), *asyncio.run(_examine(parsed))]
    except (SettingsError, StateError) as error:
        return [DoctorFinding("problem", _ABOUT, str(error))]


def exposure(url: RedisUrl) -> Iterator[DoctorFinding]:
    """Report what other machines on the network could see or do."""
    if all(_is_loopback(address.host) for address in url.addresses):
        return
    if not url.tls:
        what = "the password and everything else is" if url.password else "everything is"
        yield DoctorFinding("warning", _ABOUT, f"{what} sent to Redis without TLS (rediss://)")
    if not url.password:
        yield DoctorFinding(
            "warning", _ABOUT, "no password: whoever reaches Redis can release agents and clear counters"
        )


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
            findings.append(DoctorFinding("problem", _ABOUT, str(error)))
    return findings


async def _masters(url: RedisUrl, door: ConnectOptions) -> tuple[list[Address], list[DoctorFinding]]:
    """Ask the first node that responds for the masters."""
    findings: list[DoctorFinding] = []
    for seed in url.addresses:
        try:
            link = await open_link(door, seed)
        except StateError as error:
            findings.append(DoctorFinding("warning", _ABOUT, str(error)))
            continue
        answer = await link.call(b"CLUSTER", b"SLOTS")
        link.end("asked")
        if not isinstance(answer, list):
            raise StateError(f"{seed} is no cluster, or may not be asked: write redis:// for a single server")
        shares = read_shares(answer, seed)
        missing = SLOTS - sum(share.last - share.first + 1 for share in shares)
        if missing:
            findings.append(DoctorFinding("problem", _ABOUT, f"{missing} slots of the cluster have no owner"))
        return sorted({share.owner for share in shares}), findings
    raise StateError("no node of the cluster answers: " + "; ".join(finding.message for finding in findings))


async def _quorum(url: RedisUrl, sentinels: Sentinels) -> list[DoctorFinding]:
    findings: list[DoctorFinding] = []
    for address in url.addresses:
        try:
            answer = await sentinels.ask(address, b"CKQUORUM")
        except StateError as error:
            findings.append(DoctorFinding("warning", _ABOUT, f"a Sentinel cannot be asked: {error}"))
            continue
        if isinstance(answer, RedisError):
            findings.append(
                DoctorFinding("warning", _ABOUT, f"Sentinel {address} could not replace the master: {answer}")
            )
    return findings


async def _server(url: RedisUrl, door: ConnectOptions, address: Address) -> list[DoctorFinding]:
    link = await open_link(door, address)
    try:
        facts = await _facts(link)
        findings = [*judge(url, facts)]
        allowed = await link.call(b"EVAL", b"return 1", b"0")
        if isinstance(allowed, RedisError):
            findings.append(DoctorFinding("problem", _ABOUT, f"scripts cannot be run there: {allowed}"))
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
    text = f"answers within {usual:.1f} ms, {slowest:.1f} at worst, of a time budget of {url.time_budget_ms} ms"
    if slowest > url.time_budget_ms / 2:
        hint = "decisions will fall back to local state; move it nearer, or raise ?time_budget_ms="
        return DoctorFinding("warning", _ABOUT, f"{text}: {hint}")
    return DoctorFinding("note", _ABOUT, text)


def judge(url: RedisUrl, facts: Facts) -> Iterator[DoctorFinding]:
    if not facts:
        yield DoctorFinding("note", _ABOUT, "INFO is not allowed: version, eviction and persistence were not looked at")
        return
    yield from _version(facts)
    if url.kind != "cluster" and facts.get("cluster_enabled") == "1":
        yield DoctorFinding("problem", _ABOUT, "is a node of a cluster: write redis+cluster://")
    yield from _eviction(facts)
    yield from _persistence(facts)


def _version(facts: Facts) -> Iterator[DoctorFinding]:
    if facts.get("valkey_version"):
        yield DoctorFinding("note", _ABOUT, f"Valkey {facts['valkey_version']}")
        return
    version = facts.get("redis_version", "")
    parts = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if parts and parts < _OLDEST:
        yield DoctorFinding("problem", _ABOUT, f"Redis {version} is too old: 6.2 is the oldest that works")
    elif version:
        yield DoctorFinding("note", _ABOUT, f"Redis {version}")


def _eviction(facts: Facts) -> Iterator[DoctorFinding]:
    policy, most, used = facts.get("maxmemory_policy", "noeviction"), _number(facts, "maxmemory"), "used_memory"
    if policy != "noeviction":
        what = "counters, budgets and sessions before their time" if policy.startswith("volatile") else "any key"
        when = "when memory is full" if most else "once maxmemory is set"
        message = f"maxmemory-policy {policy} drops {what} {when}, so that limits begin anew; set it to noeviction"
        yield DoctorFinding("warning" if most else "note", _ABOUT, message)
    if most and _number(facts, used) > _FULL * most:
        percent = 100 * _number(facts, used) // most
        yield DoctorFinding(
            "warning", _ABOUT, f"its memory is {percent} % full; full, it takes no writes (raise maxmemory)"
        )


def _persistence(facts: Facts) -> Iterator[DoctorFinding]:
    if facts.get("aof_enabled") != "1":
        if facts.get("save"):
            message = "keeps snapshots only: a restart forgets what came after the last one (appendonly yes)"
        else:
            message = "keeps nothing on disk: a restart forgets kill switches, holds and budgets (appendonly yes)"
        yield DoctorFinding("warning", _ABOUT, message)
    elif facts.get("appendfsync") == "no":
        yield DoctorFinding("note", _ABOUT, "appendfsync no: a crash of the machine may lose some 30 s")
    if "err" in (facts.get("aof_last_write_status"), facts.get("rdb_last_bgsave_status")):
        yield DoctorFinding("warning", _ABOUT, "its last write to disk failed; look at its log")


def _number(facts: Facts, name: str) -> int:
    value = facts.get(name, "")
    return int(value) if value.isdigit() else 0


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
