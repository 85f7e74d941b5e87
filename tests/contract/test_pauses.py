"""A paused run and every answer to it, with a clock that is moved by hand: in memory, and on Redis, where one instance
asks and another one is answered (K-6)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from breakloop.app.shared_state import SharedState
from breakloop.clock import FakeClock, SharedClock, SystemClock
from breakloop.engine.engine import Engine
from breakloop.engine.operator import Operator
from breakloop.engine.quarantine import Hold
from breakloop.errors import OrderError
from breakloop.model.call import Answer, Call, Usage
from breakloop.model.events import Event
from breakloop.model.verdict import Verdict
from breakloop.policy.descriptors import ContextSettings, Descriptors
from breakloop.pricing.prices import ListedModel, Price, Prices
from breakloop.store.memory import MemoryStore
from breakloop.store.orders import FileOrderStore
from tests.builders import SECRET, Json, bundle, call, chat_body, compiled, policy, tail, user
from tests.deadlines import DEADLINE_S
from tests.redis_servers import Server

PRICE = Price(2_000_000, 8_000_000)  # $2 in, $8 out per million tokens
LOOP: Json = tail(action="pause", max_hits=2, concurrent_free=0)
PASS = ""


class Instance:
    """An engine with an operator, alone or on a shared store."""

    def __init__(self, clock: FakeClock, data: Json, url: str = "", folder: Path | None = None) -> None:
        self.clock, self.url, self.folder = clock, url, folder
        self.events: list[Event] = []
        self.store = MemoryStore()
        self.descriptors = Descriptors(ContextSettings(secret=SECRET), clock)
        prices = Prices(ListedModel({"gpt-x": PRICE}, "a test"), unknown="warn")
        self.engine = Engine(self.store, clock, self.descriptors, publish=self.events.append, prices=lambda: prices)
        self.engine.set_bundle(compiled(data, self.descriptors))
        self.shared: SharedState | None = None

    async def open(self) -> None:
        if self.url:
            self.shared = shared = SharedState(f"{self.url}?time_budget_ms=60000", SharedClock(self.clock))
            assert await shared.open() == ""
            self.remote = shared.join(self.engine, self.store, self._fault, self.events.append, self.descriptors)
            self.remote._on_store_time = None  # the clock is moved by hand
            book: FileOrderStore = shared.order_store(None, print)
        else:
            book = FileOrderStore(self.folder, print)
        self.operator = Operator(self.engine, book, self.clock, self.events.append)
        self.operator.start()
        if self.shared is not None:
            await self.shared.listen()
            async with asyncio.timeout(DEADLINE_S):
                # Messages may have been lost while it subscribed: then it reads again.
                while not await self.operator.ready(DEADLINE_S):  # noqa: ASYNC110 - another connection tells no event
                    await asyncio.sleep(0.005)

    async def close(self) -> None:
        await self.operator.close()
        if self.shared is not None:
            await self.shared.close()

    def _fault(self, error: Exception) -> Verdict:
        raise error

    async def decide(self, asked: Call) -> Verdict:
        if self.shared is None:
            return self.engine.decide(asked)
        future: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        self.remote.decide(asked, future.set_result)
        return await asyncio.wait_for(future, DEADLINE_S)

    def settle(self, asked: Call, output: int = 0) -> None:
        self.engine.settle(asked, Answer(200, "The same.", usage=Usage(1, output), complete=True))

    def named(self, name: str) -> list[Any]:
        return [event.data for event in self.events if event.name == name]


class Fleet:
    """The instances of one test. The first one serves the agent, and the last one is asked by people."""

    def __init__(self, made: list[Instance], clock: FakeClock) -> None:
        self.here, self.there, self.clock = made[0], made[-1], clock

    async def say(self, *texts: str, session: str = "s-1", output: int = 0) -> list[str]:
        """Return what becomes of these requests of a run."""
        found = []
        for text in texts:
            asked = ask(text, session)
            verdict = await self.here.decide(asked)
            if verdict.allowed:
                self.here.settle(asked, output)
            found.append(("land" if verdict.landed else PASS) if verdict.allowed else verdict.reason)
        return found

    async def pause(self, output: int = 0) -> Hold:
        """Loop until the run is paused; return the question, as the others know it."""
        assert await self.say("x", "x", "x", output=output) == [PASS, PASS, "run_paused"]
        return await self.question()

    async def question(self) -> Hold:
        await until(lambda: len(self.there.operator.pauses()) == 1)
        return self.there.operator.pauses()[0]

    async def answer(self, answer: str) -> None:
        """Answer there, and wait until it is known here."""
        hold = await self.question()
        assert hold.question is not None
        self.there.operator.answer(hold.question.id, answer, "ann")
        await until(lambda: not self.here.operator.pauses())


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not true():  # noqa: ASYNC110 - another connection tells no event
            await asyncio.sleep(0.005)


def ask(text: str, session: str = "s-1", max_tokens: int = 10) -> Call:
    headers = {"authorization": "Bearer k", "x-agent-id": "worker", "x-agent-session": session}
    made = call("/v1/chat/completions", "POST", headers, body=chat_body(user(text), max_tokens=max_tokens))
    made.tracked = True
    made.request_id = "r-1"
    return made


Test = Callable[[Fleet], Awaitable[None]]
Play = Callable[..., None]


@pytest.fixture(params=["memory", pytest.param("redis", marks=pytest.mark.e2e)])
def play(request: pytest.FixtureRequest) -> Play:
    def run(test: Test, data: Json | None = None, **pause: Any) -> None:
        data = data or bundle(policy("p", loop=LOOP))

        async def main() -> None:
            clock = FakeClock(SystemClock().now())
            server: Server | None = None if request.param == "memory" else request.getfixturevalue("redis_server")
            url = "" if server is None else server.url
            made = [Instance(clock, {**data, "pause": pause}, url) for _ in range(2 if url else 1)]
            for one in made:
                await one.open()
            try:
                await test(Fleet(made, clock))
            finally:
                for one in made:
                    await one.close()

        asyncio.run(main())

    return run


def test_a_loop_holds_the_run_and_asks(play: Play) -> None:
    """Everything of this run is denied, nothing of another one, and waiting helps (K-6)."""

    async def test(fleet: Fleet) -> None:
        hold = await fleet.pause()
        assert hold.question is not None
        assert hold.question.due == fleet.clock.now() + 1800
        verdict = await fleet.here.decide(ask("something else"))
        assert (verdict.reason, verdict.status, verdict.retry_after_s, verdict.never) == ("run_paused", 429, 60, False)
        assert verdict.message == (
            "This run is paused: tail loop (same last messages sent 3 times in 60 s). A person was asked whether it may "
            "go on: send the same again later, or wait. Without an answer within 30 min, it stays held."
        )
        assert await fleet.say("x", "x", session="s-2") == [PASS, PASS]
        [told] = fleet.here.named("run.paused")
        assert told["id"] == hold.question.id
        assert (told["agent"], told["session"], told["then"]) == ("worker", "s-1", "deny")
        fleet.clock.advance(1790)
        assert (await fleet.here.decide(ask("x"))).retry_after_s == 10

    play(test)


def test_once(play: Play) -> None:
    """What was counted is forgotten; the same loop leads to another question (K-6)."""

    async def test(fleet: Fleet) -> None:
        first = await fleet.pause()
        await fleet.answer("once")
        second = await fleet.pause()
        assert first.question is not None
        assert second.question is not None
        assert first.question.id != second.question.id
        [told] = fleet.there.named("run.answered")
        assert (told["id"], told["answer"], told["by"]) == (first.question.id, "once", "ann")

    play(test)


def test_for_an_hour(play: Play) -> None:
    """No loop holds the run in this hour; the next one does (K-6)."""

    async def test(fleet: Fleet) -> None:
        await fleet.pause()
        await fleet.answer("1h")
        assert await fleet.say(*["x"] * 9) == [PASS] * 9
        fleet.clock.advance(3599)
        assert await fleet.say("y", "y", "y") == [PASS] * 3
        fleet.clock.advance(1)
        assert await fleet.say("z", "z", "z") == [PASS, PASS, "run_paused"]

    play(test)


def test_a_loop_of_a_run_that_goes_on_is_one_loop(play: Play) -> None:
    """No cooldown divides it, as nothing is blocked: each repeat is warned of, and the loop is told once (K-6)."""

    async def test(fleet: Fleet) -> None:
        await fleet.pause()
        await fleet.answer("1h")
        before, warnings = len(fleet.here.named("loop.detected")), []
        for _ in range(6):
            asked = ask("x")
            warnings.append((await fleet.here.decide(asked)).warning)
            fleet.here.settle(asked)
            fleet.clock.advance(2)
        assert warnings == ["", "", *["loop_detected"] * 4]
        assert len(fleet.here.named("loop.detected")) == before + 1

    play(test)


def test_for_an_amount(play: Play) -> None:
    """Until the run has spent this much more: 100,000 tokens cost $0.80, and so the seventh passes $5 (K-6)."""

    async def test(fleet: Fleet) -> None:
        await fleet.pause(output=100_000)
        await fleet.answer("5usd")
        assert await fleet.say(*["x"] * 7, output=100_000) == [PASS] * 7
        assert await fleet.say("y", "y", "y") == [PASS, PASS, "run_paused"]

    play(test)


def test_finish(play: Play) -> None:
    """Two calls pass without tools, and further ones are denied for good (K-6)."""

    async def test(fleet: Fleet) -> None:
        await fleet.pause()
        await fleet.answer("land")
        assert await fleet.say("x", "x", "x") == ["land", "land", "agent_quarantined"]
        verdict = await fleet.here.decide(ask("y"))
        assert (verdict.never, verdict.retry_after_s) == (True, None)
        assert verdict.message == "This run had to finish, and has made its last calls."

    play(test)


def test_kill(play: Play) -> None:
    """As if an operator had killed the run; a release lets it go on (K-6)."""

    async def test(fleet: Fleet) -> None:
        await fleet.pause()
        await fleet.answer("kill")
        assert await fleet.say("y") == ["agent_quarantined"]
        [hold] = fleet.here.operator.holds()
        assert (hold.by, hold.run.endswith("|s-1")) == ("ann", True)
        fleet.there.operator.release("default", agent="worker", by="ann")
        await until(lambda: not fleet.here.operator.holds())
        assert await fleet.say("x", "x") == [PASS, PASS]

    play(test)


@pytest.mark.parametrize(
    ("then", "after"),
    [
        ("deny", ["run_paused", "run_paused", "run_paused"]),
        ("land", ["land", "land", "agent_quarantined"]),
        ("continue", [PASS, PASS, "run_paused"]),
    ],
)
def test_nobody_answers(play: Play, then: str, after: list[str]) -> None:
    """The default applies when the time is over, and is told once (K-6)."""

    async def test(fleet: Fleet) -> None:
        hold = await fleet.pause()
        assert hold.question is not None
        fleet.clock.advance(120)
        assert await fleet.say("x", "x", "x") == after
        with pytest.raises(OrderError, match="nothing waits for this answer"):
            fleet.there.operator.answer(hold.question.id, "once", "ann")
        told = [one for instance in {fleet.here, fleet.there} for one in instance.named("run.answered")]
        assert [(one["id"], one["by"]) for one in told] == [(hold.question.id, "")]
        if then == "deny":
            verdict = await fleet.here.decide(ask("x"))
            assert (verdict.retry_after_s, verdict.never) == (None, True)
            fleet.clock.advance(1)
            fleet.there.operator.release("default", agent="worker", by="ann")
            await until(lambda: not fleet.here.operator.holds())
            assert await fleet.say("x", "x") == [PASS, PASS]

    play(test, answer_within_minutes=2, then=then)


def test_an_answer_is_given_once(play: Play) -> None:
    """A second one changes nothing (K-6)."""

    async def test(fleet: Fleet) -> None:
        hold = await fleet.pause()
        assert hold.question is not None
        await fleet.answer("1h")
        for instance in (fleet.here, fleet.there):
            with pytest.raises(OrderError, match="it was given already"):
                instance.operator.answer(hold.question.id, "kill", "bob")
        assert await fleet.say("x") == [PASS]

    play(test)


def test_a_budget_pauses_the_next_call(play: Play) -> None:
    """The call that reaches the stage passes, and those after it are held until somebody answers (K-6)."""
    stages = [{"threshold_percent": 50, "action": "pause"}, {"threshold_percent": 100, "action": "reject"}]
    config = {"budget": 4, "period": "1d", "staged_actions": stages}
    rule = {"name": "day", "limit_keys": [], "algorithm": "cost_based", "algorithm_config": config}

    async def test(fleet: Fleet) -> None:
        assert await fleet.say("a", "b", "c") == [PASS, PASS, "run_paused"]
        assert (await fleet.question()).why == "50 % of the budget is used. (p/day)"
        await fleet.answer("once")
        assert await fleet.say("c", "d", session="s-1") == [PASS, PASS]  # the second one asks again
        assert await fleet.say("e") == ["run_paused"]
        await fleet.answer("1h")
        assert await fleet.say("e") == ["budget_exceeded"]  # a pause raises no limit

    play(test, bundle(policy("p", rule)))


def test_ceilings_pause_the_next_call(play: Play) -> None:
    """Steps and money of a run (K-6)."""
    agents = {"worker": {"max_steps_per_run": 10, "max_usd_per_run": 100, "pause_at_percent": 20}}

    async def test(fleet: Fleet) -> None:
        assert await fleet.say("a", "b", "c") == [PASS, PASS, "run_paused"]
        assert (await fleet.question()).why == "20 % of the steps of this run are used."
        await fleet.answer("1h")
        assert await fleet.say("c", "d", output=3_000_000) == [PASS, PASS]  # $48
        assert await fleet.say(*"efghi") == [PASS] * 5

    play(test, bundle(agents=agents))


def test_a_restart_keeps_the_question_and_the_answer(tmp_path: Path) -> None:
    """In the file of orders, as other holds are (K-6, S-1)."""

    async def main() -> None:
        clock = FakeClock(SystemClock().now())
        data = bundle(policy("p", loop=LOOP))
        first = Instance(clock, data, folder=tmp_path)
        await first.open()
        before = await Fleet([first], clock).pause()
        await first.close()
        second = Instance(clock, data, folder=tmp_path)
        await second.open()
        fleet = Fleet([second], clock)
        assert second.operator.pauses() == [before]
        assert await fleet.say("x") == ["run_paused"]
        await fleet.answer("1h")
        await second.close()
        third = Instance(clock, data, folder=tmp_path)
        await third.open()
        assert await Fleet([third], clock).say(*["x"] * 5) == [PASS] * 5
        await third.close()

    asyncio.run(main())
