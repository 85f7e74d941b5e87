"""The way to a shared Redis: what is told when it goes and comes, and what is asked of it."""

from __future__ import annotations

import asyncio
from typing import Any

from breakloop.app.shared_state import SharedState
from breakloop.clock import FakeClock, SharedClock
from breakloop.engine.breakers import Breakers
from breakloop.engine.remote import RemoteEngine
from breakloop.model.events import Event
from breakloop.model.verdict import Verdict
from breakloop.store.memory import MemoryStore
from tests.builders import bundle, call, policy, world
from tests.deadlines import DEADLINE_S
from tests.fake_redis import bulk, fake_redis, polite
from tests.fake_remote import RemoteWorld


def fault(_error: Exception) -> Verdict:
    return Verdict()


def joined(shared: SharedState, told: list[Event]) -> RemoteEngine:
    here = world(bundle())
    return shared.join(here.engine, MemoryStore(), fault, told.append, here.descriptors)


async def until(condition: Any) -> None:
    """Let the loop go on; the caller sets the time limit."""
    while not condition():  # noqa: ASYNC110 - what is waited for comes over a socket
        await asyncio.sleep(0)


def test_going_and_coming_are_told_once_each() -> None:
    """`store.degraded`, `store.recovered` (S-3, G-2)."""

    async def test() -> None:
        async with fake_redis() as redis:
            shared = SharedState(f"redis://127.0.0.1:{redis.port}/0?time_budget_ms=80", SharedClock(FakeClock()))
            assert await shared.open() == ""
            told: list[Event] = []
            remote = joined(shared, told)
            assert (remote.budget_s, remote.health.up) == (0.08, True)
            redis.drop()
            await asyncio.wait_for(until(lambda: not remote.health.up), DEADLINE_S)
            await asyncio.wait_for(until(lambda: remote.health.up), DEADLINE_S)
            assert [event.name for event in told] == ["store.degraded", "store.recovered"]
            assert (b"SET", b"bl:probe", b"", b"PX", b"1000") in redis.seen
            await shared.close()

    asyncio.run(test())


def test_a_secret_is_offered_and_the_agreed_one_taken() -> None:
    """The first instance of a fleet makes it, the others take it."""

    def script(command: tuple[bytes, ...]) -> bytes | None:
        return bulk(b"agreed") if command[0] == b"GET" else polite(command)

    async def test() -> None:
        async with fake_redis(script) as redis:
            shared = SharedState(f"redis://127.0.0.1:{redis.port}/0", SharedClock(FakeClock()))
            await shared.open()
            assert await shared.secret("mine") == "agreed"
            assert redis.seen[0] == (b"SET", b"bl:secret", b"mine", b"NX")
            assert await shared.secret("") == "agreed"
            assert len(redis.seen[2][2]) == 64
            await shared.close()

    asyncio.run(test())


def test_without_redis_one_keeps_ones_own() -> None:
    """Without Redis an instance keeps its own state, and says why (S-3)."""

    async def test() -> None:
        shared = SharedState("redis://127.0.0.1:1/0", SharedClock(FakeClock()))
        assert "127.0.0.1:1" in await shared.open()
        assert await shared.secret("mine") == "mine"
        await shared.listen()
        told: list[Event] = []
        remote = joined(shared, told)
        assert not remote.health.up
        assert [event.name for event in told] == ["store.degraded"]
        await shared.close()

    asyncio.run(test())


def test_a_release_clears_what_is_remembered_there() -> None:
    """The engine's quarantine drops keys in the shared store (G-1)."""

    async def test() -> None:
        async with fake_redis() as redis:
            shared = SharedState(f"redis://127.0.0.1:{redis.port}/0", SharedClock(FakeClock()))
            await shared.open()
            here = world(bundle())
            shared.join(here.engine, MemoryStore(), fault, lambda _event: None, here.descriptors)
            here.engine.quarantine._drop_keys(["win:default:s:x:"])
            assert await redis.next_seen() == (b"UNLINK", b"bl:{default}:win:default:s:x:")
            await shared.close()

    asyncio.run(test())


def test_breakers_are_listed_and_closed_for_all() -> None:
    """By an operator, in the shared store (CB-2)."""
    rule = {"name": "r", "limit_keys": ["header:x-team"], "algorithm": "cost_based"}
    config = {"budget": 1000, "period": "1d", "cost_key": "fixed", "fixed_cost": 60}
    stages = [{"threshold_percent": 100, "action": "reject"}]
    opens = {"enabled": True, "spend_rate_threshold_per_minute": 100, "auto_reset_after_minutes": 5}
    spec = {**rule, "algorithm_config": {**config, "staged_actions": stages}}

    async def test() -> None:
        there = RemoteWorld(bundle(policy("p", spec, circuit_breaker=opens)))
        asked = [there.decide(call(headers={"x-team": "blue"})).reason for _ in range(3)]
        assert asked[1:] == ["circuit_breaker_open"] * 2
        told: list[Event] = []
        in_force = there.here.engine.bundle
        stored: Any = there.store  # without the accounts, which breakers do not need
        breakers = Breakers(stored, lambda: in_force, SharedClock(there.here.clock), told.append)
        [found] = await breakers.states()
        assert (found.state, found.label) == ("open", "header:x-team=blue")
        assert await breakers.reset("p", "no such key") is None
        assert await breakers.reset("p", found.key) == found
        assert [(event.name, event.data["by"]) for event in told] == [("breaker.closed", "operator")]
        assert there.decide(call(headers={"x-team": "blue"})).allowed

    asyncio.run(test())


def test_what_was_sent_arrives_before_the_end() -> None:
    """What the last answers settled is not lost with the connection, and the end is no failure of the store (S-6)."""

    async def test() -> None:
        async with fake_redis() as redis:
            shared = SharedState(f"redis://127.0.0.1:{redis.port}/0", SharedClock(FakeClock()))
            await shared.open()
            told: list[Event] = []
            remote = joined(shared, told)
            remote.drop(["win:default:s:x:"])
            await shared.close()
            assert redis.seen == [(b"UNLINK", b"bl:{default}:win:default:s:x:")]
            assert told == []

    asyncio.run(test())
