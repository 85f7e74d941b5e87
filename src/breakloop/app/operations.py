"""What happens beside the traffic so that people know of it (SPEC 12, 13): events on their bus, history, alerts,
metrics, and the admin plane. One process has them all; of several, the control process does. Nothing here is on the
path of a request: that ends where the bus and the recorder take note.

`operations` in the process that judges requests itself: its engine is asked, its recorder emptied, its breakers
closed. Several workers have theirs in the control process.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from breakloop._version import __version__
from breakloop.admin.app import AdminServer, admin_app
from breakloop.admin.auth import Auth, open_tokens
from breakloop.admin.bundles import BundleAdmin, BundleTarget
from breakloop.admin.services import AdminServices
from breakloop.alerts.base import DeliveryContext, trust
from breakloop.alerts.channels import configured
from breakloop.alerts.service import Alerts
from breakloop.app import build
from breakloop.app.build import policy_verifier
from breakloop.app.jobs import aside
from breakloop.app.operations_base import Job, ServingProcess, sources_of
from breakloop.clock import Clock
from breakloop.config.loader import alert_secrets, shown_settings
from breakloop.config.settings import Settings
from breakloop.config.validators import HISTORY_OFF, POLICY_REDIS
from breakloop.engine.breakers import CLOSED, BreakerState
from breakloop.engine.operator import Operator
from breakloop.errors import AlertError, SettingsError, StateError
from breakloop.gateway.server import url, why_not
from breakloop.history.store import Retention, open_history
from breakloop.model.counters import ProcessFigures
from breakloop.model.events import Activity, Event
from breakloop.observe.events import EventBus, EventDispatcher, LiveEvents
from breakloop.observe.log import EventSink, log
from breakloop.observe.metric_table import ALLOWED, DECISIONS, gather
from breakloop.observe.metrics import EventCounters, Metrics
from breakloop.policy.watch import BundleSource
from breakloop.store.redis.bundle import open_shelf
from breakloop.store.sqlite import SqliteTrouble

if TYPE_CHECKING:
    from breakloop.app.shared_state import SharedState


_HISTORY_FILE: Final = "history.db"
_WRITE_EVERY_S: Final = 1.0
_PURGE_EVERY_S: Final = 60.0
_CLEAR_EVERY_S: Final = 10.0


@dataclass(slots=True)
class OperationsContext:
    """What the process has that this needs."""

    settings: Settings
    clock: Clock
    directory: Path | None
    secret: bytes
    operator: Operator
    bundles: BundleAdmin
    activity: Callable[[], Activity]  # since it was last asked
    figures: Callable[[], Iterable[ProcessFigures]]  # of every process
    status: Callable[[], Mapping[str, Any]]
    breakers: Callable[[], Awaitable[list[BreakerState]]]
    reset_breaker: Callable[[str, str], Awaitable[BreakerState | None]]
    counters: Callable[[str], Awaitable[list[Mapping[str, Any]]]]


class Operations:
    """Made first, so that there is a bus; seated when the rest is made; started, run, and finished."""

    def __init__(self) -> None:
        self.bus = EventBus()
        self.fan = EventDispatcher(self.bus)
        self.live = LiveEvents()
        self.counted = EventCounters()
        self.admin_url = ""
        self.new_token = ""  # the operator's, where it was made just now: to be shown once
        self._server: AdminServer | None = None
        self._temporary: tempfile.TemporaryDirectory[str] | None = None

    def seat(self, seat: OperationsContext) -> None:
        """Make the parts. Raises `SettingsError`."""
        self._seat = seat
        settings, directory = seat.settings, seat.directory
        if directory is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="breakloop-")
            directory = Path(self._temporary.name)
            log(logging.WARNING, "history.not_kept", {"problem": "without a usable data_dir it ends with the process"})
        retention = Retention(settings.history_days, settings.history_events)
        where = settings.history if settings.history not in {"", HISTORY_OFF} else directory / _HISTORY_FILE
        self.history = open_history(where, retention=retention, clock=seat.clock, report=_trouble)
        self.alerts = Alerts(directory, *self._alerting(settings, seat.clock), project=settings.project)
        self._metrics = Metrics(lambda: [*seat.figures(), self.counted.figures()])
        self.fan.add("history", self._write, every_s=_WRITE_EVERY_S, always=True)
        self.fan.add("alerts", lambda events: aside(lambda: self.alerts.take(events)))
        self.fan.add("live", self.live.take)
        self.fan.add("counts", self.counted.take)

    def _alerting(self, settings: Settings, clock: Clock) -> tuple[DeliveryContext, Any]:
        try:
            means = DeliveryContext(clock, aside, say=log, tls=trust(settings.alert_ca_file))
            said = configured(settings.alerts, settings.alert_targets, alert_secrets(settings), means)
        except (AlertError, OSError) as error:
            raise SettingsError(f"alert_targets: {error}") from None
        return means, said

    # -- life --------------------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Read what is kept, before anything happens."""
        try:
            self.alerts.load()
        except StateError as error:
            log(logging.WARNING, "alerts.problem", {"problem": str(error)})

    async def start(self) -> None:
        """Open the admin plane, if it is wanted. Raises `SettingsError` where it cannot listen."""
        settings, seat = self._seat.settings, self._seat
        if not settings.admin_port:
            return
        tokens, self.new_token = open_tokens(
            seat.directory, settings.admin_token.get_secret_value(), settings.admin_tokens
        )
        auth = Auth(tokens, seat.secret, seat.clock)
        app = admin_app(self.services(), auth, host=settings.admin_host, hosts=settings.admin_hosts)
        port = settings.admin_port
        self._server = AdminServer(app, settings.admin_host, port)
        try:
            port = await self._server.start()
        except OSError as error:
            self._server = None
            raise SettingsError(why_not(settings.admin_host, port, error).replace("--port", "--admin-port")) from None
        self.admin_url = url(settings.admin_host, port, tls=False)

    def jobs(self) -> list[Job]:
        """Return what is to be run again and again."""
        return [
            *self.fan.jobs(),
            ("alerts", self.alerts.run),
            ("purge", self._purge),
            ("clear", self._clear),
            ("breakers", self._breakers),
        ]

    async def finish(self) -> None:
        """Write and send what is left, and let go."""
        self.live.close()
        if self._server is not None:
            await self._server.stop()
        await self.fan.finish()
        await self.alerts.close()
        await aside(self.history.close)
        if self._temporary is not None:
            self._temporary.cleanup()

    # -- what it does ------------------------------------------------------------------------------------------------

    async def _write(self, events: Sequence[Event]) -> None:
        """Keep what happened; what agents did comes with it, also where there was no event."""
        activity, now = self._seat.activity(), self._seat.clock.now()
        self.counted.spent(activity)
        if events or activity.agents:
            await aside(lambda: self.history.write(events, activity, now))
            # Whoever looked when it happened saw it before it was kept, so pages are told once more.
            self.live.tell({"sums": _sums(activity), "kept": len(events)})

    async def _clear(self) -> None:
        """Tell that loops are over: nobody else does when an agent stops by itself."""
        await asyncio.sleep(_CLEAR_EVERY_S)
        for event in await aside(lambda: self.history.end_quiet(self._seat.clock.now())):
            self.bus(event)
            log(logging.INFO, event.name, event.data)

    async def _breakers(self) -> None:
        """Count the open ones, which may be in Redis, for the metrics."""
        await asyncio.sleep(_CLEAR_EVERY_S)
        with suppress(StateError):  # then it is as it was
            self.counted.breakers(sum(one.state != CLOSED for one in await self._seat.breakers()))

    async def _purge(self) -> None:
        await asyncio.sleep(_PURGE_EVERY_S)
        await aside(lambda: self.history.purge(self._seat.clock.now()))

    def services(self) -> AdminServices:
        """Return what the admin plane works with."""
        seat = self._seat
        return AdminServices(
            clock=seat.clock,
            history=self.history,
            operator=seat.operator,
            bundles=seat.bundles,
            hooks=self.alerts,
            project=seat.settings.project,
            status=seat.status,
            settings=lambda: shown_settings(seat.settings),
            metrics=self._metrics.text,
            breakers=seat.breakers,
            reset_breaker=seat.reset_breaker,
            snooze=self._snooze,
            counters=seat.counters,
            live=self.live.subscribe,
            aside=aside,
            agent_changed=self._agent_changed,
        )

    async def _snooze(self, fingerprint: str, until: float, by: str) -> None:
        self._seat.operator.snooze(fingerprint, until, by)

    async def _agent_changed(self, _project: str, agent: str, settings: Mapping[str, Any]) -> None:
        operator = self._seat.operator
        gone = dict.fromkeys(operator.agent_settings().get(agent, {}))
        operator.set_agent(agent, {**gone, **settings}, "api")


