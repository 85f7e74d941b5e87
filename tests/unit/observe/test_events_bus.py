"""Events on their way to listeners: nobody waits, nobody stops the others, what is lost is counted."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import pytest

from breakloop.errors import HistoryError
from breakloop.model.events import Event
from breakloop.observe.events import BATCH, EventBus, EventDispatcher
from tests.deadlines import DEADLINE_S


def event(number: int) -> Event:
    return Event("loop.detected", float(number), {})


def numbers(events: Sequence[Event]) -> list[int]:
    return [int(one.at) for one in events]


async def at_once(_seconds: float) -> None:
    await asyncio.sleep(0)


class Somebody:
    """Listens, and fails as often as told."""

    def __init__(self, failures: int = 0) -> None:
        self.heard: list[list[int]] = []
        self.failures = failures

    def take(self, events: Sequence[Event]) -> None:
        if self.failures:
            self.failures -= 1
            raise OSError("no room")
        self.heard.append(numbers(events))


def test_what_finds_no_room_is_counted() -> None:
    """The bus drops rather than delay a request (G-2)."""
    bus = EventBus(most=2)
    for number in range(5):
        bus(event(number))
    assert (len(bus), bus.dropped) == (2, 3)
    assert numbers(bus.take(1)) == [0]
    bus(event(9))
    assert numbers(bus.take()) == [1, 9]
    assert (bus.take(), bus.dropped) == ([], 3)


def test_everybody_is_told_in_order() -> None:
    """Everybody is told in order (G-2)."""
    bus, one, other = EventBus(), Somebody(), Somebody()
    fan = EventDispatcher(bus, sleep=at_once)
    fan.add("one", one.take)
    fan.add("other", other.take)

    async def run() -> None:
        for number in range(3):
            bus(event(number))
        for _, job in fan.jobs():
            await job()

    asyncio.run(run())
    assert [name for name, _ in fan.jobs()] == ["events", "events to one", "events to other"]
    assert one.heard == other.heard == [[0, 1, 2]]
    assert len(bus) == 0


def test_many_come_in_batches() -> None:
    bus, one = EventBus(), Somebody()
    fan = EventDispatcher(bus, sleep=at_once)
    listener = fan.add("one", one.take)
    for number in range(2 * BATCH + 5):
        bus(event(number))
    fan.distribute()
    asyncio.run(listener.turn())
    assert [len(batch) for batch in one.heard] == [BATCH, BATCH, 5]


def test_whoever_waits_for_nothing_is_told_of_nothing() -> None:
    """History is written once a second, with events or without."""
    quiet, always = Somebody(), Somebody()
    fan = EventDispatcher(EventBus(), sleep=at_once)
    listeners = fan.add("quiet", quiet.take), fan.add("always", always.take, always=True)

    async def run() -> None:
        for listener in listeners:
            await listener.turn()

    asyncio.run(run())
    assert (quiet.heard, always.heard) == ([], [[]])


def test_how_often_each_is_told() -> None:
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    fan = EventDispatcher(EventBus(), sleep=sleep)
    fan.add("history", Somebody().take, every_s=1.0)

    async def run() -> None:
        for _, job in fan.jobs():
            await job()

    asyncio.run(run())
    assert waited == [0.1, 1.0]


def test_a_failing_listener_is_tried_again_and_then_loses(caplog: pytest.LogCaptureFixture) -> None:
    """And the others hear everything meanwhile (G-2)."""
    bus, failing, well = EventBus(), Somebody(failures=4), Somebody()
    fan = EventDispatcher(bus, sleep=at_once)
    listeners = fan.add("failing", failing.take), fan.add("well", well.take)

    async def round_of(number: int) -> None:
        bus(event(number))
        fan.distribute()
        for listener in listeners:
            await listener.turn()

    async def run() -> None:
        for number in range(4):
            await round_of(number)

    with caplog.at_level(logging.ERROR, "breakloop"):
        asyncio.run(run())
        assert well.heard == [[0], [1], [2], [3]]
        assert failing.heard == []
        asyncio.run(listeners[0].turn())
    assert failing.heard == [[3]]
    assert fan.dropped() == {"bus": 0, "failing": 3, "well": 0}
    assert "failing failed to process 1 events" in caplog.text


def test_what_was_not_taken_comes_first_the_next_time(caplog: pytest.LogCaptureFixture) -> None:
    """In order, also where more waits than fits into one batch (G-2)."""
    bus, failing = EventBus(), Somebody(failures=1)
    fan = EventDispatcher(bus, sleep=at_once)
    listener = fan.add("failing", failing.take)
    for number in range(BATCH + 2):
        bus(event(number))
    fan.distribute()

    async def run() -> None:
        await listener.turn()
        await listener.turn()

    asyncio.run(run())
    assert [(batch[0], batch[-1]) for batch in failing.heard] == [(0, BATCH - 1), (BATCH, BATCH + 1)]
    assert "failing failed to process 1000 events" in caplog.text


def test_a_backlog_is_bounded_and_keeps_the_oldest() -> None:
    """So that an incident keeps its beginning (G-2)."""
    bus, one = EventBus(), Somebody()
    fan = EventDispatcher(bus, sleep=at_once)
    listener = fan.add("one", one.take, queue_max=3)
    for number in range(5):
        bus(event(number))
    fan.distribute()
    asyncio.run(listener.turn())
    assert one.heard == [[0, 1, 2]]
    assert listener.dropped == 2


def test_what_is_being_written_when_a_process_ends_is_waited_for() -> None:
    """Neither lost nor written twice, though the job was cancelled (S-6)."""
    bus = EventBus()
    fan = EventDispatcher(bus, sleep=at_once)
    written: list[int] = []

    async def run() -> None:
        begun, go_on = asyncio.Event(), asyncio.Event()

        async def write(events: Sequence[Event]) -> None:
            begun.set()
            await go_on.wait()
            written.extend(numbers(events))

        listener = fan.add("history", write)
        bus(event(1))
        fan.distribute()
        job = asyncio.create_task(listener.turn())
        await asyncio.wait_for(begun.wait(), DEADLINE_S)
        bus(event(2))
        job.cancel()
        finishing = asyncio.create_task(fan.finish())
        await asyncio.sleep(0)
        go_on.set()
        await asyncio.wait_for(finishing, DEADLINE_S)

    asyncio.run(run())
    assert written == [1, 2]


def test_a_slow_listener_loses_its_own_events_only() -> None:
    """Its backlog is bounded, the others' is not touched (G-2)."""
    bus, well = EventBus(), Somebody()
    fan = EventDispatcher(bus, sleep=at_once)
    begun = asyncio.Event()
    slow_heard: list[int] = []

    async def never(events: Sequence[Event]) -> None:
        slow_heard.extend(numbers(events))
        begun.set()
        await asyncio.Event().wait()

    slow = fan.add("slow", never, queue_max=2)
    listener = fan.add("well", well.take)

    async def run() -> None:
        bus(event(0))
        fan.distribute()
        task = asyncio.create_task(slow.turn())
        await asyncio.wait_for(begun.wait(), DEADLINE_S)
        for number in range(1, 6):
            bus(event(number))
        fan.distribute()
        await listener.turn()
        task.cancel()

    asyncio.run(run())
    assert slow_heard == [0]
    assert well.heard == [[0, 1, 2, 3, 4, 5]]
    assert fan.dropped() == {"bus": 0, "slow": 3, "well": 0}


