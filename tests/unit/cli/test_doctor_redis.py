from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from breakloop.cli.doctor import Facts, examine, examine_redis, exposure, judge
from breakloop.clock import FakeClock
from breakloop.config.settings import Settings
from breakloop.store.redis.topology import SLOTS
from breakloop.store.redis.url import parse_redis_url
from tests.deadlines import DEADLINE_S
from tests.each import each
from tests.fake_redis import Command, FakeRedis, Script, array, bulk, fake_redis, polite

SOUND: Facts = {"redis_version": "7.2.4", "maxmemory_policy": "noeviction", "maxmemory": "0", "aof_enabled": "1"}
HERE = parse_redis_url("redis://127.0.0.1")


def said(url: str = "redis://127.0.0.1", **facts: str) -> list[tuple[str, str]]:
    return [(one.level, one.message) for one in judge(parse_redis_url(url), SOUND | facts)]


def test_a_sound_server() -> None:
    assert said() == [("note", "Redis 7.2.4")]


@each(
    "facts, level, says",
    [
        ({"redis_version": "6.0.16"}, "problem", "Redis 6.0.16 is too old: the minimum is 6.2"),
        ({"redis_version": "6.2.0"}, "note", "Redis 6.2.0"),
        ({"redis_version": "10.0.0"}, "note", "Redis 10.0.0"),
        ({"redis_version": "7.2.4", "valkey_version": "8.0.1"}, "note", "Valkey 8.0.1"),
        ({"maxmemory_policy": "allkeys-lru", "maxmemory": "100"}, "warning", "evicts any key when memory is full"),
        ({"maxmemory_policy": "volatile-ttl", "maxmemory": "100"}, "warning", "evicts counters, budgets and sessions"),
        ({"maxmemory_policy": "volatile-ttl"}, "note", "once maxmemory is set"),
        ({"maxmemory": "100", "used_memory": "85"}, "warning", "its memory is 85 % full"),
        ({"aof_enabled": "0", "save": ""}, "warning", "has no persistence"),
        ({"aof_enabled": "0", "save": "3600 1"}, "warning", "has snapshots only"),
        ({"appendfsync": "no"}, "note", "appendfsync no"),
        ({"aof_last_write_status": "err"}, "warning", "the last write to disk failed"),
        ({"cluster_enabled": "1"}, "problem", "is a node of a cluster: write redis+cluster://"),
    ],
)
def test_what_a_server_says_of_itself(facts: Facts, level: str, says: str) -> None:
    """Version, eviction, persistence (S-1)."""
    found = [text for of_level, text in said(**facts) if of_level == level]
    assert [text for text in found if says in text], found


def test_what_is_hidden() -> None:
    (finding,) = judge(HERE, {})
    assert finding.level == "note"
    assert "INFO is not allowed" in finding.message


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("redis://127.0.0.1", []),
        ("redis://localhost", []),
        ("redis://cache", ["everything is sent to Redis without TLS", "no password"]),
        ("redis://:hunter2@cache", ["the password and everything else is sent to Redis without TLS"]),
        ("rediss://:hunter2@cache", []),
        ("rediss+cluster://127.0.0.1,cache", ["no password"]),
    ],
)
def test_exposure(url: str, says: list[str]) -> None:
    """Exposure (Y-1)."""
    found = [finding.message for finding in exposure(parse_redis_url(url))]
    assert len(found) == len(says)
    assert all(text.startswith(part) for text, part in zip(found, says, strict=True))


@contextmanager
def served(script: Script) -> Iterator[FakeRedis]:
    """A fake in a thread: `doctor` has an event loop of its own."""
    ready, over, fakes, loops = threading.Event(), asyncio.Event(), [], []

    async def main() -> None:
        async with fake_redis(script) as fake:
            fakes.append(fake)
            loops.append(asyncio.get_running_loop())
            ready.set()
            await over.wait()

    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    assert ready.wait(DEADLINE_S)
    try:
        yield fakes[0]
    finally:
        loops[0].call_soon_threadsafe(over.set)
        thread.join(DEADLINE_S)


def sound(command: Command) -> bytes:
    if command[0] == b"INFO":
        return bulk("\r\n".join(["# Server", *(f"{name}:{value}" for name, value in SOUND.items())]).encode())
    if command[0] == b"CONFIG":
        return array(command[2], b"everysec")
    return b":1\r\n" if command[0] == b"EVAL" else polite(command)


