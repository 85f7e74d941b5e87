"""The sender: tries, waits, rests, and what it makes of outcomes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event

import pytest

from breakloop.alerts.channels.base import Delivery, DeliveryResult, Target
from breakloop.alerts.delivery import PARALLEL_PER_TARGET, AlertDatabase, DeliveryLoop, Outbox, OutboxEntry
from breakloop.clock import FakeClock
from tests.alert_world import CANARY, NOW, Said, means

OK = DeliveryResult(delivered=True, status=200)
BAD = DeliveryResult(delivered=False, status=500, error="answered 500")


@dataclass
class Fake(Target):
    """A target that does as told."""

    outcomes: list[DeliveryResult] = field(default_factory=list)
    otherwise: DeliveryResult = OK
    got: list[Delivery] = field(default_factory=list)
    fault: Exception | None = None
    sent: Event = field(default_factory=Event)

    async def send(self, delivery: Delivery) -> DeliveryResult:
        self.got.append(delivery)
        self.sent.set()
        if self.fault is not None:
            raise self.fault
        return self.outcomes.pop(0) if self.outcomes else self.otherwise

    @property
    def bodies(self) -> list[str]:
        return [one.body for one in self.got]


@dataclass
class World:
    clock: FakeClock
    outbox: Outbox
    sender: DeliveryLoop
    targets: dict[str, Fake]
    gone: list[str]
    said: Said

    def put(self, *bodies: str, key: str = "", target: str = "t") -> None:
        self.outbox.put([OutboxEntry(target, "loop.detected", body, key) for body in bodies], self.clock.now())

    def flush(self, after_s: float = 0.0) -> None:
        self.clock.advance(after_s)
        asyncio.run(self.sender.flush())

    def states(self) -> list[str]:
        return [one["state"] for one in reversed(self.outbox.recent(100))]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    clock, said, gone = FakeClock(NOW), Said(), list[str]()
    database = AlertDatabase(tmp_path, lambda _trouble: None)
    outbox, targets = Outbox(database), {"t": Fake(), "u": Fake()}
    sender = DeliveryLoop(means(clock, log=said), outbox, lambda: list(targets), targets.get, gone.append)
    yield World(clock, outbox, sender, targets, gone, said)
    database.close()


def test_everything_due_is_sent_once(world: World) -> None:
    """Also more than goes at once (G-4)."""
    bodies = [str(number) for number in range(3 * PARALLEL_PER_TARGET)]
    world.put(*bodies)
    world.put("x", target="u")
    world.flush()
    world.flush()
    assert sorted(world.targets["t"].bodies) == sorted(bodies)
    assert world.targets["u"].bodies == ["x"]
    assert set(world.states()) == {"delivered"}


def test_waits_grow_and_the_id_stays(world: World) -> None:
    """The same webhook-id at each try; a later one of the same key waits for it (G-4)."""
    target = world.targets["t"]
    target.outcomes = [BAD, BAD, BAD]
    world.put("1", "2", key="k")
    world.flush()
    for wait_s, tries in ((0.9, 1), (0.1, 2), (3.9, 2), (0.1, 3), (15.9, 3)):
        world.flush(wait_s)
        assert target.bodies == ["1"] * tries
    world.flush(0.1)
    assert target.bodies == ["1", "1", "1", "1", "2"]
    assert len({one.id for one in target.got}) == 2
    assert world.states() == ["delivered", "delivered"]


def test_it_is_given_up_after_twelve_tries(world: World) -> None:
    """Visible as failed, told in the log, and in nobody's way (G-4)."""
    world.targets["t"].otherwise = BAD
    world.put(CANARY)
    for _ in range(40):
        world.flush(3600.0)
    assert len(world.targets["t"].got) == 12
    (found,) = world.outbox.recent(10)
    assert (found["state"], found["attempts"], found["status"], found["error"]) == ("failed", 12, 500, "answered 500")
    assert [line for line, _ in world.said.lines] == ["alerts.given_up"]
    assert CANARY not in repr(world.said)


def test_a_day_is_the_longest(world: World) -> None:
    """Whatever else has kept it from being tried (G-4)."""
    world.targets["t"].otherwise = BAD
    world.put("1")
    world.flush(86_400.0)
    assert world.states() == ["failed"]


@pytest.mark.parametrize("step_s", [-3600.0, 7 * 86_400.0])
def test_waits_are_measured_by_time_that_passes(world: World, step_s: float) -> None:
    """A clock that is set neither delays a retry nor makes it early, and no delivery grows too old by it (G-4)."""
    target = world.targets["t"]
    target.outcomes = [BAD, BAD]
    world.put("1")
    world.flush()
    world.clock.step(step_s)
    for wait_s, tries in ((0.9, 1), (0.1, 2), (3.9, 2), (0.1, 3)):
        world.flush(wait_s)
        assert len(target.got) == tries
    assert world.states() == ["delivered"]


