"""`operations` in the process that judges requests itself: its engine is asked, its recorder emptied, its breakers
closed. Several workers have theirs in the control process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from breakloop import parts
from breakloop._version import __version__
from breakloop.admin.bundles import BundlePlace, BundlesHere
from breakloop.breakers import BreakerState
from breakloop.model.events import Event
from breakloop.model.figures import Figures
from breakloop.observe.figures import ALLOWED, DECISIONS, gather
from breakloop.observe.log import Events
from breakloop.operations import Operations, Seat
from breakloop.policy.source import BundleSource
from breakloop.policy_source import policy_verifier
from breakloop.seating import Job, Process, sources_of
from breakloop.settings_checks import POLICY_REDIS
from breakloop.state.redis_shelf import open_shelf

if TYPE_CHECKING:
    from breakloop.shared_state import SharedState

_COUNTERS_MOST = 200


_LONG = "steps"  # of an event's data, which is for pictures


class Told:
    """Tells the log, in short, and the bus."""

    __slots__ = ("_bus", "_events")

    def __init__(self, events: Events, bus: Events) -> None:
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


class OperationsHere:
    """The operations of one process."""

    def __init__(self) -> None:
        self._operations = Operations()
        self._process: Process | None = None
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

    def listening(self, events: Events) -> Events:
        """Return who is to be told of events."""
        return Told(events, self._operations.bus)

    def seat(self, process: Process, shared: SharedState | None) -> None:
        """Take what the process has. Raises `SettingsError`."""
        self._process, self._shared = process, shared
        self._started_at = process.clock.now()
        settings = process.settings
        process.activity()  # from now on it is summed
        self._operations.seat(
            Seat(
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

    def _here(self) -> Process:
        assert self._process is not None  # noqa: S101 - it is seated before anybody asks
        return self._process

    def figures(self) -> list[Figures]:
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


def _decided(figures: Iterable[Figures]) -> tuple[dict[str, int], dict[str, int]]:
    """Return how many were allowed and denied, by reason."""
    allowed: dict[str, int] = {}
    denied: dict[str, int] = {}
    for one in figures:
        for (verdict, reason), count in one.counters.get(DECISIONS, {}).items():
            counts = allowed if verdict == ALLOWED else denied
            counts[reason] = counts.get(reason, 0) + int(count)
    return allowed, denied


def bundles_of(process: Process) -> BundlesHere:
    """Return the bundle in force, and how it is replaced."""
    settings, source = process.settings, process.source
    shelf = (lambda: open_shelf(settings.state)) if settings.policy == POLICY_REDIS else None
    place = BundlePlace(settings.policy, policy_verifier(settings) is not None, shelf, process.data.path)
    here = source if isinstance(source, BundleSource) else None
    return BundlesHere(here, place, process.clock, check=process.check, guard=parts.loop_guard(settings))
