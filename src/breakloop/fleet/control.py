"""The control process: what happens once for all workers. It watches the bundle's source and delivers what is valid,
logs the events of all, and adds up what they count. Further duties are jobs (`_jobs`) and listeners to events
(`listeners`); a request is never among them.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from breakloop import parts
from breakloop.clock import SystemClock
from breakloop.errors import BundleError, SettingsError
from breakloop.fleet.handover import Handover
from breakloop.fleet.line import Line, Say
from breakloop.fleet.members import Members
from breakloop.fleet.started import Started, started
from breakloop.gateway.jobs import aside, forever
from breakloop.model.events import Event
from breakloop.observe.log import Events, LogEvents, log
from breakloop.policy.compile import compile_bundle
from breakloop.policy.compiled import CompiledBundle
from breakloop.policy.descriptors import Descriptors
from breakloop.policy.load import LoadedBundle
from breakloop.policy.source import BundleSource
from breakloop.policy_source import bundle_source
from breakloop.seating import wanted
from breakloop.state.data_dir import DataDir
from breakloop.state_parts import open_state

if TYPE_CHECKING:
    from breakloop.fleet.office import Office

_GOODBYE_S: Final = 2.0

Job = tuple[str, Callable[[], Awaitable[None]]]


class Control:
    """The control process, from its start to its exit code."""

    def __init__(self, handover: Handover) -> None:
        self.handover = handover
        self.settings = settings = handover.settings
        self.clock = SystemClock()
        self.listeners: list[Events] = [LogEvents()]
        self.members = Members(self.publish)
        self.data = DataDir(Path(settings.data_dir))
        self._secret = self.data.secret(settings.secret.get_secret_value(), settings.secret_file)
        self._descriptors = Descriptors(parts.context(settings, self._secret), self.clock)
        self._compiled: CompiledBundle | None = None
        self._office: Office | None = None
        self.source = self._source()
        self._loop = asyncio.get_running_loop()
        self._reload = asyncio.Event()
        self._stop = asyncio.Event()
        self._patience_s = _GOODBYE_S
        self._line = Line(socket.socket(fileno=handover.line), self._heard, self._orphaned)

    async def run(self) -> int:
        """Do everything that happens once, until the supervisor says stop or is gone and no worker is left."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # workers may still have something to tell; see `worker`
        for warning in self.data.warnings:
            log(logging.WARNING, warning)
        begun = asyncio.create_task(self._begin())
        stopped = asyncio.create_task(self._stop.wait())  # a source that is slow does not hold up the end
        await asyncio.wait((begun, stopped), return_when=asyncio.FIRST_COMPLETED)
        if not begun.done():
            begun.cancel()
            return 0
        try:
            begun.result()
        except (SettingsError, BundleError) as error:
            self._line.say({"is": "failed", "why": str(error)})
            return 1
        finally:
            stopped.cancel()
        return await self._work()

    async def _work(self) -> int:
        tasks = [asyncio.create_task(forever(name, job)) for name, job in self._jobs()]
        self._line.say({"is": "ready", "started": asdict(self._started())})
        await self._stop.wait()
        await self.members.all_gone(self._patience_s)
        for task in tasks:
            task.cancel()
        self._flush(everything=True)
        if self._office is not None:
            await self._office.close()
        return 0

    def publish(self, event: Event) -> None:
        """Tell everybody who listens. On the loop's thread only."""
        for listener in self.listeners:
            listener(event)

    # -- the bundle --------------------------------------------------------------------------------------------------

    def _source(self) -> BundleSource | None:
        publish = self._publish_soon
        return bundle_source(self.settings, self.clock, self.data.path, on_bundle=self._check, publish=publish)

    def _publish_soon(self, event: Event) -> None:
        """The source runs in a thread."""
        self._loop.call_soon_threadsafe(self.publish, event)

    def _check(self, loaded: LoadedBundle | None) -> None:
        """Compile it: what cannot be compiled is refused here, and no worker hears of it."""
        bundle, digest = (loaded.bundle, loaded.digest) if loaded else (None, "builtin")
        guard = parts.loop_guard(self.settings)
        self._compiled = compile_bundle(bundle, digest, self._descriptors, self._secret, guard)
        if self._office is not None:
            self._loop.call_soon_threadsafe(self._office.engine.use, self._compiled)
        for note in loaded.notes if loaded else ():
            log(logging.WARNING, "bundle.note", {"note": str(note)})

    async def _open_office(self) -> None:
        """History, alerts and the admin plane, where somebody wants them."""
        if not wanted(self.settings):
            return
        from breakloop.fleet.office import Office  # noqa: PLC0415 - a database and a web framework take their time

        office = self._office = Office(self, await open_state(self.settings))
        self.listeners[:] = [office.operations.listening(listener) for listener in self.listeners]
        await office.open(self._compiled)

    def _started(self) -> Started:
        seen = started(self.source, self._compiled)
        if self._office is None:
            return seen
        admin = self._office.operations
        return replace(seen, admin_url=admin.admin_url, admin_token=admin.new_token)

    async def _begin(self) -> None:
        if self.source is None:
            self._check(None)
            await self._open_office()
            return
        in_force = await aside(self.source.start)
        self.members.deliver(self.source)
        if not in_force and self.settings.strict and self.handover.first:
            raise BundleError(self.source.problems)
        await self._open_office()

    async def _watch(self) -> None:
        """Look at the bundle's source, at once when somebody asks for it, and deliver what is new."""
        assert self.source is not None  # noqa: S101 - only a job when there is one
        with suppress(TimeoutError):
            await asyncio.wait_for(self._reload.wait(), self.source.wait_s)
        asked = self._reload.is_set()
        self._reload.clear()
        await aside(self.source.reload if asked else self.source.poll)
        self.members.deliver(self.source)

    # -- jobs --------------------------------------------------------------------------------------------------------

    def _jobs(self) -> list[Job]:
        """What goes on all the time. Whatever else is to happen once for all workers is added here."""
        jobs: list[Job] = [("log", self._tell)]
        if self.source is not None:
            jobs.append(("bundle", self._watch))
        if self._office is not None:
            jobs += [*self._office.state.jobs(), *self._office.operations.jobs()]
        return jobs

    async def _tell(self) -> None:
        await asyncio.sleep(1.0)
        self._flush()

    def _flush(self, *, everything: bool = False) -> None:
        now = self.clock.now()
        self.members.flush(now, everything=everything)
        for listener in self.listeners:
            listener.flush(now, everything=everything)

    # -- the supervisor ----------------------------------------------------------------------------------------------

    def _heard(self, message: Say, sockets: list[socket.socket]) -> None:
        match message.get("do"):
            case "channel":
                self.members.join(message["worker"], message["pid"], sockets[0])
            case "event":
                self.publish(Event(message["name"], message["at"], message["data"]))
            case "reload":
                self._reload.set()
            case "stop" | "hurry":
                self._stop.set()
            case _:
                pass

    def _orphaned(self) -> None:
        """Without a supervisor the workers end, too; what they have to tell is waited for."""
        self._patience_s = self.settings.shutdown_grace_seconds + _GOODBYE_S
        self._stop.set()


def run(handover: Handover) -> int:
    """Be the control process; returns the exit code."""
    return asyncio.run(_run(handover))


async def _run(handover: Handover) -> int:
    return await Control(handover).run()