def test_a_target_that_fails_is_left_alone(world: World) -> None:
    """Five failures open the breaker; others are not held up; one probe closes it, and all the rest follows (G-4)."""
    bad, good = world.targets["t"], world.targets["u"]
    bad.otherwise = BAD
    world.put(*"12345678")
    world.put("x", target="u")
    world.flush()
    tried = len(bad.got)
    assert 5 <= tried <= 8
    assert good.bodies == ["x"]
    world.flush(30.0)
    assert len(bad.got) == tried
    world.flush(31.0)
    assert len(bad.got) == tried + 1  # a probe, which fails: twice the rest
    world.flush(61.0)
    assert len(bad.got) == tried + 1
    assert world.sender.breaker("t").state == "failing"
    bad.otherwise = OK
    world.flush(60.0)
    assert set(world.states()) == {"delivered"}
    assert world.sender.breaker("t").state == "ok"


def test_one_that_is_back_gets_everything_at_once(world: World) -> None:
    """What had failed often would wait for hours else (G-4)."""
    target = world.targets["t"]
    target.otherwise = BAD
    world.put(*"123")
    for _ in range(30):
        world.flush(700.0)
    assert world.states() == ["waiting"] * 3
    later = max(one["next_at"] for one in world.outbox.recent(10))
    world.put("4")
    target.otherwise = OK
    world.flush(600.0)
    assert later > world.clock.now() + 600
    assert world.states() == ["delivered"] * 4


def test_whoever_asks_for_time_gets_it(world: World) -> None:
    """Retry-After holds for everything that goes there (G-4)."""
    target = world.targets["t"]
    target.outcomes = [DeliveryResult(delivered=False, status=429, error="answered 429", retry_after_s=120.0)]
    world.put("1")
    world.flush()
    world.put("2")
    world.flush(119.0)
    assert target.bodies == ["1"]
    world.flush(1.0)
    assert sorted(target.bodies) == ["1", "1", "2"]


def test_one_that_wants_nothing_any_more(world: World) -> None:
    """410. What waits for it is given up, and whoever knows it is told (G-4)."""
    world.targets["t"].otherwise = DeliveryResult(delivered=False, status=410, error="answered 410", gone=True)
    world.put("1", "2", key="k")
    world.flush()
    assert len(world.targets["t"].got) == 1
    assert world.states() == ["failed", "failed"]
    assert world.gone == ["t"]


def test_a_fault_of_a_target_is_a_failed_try(world: World) -> None:
    """The others go on, and nothing of the fault's text is kept."""
    world.targets["t"].fault = ValueError(CANARY)
    world.put("1")
    world.put("x", target="u")
    world.flush()
    assert world.targets["u"].bodies == ["x"]
    found = world.outbox.recent(10)[1]
    assert (found["state"], found["error"]) == ("waiting", "internal error: ValueError")


def test_it_wakes_up(world: World) -> None:
    """From a thread, without waiting for the next look; cancelling ends what is under way (G-4)."""

    async def main() -> None:
        running = asyncio.create_task(world.sender.run())
        await asyncio.sleep(0)
        await asyncio.to_thread(world.put, "1")
        await asyncio.to_thread(world.sender.wake)
        assert await asyncio.to_thread(world.targets["t"].sent.wait, 10)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert running.cancelled()

    asyncio.run(main())
    world.sender.wake()  # after the end: nothing happens


def test_a_disk_that_fails_is_tried_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was delivered is not sent again only because that could not be written down (G-4)."""
    from breakloop.errors import StateError

    real: Callable[..., None] = world.outbox.delivered
    fails = [StateError("the disk is full")] * 2

    def delivered(seq: int, status: int, now: float) -> None:
        if fails:
            raise fails.pop()
        real(seq, status, now)

    monkeypatch.setattr(world.outbox, "delivered", delivered)
    monkeypatch.setattr("breakloop.alerts.delivery._DISK_RETRY_S", 0.0)
    world.put("1")
    world.flush()
    assert world.targets["t"].bodies == ["1"]
    assert world.states() == ["delivered"]


def test_a_target_that_is_no_more(world: World) -> None:
    world.put("1")
    sender = DeliveryLoop(means(world.clock), world.outbox, lambda: ["t"], lambda _name: None, world.gone.append)
    asyncio.run(sender.flush())
    assert world.states() == ["failed"]
    sender.forget("t")
