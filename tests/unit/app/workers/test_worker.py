"""A worker in this process, with somebody in the roles of the supervisor and the control process."""

from __future__ import annotations

import asyncio
import gc
import http.client
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop

from breakloop.app.build import aside
from breakloop.app.workers.ipc import (
    WORKER,
    BundleApplied,
    BundleText,
    Channel,
    ChildConfig,
    EventBatch,
    Message,
    MetricsReport,
    PipeMessage,
    SupervisorPipe,
    WorkerCount,
    open_channel,
    pair,
)
from breakloop.app.workers.worker import Worker, bundle_text
from breakloop.config.settings import Settings
from breakloop.gateway.server import bind
from breakloop.observe.metrics import MetricValues
from breakloop.policy.load import load_text
from tests.deadlines import DEADLINE_S

BUNDLE = "bundle_version: {}\npolicies: [{{id: a, spec: {{selector: {{pathPrefix: /}}}}}}]\n"
CHAT = json.dumps({"model": "m", "messages": [{"role": "user", "content": "again"}]})


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    """Running as a process of its own tunes the interpreter and takes signals."""
    interval, threshold = sys.getswitchinterval(), gc.get_threshold()
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    yield
    sys.setswitchinterval(interval)
    gc.set_threshold(*threshold)
    for number, handler in before.items():
        signal.signal(number, handler)


class Fleeting:
    """The fleet around one worker."""

    def __init__(self, tmp_path: Path, **values: object) -> None:
        plain = {
            "data_dir": str(tmp_path / "data"),
            "port": 0,
            "admin_port": 0,
            "secret": "s",
            "upstream": ["openai=http://127.0.0.1:9"],
        }
        settings = Settings.model_validate(plain | values)
        (self.listener,) = bind("127.0.0.1", 0)
        self.port = int(self.listener.getsockname()[1])
        memory = os.memfd_create("shares")
        os.ftruncate(memory, 8)
        ours, theirs = pair()
        self.heard: asyncio.Queue[PipeMessage] = asyncio.Queue()
        self.line = SupervisorPipe(ours, lambda message, _sockets: self.heard.put_nowait(message), lambda: None)
        self.got: list[Message] = []
        self.changed = asyncio.Event()
        self.channel = Channel(self._received, self.changed.set)
        handover = ChildConfig(
            WORKER,
            1,
            2,
            settings,
            pipe=theirs.detach(),
            listeners=(os.dup(self.listener.fileno()),),
            connection_counts=memory,
        )
        self.worker = Worker(handover)
        self.task = asyncio.create_task(self.worker.run())
        self._memory = memory

    def _received(self, message: Message) -> None:
        self.got.append(message)
        self.changed.set()

    async def connect(self) -> None:
        one, other = socket.socketpair()
        with one:
            self.line.send({"do": "channel"}, [one])
        await open_channel(other, self.channel)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not condition():
                self.changed.clear()
                await self.changed.wait()

    async def next(self) -> PipeMessage:
        return await asyncio.wait_for(self.heard.get(), DEADLINE_S)

    async def ask(self, path: str, body: str = "", **headers: str) -> tuple[int, dict[str, Any]]:
        return await aside(lambda: self._ask(path, body, headers))

    def _ask(self, path: str, body: str, headers: dict[str, str]) -> tuple[int, dict[str, Any]]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_S)
        try:
            connection.request("POST" if body else "GET", path, body, headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read() or b"{}")
        finally:
            connection.close()

    async def exit_code(self) -> int:
        code = await asyncio.wait_for(self.task, DEADLINE_S)
        self.channel.close()
        self.line.close()
        self.listener.close()
        os.close(self._memory)
        return code


def run(steps: Callable[[], Coroutine[Any, Any, None]]) -> None:
    uvloop.run(asyncio.wait_for(steps(), DEADLINE_S))


def policy(number: int, version: int) -> BundleText:
    loaded = load_text(BUNDLE.format(version).encode(), "b.yaml")
    return BundleText(number, "b.yaml", "source", 0, [], loaded.digest, bundle_text(loaded))


def test_it_serves_what_is_delivered(tmp_path: Path) -> None:
    """Nobody is let in before there is a bundle; a new one is in force when it is acknowledged; `/readyz` says which
    worker answers, of how many (S-5)."""

    async def steps() -> None:
        fleet = Fleeting(tmp_path, policy="b.yaml")
        await fleet.connect()
        fleet.channel.send(WorkerCount(2))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(fleet.heard.get(), 0.3)
        fleet.channel.send(policy(1, 4))
        assert await fleet.next() == {"is": "ready"}
        await fleet.until(lambda: BundleApplied(1) in fleet.got)
        status, ready = await fleet.ask("/readyz")
        assert (status, ready["bundle_version"], ready["worker"], ready["workers"]) == (200, 4, 1, 2)
        fleet.channel.send(WorkerCount(3))
        fleet.channel.send(policy(2, 5))
        await fleet.until(lambda: BundleApplied(2) in fleet.got)
        _, ready = await fleet.ask("/readyz")
        assert (ready["bundle_version"], ready["workers"]) == (5, 3)
        fleet.line.send({"do": "ping"})
        assert await fleet.next() == {"is": "alive"}
        fleet.line.send({"do": "stop"})
        assert await fleet.exit_code() == 0

    run(steps)
    assert not (tmp_path / "data/last-good").exists()
    assert not (tmp_path / "data/secret").exists()