def test_a_server_is_asked() -> None:
    with served(sound) as fake:
        findings = examine_redis(
            f"redis://127.0.0.1:{fake.port}?time_budget_ms=5000"
        )  # a busy machine takes its time, too
    address = f"127.0.0.1:{fake.port}"
    assert [finding.level for finding in findings] == ["note", "note"]
    assert findings[0].message == f"{address}: Redis 7.2.4"
    assert findings[1].message.startswith(f"{address}: latency ")
    assert findings[1].message.endswith("the time budget is 5000 ms")


def test_too_slow_for_its_budget() -> None:
    """The budget is what decisions have; whoever cannot keep it is told what will happen (S-3)."""

    def slow(command: Command) -> bytes:
        if command[0] == b"PING" and fake.seen:
            threading.Event().wait(0.006)
        return sound(command)

    with served(slow) as fake:
        findings = examine_redis(f"redis://127.0.0.1:{fake.port}?time_budget_ms=10")
    (finding,) = [one for one in findings if one.level == "warning"]
    assert "the time budget is 10 ms: decisions may fall back to local state" in finding.message


def test_scripts_that_are_forbidden() -> None:
    denied = b"-NOPERM this user has no permissions to run the 'eval' command\r\n"
    with served(lambda command: denied if command[0] == b"EVAL" else sound(command)) as fake:
        findings = examine_redis(f"redis://127.0.0.1:{fake.port}")
    assert [one.message.partition(": ")[2] for one in findings if one.level == "problem"] == [
        f"scripts are not allowed: {denied[1:-2].decode()}"
    ]


def test_nobody_there_and_wrong_urls() -> None:
    (finding,) = examine_redis("redis://:hunter2@127.0.0.1:1")
    assert (finding.level, finding.about, finding.message) == ("problem", "state", "127.0.0.1:1 refused the connection")
    (finding,) = examine_redis("redis://127.0.0.1/x")
    assert finding.level == "problem"
    assert "is not a number" in finding.message


def test_it_is_part_of_doctor(tmp_path: Path) -> None:
    """Who names a Redis in the settings hears about it, and nobody else (T-1)."""

    def about(state: str) -> list[str]:
        settings = Settings.model_validate({"data_dir": str(tmp_path), "state": state})
        return [one.message for one in examine(settings, FakeClock()).findings if one.about == "state"]

    assert about("redis://:hunter2@127.0.0.1:1") == ["127.0.0.1:1 refused the connection"]
    assert about("memory://") == []


def test_a_cluster() -> None:
    """Every master is looked at; slots without an owner and seeds that are gone are told."""

    def script(command: Command) -> bytes:
        if command[0] == b"CLUSTER":
            return array([0, SLOTS - 2, [b"127.0.0.1", fake.port]])
        return sound(command)

    with served(script) as fake:
        findings = examine_redis(f"redis+cluster://127.0.0.1:1,127.0.0.1:{fake.port}")
    texts = {finding.message: finding.level for finding in findings}
    assert texts["127.0.0.1:1 refused the connection"] == "warning"
    assert texts["1 slots of the cluster have no owner"] == "problem"
    assert texts[f"127.0.0.1:{fake.port}: Redis 7.2.4"] == "note"
    with served(sound) as fake:
        (finding,) = examine_redis(f"redis+cluster://127.0.0.1:{fake.port}")
    assert "is not a cluster" in finding.message


def test_sentinels_that_could_not_replace_the_master() -> None:
    def script(command: Command) -> bytes:
        if command[:2] == (b"SENTINEL", b"CKQUORUM"):
            return b"-NOQUORUM 1 usable Sentinels\r\n"
        if command[0] == b"SENTINEL":
            return array(b"127.0.0.1", str(fake.port).encode())
        return sound(command)

    with served(script) as fake:
        findings = examine_redis(f"redis+sentinel://127.0.0.1:{fake.port},127.0.0.1:1/main")
    warnings = [one.message for one in findings if one.level == "warning"]
    assert warnings == [
        f"Sentinel 127.0.0.1:{fake.port} could not replace the master: NOQUORUM 1 usable Sentinels",
        "a Sentinel cannot be queried: 127.0.0.1:1 refused the connection",
    ]
