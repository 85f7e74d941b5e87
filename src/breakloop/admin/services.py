"""What the admin API and the dashboard work with. The application builds it, for one process or for several."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from breakloop.admin.bundles import BundleAdmin
from breakloop.alerts.service import Alerts
from breakloop.clock import Clock
from breakloop.engine.breakers import BreakerState
from breakloop.engine.operator import Operator
from breakloop.history.store import History

VIEWER, OPERATOR = "viewer", "operator"
AgentChanged = Callable[[str, str, Mapping[str, Any]], Awaitable[None]]  # project, agent, settings


@dataclass(slots=True)
class AdminServices:
    """The services and functions behind every page and operation."""

    clock: Clock
    history: History
    operator: Operator
    bundles: BundleAdmin
    alerts: Alerts
    project: str  # the default project
    status: Callable[[], Mapping[str, Any]]  # version, url, uptime_seconds, state, degraded, workers, tally
    settings: Callable[[], Sequence[tuple[str, str, str]]]  # name, value with secrets masked, origin
    metrics: Callable[[], bytes]  # in the Prometheus text format
    breakers: Callable[[], Awaitable[list[BreakerState]]]
    reset_breaker: Callable[[str, str], Awaitable[BreakerState | None]]
    snooze: Callable[[str, float, str], Awaitable[None]]  # fingerprint, until, by
    counters: Callable[[str], Awaitable[list[Mapping[str, Any]]]]  # by prefix of the key
    live: Callable[[], AsyncIterator[Mapping[str, Any]]]  # events and sums as they happen, for one listener
    in_thread: Callable[[Callable[[], Any]], Awaitable[Any]]  # runs a blocking function in a thread
    agent_changed: AgentChanged | None = None  # applies an agent's settings; `history.set_agent` stores them
