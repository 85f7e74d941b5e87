"""A release of an agent that was blocked for a loop and not held (G-1, LD-5): its next request passes."""

from __future__ import annotations

import asyncio

from breakloop.clock import FakeClock
from breakloop.engine.operator import Operator
from breakloop.store.memory import MemoryStore
from breakloop.store.orders import FileOrderStore
from tests.builders import Json, World, bundle, chat, compiled, exact, policy, tail, user, world
from tests.operators import NOW, FakeNodes, FakeRedis, Instance

BLOCKING: Json = bundle(policy("p", loop=[exact(3), tail(max_hits=3)]))
PASSED = "all_rules_passed"


class Here:
    """A world with an operator."""

    def __init__(self, data: Json | None = BLOCKING) -> None:
        self.world: World = world(data)
        engine, clock = self.world.engine, self.world.clock
        self.operator = Operator(engine, FileOrderStore(None, print), clock, self.world.events.append)
        self.operator.start()

    def reason(self, agent: str = "a", key: str = "one") -> str:
        fields = {"authorization": f"Bearer {key}", "x-agent-id": agent}
        return self.world.engine.decide(chat(user("x"), headers=fields)).reason

    def looped(self, agent: str = "a", key: str = "one") -> str:
        return [self.reason(agent, key) for _ in range(8)][-1]


def test_the_next_request_of_a_blocked_agent_passes() -> None:
    """No detector that has counted along catches it again; others stay blocked; it is told, and once (G-1)."""
    here = Here()
    assert here.looped() == here.looped("b") == "loop_detected"
    assert here.operator.release("default", agent="a", by="ann") == []
    assert here.operator.unblock("default", agent="a", by="ann") == 2  # exact and tail
    assert [here.reason() for _ in range(2)] == [PASSED] * 2
    assert here.reason() == here.reason("b") == "loop_detected"
    [told] = here.world.named("agent.released")
    assert (told["agent"], told["by"], told["reason"]) == ("a", "ann", "released: its loops were cleared")


def test_one_that_is_not_blocked_any_more_is_not_counted() -> None:
    here = Here()
    here.looped()
    here.world.clock.advance(100_000)
    assert here.operator.unblock("default", agent="a", by="ann") == 0
    assert here.operator.unblock("default", agent="never", by="ann") == 0
    assert here.operator.unblock("default", by="ann") == 0
    assert here.world.named("agent.released") == []


def test_of_one_caller_or_of_a_caller_as_a_whole() -> None:
    """Of one caller or of a caller as a whole (G-1)."""
    here = Here()
    caller = here.world.descriptors.caller(chat(user("x"), headers={"authorization": "Bearer one"}))
    here.looped()
    here.looped(key="two")
    assert here.operator.unblock("default", agent="a", caller=caller, by="ann") == 2
    assert (here.reason(), here.reason(key="two")) == (PASSED, "loop_detected")
    here.looped()
    assert here.operator.unblock("default", caller=caller, by="ann") == 2
    assert (here.reason(), here.reason(key="two")) == (PASSED, "loop_detected")


def test_after_a_release_the_model_may_finish_again() -> None:
    """Calls that were landed are cleared with the loop: two more pass before the next denial (G-1, LD-10)."""
    here = Here(bundle(policy("p", loop=exact(3, action="land"))))
    before = [here.world.decide(chat()) for _ in range(5)]
    assert [(one.allowed, one.landed) for one in before[2:]] == [(True, True), (True, True), (False, False)]
    assert here.operator.unblock("default", agent=here.world.descriptors.agent(chat()), by="ann") == 1
    after = [here.world.decide(chat()) for _ in range(5)]
    assert [(one.allowed, one.landed) for one in after] == [(one.allowed, one.landed) for one in before]


def test_another_instance_forgets_what_it_denied() -> None:
    """Whoever has denied the loop knows its keys; the release reaches it as an order (G-1, K-3)."""

    async def story() -> None:
        server, store = FakeRedis(), MemoryStore()
        one, two = (Instance(FakeNodes(server), FakeClock(NOW)) for _ in range(2))
        for each in (one, two):
            each.book.listen(each.nodes)  # type: ignore[arg-type]
            each.engine.local = each.engine.local.__class__(store, each.clock, each.engine.tally, print)
            each.engine.quarantine.drop_with(store.drop)
            each.engine.set_bundle(compiled(BLOCKING, each.engine._descriptors))
            await each.tick(2)
        assert [one.reason() for _ in range(8)][-1] == two.reason() == "loop_detected"
        assert one.operator.unblock("default", agent="a", by="ann", seen=1) == 1
        await one.tick(2)
        await two.tick(2)
        assert (one.reason(), two.reason()) == (PASSED, PASSED)
        assert [two.reason() for _ in range(8)][-1] == "loop_detected"
        assert one.operator.unblock("default", agent="a", by="ann", seen=1) >= 1  # `two` has denied most of it
        await one.tick(2)
        await two.tick(2)
        assert two.reason() == PASSED
        await one.end()
        await two.end()

    asyncio.run(story())
