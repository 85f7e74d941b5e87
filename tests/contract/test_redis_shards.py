"""Whole decisions where each agent has a place of its own (`shard_by: agent`), on a real cluster of three."""

from __future__ import annotations

import asyncio
import struct
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from breakloop.app.shared_state import SharedState
from breakloop.clock import SharedClock, SystemClock
from breakloop.engine.breakers import Breakers
from breakloop.engine.engine import Engine
from breakloop.model.call import Answer, Call
from breakloop.model.events import nowhere
from breakloop.model.verdict import Verdict
from breakloop.policy.descriptors import ContextSettings, Descriptors
from breakloop.store.memory import MemoryStore
from breakloop.store.redis.scripts import redis_key
from breakloop.store.redis.topology import command, slot_of
from tests.builders import SECRET, Json, bucket, bundle, call, chat, compiled, policy, tail, user
from tests.deadlines import DEADLINE_S
from tests.redis_groups import Cluster

pytestmark = pytest.mark.e2e

STEPS: Json = {"similarity": "steps"}
BREAKER = {"enabled": True, "spend_rate_threshold_per_minute": 1000, "auto_reset_after_minutes": 5}


def budget(name: str, amount: int, *keys: str) -> Json:
    stages = [{"threshold_percent": 100, "action": "reject"}]
    config = {"budget": amount, "period": "1d", "cost_key": "fixed", "fixed_cost": 1, "staged_actions": stages}
    return {"name": name, "limit_keys": list(keys), "algorithm": "cost_based", "algorithm_config": config}


class Instance:
    """An engine whose state is in the cluster; commands are counted by their names."""

    def __init__(self, url: str, rules: Json, budget_ms: int) -> None:
        clock = SharedClock(SystemClock())
        descriptors = Descriptors(ContextSettings(secret=SECRET, shard_by_agent=True), clock)
        store = MemoryStore()
        self.engine = Engine(store, clock, descriptors)
        self.engine.set_bundle(compiled(rules, descriptors))
        self.shared = SharedState(f"{url}?time_budget_ms={budget_ms}", clock, shard_by_agent=True)
        self.sent: Counter[str] = Counter()
        self.deaf_to = b"nobody"  # what is sent to keys that begin so is lost
        send = self.shared.nodes.send

        def counted(key: bytes, args: tuple[bytes, ...], then: Callable[[Any], None]) -> None:
            self.sent[args[0].decode()] += 1
            if not key.startswith(self.deaf_to):
                send(key, args, then)

        self.shared.nodes.send = counted  # type: ignore[method-assign]
        self._joining = (self.engine, store, self._fault, nowhere, descriptors)

    async def open(self) -> None:
        assert await self.shared.open() == ""
        self.remote = self.shared.join(*self._joining)

    def _fault(self, error: Exception) -> Verdict:
        raise error

    async def decide(self, asked: Call) -> Verdict:
        future: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        self.remote.decide(asked, future.set_result)
        return await asyncio.wait_for(future, DEADLINE_S)


@asynccontextmanager
async def instances(
    cluster: Cluster, rules: Json, count: int = 1, budget_ms: int = 5000
) -> AsyncIterator[list[Instance]]:
    async with AsyncExitStack() as stack:
        made = []
        for _ in range(count):
            one = Instance(cluster.url, rules, budget_ms)
            stack.push_async_callback(one.shared.close)
            await one.open()
            made.append(one)
        yield made


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await test()

    asyncio.run(main())


def asks(agent: str, text: str = "again", **headers: str) -> Call:
    return chat(user(text), headers={"authorization": "Bearer k", "x-agent-id": agent, **headers})


def kept(cluster: Cluster) -> list[list[bytes]]:
    """The keys of each node, but for what no agent has."""
    found = [node.client().keys("bl:{default*") for node in cluster.nodes]
    return [list(keys) for keys in found]  # type: ignore[arg-type]


