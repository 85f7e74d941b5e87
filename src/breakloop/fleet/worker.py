"""A worker: a process that serves, as one alone would, but for what its fleet does once: it accepts from a socket that
it shares, has its bundles delivered, sends its events, and ends when the supervisor says so or is gone.
"""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Coroutine
from typing import Any, Final

import uvloop

from breakloop import parts
from breakloop.errors import BundleError, SettingsError
from breakloop.fleet.channel import Channel, open_channel
from breakloop.fleet.delivered import Delivered
from breakloop.fleet.handover import Handover
from breakloop.fleet.line import Line, Say
from breakloop.fleet.messages import Applied, Fleet, Message, Policy
from breakloop.fleet.outbox import Outbox
from breakloop.fleet.reporting import Reporting
from breakloop.gateway.server import Server
from breakloop.gateway.sharing import Shares
from breakloop.observe.log import Events
from breakloop.policy.source import Watched
from breakloop.runtime import Runtime
from breakloop.seating import Nobody, Seated, wanted
from breakloop.state.data_dir import DataDir
from breakloop.state_parts import Opened, open_state
from breakloop.tuning import tune

_FLUSH_S: Final = 1.0


class Worker:
    """One worker process, from its start to its exit code."""

    def __init__(self, handover: Handover) -> None:
        self.handover = handover
        self.delivered = Delivered(self._acknowledge)
        self.outbox = Outbox(self._send)
        self.workers = handover.workers
        self._loop = asyncio.get_running_loop()
        self._runtime: WorkerRuntime | None = None
        self._channel: Channel | None = None
        self._begun = asyncio.Event()  # there is a bundle, or it is known that there is none
        self._stopped = False
        self._tasks: set[asyncio.Task[None]] = set()
        if not handover.settings.policy:
            self._begun.set()
        self._line = Line(socket.socket(fileno=handover.line), self._heard, self.stop)

    async def run(self) -> int:
        """Serve until it is told to stop."""
        self._take_signals()
        code = 1
        try:
            await self._begun.wait()
            if self._stopped:
                return 0
            self._runtime = WorkerRuntime(self, await open_state(self.handover.settings))
            code = await self._runtime.run(self._ready)
        except (SettingsError, BundleError) as error:
            self._line.say({"is": "failed", "why": str(error)})
        finally:
            await self._say_goodbye()
        return code

    def stop(self) -> None:
        """Finish what is under way and end; also when the supervisor is gone."""
        self._stopped = True
        self._begun.set()
        if self._runtime is not None:
            self._runtime.stop()

    def _ready(self, _url: str) -> None:
        tune()
        self._line.say({"is": "ready"})
        if self._stopped and self._runtime is not None:  # while it was being made
            self._runtime.stop()

    def _take_signals(self) -> None:
        """Who stops the fleet tells the supervisor. Service managers tell everybody, terminals send SIGINT around."""
        self._loop.add_signal_handler(signal.SIGTERM, self.stop)
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)

    # -- the supervisor --------------------------------------------------------------------------------------------

    def _heard(self, message: Say, sockets: list[socket.socket]) -> None:
        match message.get("do"):
            case "channel":
                self._keep(self._open(sockets[0]))
            case "stop":
                self.stop()
            case "hurry":
                self.stop()
                if self._runtime is not None:
                    self._runtime.stop(hurry=True)
            case _:
                pass

    def _keep(self, job: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(job)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- the control process ---------------------------------------------------------------------------------------

    async def _open(self, end: socket.socket) -> None:
        before, self._channel = self._channel, None
        if before is not None:
            before.close()
        channel = Channel(self._received, lambda: None, self.outbox.send)
        await open_channel(end, channel)
        self._channel = channel
        self.outbox.flush(0.0)  # a new control process is to show at once what was counted under the old one

    def _send(self, message: Message) -> bool:
        return self._channel is not None and self._channel.send(message)

    def _received(self, message: Message) -> None:
        if isinstance(message, Fleet):
            self.workers = message.workers
        elif isinstance(message, Policy):
            self.delivered.put(message)
            self._begun.set()
            if self._runtime is not None:
                self._runtime.reload()

    def _acknowledge(self, applied: Applied) -> None:
        self._loop.call_soon_threadsafe(self._send, applied)

    async def _say_goodbye(self) -> None:
        """What is left to tell is told, if somebody listens."""
        self.outbox.flush(0.0, everything=True)
        channel = self._channel
        if channel is not None:
            await channel.finish(_FLUSH_S)
        self._line.close()


class WorkerRuntime(Runtime):
    """`Runtime` with the fleet's parts in place of its own."""

    def __init__(self, worker: Worker, opened: Opened) -> None:
        self._worker = worker
        self.mark = worker.handover.mark
        super().__init__(worker.handover.settings, opened=opened)

    def make_events(self) -> Events:
        """Events go to the control process."""
        return self._worker.outbox

    def make_operations(self) -> Seated:
        """The control process has them, and is told what it needs for them."""
        return Reporting(self._worker.outbox) if wanted(self.settings) else Nobody()

    def make_data_dir(self) -> DataDir:
        """Workers write the orders, a file made for several writers; the rest is for the control process, and so is
        telling that the directory cannot be used."""
        data = super().make_data_dir()
        data.warnings.clear()
        return data

    def make_source(self) -> Watched | None:
        """Bundles are delivered."""
        if not self.settings.policy:
            return None
        self._worker.delivered.use = self.use
        return self._worker.delivered

    def take_signals(self) -> None:
        """The worker has taken them already."""

    async def listen(self, server: Server) -> int:
        """Accept from the sockets of the supervisor."""
        handover = self._worker.handover
        shares = Shares(handover.shares, handover.workers)
        tls, port = parts.own_tls(self.settings), 0
        for fd in handover.listeners:
            shared = socket.socket(fileno=fd)
            port = port or shared.getsockname()[1]
            server.share(shared, shares, handover.number - 1, tls)
        return port

    def readiness(self) -> tuple[int, dict[str, object]]:
        """Which worker answers, and of how many."""
        status, content = super().readiness()
        if status == 200:
            content |= {"worker": self._worker.handover.number, "workers": self._worker.workers}
        return status, content


def run(handover: Handover) -> int:
    """Be a worker; returns the exit code."""
    return uvloop.run(_run(handover))


async def _run(handover: Handover) -> int:
    return await Worker(handover).run()
