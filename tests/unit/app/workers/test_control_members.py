"""The workers as the control process knows them, over real pairs of sockets."""

from __future__ import annotations

import asyncio
import io
import json
import socket
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from breakloop.app.workers.control import WorkerRegistry
from breakloop.app.workers.ipc import (
    BundleApplied,
    BundleText,
    Channel,
    EventBatch,
    Message,
    MetricsReport,
    WorkerCount,
    open_channel,
)
from breakloop.clock import FakeClock
from breakloop.model.events import Event, nowhere
from breakloop.observe.log import Logging
from breakloop.observe.metrics import MetricValues
from breakloop.policy.load import load_fetched
from breakloop.policy.sources import FileOrigin
from breakloop.policy.watch import BundleSource
from tests.deadlines import DEADLINE_S

BUNDLE = "bundle_version: {}\npolicies: []\n"


def counted(value: int) -> MetricsReport:
    made = MetricValues()
    made.add("breakloop_answers_not_read_total", value, "a")
    return MetricsReport(made)


class Worker:
    """The other end."""

    def __init__(self) -> None:
        self.got: list[Message] = []
        self.changed = asyncio.Event()
        self.channel = Channel(self._received, lambda: None)

    def _received(self, message: Message) -> None:
        self.got.append(message)
        self.changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not condition():
                self.changed.clear()
                await self.changed.wait()

    def policies(self) -> list[BundleText]:
        return [message for message in self.got if isinstance(message, BundleText)]

    def fleets(self) -> list[int]:
        return [message.workers for message in self.got if isinstance(message, WorkerCount)]


async def joined(members: WorkerRegistry, number: int, pid: int) -> Worker:
    worker = Worker()
    ours, theirs = socket.socketpair()
    members.join(number, pid, ours)
    await open_channel(theirs, worker.channel)
    return worker


async def spin(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110 - nobody is told
            await asyncio.sleep(0)


def run(steps: Coroutine[Any, Any, None]) -> None:
    asyncio.run(steps)


@pytest.fixture
def source(tmp_path: Path) -> BundleSource:
    (tmp_path / "b.yaml").write_text(BUNDLE.format(1))
    return BundleSource(
        FileOrigin(tmp_path / "b.yaml"),
        load=load_fetched,
        on_bundle=lambda _loaded: None,
        clock=FakeClock(),
        publish=nowhere,
    )


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    text = io.StringIO()
    logging = Logging(text, form="json")
    logging.start()
    yield text
    logging.stop()


def test_everybody_has_the_newest(source: BundleSource, tmp_path: Path) -> None:
    """Whoever comes gets what is in force, and everybody what comes later; what did not change is not sent (S-5)."""

    async def steps() -> None:
        members = WorkerRegistry(nowhere)
        source.start()
        members.deliver(source)
        one = await joined(members, 1, 11)
        await one.until(lambda: bool(one.policies()))
        members.deliver(source)
        (tmp_path / "b.yaml").write_text(BUNDLE.format(2))
        source.reload()
        members.deliver(source)
        other = await joined(members, 2, 12)
        await one.until(lambda: one.fleets() == [1, 2])
        await other.until(lambda: bool(other.fleets()))
        assert [policy.number for policy in one.policies()] == [1, 2]
        assert [policy.number for policy in other.policies()] == [2]
        (newest,) = other.policies()
        assert source.current is not None
        assert (newest.digest, newest.origin, newest.name) == (source.current.digest, "source", source.name)
        assert json.loads(newest.text or b"")["bundle_version"] == 2
        other.channel.send(BundleApplied(2))
        await spin(lambda: members.applied == [0, 2])
        (tmp_path / "b.yaml").write_text("bundle_version: 3\npolicy: []\n")
        source.reload()
        members.deliver(source)
        await one.until(lambda: len(one.policies()) == 3)
        assert (one.policies()[-1].rejected, one.policies()[-1].digest) == (1, newest.digest)
        assert one.policies()[-1].problems == source.problems
        one.channel.close()
        other.channel.close()
        await members.all_gone(5)
        assert len(members) == 0

    run(steps())


def test_who_does_not_read_gets_the_newest_later(source: BundleSource, tmp_path: Path) -> None:
    """A worker that hangs holds up nobody, and skips what was overtaken (S-5)."""

    async def steps() -> None:
        members = WorkerRegistry(nowhere)
        ours, theirs = socket.socketpair()
        members.join(1, 11, ours)
        large = json.dumps({"id": "a", "spec": {"selector": {"pathPrefix": "/" + "x" * 300_000}}})
        for version in range(1, 20):
            (tmp_path / "b.yaml").write_text(f'{{"bundle_version": {version}, "policies": [{large}]}}')
            source.reload()
            assert not source.problems, source.problems
            members.deliver(source)
            await asyncio.sleep(0)
        worker = Worker()
        await open_channel(theirs, worker.channel)
        await worker.until(lambda: bool(worker.policies()) and worker.policies()[-1].number == 19)
        assert len(worker.policies()) < 19
        worker.channel.close()
        await members.all_gone(5)

    run(steps())


def test_events_counts_and_losses(log: io.StringIO) -> None:
    """Events are published as they are, counts added up, lost ones told once an interval, mistakes at once (S-5)."""

    async def steps() -> None:
        published: list[Event] = []
        members = WorkerRegistry(published.append)
        one, other = await joined(members, 1, 11), await joined(members, 2, 12)

        def total() -> float:
            return members.totals.total().values.get("breakloop_answers_not_read_total", {}).get(("a",), 0)

        event = Event("loop.detected", 5.0, {"kind": "tail"}, "p", "r")
        one.channel.send(EventBatch([event, event], 3))
        other.channel.send(EventBatch([event], 2))
        one.channel.send(counted(1))
        other.channel.send(counted(2))
        one.channel.send(BundleApplied(1, "ValueError: no room"))
        await spin(lambda: len(published) == 3 and total() == 3 and 1 in members.applied)
        assert published == [event] * 3
        members.flush(100.0)
        members.flush(101.0)
        one.channel.send(EventBatch([event], 4))
        await spin(lambda: len(published) == 4)
        members.flush(102.0)
        members.flush(103.0, everything=True)
        one.channel.close()
        other.channel.close()
        await members.all_gone(5)
        again = await joined(members, 1, 11)  # pids come back
        again.channel.send(counted(5))
        await spin(lambda: total() == 8)
        again.channel.close()
        await members.all_gone(5)

    run(steps())
    lines: list[dict[str, Any]] = []

    def all_written() -> bool:
        lines[:] = [json.loads(line) for line in log.getvalue().splitlines()]
        return len(lines) == 3

    asyncio.run(spin(all_written))
    dropped = [line["dropped"] for line in lines if line["message"] == "events.dropped"]
    assert dropped == [5, 1]
    (refused,) = [line for line in lines if line["message"] == "bundle.not_applied"]
    assert (refused["level"], refused["worker"], refused["problem"]) == ("error", 1, "ValueError: no room")