def test_a_project_is_spread_over_all_nodes(redis_cluster: Cluster) -> None:
    """Every agent's windows, counts and limits are in one slot of its own; what agents share, in the project's
    (E-5)."""
    # A full bucket expires: these stay for as long as the test may take.
    own, shared = bucket(rate=0.01, keys=["agent:id"]), bucket("all", rate=0.01, burst=100)
    rules = bundle(policy("p", own, shared, loop=[STEPS, tail()]))

    async def test() -> None:
        async with instances(redis_cluster, rules) as [one]:
            verdicts = [await one.decide(asks(f"agent-{number}")) for number in range(60)]
            assert [(verdict.allowed, verdict.degraded) for verdict in verdicts] == [(True, False)] * 60

    run(test)
    nodes = kept(redis_cluster)
    assert min(len(keys) for keys in nodes) > 20
    slots: dict[bytes, set[int]] = {}
    for key in (key for keys in nodes for key in keys):
        slots.setdefault(key.split(b":")[3].partition(b"|")[2], set()).add(slot_of(key))
    assert len(slots) == 61
    assert all(len(found) == 1 for found in slots.values())
    families = {(key.split(b":")[2], b"|" in key.split(b":")[1]) for keys in nodes for key in keys}
    assert families == {(b"win", True), (b"cnt", True), (b"mix", True), (b"tb", True), (b"tb", False)}


def test_a_shared_budget_is_never_overspent(redis_cluster: Cluster) -> None:
    """Two agents on two instances, all at once: exactly the budget passes, and the agents' own accounts hold what
    passed and nothing else (E-5, L-2)."""
    own, shared = budget("own", 90, "agent:id"), budget("all", 100)
    for rules in (bundle(policy("p", own, shared)), bundle(policy("a", shared), policy("b", own))):
        redis_cluster.restore()

        async def test(rules: Json = rules) -> None:
            async with instances(redis_cluster, rules, 2) as pair:
                calls = [
                    (pair[number % 2], call("/x", headers={"x-agent-id": "ab"[number % 3 == 0]}))
                    for number in range(400)
                ]
                verdicts = await asyncio.gather(*(one.decide(asked) for one, asked in calls))
                passed = Counter(
                    asked.headers["x-agent-id"].decode()
                    for (_, asked), verdict in zip(calls, verdicts, strict=True)
                    if verdict.allowed
                )
                assert not any(verdict.degraded for verdict in verdicts)
                assert passed.total() == 100
                assert all(count <= 90 for count in passed.values())
                for agent, count in passed.items():
                    left = [await pair[0].decide(call("/x", headers={"x-agent-id": agent})) for _ in range(2)]
                    assert not any(verdict.allowed for verdict in left)
                    assert await used(pair[0], f"cb:default|{agent}") == count
                assert await used(pair[0], "cb:default:") == 100

        run(test)


async def used(one: Instance, prefix: str) -> int:
    """What an account has, in whole units of its cost."""
    [found] = await one.shared.counters(prefix, 10)
    value = await command(one.shared.nodes, b"GET", redis_key(found["key"]))
    assert isinstance(value, bytes)
    _, _, high, low = struct.unpack("<Bddd", value)
    return int(high * 2**30 + low) // 1000


def test_round_trips(redis_cluster: Cluster) -> None:
    """One or two as ever where nothing is shared; one script more where agents share a limit, unless the agent's own
    state denies; one more to give back what the shared one denied (S-2)."""
    agents_own = policy("p", bucket(keys=["agent:id"], rate=0.001, burst=6), loop=[STEPS, tail(max_hits=50)])

    async def test() -> None:
        async with instances(redis_cluster, bundle(agents_own)) as [one]:
            counts = [await sent(one, asks("a", f"text {number}")) for number in range(3)]
            assert counts == [{"MGET": 1, "EVALSHA": 1}] * 3  # each is a session of its own
            session = [asks("a", "hello", **{"x-agent-session": "s"}) for _ in range(3)]
            assert [await sent(one, asked) for asked in session][1:] == [{"EVALSHA": 1}] * 2
        shared = policy("q", bucket("all", rate=0.001, burst=3))
        async with instances(redis_cluster, bundle(agents_own, shared)) as [one]:
            session = [asks("b", "hello", **{"x-agent-session": "s"}) for _ in range(8)]
            counts = [await sent(one, asked) for asked in session]
            assert counts[1:3] == [{"EVALSHA": 2}] * 2
            assert {"EVALSHA": 3} in counts[3:]  # denied by what is shared
            assert one.engine.tally.denied == {"token_bucket_exceeded": 5}
        only = bundle(policy("p", bucket(keys=["agent:id"], rate=0.001, burst=1)), policy("r", bucket("all")))
        async with instances(redis_cluster, only) as [one]:
            counts = [await sent(one, call("/x", headers={"x-agent-id": "c"})) for _ in range(3)]
            assert counts[1:] == [{"EVALSHA": 1}] * 2

    run(test)


