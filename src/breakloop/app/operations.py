"""Observability and administration of a process: history, alerts, metrics, live events and the admin server.

A single process has its own; with several workers, the control process has them for all. `Runtime` creates them only
if the settings ask for them: the database, the web framework and the metrics library take time to import. Nothing here
runs on the request path, which ends at the event bus and the activity recorder.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from breakloop._version import __version__
from breakloop.admin.actions import AdminServices
from breakloop.admin.app import AdminServer, admin_app
from breakloop.admin.auth import AnswerLinks, Auth, open_tokens
from breakloop.admin.bundles import BundleAdmin
from breakloop.alerts.service import AlertConfig, Alerts, configure
from breakloop.alerts.transport import DeliveryContext, tls_context
from breakloop.app import build
from breakloop.app.build import Job, aside
from breakloop.config.loader import alert_secrets, effective_settings
from breakloop.config.settings import HISTORY_OFF, POLICY_REDIS, Settings
from breakloop.engine.breakers import CLOSED, Breakers
from breakloop.engine.tree_budgets import TreeBudgets
from breakloop.errors import AlertError, HistoryError, SettingsError, StateError
from breakloop.gateway.server import url, why_not
from breakloop.history.incidents import OF_LOOPS
from breakloop.history.store import Retention, open_history
from breakloop.history.tree_book import TreeBook
from breakloop.model.events import RUN_PAUSED, Activity, Event
from breakloop.model.records import EventFilter
from breakloop.observe.events import EventBus, EventDispatcher, LiveEvents
from breakloop.observe.log import log
from breakloop.observe.metrics import ALLOWED, DECISIONS, EventCounters, MetricValues, PrometheusPage, collect
from breakloop.policy.client import ClientIp
from breakloop.policy.watch import BundleSource
from breakloop.store.redis.bundle import open_shelf
from breakloop.store.sqlite import SqliteTrouble

if TYPE_CHECKING:
    from breakloop.app.runtime import Runtime


HISTORY_FILE: Final = "history.db"
_ANY_HOST: Final = frozenset(("0.0.0.0", "::"))  # noqa: S104 - compared with, not bound
_WRITE_EVERY_S: Final = 1.0
_PURGE_EVERY_S: Final = 60.0
_CLEAR_EVERY_S: Final = 10.0
_COUNTERS_MAX: Final = 200  # listed by one request to the admin API
_NOBODY: Final = "unknown"  # in the audit log
_HISTORY_WAIT_S: Final = 2.0  # at most, before an alert goes out without its incident


class Operations:
    """The operations of one runtime. Raises `SettingsError` if an alert target cannot be used."""

    def __init__(self, runtime: Runtime, bus: EventBus) -> None:
        self._runtime = runtime
        self._clock = runtime.clock
        self._settings = settings = runtime.settings
        self.bus = bus
        self.dispatcher = EventDispatcher(bus)
        self.live = LiveEvents()
        self.admin_url = ""
        self.new_token = ""  # the operator's token if `start` generated one; shown once
        self.metrics = PrometheusPage(self._collect)
        self._event_counters = EventCounters()
        self._open_breakers: int | None = None
        self.trees = TreeBook()
        limits, bundle = runtime.state.limits, lambda: runtime.engine.bundle
        self.breakers = Breakers(limits, bundle, self._clock, runtime.events)
        self.tree_budgets = TreeBudgets(limits, bundle)
        self._server: AdminServer | None = None
        self._auth: Auth | None = None
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        directory = self._directory()
        where = settings.history if settings.history not in {"", HISTORY_OFF} else directory / HISTORY_FILE
        retention = Retention(settings.history_days, settings.history_events)
        self.history = open_history(where, retention=retention, clock=self._clock, report=_history_problem)
        self._dashboard_url = _dashboard_url(settings)
        self._links = AnswerLinks(runtime.secret, self._clock, self._dashboard_url)
        self.alerts = Alerts(directory, *self._alerting(), project=settings.project)
        self._to_history = self.dispatcher.add("history", self._write, every_s=_WRITE_EVERY_S, always=True)
        self.dispatcher.add("alerts", self._alert)
        self.dispatcher.add("live", self.live.take)
        self.dispatcher.add("counts", self._event_counters.take)
        runtime.activity()  # the first call starts the recording

    def _alerting(self) -> tuple[DeliveryContext, AlertConfig]:
        settings = self._settings
        try:
            context = DeliveryContext(self._clock, aside, log=log, tls=tls_context(settings.alert_ca_file))
            secrets, link = alert_secrets(settings), self._dashboard_url
            config = configure(settings.alerts, settings.alert_targets, secrets, context, link)
        except (AlertError, OSError) as error:
            raise SettingsError(f"alert_targets: {error}") from None
        return context, config

    def _directory(self) -> Path:
        path = self._runtime.data.path
        if path is not None:
            return path
        self._temporary = tempfile.TemporaryDirectory(prefix="breakloop-")
        log(
            logging.WARNING,
            "history.not_kept",
            {"problem": "data_dir is not usable: the history ends with the process"},
        )
        return Path(self._temporary.name)

    # -- start and stop ----------------------------------------------------------------------------------------------

    def load(self) -> None:
        try:
            self.alerts.load()
        except StateError as error:
            log(logging.WARNING, "alerts.problem", {"problem": str(error)})

    async def start(self) -> None:
        """Start the admin server, if it is enabled. Raises `SettingsError` if it cannot listen."""
        settings, runtime = self._settings, self._runtime
        if not settings.admin_port:
            return
        tokens, self.new_token = open_tokens(
            runtime.data.path, settings.admin_token.get_secret_value(), settings.admin_tokens
        )
        self._auth = Auth(tokens, runtime.secret, self._clock, data_dir=runtime.data.path)
        trusts = ClientIp(tuple(settings.trusted_proxies)).trusted
        hosts = settings.admin_hosts
        app = admin_app(self.services(), self._auth, host=settings.admin_host, hosts=hosts, trusts=trusts)
        port = settings.admin_port
        self._server = AdminServer(app, settings.admin_host, port)
        try:
            port = await self._server.start()
        except OSError as error:
            self._server = None
            raise SettingsError(why_not(settings.admin_host, port, error).replace("--port", "--admin-port")) from None
        self.admin_url = url(settings.admin_host, port, tls=False)

    def jobs(self) -> list[Job]:
        return [
            *self.dispatcher.jobs(),
            ("alerts", self.alerts.run),
            ("purge", self._purge),
            ("clear", self._clear),
            ("denied", self._audit_denied),
            ("breakers", self._count_breakers),
        ]

    async def finish(self) -> None:
        """Stop the admin server, deliver the remaining events, and close the history."""
        self.live.close()
        if self._server is not None:
            await self._server.stop()
        await self.dispatcher.finish()
        await self.alerts.close()
        await self._write_denied(everything=True)
        await aside(self.history.close)
        if self._temporary is not None:
            self._temporary.cleanup()

    # -- jobs --------------------------------------------------------------------------------------------------------

    async def _write(self, events: Sequence[Event]) -> None:
        """Write events to the history, together with the activity of agents, which needs no event. Activity within a
        loop is added to an incident, so it is not written before the event that opens one."""
        activity = Activity() if self._to_history.waiting else self._runtime.activity()
        now = self._clock.now()
        self._event_counters.take_activity(activity)
        self.trees.add(activity.trees, now)
        if events or activity.agents:
            await aside(lambda: self.history.write(events, activity, now))
            # Live pages got the events before they were written: tell them to read the history again.
            self.live.send({"sums": _sums(activity), "kept": len(events)})

    async def _alert(self, events: Sequence[Event]) -> None:
        """Queue alerts. Those about loops contain the incident, so its events are written first."""
        events = [self._with_answers(event) if event.name == RUN_PAUSED else event for event in events]
        told: Sequence[Event] = events
        if any(event.name in OF_LOOPS for event in events):
            with suppress(TimeoutError):
                async with asyncio.timeout(_HISTORY_WAIT_S):
                    if await self._to_history.deliver_now():
                        told = await aside(lambda: self._with_incidents(events))
        await aside(lambda: self.alerts.take(told))

    def _with_answers(self, event: Event) -> Event:
        """Return an event with a link for each answer, if there is a dashboard that they lead to."""
        due = event.data.get("answer_by")
        if not self._settings.admin_port or not self._dashboard_url or not isinstance(due, int | float):
            return event
        return replace(event, data={**event.data, **self._links.fields(str(event.data.get("id")), due)})

    def _with_incidents(self, events: Sequence[Event]) -> Sequence[Event]:
        try:
            return [self._with_incident(event) if event.name in OF_LOOPS else event for event in events]
        except HistoryError:  # which has been logged; alerts are sent without it
            return events

    def _with_incident(self, event: Event) -> Event:
        """Return an event with its incident, and what that has cost and saved so far."""
        incident = str(event.data.get("incident") or "") or self._incident_of(event)
        found = self.history.incident(incident) if incident else None
        if found is None:
            return event
        sums = ("spent_requests", "spent_microusd", "saved_requests", "saved_microusd")
        data = {**event.data, "incident": incident, **{name: getattr(found, name) for name in sums}}
        if self._dashboard_url:
            data["incident_url"] = f"{self._dashboard_url}/incidents/{incident}"
            if event.data.get("tree"):
                named = {"project": event.project, "caller": event.data.get("caller"), "root": event.data["tree"]}
                data["tree_url"] = f"{self._dashboard_url}/tree?{urlencode(named)}"
        return replace(event, data=data)

    def _incident_of(self, event: Event) -> str:
        wanted = EventFilter((event.name,), agent=str(event.data.get("agent") or ""), since=event.at, until=event.at)
        same = event.project, event.request_id
        return next((one.incident for one in self.history.events(wanted) if (one.project, one.request_id) == same), "")

    async def _clear(self) -> None:
        """Publish `loop.cleared` for incidents that have been quiet: no request does when an agent just stops."""
        await asyncio.sleep(_CLEAR_EVERY_S)
        with suppress(HistoryError):  # which the history has reported
            for event in await aside(lambda: self.history.end_quiet(self._clock.now())):
                self.bus(event)
                log(logging.INFO, event.name, event.data)

    async def _audit_denied(self) -> None:
        await asyncio.sleep(_CLEAR_EVERY_S)
        await self._write_denied()

    async def _write_denied(self, *, everything: bool = False) -> None:
        """Write denied attempts to use the admin port to the audit log, if an entry is due."""
        found = None if self._auth is None else self._auth.denied.report(everything=everything)
        if found is not None:
            (target, detail), now = found, self._clock.now()
            with suppress(HistoryError):  # the attempts are in the log
                await aside(lambda: self.history.add_audit(_NOBODY, "", "login.denied", target, detail, now))

    async def _count_breakers(self) -> None:
        """Count the open breakers for the metrics; they may be in Redis, so `/metrics` does not ask for them."""
        await asyncio.sleep(_CLEAR_EVERY_S)
        with suppress(StateError):  # keep the last number
            self._open_breakers = sum(one.state != CLOSED for one in await self.breakers.states())

    async def _purge(self) -> None:
        await asyncio.sleep(_PURGE_EVERY_S)
        with suppress(HistoryError):  # which the history has reported
            await aside(lambda: self.history.purge(self._clock.now()))

    # -- services of the admin API -----------------------------------------------------------------------------------

    def services(self) -> AdminServices:
        return AdminServices(
            clock=self._clock,
            history=self.history,
            operator=self._runtime.operator,
            bundles=self._bundles(),
            alerts=self.alerts,
            project=self._settings.project,
            status=self.status,
            settings=lambda: effective_settings(self._settings),
            metrics=self.metrics.text,
            breakers=self.breakers.states,
            reset_breaker=self.breakers.reset,
            trees=self.trees,
            tree_budgets=self.tree_budgets.states,
            reset_tree_budget=self.tree_budgets.reset,
            counters=self.counters,
            live=self.live.subscribe,
            in_thread=aside,
        )

    def status(self) -> Mapping[str, Any]:
        runtime = self._runtime
        status, ready = runtime.readiness()
        allowed, denied = self._decisions()
        return {
            "workers": 1,
            **ready,
            "ready": status == 200,
            "version": __version__,
            "url": runtime.url,
            "uptime_seconds": round(self._clock.now() - runtime.started_at, 1),
            "requests": sum(allowed.values()) + sum(denied.values()),
            "allowed": allowed,
            "denied": denied,
            "held": len(runtime.engine.quarantine),
            "events_dropped": self.dispatcher.dropped(),
        }

    async def counters(self, prefix: str) -> list[Mapping[str, Any]]:
        """Return the store's entries whose keys start with `prefix`. Raises `StateError`."""
        state = self._runtime.state
        if state.shared is None:
            return state.store.look_up(prefix, _COUNTERS_MAX, self._clock.ahead_s)
        return await state.shared.counters(prefix, _COUNTERS_MAX)

    def _bundles(self) -> BundleAdmin:
        runtime, settings = self._runtime, self._settings
        shelf = (lambda: open_shelf(settings.state)) if settings.policy == POLICY_REDIS else None
        signed = build.policy_verifier(settings) is not None
        return BundleAdmin(
            runtime.source if isinstance(runtime.source, BundleSource) else None,
            self._clock,
            policy=settings.policy,
            signed=signed,
            shelf=shelf,
            data_dir=runtime.data.path,
            check=runtime.compiled,
            guard=build.loop_guard(settings),
        )

    def _collect(self) -> list[MetricValues]:
        sources = self._runtime.metric_sources()
        sources.events_dropped = self.dispatcher.dropped()
        sources.open_breakers = self._open_breakers
        sources.admin_denied = None if self._auth is None else self._auth.denied.total
        return [collect(sources), self._runtime.worker_metrics(), self._event_counters.values]

    def _decisions(self) -> tuple[dict[str, int], dict[str, int]]:
        """Return the number of allowed and of denied requests, by reason."""
        allowed: dict[str, int] = {}
        denied: dict[str, int] = {}
        for values in self._collect():
            for (verdict, reason), count in values.values.get(DECISIONS, {}).items():
                counts = allowed if verdict == ALLOWED else denied
                counts[reason] = counts.get(reason, 0) + int(count)
        return allowed, denied


def _dashboard_url(settings: Settings) -> str:
    """Return the address of the dashboard for links; "" if there is none, or it is not known how to reach it."""
    if settings.dashboard_url or not settings.admin_port:
        return settings.dashboard_url.rstrip("/")
    return "" if settings.admin_host in _ANY_HOST else url(settings.admin_host, settings.admin_port, tls=False)


def _sums(activity: Activity) -> dict[str, int]:
    agents, loops = activity.agents.values(), activity.loops.values()
    return {
        "requests": sum(use.requests for use in agents),
        "denied": sum(use.denied for use in agents),
        "cost_microusd": sum(use.cost_microusd for use in agents),
        "saved_requests": sum(loop.stopped for loop in loops),
        "saved_microusd": sum(loop.stopped_microusd for loop in loops),
    }


def _history_problem(trouble: SqliteTrouble) -> None:
    log(logging.WARNING, "history.problem", {"problem": ": ".join(part for part in trouble if part)})
