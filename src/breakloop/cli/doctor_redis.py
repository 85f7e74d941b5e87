"""What `doctor` says about a Redis that is to keep the state: reachable, new enough, quick enough, and whether it keeps
what it is given. Asks only; changes nothing but the scripts' permission, which is tried with one that does nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from ipaddress import ip_address
from typing import Final

from breakloop.cli.doctor_findings import Finding
from breakloop.errors import SettingsError, StateError
from breakloop.state.redis_link import Link, RedisError
from breakloop.state.redis_nodes import finder_for
from breakloop.state.redis_open import Door, door_for, open_link
from breakloop.state.redis_sentinel import Sentinels
from breakloop.state.redis_slots import SLOTS, read_shares
from breakloop.state.redis_url import Address, RedisUrl, parse_redis_url

_ABOUT: Final = "state"
_OLDEST: Final = (6, 2)
_PINGS: Final = 20
_FULL: Final = 0.8

Facts = dict[str, str]


def examine_redis(url: str) -> list[Finding]:
    """Look at the servers of a URL."""
    try:
        parsed = parse_redis_url(url)
        return [*exposure(parsed), *asyncio.run(_examine(parsed))]
    except (SettingsError, StateError) as error:
        return [Finding("problem", _ABOUT, str(error))]


def exposure(url: RedisUrl) -> Iterator[Finding]:
    """Say what others on the network could see or do."""
    if all(_is_loopback(address.host) for address in url.addresses):
        return
    if not url.tls:
        what = "the password and everything else is" if url.password else "everything is"
        yield Finding("warning", _ABOUT, f"{what} sent to Redis without TLS (rediss://)")
    if not url.password:
        yield Finding("warning", _ABOUT, "no password: whoever reaches Redis can release agents and clear counters")


async def _examine(url: RedisUrl) -> list[Finding]:
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
            findings.append(Finding("problem", _ABOUT, str(error)))
    return findings


async def _masters(url: RedisUrl, door: Door) -> tuple[list[Address], list[Finding]]:
    """Ask the first node that answers who the masters are."""
    findings: list[Finding] = []
    for seed in url.addresses:
        try:
            link = await open_link(door, seed)
        except StateError as error:
            findings.append(Finding("warning", _ABOUT, str(error)))
            continue
        answer = await link.call(b"CLUSTER", b"SLOTS")
        link.end("asked")
        if not isinstance(answer, list):
            raise StateError(f"{seed} is no cluster, or may not be asked: write redis:// for a single server")
        shares = read_shares(answer, seed)
        missing = SLOTS - sum(share.last - share.first + 1 for share in shares)
        if missing:
            findings.append(Finding("problem", _ABOUT, f"{missing} slots of the cluster have no owner"))
        return sorted({share.owner for share in shares}), findings
    raise StateError("no node of the cluster answers: " + "; ".join(finding.message for finding in findings))


async def _quorum(url: RedisUrl, sentinels: Sentinels) -> list[Finding]:
    """Could the Sentinels replace the master now?"""
    findings: list[Finding] = []
    for address in url.addresses:
        try:
            answer = await sentinels.ask(address, b"CKQUORUM")
        except StateError as error:
            findings.append(Finding("warning", _ABOUT, f"a Sentinel cannot be asked: {error}"))
            continue
        if isinstance(answer, RedisError):
            findings.append(Finding("warning", _ABOUT, f"Sentinel {address} could not replace the master: {answer}"))
    return findings


async def _server(url: RedisUrl, door: Door, address: Address) -> list[Finding]:
    link = await open_link(door, address)
    try:
        facts = await _facts(link)
        findings = [*judge(url, facts)]
        allowed = await link.call(b"EVAL", b"return 1", b"0")
        if isinstance(allowed, RedisError):
            findings.append(Finding("problem", _ABOUT, f"scripts cannot be run there: {allowed}"))
        findings.append(await _latency(link, url))
    finally:
        link.end("asked")
    return [Finding(one.level, one.about, f"{address}: {one.message}") for one in findings]


async def _facts(link: Link) -> Facts:
    """What INFO says, and of CONFIG what it does not say; services that hide them leave the facts out."""
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


async def _latency(link: Link, url: RedisUrl) -> Finding:
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
        return Finding("warning", _ABOUT, f"{text}: {hint}")
    return Finding("note", _ABOUT, text)


def judge(url: RedisUrl, facts: Facts) -> Iterator[Finding]:
    """Judge what a server says of itself."""
    if not facts:
        yield Finding("note", _ABOUT, "INFO is not allowed: version, eviction and persistence were not looked at")
        return
    yield from _version(facts)
    if url.kind != "cluster" and facts.get("cluster_enabled") == "1":
        yield Finding("problem", _ABOUT, "is a node of a cluster: write redis+cluster://")
    yield from _eviction(facts)
    yield from _persistence(facts)


def _version(facts: Facts) -> Iterator[Finding]:
    if facts.get("valkey_version"):
        yield Finding("note", _ABOUT, f"Valkey {facts['valkey_version']}")
        return
    version = facts.get("redis_version", "")
    parts = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if parts and parts < _OLDEST:
        yield Finding("problem", _ABOUT, f"Redis {version} is too old: 6.2 is the oldest that works")
    elif version:
        yield Finding("note", _ABOUT, f"Redis {version}")


def _eviction(facts: Facts) -> Iterator[Finding]:
    policy, most, used = facts.get("maxmemory_policy", "noeviction"), _number(facts, "maxmemory"), "used_memory"
    if policy != "noeviction":
        what = "counters, budgets and sessions before their time" if policy.startswith("volatile") else "any key"
        when = "when memory is full" if most else "once maxmemory is set"
        message = f"maxmemory-policy {policy} drops {what} {when}, so that limits begin anew; set it to noeviction"
        yield Finding("warning" if most else "note", _ABOUT, message)
    if most and _number(facts, used) > _FULL * most:
        percent = 100 * _number(facts, used) // most
        yield Finding("warning", _ABOUT, f"its memory is {percent} % full; full, it takes no writes (raise maxmemory)")


def _persistence(facts: Facts) -> Iterator[Finding]:
    if facts.get("aof_enabled") != "1":
        if facts.get("save"):
            message = "keeps snapshots only: a restart forgets what came after the last one (appendonly yes)"
        else:
            message = "keeps nothing on disk: a restart forgets kill switches, holds and budgets (appendonly yes)"
        yield Finding("warning", _ABOUT, message)
    elif facts.get("appendfsync") == "no":
        yield Finding("note", _ABOUT, "appendfsync no: a crash of the machine may lose some 30 s")
    if "err" in (facts.get("aof_last_write_status"), facts.get("rdb_last_bgsave_status")):
        yield Finding("warning", _ABOUT, "its last write to disk failed; look at its log")


def _number(facts: Facts, name: str) -> int:
    value = facts.get(name, "")
    return int(value) if value.isdigit() else 0


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