async def sent(one: Instance, asked: Call) -> dict[str, int]:
    """What a decision asks of Redis, without loading scripts."""
    one.sent.clear()
    await one.decide(asked)
    again = one.sent.pop("SCRIPT", 0)
    one.sent["EVALSHA"] -= again
    return dict(+one.sent)


def test_operators_reach_agents_in_every_slot(redis_cluster: Cluster) -> None:
    """What a release clears, which breakers are open and what is counted, on whichever node (G-1, CB-2, X-1)."""
    loop = tail(action="kill", max_hits=1)
    rule = bucket(rate=10_000, burst=100_000, keys=["agent:id"], cost_source="header:x-cost")
    rules = bundle(policy("p", rule, loop=loop, circuit_breaker=BREAKER))
    names = [f"agent-{number}" for number in range(12)]

    async def test() -> None:
        async with instances(redis_cluster, rules) as [one]:
            for name in names:
                who = {"authorization": f"Bearer {name}"}  # three of one caller would hold the caller
                verdicts = [await one.decide(asks(name, **who)) for _ in range(3)]
                assert [verdict.allowed for verdict in verdicts] == [True, False, False]
            assert len(await one.shared.counters("cnt:default", 100)) == 12
            for name in names:
                [hold] = one.engine.quarantine.release("default", agent=name, now=one.shared.clock.now(), by="ann")
                assert hold.clears[0].startswith(f"cnt:default|{name}:")
                assert (await one.decide(asks(name, authorization=f"Bearer {name}"))).allowed
            for name in names:
                await one.decide(call("/x", headers={"x-agent-id": name, "x-cost": "1000"}))
            bundle_now = one.engine.bundle
            breakers = Breakers(one.shared.store, lambda: bundle_now, one.shared.clock, lambda _event: None)
            opened = [state for state in await breakers.states() if state.state == "open"]
            assert {(state.project, state.label) for state in opened} == {("default", f"agent:id={n}") for n in names}
            for state in opened[:6]:
                assert await breakers.reset("p", state.key) is not None
            left = [state for state in await breakers.states() if state.state == "open"]
            assert {state.key for state in left} == {state.key for state in opened[6:]}

    run(test)


def test_answers_reach_both_places(redis_cluster: Cluster) -> None:
    """What an answer corrects is corrected in the agent's limit and in the shared one; a failed one is taken back where
    it was counted (L-3, LD-6)."""

    def tokens(name: str, *keys: str) -> Json:
        config = {"tokens_per_minute": 10_000, "burst_tokens": 10_000}
        return {"name": name, "limit_keys": list(keys), "algorithm": "token_bucket_llm", "algorithm_config": config}

    rules = bundle(policy("p", tokens("own", "agent:id"), tokens("all"), loop=tail(max_hits=2)))

    async def test() -> None:
        async with instances(redis_cluster, rules) as [one]:
            for number in range(3):  # each fails, so that none of them counts
                asked = asks("a")
                asked.tracked = True
                assert (await one.decide(asked)).allowed, number
                before = one.sent["EVALSHA"]
                one.engine.settle(asked, Answer(500, complete=True))
                assert one.sent["EVALSHA"] - before == 3  # the count; what was charged, in two places
                await asyncio.wait_for(forgiven(one, number + 1), DEADLINE_S)

    run(test)


async def forgiven(one: Instance, count: int) -> None:
    """Wait until so many were taken back."""
    while one.engine.tally.forgiven < count:  # noqa: ASYNC110 - what is waited for comes over a socket
        await asyncio.sleep(0)


def test_a_slot_that_does_not_answer_is_decided_without(redis_cluster: Cluster) -> None:
    """Within the time budget, on local state, and the agent stays charged rather than not (S-3)."""
    rules = bundle(policy("p", bucket(keys=["agent:id"], rate=0.001, burst=5), bucket("all", rate=0.001, burst=5)))

    async def test() -> None:
        async with instances(redis_cluster, rules, budget_ms=200) as [one]:
            assert (await one.decide(call("/x", headers={"x-agent-id": "a"}))).limit is not None
            one.deaf_to = b"bl:{default}:"
            verdict = await one.decide(call("/x", headers={"x-agent-id": "a"}))
            assert (verdict.allowed, verdict.degraded) == (True, True)
            assert not one.remote.health.up

    run(test)