def _sums(activity: Activity) -> dict[str, int]:
    agents, loops = activity.agents.values(), activity.loops.values()
    return {
        "requests": sum(use.requests for use in agents),
        "denied": sum(use.denied for use in agents),
        "cost_microusd": sum(use.cost_microusd for use in agents),
        "saved_requests": sum(loop.stopped for loop in loops),
        "saved_microusd": sum(loop.stopped_microusd for loop in loops),
    }


def _trouble(trouble: SqliteTrouble) -> None:
    log(logging.WARNING, "history.problem", {"problem": ": ".join(part for part in trouble if part)})


_COUNTERS_MOST = 200


_LONG = "steps"  # of an event's data, which is for pictures


class LogAndBus:
    """Tells the log, in short, and the bus."""

    __slots__ = ("_bus", "_events")

    def __init__(self, events: EventSink, bus: EventSink) -> None:
        self._events = events
        self._bus = bus

    def __call__(self, event: Event) -> None:
        """Take note of an event."""
        self._bus(event)
        if _LONG in event.data:
            event = replace(event, data={name: value for name, value in event.data.items() if name != _LONG})
        self._events(event)

    def flush(self, now: float, *, everything: bool = False) -> None:
        """Pass on what was held back."""
        self._events.flush(now, everything=everything)