def test_at_the_end_everybody_gets_what_is_left(caplog: pytest.LogCaptureFixture) -> None:
    """Of a process that stops nothing is lost that somebody takes."""
    bus, well, failing = EventBus(), Somebody(), Somebody(failures=9)
    fan = EventDispatcher(bus, sleep=at_once)
    fan.add("failing", failing.take)
    fan.add("well", well.take)
    for number in range(BATCH + 1):
        bus(event(number))
    asyncio.run(fan.finish())
    assert [len(batch) for batch in well.heard] == [BATCH, 1]
    assert failing.failures == 8
    assert "failing failed to process" in caplog.text


def test_one_batch_at_a_time_whoever_delivers() -> None:
    """Who needs events to be written waits for a batch on its way and for those behind it (G-2)."""
    bus = EventBus()
    fan = EventDispatcher(bus, sleep=at_once)
    written: list[int] = []

    async def run() -> None:
        batches = asyncio.Semaphore(0)

        async def write(events: Sequence[Event]) -> None:
            await batches.acquire()
            written.extend(numbers(events))

        async def settle() -> None:
            for _ in range(20):
                await asyncio.sleep(0)

        listener = fan.add("history", write)
        bus(event(1))
        fan.distribute()
        turn = asyncio.create_task(listener.turn())
        await settle()
        bus(event(2))
        fan.distribute()
        now = asyncio.create_task(listener.deliver_now())
        await settle()
        batches.release()
        await settle()
        assert (written, now.done()) == ([1], False)
        batches.release()
        assert await asyncio.wait_for(now, DEADLINE_S)
        assert written == [1, 2]
        await turn

    asyncio.run(run())


def test_a_batch_that_failed_waits_for_its_turn(caplog: pytest.LogCaptureFixture) -> None:
    """Whoever asks for it in between uses up none of its tries (G-2)."""
    bus, failing = EventBus(), Somebody(failures=2)
    fan = EventDispatcher(bus, sleep=at_once)
    listener = fan.add("failing", failing.take)
    bus(event(1))
    fan.distribute()

    async def run() -> None:
        assert [await listener.deliver_now() for _ in range(5)] == [False] * 5
        assert caplog.text.count("failed to process") == 1
        await listener.turn()
        await listener.turn()
        assert await listener.deliver_now()

    asyncio.run(run())
    assert (failing.heard, listener.dropped) == ([[1]], 0)


def test_a_listener_that_reported_its_failure_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The history on a full disk: retried like any other, without a traceback every two seconds (S-1)."""

    async def steps() -> None:
        fails = [True, True]
        got: list[Event] = []

        def take(events: Sequence[Event]) -> None:
            if fails and fails.pop():
                raise HistoryError("the disk is full")
            got.extend(events)

        bus = EventBus()
        dispatcher = EventDispatcher(bus)
        listener = dispatcher.add("history", take)
        bus(Event("loop.detected", 0.0, {}))
        dispatcher.distribute()
        for _ in range(3):
            await listener.drain()
        assert (len(got), listener.dropped) == (1, 0)

    asyncio.run(steps())
    assert caplog.text == ""
