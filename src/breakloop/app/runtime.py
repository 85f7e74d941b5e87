"""One serving process: builds its parts from the settings, runs them with their background jobs, and shuts down without
losing responses."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from breakloop.app import build
from breakloop.app.build import Job, aside, bundle_source, forever, lazy_prices, tune
from breakloop.app.memory import MemoryWatch, max_entries, memory_limit
from breakloop.app.state import ProcessState, StateConnection, open_state
from breakloop.clock import Clock, SystemClock, Throttle
from breakloop.config.settings import Settings
from breakloop.engine.engine import Engine
from breakloop.errors import BundleError, SettingsError
from breakloop.gateway.decision import DecisionHandler, ReportedResults
from breakloop.gateway.in_flight import CallStopper
from breakloop.gateway.proxy import ProxyHandler
from breakloop.gateway.server import ListenError, Server, url, why_not
from breakloop.gateway.upstream import UpstreamFaults
from breakloop.model.counters import TraceCounters
from breakloop.model.events import Activity
from breakloop.observe.events import EventBus
from breakloop.observe.log import INTERVAL_S, EventSink, LogAndBus, LogEvents, Logging, log
from breakloop.observe.metrics import MetricSources, MetricValues, UpstreamCounts
from breakloop.policy.client import ClientIp
from breakloop.policy.compile import BUILTIN, compile_loaded
from breakloop.policy.compiled import CompiledBundle
from breakloop.policy.descriptors import Descriptors
from breakloop.policy.load import LoadedBundle
from breakloop.policy.watch import BundleFeed
from breakloop.store.data_dir import DataDir

if TYPE_CHECKING:
    from breakloop.app.operations import Operations


_KEYS_EVERY_S: Final = 300.0
_STEPS_MAX: Final = 100  # of the clock, of different sizes, that are logged in an interval
_FIRST_KEYS_S: Final = 3.0  # how long the start waits for token keys


class Runtime:
    """The parts of one process. Processes on one port (`app.workers`) override the `make_` methods."""

    mark = ""  # marks forwarded requests, so that proxy loops are noticed; shared by the processes on one port

    def __init__(
        self, settings: Settings, *, clock: Clock | None = None, opened: StateConnection | None = None
    ) -> None:
        self.settings = settings
        opened = opened or StateConnection(clock or SystemClock())
        self.clock = opened.clock
        self.started_at = self.clock.now()
        self.clock_stepped_s = 0.0
        self._steps: Throttle[int, float] = Throttle(INTERVAL_S, _STEPS_MAX)
        self.bus = EventBus() if build.operations_wanted(settings) else None
        self.events = self.make_events()
        self._prices = lazy_prices(settings, self.clock)
        self.data = self.make_data_dir()
        self.secret = self.data.secret(opened.secret or settings.secret.get_secret_value(), settings.secret_file)
        self.descriptors = Descriptors(build.context(settings, self.secret), self.clock)
        self.tracing = self.make_tracing()
        self.server: Server | None = None
        self._memory_limit = memory_limit()
        entries = max_entries(settings, self._memory_limit)
        self.state = ProcessState(self.data.path, entries, self.clock, opened.shared)
        self.clock.on_step.append(self._stepped)
        self.engine = Engine(
            self.state.store,
            self.clock,
            self.descriptors,
            publish=self.events,
            answered=build.answering(self.descriptors, self.tracing),
            prices=self._prices,
        )
        self.source = self.make_source()
        self.admission = build.admission(
            settings, self.engine, self.descriptors, self.secret, self.clock, traces=self.tracing
        )
        self.operator = self.state.join(self.engine, self.admission, self.events)
        results = ReportedResults(self.engine, self.descriptors, self.clock)
        self.handler = DecisionHandler(
            self.admission, ready=self.readiness, results=results, decides=settings.mode != "proxy"
        )
        self.url = ""
        self.operations = self.make_operations()
        self.on_first_bundle: Callable[[], None] | None = None
        self._draining = False
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._reload = asyncio.Event()
        self._keys_read = asyncio.Event()
        self._keys_due = 0.0

    def load(self) -> None:
        """Load the saved state and the first bundle. Without a valid bundle, `strict` raises `BundleError`."""
        for warning in self.data.warnings:
            log(logging.WARNING, warning)
        self.state.load()
        if self.operations is not None:
            self.operations.load()
        if self.source is None:
            self.engine.set_bundle(self.compiled(None))
        elif not self.source.start() and self.settings.strict:
            raise BundleError(self.source.problems)

    async def run(self, ready: Callable[[str], None]) -> int:
        """Load, listen, call `ready` with the URL, and serve until a signal arrives. Returns the exit code."""
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
            if self.operations is not None:
                await self.operations.start()
            async with build.envoy_grpc(self.settings, self.handler, self.admission, self.mark):
                ready(self.url)
                return await self._serve_until_stopped(server)
        finally:
            await server.stop(0.0)  # again, or after an error: no timer may outlive the loop
            for task in tasks:
                task.cancel()
            if self.source is not None:
                await aside(self.source.finish)
            if self.operations is not None:
                await self.operations.finish()
            await self.state.finish()
            if self.tracing is not None:
                await aside(self.tracing.close)
            self.events.flush(self.clock.now(), everything=True)
            for line in self.engine.meter.errors.lines():
                log(logging.INFO, "estimates", line)

    def readiness(self) -> tuple[int, dict[str, object]]:
        """Return status and content of `/readyz`."""
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

    # -- parts that workers replace ----------------------------------------------------------------------------------

    def make_events(self) -> EventSink:
        return LogEvents() if self.bus is None else LogAndBus(LogEvents(), self.bus)

    def make_tracing(self) -> TraceCounters | None:
        return build.tracing(self.settings, self.descriptors, self.clock)

    def make_operations(self) -> Operations | None:
        """Return the history, alerts and admin server, if the settings ask for them."""
        if self.bus is None:
            return None
        from breakloop.app.operations import Operations  # noqa: PLC0415 - a database and a web framework: 0.5 s

        return Operations(self, self.bus)

    def make_data_dir(self) -> DataDir:
        return DataDir(Path(self.settings.data_dir))

    def make_source(self) -> BundleFeed | None:
        """Return the bundle source, if one is configured; it calls `use` for each new bundle."""
        return bundle_source(self.settings, self.clock, self.data.path, on_bundle=self.use, publish=self.events)

    def _server(self) -> Server:
        server = Server(self.handler, build.limits(self.settings), clock=self.clock)
        self.admission.body_memory = server.body_memory
        server.large_bodies = self.admission
        if self._memory_limit is not None:
            server.on_sweep.append(MemoryWatch(self._memory_limit, server.body_memory).sweep)
        server.exempts = ClientIp((*self.settings.trusted_proxies, "127.0.0.0/8", "::1")).trusted
        if self.settings.mode != "decision":
            faults = UpstreamFaults(self.events, self.clock)
            build.open_proxy(server, self.settings, self.admission, self.handler, self.mark, faults)
            stopper = CallStopper(server, self.engine, self.descriptors)
            self.operator.stop_with(stopper.order_changed, stopper.stopped)
        return server

    def use(self, loaded: LoadedBundle) -> None:
        compiled = self.compiled(loaded)
        if compiled.agents.metered or any(policy.metered for policy in compiled.policies):
            self._prices().load()  # 0.15 s, which no request should wait for
        self.engine.set_bundle(compiled)
        for note in loaded.notes:
            log(logging.WARNING, "bundle.note", {"note": str(note)})

    def activity(self) -> Activity:
        """Return what agents did since the last call. The first call starts the recording."""
        return self.engine.recording().take()

    def metric_sources(self) -> MetricSources:
        handler = None if self.server is None else self.server.handler
        pools = handler.pools if isinstance(handler, ProxyHandler) else {}
        return MetricSources(
            engine=self.engine,
            started_at=self.started_at,
            store=self.state.store,
            timings=self.admission.timings,
            server=self.server,
            upstreams=[UpstreamCounts(name, pool.opened, len(pool.live)) for name, pool in pools.items()],
            bundles=self.source,
            snapshots=self.state.snapshots,
            remote=None if self.state.shared is None else self.state.shared.remote,
            clock_stepped_s=self.clock_stepped_s,
        )

    def worker_metrics(self) -> MetricValues:
        """Return the metrics of the workers, in a control process."""
        return MetricValues()

    def compiled(self, loaded: LoadedBundle | None) -> CompiledBundle:
        """Compile a bundle without using it."""
        return compile_loaded(loaded, self.descriptors, self.secret, build.loop_guard(self.settings))

    # -- background jobs -------------------------------------------------------------------------------------------

    def _jobs(self) -> list[Job]:
        jobs = [("log", self._flush_events), *self.state.jobs()]
        if self.operations is not None:
            jobs += self.operations.jobs()
        if self.source is not None:
            jobs.append(("bundle", self._watch))
        if self.settings.jwt.jwks_file or self.settings.jwt.jwks_url:
            jobs.append(("keys", self._refresh_keys))
        else:
            self._keys_read.set()
        return jobs

    async def _watch(self) -> None:
        assert self.source is not None  # noqa: S101 - only a job when there is one
        await poll_or_reload(self.source, self._reload)
        if self.on_first_bundle is not None and self.engine.bundle is not None:
            announce, self.on_first_bundle = self.on_first_bundle, None
            announce()

    async def _refresh_keys(self) -> None:
        """Fetch token keys at the start, every five minutes, and when a token names an unknown key."""
        tokens = self.descriptors.tokens
        if tokens.wants_refresh or self.clock.steady() >= self._keys_due:
            self._keys_due = self.clock.steady() + _KEYS_EVERY_S
            why = await aside(tokens.refresh)
            self._keys_read.set()
            if why:
                log(logging.WARNING, "jwt.keys_not_read", {"error": why})
        await asyncio.sleep(1.0)

    async def _flush_events(self) -> None:
        await asyncio.sleep(1.0)
        self.events.flush(self.clock.now())
        self._steps.expired(self.clock.steady())

    def _stepped(self, step_s: float) -> None:
        self.clock_stepped_s += abs(step_s)
        self.started_at += step_s
        if self._steps.admit(round(step_s), step_s, self.clock.steady()):
            of = "system" if self.state.shared is None else "redis"
            log(logging.WARNING, "clock.stepped", {"seconds": round(step_s, 1), "clock": of})

    # -- start and end ---------------------------------------------------------------------------------------------

    async def listen(self, server: Server) -> int:
        """Start accepting connections; returns the port."""
        host, port = self.settings.host, self.settings.port
        try:
            return await server.start(host, port, tls=build.own_tls(self.settings))
        except ListenError as error:
            raise SettingsError(why_not(host, port, error)) from None

    def take_signals(self) -> None:
        """SIGTERM and SIGINT stop gracefully, the second one at once; SIGHUP reloads the bundle."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, lambda: self.stop(hurry=self._stop.is_set()))
        loop.add_signal_handler(signal.SIGHUP, self.reload)

    def stop(self, *, hurry: bool = False) -> None:
        """Stop when the running requests are finished, or at once."""
        self._stop.set()
        if hurry:
            self._hurry.set()

    def reload(self) -> None:
        self._reload.set()

    async def _serve_until_stopped(self, server: Server) -> int:
        """Wait for `stop`, then for the running requests. Returns 1 if they were cut off by a second signal."""
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


async def poll_or_reload(source: BundleFeed, asked: asyncio.Event) -> None:
    """Poll a bundle source when it is time, or reload it when asked to."""
    with suppress(TimeoutError):
        await asyncio.wait_for(asked.wait(), source.wait_s)
    reload = asked.is_set()
    asked.clear()
    await aside(source.reload if reload else source.poll)


def serve(settings: Settings, ready: Callable[[Runtime], None], logging_: Logging) -> int:
    """Run a process on its own event loop until a signal arrives; returns the exit code. `ready` is called when it
    listens, and again with the first valid bundle if there was none."""
    logging_.start()
    try:
        return build.run_event_loop(_serve(settings, ready))
    finally:
        logging_.stop()


async def _serve(settings: Settings, ready: Callable[[Runtime], None]) -> int:
    build.check_ports(settings)
    runtime = Runtime(settings, opened=await open_state(settings))

    def on_ready(_url: str) -> None:
        tune()
        ready(runtime)
        if runtime.engine.bundle is None:
            runtime.on_first_bundle = partial(ready, runtime)

    return await runtime.run(on_ready)
