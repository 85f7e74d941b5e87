"""The control process in this one: it begins with the bundle, delivers changes, publishes events, ends in order."""

from __future__ import annotations

import asyncio
import io
import json
import signal
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from breakloop.app.workers.control import Control
from breakloop.app.workers.ipc import (
    CONTROL,
    BundleApplied,
    BundleText,
    Channel,
    ChildConfig,
    EventBatch,
    Message,
    PipeMessage,
    SupervisorPipe,
    open_channel,
    pair,
)
from breakloop.config.settings import Settings
from breakloop.model.events import Event
from breakloop.observe.log import Logging
from breakloop.policy.watch import BundleSource
from tests.deadlines import DEADLINE_S

BUNDLE = "bundle_version: {}\npolicies: [{{id: a, spec: {{selector: {{pathPrefix: /}}}}}}]\n"


@pytest.fixture(autouse=True)
def _signals_as_they_were() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


class Log:
    """What was logged, as soon as it is written."""

    def __init__(self) -> None:
        self._text = io.StringIO()
        self._logging = Logging(self._text, form="json")
        self._logging.start()
        self._running = True

    def lines(self) -> list[dict[str, Any]]:
        """End it, and return what is in it."""
        if self._running:
            self._running = False
            self._logging.stop()
        return [json.loads(line) for line in self._text.getvalue().splitlines()]

    def count(self, message: str) -> int:
        return [line["message"] for line in self.lines()].count(message)


@pytest.fixture
def log() -> Iterator[Log]:
    made = Log()
    yield made
    made.lines()


class Supervised:
    """A control process with somebody at the other end of its line."""

    def __init__(self, tmp_path: Path, *, first: bool = True, **values: object) -> None:
        settings = Settings.model_validate(
            {"data_dir": str(tmp_path / "data"), "admin_port": 0, "secret": "s", **values}
        )
        ours, theirs = pair()
        self.heard: asyncio.Queue[PipeMessage] = asyncio.Queue()
        self.line = SupervisorPipe(ours, lambda message, _sockets: self.heard.put_nowait(message), lambda: None)
        self.control = Control(ChildConfig(CONTROL, 0, 2, settings, pipe=theirs.detach(), first=first))
        self.task = asyncio.create_task(self.control.run())
        self.got: asyncio.Queue[Message] = asyncio.Queue()
        self.channel = Channel(self.got.put_nowait, lambda: None)

    async def next(self) -> PipeMessage:
        return await asyncio.wait_for(self.heard.get(), DEADLINE_S)

    async def join(self) -> None:
        one, other = socket.socketpair()
        with one:
            self.line.send({"do": "channel", "worker": 1, "pid": 11}, [one])
        await open_channel(other, self.channel)

    async def policy(self) -> BundleText:
        async with asyncio.timeout(DEADLINE_S):
            while not isinstance(message := await self.got.get(), BundleText):
                pass
        return message

    async def end(self) -> int:
        await self.channel.finish(5.0)
        self.line.send({"do": "stop"})
        code = await asyncio.wait_for(self.task, DEADLINE_S)
        self.line.close()
        return code


def run(steps: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(steps(), DEADLINE_S))


def test_it_delivers_the_bundle_and_its_changes(tmp_path: Path, log: Log) -> None:
    """The last good copy is written here; SIGHUP to the supervisor arrives as a word (S-5, B-3)."""
    file = tmp_path / "b.yaml"
    file.write_text(BUNDLE.format(4))

    async def steps() -> None:
        here = Supervised(tmp_path, policy=str(file))
        ready = await here.next()
        assert ready["is"] == "ready"
        assert (ready["started"]["version"], ready["started"]["loops"]) == (4, "builtin")
        await here.join()
        assert json.loads((await here.policy()).text or b"")["bundle_version"] == 4
        file.write_text(BUNDLE.format(3))
        here.line.send({"do": "reload"})
        changed = await here.policy()
        assert json.loads(changed.text or b"")["bundle_version"] == 3
        assert changed.number == 2
        here.line.send({"do": "ping"})
        assert await here.next() == {"is": "alive"}
        assert await here.end() == 0

    run(steps)
    assert list((tmp_path / "data/last-good").glob("*.json"))
    assert log.count("bundle.loaded") == 2


def test_events_are_published_once(tmp_path: Path, log: Log) -> None:
    """Those of workers and of the supervisor; what was left out is told at the end (S-5)."""

    async def steps() -> None:
        here = Supervised(tmp_path)
        assert (await here.next())["is"] == "ready"
        await here.join()
        event = Event("limit.exceeded", 5.0, {"policy": "p", "rule": "r", "reason": "x"})
        here.channel.send(EventBatch([event] * 5))
        here.line.send({"do": "event", "name": "worker.died", "at": 1.0, "data": {"process": "worker 2"}})
        assert await here.end() == 0

    run(steps)
    told = {line["message"]: line for line in log.lines()}
    assert log.count("limit.exceeded") == 2
    assert told["limit.exceeded"]["left_out"] == 3
    assert (told["worker.died"]["level"], told["worker.died"]["process"]) == ("warning", "worker 2")


@pytest.mark.parametrize(("strict", "first", "starts"), [(True, True, False), (False, True, True), (True, False, True)])
def test_without_a_valid_bundle(tmp_path: Path, log: Log, strict: bool, first: bool, starts: bool) -> None:
    """Strict, it does not start and says why; in place of one that died, it does: there is traffic. A valid one that
    comes later is reported when the workers use it (E-0)."""
    file = tmp_path / "b.yaml"
    file.write_text("bundle_version: 0\npolicies: []\n")

    async def steps() -> None:
        here = Supervised(tmp_path, first=first, policy=str(file), strict=strict)
        said = await here.next()
        if starts:
            assert said["started"]["origin"] == ""
            await here.join()
            policy = await here.policy()
            assert policy.text is None
            assert policy.problems
            here.channel.send(BundleApplied(policy.number))
            file.write_text(BUNDLE.format(8))
            here.line.send({"do": "reload"})
            here.channel.send(BundleApplied((await here.policy()).number))
            loaded = await here.next()  # not before the worker uses it
            assert (loaded["is"], loaded["started"]["version"]) == ("loaded", 8)
            assert await here.end() == 0
        else:
            assert said["is"] == "failed"
            assert f"{file}:1:17: bundle_version" in said["why"]
            assert await here.task == 1
            here.line.close()

    run(steps)


def test_a_slow_source_does_not_hold_up_the_end(tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever stops while it starts does not wait for a bundle (S-6)."""
    free = threading.Event()
    monkeypatch.setattr(BundleSource, "start", lambda _source: free.wait(DEADLINE_S))

    async def steps() -> None:
        here = Supervised(tmp_path, policy="b.yaml")
        here.line.send({"do": "stop"})
        assert await asyncio.wait_for(here.task, DEADLINE_S) == 0
        here.line.close()

    run(steps)
    free.set()


def test_without_its_supervisor_it_waits_for_the_workers(tmp_path: Path, log: Log) -> None:
    """No orphan; but what workers still have to tell is heard (S-5)."""

    async def steps() -> None:
        here = Supervised(tmp_path)
        await here.next()
        await here.join()
        await asyncio.wait_for(here.got.get(), DEADLINE_S)
        here.line.close()
        done, _ = await asyncio.wait((here.task,), timeout=0.1)
        assert not done
        here.channel.send(EventBatch([Event("loop.detected", 5.0, {"kind": "tail"})]))
        await here.channel.finish(5.0)
        assert await asyncio.wait_for(here.task, DEADLINE_S) == 0

    run(steps)
    assert log.count("loop.detected") == 1
