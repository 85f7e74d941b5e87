"""What happens beside the traffic so that people know of it (SPEC 12, 13): events on their bus, history, alerts,
metrics, and the admin plane. One process has them all; of several, the control process does. Nothing here is on the
path of a request: that ends where the bus and the recorder take note.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from breakloop.admin.app import admin_app
from breakloop.admin.auth import Auth
from breakloop.admin.bundles import BundlesHere
from breakloop.admin.server import AdminServer
from breakloop.admin.services import Services
from breakloop.admin.tokens import open_tokens
from breakloop.alerts.configured import configured
from breakloop.alerts.means import Means, trust
from breakloop.alerts.service import Alerts
from breakloop.breakers import CLOSED, BreakerState
from breakloop.clock import Clock
from breakloop.errors import AlertError, SettingsError, StateError
from breakloop.gateway.jobs import aside
from breakloop.gateway.listening import url, why_not
from breakloop.history.retention import Retention
from breakloop.history.store import open_history
from breakloop.model.activity import Activity
from breakloop.model.events import Event
from breakloop.model.figures import Figures
from breakloop.observe.bus import Bus, Fan
from breakloop.observe.counted import Counted
from breakloop.observe.live import Live
from breakloop.observe.log import log
from breakloop.observe.metrics import Metrics
from breakloop.operator import Operator
from breakloop.settings import Settings, alert_secrets
from breakloop.settings_checks import HISTORY_OFF
from breakloop.settings_values import shown_settings
from breakloop.state.sqlite_file import Trouble

_HISTORY_FILE: Final = "history.db"
_WRITE_EVERY_S: Final = 1.0
_PURGE_EVERY_S: Final = 60.0
_CLEAR_EVERY_S: Final = 10.0

Job = tuple[str, Callable[[], Awaitable[None]]]


@dataclass(slots=True)
class Seat:
    """What the process has that this needs."""

    settings: Settings
    clock: Clock
    directory: Path | None
    secret: bytes
    operator: Operator
    bundles: BundlesHere
    activity: Callable[[], Activity]  # since it was last asked
    figures: Callable[[], Iterable[Figures]]  # of every process
    status: Callable[[], Mapping[str, Any]]
    breakers: Callable[[], Awaitable[list[BreakerState]]]
    reset_breaker: Callable[[str, str], Awaitable[BreakerState | None]]
    counters: Callable[[str], Awaitable[list[Mapping[str, Any]]]]


class Operations:
    """Made first, so that there is a bus; seated when the rest is made; started, run, and finished."""

    def __init__(self) -> None:
        self.bus = Bus()
        self.fan = Fan(self.bus)
        self.live = Live()
        self.counted = Counted()
        self.admin_url = ""
        self.new_token = ""  # the operator's, where it was made just now: to be shown once
        self._server: AdminServer | None = None
        self._temporary: tempfile.TemporaryDirectory[str] | None = None

    def seat(self, seat: Seat) -> None:
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

    def _alerting(self, settings: Settings, clock: Clock) -> tuple[Means, Any]:
        try:
            means = Means(clock, aside, say=log, tls=trust(settings.alert_ca_file))
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

    def services(self) -> Services:
        """Return what the admin plane works with."""
        seat = self._seat
        return Services(
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


def _trouble(trouble: Trouble) -> None:
    log(logging.WARNING, "history.problem", {"problem": ": ".join(part for part in trouble if part)})
