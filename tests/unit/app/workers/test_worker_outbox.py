"""A worker's events on their way: bounded, in order, and nobody waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from threading import Thread
from typing import Any

from breakloop.app.workers.ipc import ActivityReport, EventBatch, Message, MetricsReport
from breakloop.app.workers.worker import EVENTS_MAX, EventSender
from breakloop.model.events import Activity, AgentUse, Event
from breakloop.observe.metrics import MetricValues
from tests.deadlines import DEADLINE_S


class Wire:
    """Takes messages, or not."""

    def __init__(self) -> None:
        self.open = True
        self.sent: list[Message] = []
        self.told = asyncio.Event()

    def __call__(self, message: Message) -> bool:
        if self.open:
            self.sent.append(message)
            self.told.set()
        return self.open

    @property
    def names(self) -> list[str]:
        return [event.name for message in self.sent if isinstance(message, EventBatch) for event in message.events]


def run(steps: Callable[[Wire, EventSender], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        wire = Wire()
        await steps(wire, EventSender(wire))

    asyncio.run(main())


def event(number: int) -> Event:
    return Event(str(number), 1.0, {})


def test_events_go_together_after_a_moment() -> None:
    """Without being asked, and those of a moment in one message; also out of a thread (S-5)."""

    async def steps(wire: Wire, outbox: EventSender) -> None:
        for number in range(3):
            outbox(event(number))
        thread = Thread(target=outbox, args=(event(3),))
        thread.start()
        thread.join()
        assert wire.sent == []
        await asyncio.wait_for(wire.told.wait(), DEADLINE_S)
        assert wire.sent == [EventBatch([event(number) for number in range(4)], 0)]
        wire.told.clear()
        outbox(event(4))
        await asyncio.wait_for(wire.told.wait(), DEADLINE_S)
        assert wire.names == list("01234")

    run(steps)


def test_what_finds_no_room_is_counted() -> None:
    """The oldest stay, in their order; how many are missing is told with the next (S-5)."""

    async def steps(wire: Wire, outbox: EventSender) -> None:
        wire.open = False
        for number in range(EVENTS_MAX + 7):
            outbox(event(number))
        outbox.send()
        assert outbox.dropped == 7
        wire.open = True
        outbox.send()
        assert wire.names == [str(number) for number in range(EVENTS_MAX)]
        assert max(len(message.events) for message in wire.sent if isinstance(message, EventBatch)) == 256
        last = wire.sent[-1]
        assert isinstance(last, EventBatch)
        assert last.dropped == 7

    run(steps)


def test_once_a_second_it_tells_what_was_counted() -> None:
    """`flush` is called every second, and at the end (S-5)."""

    async def steps(wire: Wire, outbox: EventSender) -> None:
        outbox.flush(1.0)
        assert wire.sent == []
        values = MetricValues({"breakloop_answers_total": {(): 2}})
        outbox.metrics = lambda: values
        outbox(event(1))
        outbox.flush(2.0, everything=True)
        assert wire.sent == [EventBatch([event(1)], 0), MetricsReport(values)]

    run(steps)


def test_what_agents_did_goes_with_it() -> None:
    """Where somebody wants to know, and only if there is anything (S-5, G-1)."""

    async def steps(wire: Wire, outbox: EventSender) -> None:
        sums = [Activity(), Activity({("p", "c", "a"): AgentUse(requests=2)})]
        outbox.activity = sums.pop
        outbox.flush(0.0)
        outbox.flush(1.0)
        assert [message for message in wire.sent if isinstance(message, ActivityReport)] == [
            ActivityReport([(("p", "c", "a"), AgentUse(requests=2))], [], [])
        ]

    run(steps)
