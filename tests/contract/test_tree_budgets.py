"""Trees and runs that several instances share: 64 agents of one tree spend exactly one budget, in memory, in Redis, and
in a cluster of three, with and without a slot for each agent (G-6). No more agents are started than allowed, and runs that
are started again are counted wherever they arrive."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any, Protocol

import pytest

from breakloop.app.shared_state import SharedState
from breakloop.clock import FakeClock, SharedClock, SystemClock
from breakloop.engine.breakers import LocalLimits
from breakloop.engine.engine import Engine
from breakloop.engine.tree_budgets import TreeBudgets
from breakloop.model.call import Answer, Call, ToolCall, Usage
from breakloop.model.events import nowhere
from breakloop.model.verdict import Verdict
from breakloop.policy.descriptors import ContextSettings, Descriptors
from breakloop.store.memory import MemoryStore
from tests.builders import SECRET, Json, bundle, call, chat_body, compiled, user
from tests.deadlines import DEADLINE_S
from tests.redis_groups import Cluster
from tests.redis_servers import Server

AGENTS = 64
PROMPT = 1000  # tokens, by estimate
OUTPUT = 1000  # most tokens of an answer: a call may use 2,000
COST = PROMPT + OUTPUT
LIMITS: Json = {
    "agents": {"*": {"max_tokens_per_tree": 100 * COST, "budget_usd_per_day": 1000, "max_usd_per_run": 1000}}
}
RUNS: Json = {
    "agents": {"*": {"max_tokens_per_tree": 10**9}},  # so that `states` asks the store
    "defaults": {"loop_detection": {"similarity": "steps"}},
}
STARTS: Json = {"defaults": {"loop_detection": {"similarity": "steps", "max_agents_per_tree": 60}}}


class Instance(Protocol):
    """One of several that share a store, or the only one."""

    engine: Engine
    budgets: TreeBudgets

    async def decide(self, asked: Call) -> Verdict: ...


def engine(clock: Any, store: MemoryStore, limits: Json, *, shards: bool = False) -> tuple[Engine, Descriptors]:
    descriptors = Descriptors(ContextSettings(secret=SECRET, shard_by_agent=shards), clock)
    made = Engine(store, clock, descriptors)
    made.set_bundle(compiled(bundle(**limits), descriptors))
    return made, descriptors


class Alone:
    def __init__(self, limits: Json) -> None:
        clock, store = FakeClock(), MemoryStore()
        self.engine, _ = engine(clock, store, limits)
        self.budgets = TreeBudgets(LocalLimits(store, clock), lambda: self.engine.bundle)

    async def decide(self, asked: Call) -> Verdict:
        await asyncio.sleep(0)  # others come in between
        return self.engine.decide(asked)


class Sharing:
    def __init__(self, url: str, limits: Json, *, shards: bool) -> None:
        clock, store = SharedClock(SystemClock()), MemoryStore()
        self.engine, descriptors = engine(clock, store, limits, shards=shards)
        self.shared = SharedState(f"{url}?time_budget_ms=60000", clock, shard_by_agent=shards)
        self.budgets = TreeBudgets(self.shared.store, lambda: self.engine.bundle)
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


Play = Callable[[list[Instance]], Awaitable[None]]


@pytest.fixture(
    params=[
        "memory",
        pytest.param("redis", marks=pytest.mark.e2e),
        pytest.param("cluster", marks=pytest.mark.e2e),
        pytest.param("cluster by agent", marks=pytest.mark.e2e),
    ]
)
def play(request: pytest.FixtureRequest) -> Callable[[Json, Play], None]:
    """Run a test with instances: one with its own memory, or three that share a store."""
    name: str = request.param

    def run(limits: Json, test: Play) -> None:
        async def main() -> None:
            if name == "memory":
                await test([Alone(limits)])
                return
            server: Server | Cluster = request.getfixturevalue("redis_server" if name == "redis" else "redis_cluster")
            async with AsyncExitStack() as stack:
                made: list[Instance] = []
                for _ in range(3):
                    one = Sharing(server.url, limits, shards=name == "cluster by agent")
                    stack.push_async_callback(one.shared.close)
                    await one.open()
                    made.append(one)
                await test(made)

        asyncio.run(main())

    return run


def drawing() -> Callable[[int], int]:
    """Return a function that draws a number below the given one, the same ones in each run."""
    state = [1]

    def draw(below: int) -> int:
        state[0] = (state[0] * 1_103_515_245 + 12_345) % 2**31
        return (state[0] >> 16) % below

    return draw


def ask(agent: int, turn: int) -> Call:
    """A request of an agent in a tree three deep: the root started eight, and these started the others."""
    headers = {"authorization": "Bearer k", "x-agent-id": f"agent-{agent}", "x-agent-session": f"s-{agent}"}
    if agent:
        headers["x-agent-parent"] = "s-0" if agent <= 8 else f"s-{1 + agent % 8}"
    text = f"{agent} asks {turn}".ljust(4 * PROMPT, "x")
    made = call("/v1/chat/completions", "POST", headers, body=chat_body(user(text), max_tokens=OUTPUT))
    made.tracked = True
    return made


def test_they_spend_exactly_one_budget(play: Callable[[Json, Play], None]) -> None:
    """All at once, four requests each: 100 pass, which is the budget, on whichever instance and however deep."""

    async def test(instances: list[Instance]) -> None:
        await instances[0].decide(ask(0, 0))
        for agent in range(1, 9):  # the parents are known before their children
            await instances[agent % len(instances)].decide(ask(agent, 0))
        calls = [(agent, turn) for turn in range(1, 5) for agent in range(AGENTS)]
        verdicts = await asyncio.gather(*(instances[(a + t) % len(instances)].decide(ask(a, t)) for a, t in calls))
        assert not any(one.degraded for one in verdicts)
        assert sum(one.allowed for one in verdicts) == 100 - 9
        assert {one.reason for one in verdicts if not one.allowed} == {"tree_budget_exceeded"}
        [tree] = await instances[0].budgets.states()
        assert (tree.root, tree.tokens, tree.left[1]) == ("s-0", 100 * COST, 0)

    play(LIMITS, test)


def test_settlements_come_in_between(play: Callable[[Json, Play], None]) -> None:
    """Each agent asks, and is answered, in its own time. The account is never above the budget, and ends as the sum of
    what was used by those answered and reserved by the others, to the token."""
    draw, spent = drawing(), [0]

    async def test(instances: list[Instance]) -> None:
        async def agent(number: int) -> None:
            for turn in range(5):
                one, asked = instances[draw(len(instances))], ask(number, turn)
                verdict = await one.decide(asked)
                assert not verdict.degraded
                assert verdict.tree is not None
                assert verdict.tree.tokens_left is not None
                assert 0 <= verdict.tree.tokens_left <= 100 * COST
                if not verdict.allowed:
                    continue
                if not draw(5):
                    spent[0] += COST  # never answered: what was reserved stays charged
                    continue
                for _ in range(draw(4)):
                    await asyncio.sleep(0)
                output = draw(OUTPUT)
                spent[0] += PROMPT + output
                one.engine.settle(asked, Answer(200, "ok", usage=Usage(PROMPT, output), complete=True))

        await instances[0].decide(ask(0, 99))
        spent[0] += COST
        for parent in range(1, 9):
            await instances[0].decide(ask(parent, 99))
            spent[0] += COST
        await asyncio.gather(*(agent(number) for number in range(AGENTS)))
        for one in instances:  # what was sent to the store before is done when this has an answer
            await one.budgets.states()
        [tree] = await instances[0].budgets.states()
        assert tree.tokens == spent[0] <= 100 * COST
        # What is left is spent to the end, and no further.
        more = await asyncio.gather(*(instances[0].decide(ask(number, 100)) for number in range(AGENTS)))
        assert sum(one.allowed for one in more) == min(AGENTS, (100 * COST - spent[0]) // COST)

    play(LIMITS, test)


def test_one_that_is_reset_has_its_budget_again(play: Callable[[Json, Play], None]) -> None:
    async def test(instances: list[Instance]) -> None:
        verdicts = [await instances[-1].decide(ask(0, turn)) for turn in range(3)]
        assert [one.allowed for one in verdicts] == [True, True, False]
        [tree] = await instances[0].budgets.states()
        first = instances[0]
        where = (tree.project, tree.caller, tree.root)
        assert await first.budgets.reset(*where) == tree
        assert await first.budgets.reset(*where) is None
        assert (await instances[-1].decide(ask(0, 3))).allowed

    play({"agents": {"*": {"max_tokens_per_tree": 2 * COST}}}, test)


def start(agent: int) -> Call:
    headers = {"authorization": "Bearer k", "x-agent-session": f"s-{agent}", "x-agent-parent": "s-0"}
    body = chat_body(user(f"Look at part {agent} of the plan, and describe it."))
    made = call("/v1/chat/completions", "POST", headers, body=body)
    made.tracked = True
    return made


def test_agents_that_are_started_at_the_same_instant(play: Callable[[Json, Play], None]) -> None:
    """200 of them, of which 59 may be started beside the root: exactly so many, on whichever instance (LD-12)."""

    async def test(instances: list[Instance]) -> None:
        made = [instances[agent % len(instances)].decide(start(agent)) for agent in range(1, 201)]
        verdicts = await asyncio.gather(*made)
        assert not any(one.degraded for one in verdicts)
        assert sum(one.allowed for one in verdicts) == 59
        later = [await instances[agent % len(instances)].decide(start(agent)) for agent in range(300, 306)]
        assert not any(one.allowed for one in later)

    play(STARTS, test)


def test_runs_that_are_started_again_wherever_they_arrive(play: Callable[[Json, Play], None]) -> None:
    """The same review by a webhook, each on another instance: reported at the 8th, and the 16th is denied (LD-11)."""
    names = {"authorization": "Bearer k", "x-agent-id": "reviewer", "x-agent-trigger": "webhook"}
    task = user("Review commit 4f21c9ab, and report what is wrong.")
    made = {"id": "call_1", "type": "function", "function": {"name": "read_change", "arguments": "{}"}}
    result = {"role": "tool", "tool_call_id": "call_1", "content": "a change of four lines in the basket"}

    async def test(instances: list[Instance]) -> None:
        async def ask(number: int, answer: Answer, *more: Json) -> Verdict:
            one = instances[number % len(instances)]
            headers = {**names, "x-agent-session": f"review-{number}"}
            asked = call("/v1/chat/completions", "POST", headers, body=chat_body(task, *more))
            asked.tracked = True
            verdict = await one.decide(asked)
            if verdict.allowed:
                one.engine.settle(asked, answer)
                await one.budgets.states()
            return verdict

        openings: list[Verdict] = []
        for number in range(17):
            openings.append(await ask(number, Answer(200, calls=(ToolCall("read_change", "{}"),), complete=True)))
            if openings[-1].allowed:
                called = {"role": "assistant", "content": None, "tool_calls": [made]}
                await ask(number, Answer(200, "No remarks.", complete=True), called, result)
        assert [one.allowed for one in openings] == [True] * 15 + [False] * 2
        assert [one.loop.kind if one.loop else "" for one in openings] == [""] * 7 + ["rerun"] * 10

    play(RUNS, test)
