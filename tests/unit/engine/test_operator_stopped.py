"""What orders have stopped, counted over all instances (K-4)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from breakloop.engine.operator import NOTHING_STOPPED, StoppedCalls
from tests.builders import bundle, compiled
from tests.operators import FakeNodes, FakeRedis, Instance


def counting(**by_order: int) -> object:
    def stopped(orders: Sequence[str]) -> StoppedCalls:
        calls = sum(by_order.get(order, 0) for order in orders)
        return StoppedCalls(calls, calls - 1, frozenset(("a", f"b{calls}"))) if calls else NOTHING_STOPPED

    return stopped


def test_every_instance_is_asked() -> None:
    """Those without traffic answer, too, so nobody waits for them; one that does not hear is not counted."""

    async def story() -> None:
        server = FakeRedis()
        one, two, control, deaf = (Instance(FakeNodes(server)) for _ in range(4))
        for each in (one, two, control, deaf):
            each.book.listen(each.nodes)  # type: ignore[arg-type]
            await each.tick(2)
        for each, calls in ((one, 3), (two, 5), (deaf, 100)):
            each.operator.stop_with(lambda: None, counting(order=calls, other=1))  # type: ignore[arg-type]
        deaf.nodes.deaf = True  # type: ignore[attr-defined]
        found = await control.operator.stopped(["order"], 60.0)
        assert found == StoppedCalls(8, 6, frozenset(("a", "b3", "b5")))
        assert await one.operator.stopped(["none"], 60.0) == NOTHING_STOPPED
        one.nodes.up = False
        assert (await one.operator.stopped(["order"], 60.0)).calls == 3  # Redis is away: its own
        for each in (one, two, control, deaf):
            await each.end()

    asyncio.run(story())


def test_questions_of_others_harm_nobody() -> None:
    """Anything can be published on a channel."""

    async def story() -> None:
        one = Instance(FakeNodes(FakeRedis()))
        one.operator.stop_with(lambda: None, counting(order=1))  # type: ignore[arg-type]
        assert [one.book.on_question(text) for text in ("", "{", "{}", "null", "[1]")] == ["[0, 0, []]"] * 5  # type: ignore[misc]
        for message in (b"", b"?", b"0123456789abcdef?{", b"0123456789abcdef![1,1,[]]", b"\xff" * 40):
            one.book._heard_question(message)
        await one.end()

    asyncio.run(story())


def test_the_stop_webhook_is_that_of_the_bundle() -> None:
    """Found by the name of the agent, or by a pattern (K-4)."""
    made = Instance(FakeNodes(FakeRedis()))
    hook = {"url": "https://agents.example/stop", "allow_private": True}
    data = bundle(agents={"scraper-*": {"stop_webhook": hook}, "other": {}})
    made.engine.set_bundle(compiled(data, made.engine._descriptors))
    found = [made.operator.stop_webhook(agent) for agent in ("scraper-7", "other", "unknown")]
    assert found == [("https://agents.example/stop", True), None, None]


def test_the_names_of_agents_are_bounded() -> None:
    """Calls are counted to the last one; from 1,000 names on, no others are added."""
    names = frozenset(map(str, range(999)))
    almost = StoppedCalls(999, 1, names).plus(StoppedCalls(2, 3, frozenset("x")))
    assert almost == StoppedCalls(1001, 4, names | {"x"})
    assert almost.plus(StoppedCalls(1, 1, frozenset("y"))) == StoppedCalls(1002, 5, names | {"x"})
    others = frozenset(f"other-{number}" for number in range(1000))
    assert StoppedCalls(999, 1, names).plus(StoppedCalls(1000, 1, others)).agents == names | {"other-0"}
