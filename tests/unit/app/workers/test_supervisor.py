"""The supervisor over processes that are played: who is started when, told what, and how it all ends."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from breakloop.app.workers.ipc import PipeMessage
from breakloop.app.workers.supervisor import Supervisor, WorkerSlot
from breakloop.clock import FakeClock
from breakloop.errors import FleetError
from breakloop.model.events import Event
from tests.deadlines import DEADLINE_S

STOP = {"do": "stop"}
HURRY = {"do": "hurry"}
PING = {"do": "ping"}


class Played:
    """A process that does what the test says."""

    def __init__(self, slot: WorkerSlot, pid: int, heard: Callable[[PipeMessage], None]) -> None:
        self.slot = slot
        self.pid = pid
        self.heard = heard
        self.told: list[PipeMessage] = []
        self.killed = False
        self.code: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.obeys = True
        self.hangs = False
        self.is_traced = False

    def send(self, message: PipeMessage, sockets: Sequence[socket.socket] = ()) -> bool:
        self.told.append(message | ({"sockets": len(sockets)} if sockets else {}))
        if message == PING and not self.hangs:
            self.heard({"is": "alive"})
        if self.obeys and message == STOP:
            self.ends(0)
        if self.obeys and message == HURRY:
            self.ends(1)
        return not self.code.done() or message == STOP

    def ends(self, code: int) -> None:
        if not self.code.done():
            self.code.set_result(code)

    async def wait(self) -> int:
        return await self.code

    def kill(self) -> None:
        self.killed = True
        self.ends(-9)


class Stage:
    """A supervisor with played processes; time passes when the test says so."""

    def __init__(self, workers: int = 2, grace_s: float = 0.0) -> None:
        self.clock = FakeClock()
        self.played: list[Played] = []
        self.logged: list[Event] = []
        self.pauses: list[float] = []
        self.deaths: list[str] = []
        self.ready = asyncio.Event()
        self.stops = 0
        self.cannot = 0  # so many starts fail
        self.supervisor = Supervisor(
            workers, self._launch, self.clock, self.logged.append, grace_s=grace_s, pause=self._pause
        )
        self.supervisor.on_exit = lambda slot: self.deaths.append(slot.title)
        self.supervisor.on_stop = self._stopped
        self.task = asyncio.create_task(self.supervisor.run(self.ready.set))

    def _stopped(self) -> None:
        self.stops += 1

    async def _launch(self, slot: WorkerSlot, heard: Callable[[PipeMessage], None]) -> Any:
        if self.cannot:
            self.cannot -= 1
            raise OSError(11, "Resource temporarily unavailable")
        self.played.append(Played(slot, 100 + len(self.played), heard))
        return self.played[-1]

    async def _pause(self, _stop: asyncio.Event, seconds: float) -> None:
        self.pauses.append(seconds)
        self.clock.advance(seconds)

    def __getitem__(self, title: str) -> Played:
        """Who is in this place now."""
        return [one for one in self.played if one.slot.title == title][-1]

    async def settle(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    async def begin(self) -> None:
        await self.settle()
        for one in self.played:
            one.heard({"is": "ready"})
        await asyncio.wait_for(self.ready.wait(), DEADLINE_S)

    async def dies(self, title: str, code: int = -9, *, ready: bool = True) -> None:
        """End it, and let what takes its place get ready."""
        self[title].ends(code)
        await self.settle()
        if ready:
            self[title].heard({"is": "ready"})
            await self.settle()

    def killed(self) -> list[int]:
        return [one.pid for one in self.played if one.killed]

    def events(self) -> list[dict[str, Any]]:
        """What the control process was told."""
        return [one for played in self.played for one in played.told if one["do"] == "event"]


def run(steps: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(steps(), DEADLINE_S))


def test_it_is_ready_when_everybody_is() -> None:
    """Not before; each worker and the control process get the ends of a channel (S-5)."""

    async def steps() -> None:
        stage = Stage()
        await stage.settle()
        assert {one.slot.title for one in stage.played} == {"control", "worker 1", "worker 2"}
        stage["control"].heard({"is": "ready", "started": {"version": 7}})
        stage["worker 1"].heard({"is": "ready"})
        await stage.settle()
        assert not stage.ready.is_set()
        stage["worker 2"].heard({"is": "ready"})
        await stage.settle()
        assert stage.ready.is_set()
        assert stage.supervisor.started == {"version": 7}
        later: list[dict[str, Any]] = []
        stage.supervisor.on_loaded = lambda: later.append(stage.supervisor.started)
        stage["control"].heard({"is": "loaded", "started": {"version": 8}})
        assert later == [{"version": 8}]
        control = [one for one in stage["control"].told if one["do"] == "channel"]
        assert [(one["worker"], one["pid"], one["sockets"]) for one in control] == [(1, 101, 1), (2, 102, 1)]
        assert stage["worker 1"].told == [{"do": "channel", "sockets": 1}]
        stage.supervisor.stop()
        assert await stage.task == 0

    run(steps)


def test_a_worker_that_hangs_is_logged_and_replaced(caplog: pytest.LogCaptureFixture) -> None:
    """After 10 seconds and after 30; those that answer stay, late answers included (S-5)."""

    async def steps() -> None:
        stage = Stage()
        await stage.begin()
        hung, late = stage["worker 1"], stage["worker 2"]
        hung.hangs = late.hangs = True
        for _ in range(3):
            stage.supervisor.ping()
        assert [record.getMessage() for record in caplog.records] == ["worker.stalled"] * 2
        assert caplog.records[0].fields == {"process": "worker 1", "pid": hung.pid, "seconds": 10}  # type: ignore[attr-defined]
        late.heard({"is": "alive"})
        late.hangs = False
        for _ in range(3):
            stage.supervisor.ping()
        assert stage.killed() == []
        stage.supervisor.ping()
        assert stage.killed() == [hung.pid]
        await stage.settle()
        [told] = stage.events()
        assert (told["name"], told["data"]["process"]) == ("worker.died", "worker 1")
        assert told["data"]["problem"] == "it did not respond for 30 seconds, and was killed"
        assert stage["worker 1"] is not hung
        for _ in range(10):  # the new one is starting, and is not asked
            stage.supervisor.ping()
        assert stage.killed() == [hung.pid]
        stage.supervisor.stop()
        assert await stage.task == 0

    with caplog.at_level("WARNING"):
        run(steps)


def test_a_worker_in_a_debugger_is_left_alone() -> None:
    """It is logged, and continues when the debugger lets it (S-5)."""

    async def steps() -> None:
        stage = Stage()
        await stage.begin()
        stage["worker 1"].hangs = stage["worker 1"].is_traced = True
        for _ in range(100):
            stage.supervisor.ping()
        assert stage.killed() == []
        stage["worker 1"].is_traced = False
        stage.supervisor.ping()
        assert stage.killed() == [stage["worker 1"].pid]
        stage.supervisor.stop()
        await stage.task

    run(steps)


def test_a_dead_worker_is_replaced_at_once() -> None:
    """And told to the control process, which is connected with the new one (S-5)."""

    async def steps() -> None:
        stage = Stage()
        await stage.begin()
        await stage.dies("worker 1")
        assert stage["worker 1"].pid == 103
        assert stage.deaths == ["worker 1"]
        assert stage.pauses == []
        died, replaced = stage.events()
        data = {"process": "worker 1", "pid": 101, "ended": "killed by SIGKILL", "restart_in_seconds": 0.0}
        assert (died["name"], died["data"]) == ("worker.died", data)
        assert (replaced["name"], replaced["data"]) == ("worker.replaced", {"process": "worker 1", "pid": 103})
        assert {"do": "channel", "worker": 1, "pid": 103, "sockets": 1} in stage["control"].told
        assert stage.logged == []
        stage.supervisor.stop()
        assert await stage.task == 0

    run(steps)


def test_dying_again_and_again_backs_off() -> None:
    """Each time it is told how long the next start waits; the others go on (S-5)."""

    async def steps() -> None:
        stage = Stage()
        await stage.begin()
        for _ in range(5):
            await stage.dies("worker 1", 1)
        assert stage.pauses == [0.25, 0.5, 1.0, 2.0]
        waits = [one["data"]["restart_in_seconds"] for one in stage.events() if one["name"] == "worker.died"]
        assert waits == [0.0, 0.25, 0.5, 1.0, 2.0]
        assert len([one for one in stage.played if one.slot.title == "worker 2"]) == 1
        stage.clock.advance(60)
        await stage.dies("worker 1", 1)
        assert stage.pauses[4:] == []
        stage.supervisor.stop()
        assert await stage.task == 0

    run(steps)


def test_a_dead_control_process_is_replaced_and_logged_here() -> None:
    """While it is away there is nobody to tell; the new one gets a channel to every worker, and so do they (S-5)."""

    async def steps() -> None:
        stage = Stage()
        await stage.begin()
        await stage.dies("control", 1)
        assert [event.name for event in stage.logged] == ["worker.died"]
        assert stage.logged[0].data["process"] == "control"
        channels = [one["worker"] for one in stage["control"].told if one["do"] == "channel"]
        assert channels == [1, 2]
        assert len([one for one in stage["worker 1"].told if one["do"] == "channel"]) == 2
        stage.supervisor.reload()
        assert stage["control"].told[-1] == {"do": "reload"}
        stage.supervisor.stop()
        assert await stage.task == 0

    run(steps)


@pytest.mark.parametrize(
    ("said", "message"),
    [("tls: no certificate", "tls: no certificate"), ("", "worker 1 exited during startup: exit")],
)
def test_what_cannot_start_ends_the_start(said: str, message: str) -> None:
    """Exit 1 with its message, and nobody is left (S-5)."""

    async def steps() -> None:
        stage = Stage()
        await stage.settle()
        stage["control"].heard({"is": "ready"})
        if said:
            stage["worker 1"].heard({"is": "failed", "why": said})
        stage["worker 1"].ends(1)
        with pytest.raises(FleetError, match=message):
            await stage.task
        assert not stage.ready.is_set()
        assert all(one.code.done() for one in stage.played)
        assert STOP in stage["worker 2"].told

    run(steps)


def test_when_no_worker_can_be_started_any_more_it_ends() -> None:
    """As long as one serves it goes on trying; with none left it says why and exits (S-5)."""

    async def steps() -> None:
        stage = Stage()
        await stage.begin()
        await stage.dies("worker 1", ready=False)
        for _ in range(7):
            await stage.dies("worker 1", 1, ready=False)
        assert not stage.task.done()
        await stage.dies("worker 2", ready=False)
        stage["worker 1"].heard({"is": "failed", "why": "no such file: key.pem"})
        await stage.dies("worker 1", 1, ready=False)
        with pytest.raises(FleetError, match=r"no such file: key\.pem"):
            await stage.task
        assert all(one.code.done() for one in stage.played)

    run(steps)


def test_a_system_without_room_for_processes_is_waited_for() -> None:
    """A start that fails is a death like others; at the very beginning it ends the start (S-5)."""

    async def steps() -> None:
        stage = Stage()
        await stage.begin()
        stage.cannot = 2
        await stage.dies("worker 1")
        assert stage.pauses == [0.25, 0.5]
        told = [one["data"] for one in stage.events() if one["name"] == "worker.died"]
        assert [one.get("problem") for one in told] == [
            None,
            *["worker 1 cannot be started: Resource temporarily unavailable"] * 2,
        ]
        stage.supervisor.stop()
        assert await stage.task == 0

    run(steps)


def test_the_end_is_in_order() -> None:
    """Workers first, and the control process when the last of them is gone; nobody comes in meanwhile (S-6)."""

    async def steps() -> None:
        stage = Stage(grace_s=60)
        await stage.begin()
        for title in ("worker 1", "worker 2"):
            stage[title].obeys = False
        stage.supervisor.stop()
        await stage.settle()
        assert stage.stops == 1
        assert [STOP in stage[title].told for title in ("worker 1", "worker 2", "control")] == [True, True, False]
        stage["worker 1"].ends(0)
        await stage.settle()
        assert STOP not in stage["control"].told
        stage["worker 2"].ends(0)
        assert await stage.task == 0
        assert STOP in stage["control"].told
        assert stage.events() == []
        assert not any(one.killed for one in stage.played)

    run(steps)


def test_a_second_signal_hurries() -> None:
    """Workers are told to end at once, and the exit code is 1 (S-6)."""

    async def steps() -> None:
        stage = Stage(grace_s=60)
        await stage.begin()
        for title in ("worker 1", "worker 2"):
            stage[title].obeys = False
        stage.supervisor.stop()
        await stage.settle()
        for title in ("worker 1", "worker 2"):
            stage[title].obeys = True
        stage.supervisor.stop()
        assert await stage.task == 1
        assert HURRY in stage["worker 1"].told

    run(steps)


def test_who_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the grace and a little more; the exit code says so (S-6)."""
    monkeypatch.setattr("breakloop.app.workers.supervisor._MARGIN_S", 0.01)
    monkeypatch.setattr("breakloop.app.workers.supervisor._HURRIED_S", 0.01)
    monkeypatch.setattr("breakloop.app.workers.supervisor._CONTROL_S", 0.01)

    async def steps() -> None:
        stage = Stage()
        await stage.begin()
        for title in ("worker 2", "control"):
            stage[title].obeys = False
        stage.supervisor.stop()
        assert await stage.task == 1
        killed = {one.slot.title for one in stage.played if one.killed}
        assert killed == {"worker 2", "control"}

    run(steps)


def test_a_signal_while_it_starts_ends_it() -> None:
    """Nothing is announced; who is just being started is told, too (S-6)."""

    async def steps() -> None:
        stage = Stage()
        stage.supervisor.stop()
        assert await stage.task == 0
        assert not stage.ready.is_set()
        assert stage.played == [] or all(one.code.done() for one in stage.played)

    run(steps)


def test_a_worker_that_failed_at_the_end_is_told_by_the_exit_code() -> None:
    """0 means that everything ended well (S-6)."""

    async def steps() -> None:
        stage = Stage()
        await stage.begin()
        stage["worker 1"].obeys = False
        stage.supervisor.stop()
        stage["worker 1"].ends(3)
        assert await stage.task == 1

    run(steps)