class ProcessOperations:
    """The operations of one process."""

    def __init__(self) -> None:
        self._operations = Operations()
        self._process: ServingProcess | None = None
        self._shared: SharedState | None = None
        self._started_at = 0.0

    @property
    def admin_url(self) -> str:
        """Where the admin plane is, or ""."""
        return self._operations.admin_url

    @property
    def new_token(self) -> str:
        """The operator's token, where it was made just now."""
        return self._operations.new_token

    def listening(self, events: EventSink) -> EventSink:
        """Return who is to be told of events."""
        return LogAndBus(events, self._operations.bus)

    def seat(self, process: ServingProcess, shared: SharedState | None) -> None:
        """Take what the process has. Raises `SettingsError`."""
        self._process, self._shared = process, shared
        self._started_at = process.clock.now()
        settings = process.settings
        process.activity()  # from now on it is summed
        self._operations.seat(
            OperationsContext(
                settings=settings,
                clock=process.clock,
                directory=process.data.path,
                secret=process.secret,
                operator=process.operator,
                bundles=bundles_of(process),
                activity=process.activity,
                figures=self.figures,
                status=self.status,
                breakers=self.breakers,
                reset_breaker=self.reset_breaker,
                counters=self.counters,
            )
        )

    def load(self) -> None:
        """Read what is kept."""
        self._operations.load()

    def jobs(self) -> list[Job]:
        """Return what goes on beside the traffic."""
        return self._operations.jobs()

    async def start(self) -> None:
        """Open the admin plane. Raises `SettingsError`."""
        await self._operations.start()

    async def finish(self) -> None:
        """Let go."""
        await self._operations.finish()

    # -- what the admin plane asks for -------------------------------------------------------------------------------

    def _here(self) -> ServingProcess:
        assert self._process is not None  # noqa: S101 - it is seated before anybody asks
        return self._process

    def figures(self) -> list[ProcessFigures]:
        """Return what this process has to show, and what others have that it speaks for."""
        process, dropped = self._here(), self._operations.fan.dropped
        return [gather(sources_of(process, self._shared, self._started_at, dropped)), process.others()]

    def status(self) -> Mapping[str, Any]:
        """Return how the process is, in numbers."""
        process = self._here()
        status, ready = process.readiness()
        allowed, denied = _decided(self.figures())
        return {
            "workers": 1,
            **ready,
            "ready": status == 200,
            "version": __version__,
            "url": process.url,
            "uptime_seconds": round(process.clock.now() - self._started_at, 1),
            "requests": sum(allowed.values()) + sum(denied.values()),
            "allowed": allowed,
            "denied": denied,
            "held": len(process.engine.quarantine),
            "events_dropped": self._operations.fan.dropped(),
        }

    async def breakers(self) -> list[BreakerState]:
        """Return the circuit breakers. Raises `StateError`."""
        process = self._here()
        if self._shared is not None:
            return await self._shared.breakers(process.engine.bundle)
        return process.engine.breakers()

    async def reset_breaker(self, policy: str, key: str) -> BreakerState | None:
        """Close one; None where there is no open one of this name. Raises `StateError`."""
        process = self._here()
        if self._shared is None:
            return process.engine.reset_breaker(policy, key)
        return await self._shared.reset_breaker(process.engine.bundle, policy, key, self._operations.bus)

    async def counters(self, prefix: str) -> list[Mapping[str, Any]]:
        """Return what is kept under keys that begin so."""
        if self._shared is not None:
            return await self._shared.counters(prefix, _COUNTERS_MOST)
        return self._here().state.store.look_up(prefix, _COUNTERS_MOST)


def _decided(figures: Iterable[ProcessFigures]) -> tuple[dict[str, int], dict[str, int]]:
    """Return how many were allowed and denied, by reason."""
    allowed: dict[str, int] = {}
    denied: dict[str, int] = {}
    for one in figures:
        for (verdict, reason), count in one.counters.get(DECISIONS, {}).items():
            counts = allowed if verdict == ALLOWED else denied
            counts[reason] = counts.get(reason, 0) + int(count)
    return allowed, denied


def bundles_of(process: ServingProcess) -> BundleAdmin:
    """Return the bundle in force, and how it is replaced."""
    settings, source = process.settings, process.source
    shelf = (lambda: open_shelf(settings.state)) if settings.policy == POLICY_REDIS else None
    place = BundleTarget(settings.policy, policy_verifier(settings) is not None, shelf, process.data.path)
    here = source if isinstance(source, BundleSource) else None
    return BundleAdmin(here, place, process.clock, check=process.check, guard=build.loop_guard(settings))
