"""The composition root: the only place where parts meet. Makes store, descriptors, engine, door and server out of the
settings, runs them with what goes on beside the traffic (watching the bundle, fetching keys, telling what was left
out of the log), and shuts down without losing answers (SPEC S-6). Decisions are nobody's business here.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import uvloop

from breakloop.app import build
from breakloop.app.build import LazyPrices, bundle_source, tune
from breakloop.app.jobs import aside, forever
from breakloop.app.operations_base import OperationsPort, seated
from breakloop.app.state import ProcessState, StateConnection, open_state
from breakloop.clock import Clock, SystemClock
from breakloop.config.settings import Settings
from breakloop.engine.engine import Engine
from breakloop.errors import BundleError, SettingsError
from breakloop.gateway.decision import DecisionHandler
from breakloop.gateway.reported_results import ReportedResults
from breakloop.gateway.server import ListenError, Server, url, why_not
from breakloop.gateway.upstream import UpstreamFaults
from breakloop.model.counters import ProcessFigures
from breakloop.model.events import Activity
from breakloop.observe.log import EventSink, LogEvents, Logging, log
from breakloop.policy.compile import compile_bundle
from breakloop.policy.compiled import CompiledBundle
from breakloop.policy.descriptors import Descriptors
from breakloop.policy.load import LoadedBundle
from breakloop.policy.watch import BundleFeed
from breakloop.store.data_dir import DataDir

BUILTIN: Final = "builtin"
_KEYS_EVERY_S: Final = 300.0
_FIRST_KEYS_S: Final = 3.0  # how long a start waits for token keys; they come later if they are slow


class Runtime:
    """One process: its parts, and their life from `run` to the end."""

    mark = ""  # by which a request that came through here is known; "": one of its own

    def __init__(
        self, settings: Settings, *, clock: Clock | None = None, opened: StateConnection | None = None
    ) -> None:
        self.settings = settings
        opened = opened or StateConnection(clock or SystemClock())
        self.clock = opened.clock
        self.operations = self.make_operations()
        self.events = self.make_events()
        self._prices = LazyPrices(settings, self.clock)
        self.data = self.make_data_dir()
        self.secret = self.data.secret(opened.secret or settings.secret.get_secret_value(), settings.secret_file)
        self.descriptors = Descriptors(build.context(settings, self.secret), self.clock)
        self.tracing = build.tracing(settings, self.descriptors, self.clock)
        self.server: Server | None = None
        self.state = ProcessState(self.data.path, settings.memory_max_entries, self.clock, opened.shared)
        self.engine = Engine(
            self.state.store,
            self.clock,
            self.descriptors,
            publish=self.events,
            answered=build.answering(self.descriptors, self.tracing),
            prices=self._prices,
        )
        self.source = self.make_source()
        self.judging = build.judging(
            settings, self.engine, self.descriptors, self.secret, self.clock, traces=self.tracing
        )
        self.operator = self.state.join(self.engine, self.judging, self.events)
        results = ReportedResults(self.engine, self.descriptors, self.clock)
        self.door = DecisionHandler(
            self.judging, ready=self.readiness, results=results, decides=settings.mode != "proxy"
        )
        self.operations.seat(self, opened.shared)
        self.url = ""
        self._draining = False
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._reload = asyncio.Event()
        self._keys_read = asyncio.Event()
        self._keys_due = 0.0

    def load(self) -> None:
        """Bring back what was kept, and put the first bundle in force. SPEC E-0: without a valid one go on, or raise
        `BundleError` when strict."""
        for warning in self.data.warnings:
            log(logging.WARNING, warning)
        self.state.load()
        self.operations.load()
        if self.source is None:
            self.engine.set_bundle(self._compiled(None))
        elif not self.source.start() and self.settings.strict:
            raise BundleError(self.source.problems)

    async def run(self, ready: Callable[[str], None]) -> int:
        """Load, listen, call `ready` with the address, serve until a signal comes; returns the exit code."""
        self.load()
        self.server = server = self._server()
        self.take_signals()
        tasks = [asyncio.create_task(forever(name, job)) for name, job in self._jobs()]
        try:
            await self.state.listen()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._keys_read.wait(), _FIRST_KEYS_S)
            port = await self.listen(server)
            self.url = url(self.settings.host, port, tls=bool(self.settings.tls.cert_file))
            await self.operations.start()
            async with build.envoy_grpc(self.settings, self.door, self.mark):
                ready(self.url)
                return await self._until_told(server)
        finally:
            await server.stop(0.0)  # a second time, or at once: no timer of its may outlive the loop
            for task in tasks:
                task.cancel()
            await self.operations.finish()
            await self.state.finish()
            if self.tracing is not None:
                await aside(self.tracing.close)
            self.events.flush(self.clock.now(), everything=True)
            for line in self.engine.meter.errors.lines():
                log(logging.INFO, "estimates", line)

    def readiness(self) -> tuple[int, dict[str, object]]:
        """SPEC D-5: status and content of `/readyz`."""
        bundle = self.engine.bundle
        if bundle is None or self._draining:
            return 503, {"status": "not_ready", "reason": "shutting_down" if bundle else "no_bundle_loaded"}
        content: dict[str, object] = {
            "status": "ready",
            "bundle_version": bundle.version,
            "bundle_digest": bundle.digest,
            "bundle_from": self.source.origin if self.source else BUILTIN,
        }
        content |= self.state.readiness()
        if self.source is not None:
            content |= {"bundle_rejected": self.source.rejected, "bundle_problems": len(self.source.problems)}
        return 200, content

    # -- parts: a worker of several has some of them from its supervisor ---------------------------------------------

    def make_events(self) -> EventSink:
        """Return who is told of events."""
        return self.operations.listening(LogEvents())

    def make_operations(self) -> OperationsPort:
        """Return what people are told and shown with, if they want to be."""
        return seated(self.settings)

    def make_data_dir(self) -> DataDir:
        """Return where things are kept."""
        return DataDir(Path(self.settings.data_dir))

    def make_source(self) -> BundleFeed | None:
        """Return where bundles come from, if anywhere; `use` puts them in force."""
        return bundle_source(self.settings, self.clock, self.data.path, on_bundle=self.use, publish=self.events)

    def _server(self) -> Server:
        server = Server(self.door, build.limits(self.settings), clock=self.clock)
        if self.settings.mode != "decision":
            faults = UpstreamFaults(self.events, self.clock)
            build.open_proxy(server, self.settings, self.judging, self.door, self.mark, faults)
        return server

    def use(self, loaded: LoadedBundle) -> None:
        """Put a bundle in force."""
        compiled = self._compiled(loaded)
        if compiled.agents.metered or any(policy.metered for policy in compiled.policies):
            self._prices().load()  # a seventh of a second, which no request should wait for
        self.engine.set_bundle(compiled)
        for note in loaded.notes:
            log(logging.WARNING, "bundle.note", {"note": str(note)})

    def activity(self) -> Activity:
        """Return what agents did since it was last asked."""
        return self.engine.recording().take()

    def others(self) -> ProcessFigures:
        """Return what other processes have to show: there are none."""
        return ProcessFigures()

    def check(self, loaded: LoadedBundle | None) -> None:
        """Compile a bundle, to see whether that is possible."""
        self._compiled(loaded)

    def _compiled(self, loaded: LoadedBundle | None) -> CompiledBundle:
        bundle, digest = (loaded.bundle, loaded.digest) if loaded else (None, BUILTIN)
        return compile_bundle(bundle, digest, self.descriptors, self.secret, build.loop_guard(self.settings))

    # -- beside the traffic ----------------------------------------------------------------------------------------

    def _jobs(self) -> list[tuple[str, Callable[[], Awaitable[None]]]]:
        jobs = [("log", self._tell), *self.state.jobs(), *self.operations.jobs()]
        if self.source is not None:
            jobs.append(("bundle", self._watch))
        if self.settings.jwt.jwks_file or self.settings.jwt.jwks_url:
            jobs.append(("keys", self._refresh_keys))
        else:
            self._keys_read.set()
        return jobs

    async def _watch(self) -> None:
        """Look at the bundle's source; at once when somebody asks for it."""
        assert self.source is not None  # noqa: S101 - only a job when there is one
        with suppress(TimeoutError):
            await asyncio.wait_for(self._reload.wait(), self.source.wait_s)
        if self._reload.is_set():
            self._reload.clear()
            await aside(self.source.reload)
        else:
            await aside(self.source.poll)

    async def _refresh_keys(self) -> None:
        """Fetch token keys: now, every five minutes, and when a token names one that is not known."""
        tokens = self.descriptors.tokens
        if tokens.wants_refresh or self.clock.now() >= self._keys_due:
            self._keys_due = self.clock.now() + _KEYS_EVERY_S
            why = await aside(tokens.refresh)
            self._keys_read.set()
            if why:
                log(logging.WARNING, "jwt.keys_not_read", {"error": why})
        await asyncio.sleep(1.0)

    async def _tell(self) -> None:
        await asyncio.sleep(1.0)
        self.events.flush(self.clock.now())

    # -- start and end ---------------------------------------------------------------------------------------------

    async def listen(self, server: Server) -> int:
        """Begin to accept; returns the port."""
        host, port = self.settings.host, self.settings.port
        try:
            return await server.start(host, port, tls=build.own_tls(self.settings))
        except ListenError as error:
            raise SettingsError(why_not(host, port, error)) from None

    def take_signals(self) -> None:
        """A first one ends it, a second one at once; SIGHUP reads the bundle again."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, lambda: self.stop(hurry=self._stop.is_set()))
        loop.add_signal_handler(signal.SIGHUP, self.reload)

    def stop(self, *, hurry: bool = False) -> None:
        """End: when running requests are answered, or at once."""
        self._stop.set()
        if hurry:
            self._hurry.set()

    def reload(self) -> None:
        """Look at the bundle's source now."""
        self._reload.set()

    async def _until_told(self, server: Server) -> int:
        """Wait for a signal, then for running requests; a second signal ends that at once, with 1."""
        await self._stop.wait()
        self._draining = True
        stopping = asyncio.create_task(server.stop(self.settings.shutdown_grace_seconds))
        hurried = asyncio.create_task(self._hurry.wait())
        await asyncio.wait((stopping, hurried), return_when=asyncio.FIRST_COMPLETED)
        if not stopping.done():
            stopping.cancel()
            return 1
        hurried.cancel()
        log(logging.INFO, "stopped", {"cut_off": stopping.result()})
        return 0


def serve(settings: Settings, ready: Callable[[Runtime], None], logging_: Logging) -> int:
    """Run a process on a loop of its own until it is told to stop; returns the exit code."""
    logging_.start()
    try:
        return uvloop.run(_serve(settings, ready))
    finally:
        logging_.stop()


async def _serve(settings: Settings, ready: Callable[[Runtime], None]) -> int:
    build.check_ports(settings)
    runtime = Runtime(settings, opened=await open_state(settings))

    def settled(_url: str) -> None:
        tune()
        ready(runtime)

    return await runtime.run(settled)