@pytest.mark.slow
def test_its_events_and_counts_arrive(tmp_path: Path) -> None:
    """While it runs, and the last ones when it ends (S-5)."""

    async def steps() -> None:
        fleet = Fleeting(tmp_path)
        await fleet.connect()
        await fleet.next()
        statuses = [
            (await fleet.ask("/v1/decision", CHAT, **{"X-Original-URI": "/v1/chat/completions"}))[0] for _ in range(6)
        ]
        assert statuses == [200] * 5 + [429]
        fleet.line.send({"do": "stop"})
        assert await fleet.exit_code() == 0
        events = [event for message in fleet.got if isinstance(message, EventBatch) for event in message.events]
        assert [event.name for event in events] == ["loop.detected"]
        assert shown(fleet) == []

    run(steps)


def shown(fleet: Fleeting) -> list[MetricValues]:
    return [message.values for message in fleet.got if isinstance(message, MetricsReport)]


@pytest.mark.slow
def test_its_metrics_arrive_where_somebody_shows_them(tmp_path: Path) -> None:
    """All that one process alone would show, but for what the control process knows itself; the last ones when it ends;
    and at once to a new control process (G-5, S-5)."""

    async def steps() -> None:
        fleet = Fleeting(tmp_path, admin_port=1)
        await fleet.connect()
        await fleet.next()
        for number in range(3):
            await fleet.ask("/v1/decision", CHAT.replace("again", str(number)), **{"X-Original-URI": "/v1/chat"})
        fleet.channel = Channel(fleet._received, fleet.changed.set)
        before = len(shown(fleet))
        await fleet.connect()
        await fleet.until(lambda: len(shown(fleet)) > before)
        assert sum(shown(fleet)[-1].histograms["breakloop_overhead_seconds"]["decision",].counts) == 3
        await fleet.ask("/v1/decision", CHAT, **{"X-Original-URI": "/v1/chat"})
        fleet.line.send({"do": "stop"})
        assert await fleet.exit_code() == 0
        last = shown(fleet)[-1]
        assert sum(last.histograms["breakloop_overhead_seconds"]["decision",].counts) == 4
        assert sum(last.values["breakloop_decisions_total"].values()) == 4
        assert last.values["breakloop_http_requests_total"] == {(): 4}
        assert last.values["breakloop_events_dropped_total"] == {("worker",): 0}
        assert last.values["breakloop_processes"] == {(): 1}
        assert not any(name.startswith("breakloop_bundles_") for name in last.values)

    run(steps)


@pytest.mark.slow
def test_it_ends_with_its_supervisor(tmp_path: Path) -> None:
    """No orphan, whether or not it got as far as serving (S-5)."""

    async def steps() -> None:
        fleet = Fleeting(tmp_path)
        await fleet.next()
        fleet.line.close()
        assert await fleet.exit_code() == 0
        waiting = Fleeting(tmp_path, policy="b.yaml")
        waiting.line.close()
        assert await waiting.exit_code() == 0

    run(steps)


@pytest.mark.slow
def test_signals(tmp_path: Path) -> None:
    """SIGINT and SIGHUP are the supervisor's; SIGTERM ends it, and a second one does not hurry (S-6)."""

    async def steps() -> None:
        fleet = Fleeting(tmp_path)
        await fleet.next()
        for number in (signal.SIGINT, signal.SIGHUP):
            os.kill(os.getpid(), number)
        assert (await fleet.ask("/livez"))[0] == 200
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGTERM)
        assert await fleet.exit_code() == 0

    run(steps)


@pytest.mark.slow
def test_hurry(tmp_path: Path) -> None:
    """What is under way is not waited for (S-6)."""

    async def steps() -> None:
        fleet = Fleeting(tmp_path)
        await fleet.next()
        _, writer = await asyncio.open_connection("127.0.0.1", fleet.port)
        writer.write(b"POST /v1/decision HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n12")
        assert (await fleet.ask("/livez"))[0] == 200  # what came before this has been read
        fleet.line.send({"do": "stop"})
        fleet.line.send({"do": "hurry"})
        assert await fleet.exit_code() == 1
        writer.close()

    run(steps)


def test_what_keeps_it_from_starting_is_said(tmp_path: Path) -> None:
    """To the supervisor, which tells people (S-5)."""

    async def steps() -> None:
        (tmp_path / "bad.pem").write_text("nothing")
        file = str(tmp_path / "bad.pem")
        fleet = Fleeting(tmp_path, tls={"cert_file": file, "key_file": file})
        said = await fleet.next()
        assert said["is"] == "failed"
        assert "not a certificate" in said["why"]
        assert await fleet.exit_code() == 1

    run(steps)


@pytest.mark.slow
def test_a_new_control_process_takes_over(tmp_path: Path) -> None:
    """Its channel replaces the old one, and events go there (S-5)."""

    async def steps() -> None:
        fleet = Fleeting(tmp_path, policy="b.yaml")
        await fleet.connect()
        fleet.channel.send(policy(1, 4))
        await fleet.next()
        before = fleet.channel
        fleet.channel = Channel(fleet._received, fleet.changed.set)
        await fleet.connect()
        fleet.channel.send(policy(1, 6))
        await fleet.until(lambda: fleet.got.count(BundleApplied(1)) == 2)
        assert (await fleet.ask("/readyz"))[1]["bundle_version"] == 6
        assert not before.has_room
        fleet.line.send({"do": "stop"})
        assert await fleet.exit_code() == 0

    run(steps)
