"""What the admin plane works with, as `runtime` hands it over: everything it shows and every order it gives goes
through here, so that API, dashboard and tests use the same, and one process or many makes no difference to them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from breakloop.clock import Clock
from breakloop.engine.breakers import BreakerState
from breakloop.engine.operator import Operator
from breakloop.history.api import History

VIEWER, OPERATOR = "viewer", "operator"
AgentChanged = Callable[[str, str, Mapping[str, Any]], Awaitable[None]]  # project, agent, settings


class BundleService(Protocol):
    """The bundle in force, and putting another in its place (SPEC X-1)."""

    def current(self) -> Mapping[str, Any]:
        """Return version, digest, origin, loaded_at, text (as it was read), problems of the last refusal."""
        ...

    def policies(self) -> list[Mapping[str, Any]]:
        """Return each policy: id, mode, selector, rules (name, algorithm, keys, numbers in words), loop detection."""
        ...

    def validate(self, text: bytes) -> Sequence[Mapping[str, Any]]:
        """Return problems (line, column, path, message, hint); none: it is valid."""
        ...

    def diff(self, text: bytes) -> str:
        """Return the difference to what is in force, unified."""
        ...

    def apply(self, text: bytes, *, force: bool, by: str = "") -> Mapping[str, Any]:
        """Put it in force and keep it; raises `BundleError`. A watched file is written, so that a restart keeps it."""
        ...

    def rollback(self, version: int, *, by: str = "") -> Mapping[str, Any]:
        """Put an earlier one in force again."""
        ...

    def earlier(self) -> list[Mapping[str, Any]]:
        """Return what was in force before: version, digest, applied_at, by."""
        ...

    def promote(self, policy: str, *, by: str = "") -> Mapping[str, Any]:
        """Turn a policy from shadow to enforce, in the bundle itself; raises `BundleError`."""
        ...


class WebhookService(Protocol):
    """Webhooks and alert rules (SPEC G-4)."""

    def webhooks(self) -> list[Mapping[str, Any]]:
        """Return them, without their secrets."""
        ...

    def add_webhook(self, url: str, events: Sequence[str], *, allow_private: bool) -> Mapping[str, Any]:
        """Return id and secret; raises `AlertError` for a target that is refused."""
        ...

    def rotate_webhook(self, webhook: str) -> Mapping[str, Any]:
        """Give it a new secret, and return id and secret; raises `AlertError` where there is none."""
        ...

    def remove_webhook(self, webhook: str) -> bool:
        """Tell whether there was one."""
        ...

    async def test(self, webhook: str) -> Mapping[str, Any]:
        """Send one now; return what came of it."""
        ...

    def deliveries(self, limit: int = 100) -> list[Mapping[str, Any]]:
        """Return what is under way, was delivered, or was given up."""
        ...

    def retry(self, delivery: str) -> bool:
        """Try one again that was given up; tell whether there is such a one."""
        ...

    def rules(self) -> list[Mapping[str, Any]]:
        """Return the alert rules of the settings, and when each last told."""
        ...


@dataclass(slots=True)
class AdminServices:
    """Everything the admin plane needs."""

    clock: Clock
    history: History
    operator: Operator
    bundles: BundleService
    hooks: WebhookService
    project: str  # the default one
    status: Callable[[], Mapping[str, Any]]  # version, url, uptime_seconds, state, degraded, workers, tally
    settings: Callable[[], Sequence[tuple[str, str, str]]]  # name, value with secrets masked, origin
    metrics: Callable[[], bytes]  # in Prometheus' form
    breakers: Callable[[], Awaitable[list[BreakerState]]]
    reset_breaker: Callable[[str, str], Awaitable[BreakerState | None]]
    snooze: Callable[[str, float, str], Awaitable[None]]  # fingerprint, until, by: LD-6
    counters: Callable[[str], Awaitable[list[Mapping[str, Any]]]]  # what is kept under keys that begin so
    live: Callable[[], AsyncIterator[Mapping[str, Any]]]  # events and sums as they happen, for one listener
    aside: Callable[[Callable[[], Any]], Awaitable[Any]]  # runs something slow in a thread
    agent_changed: AgentChanged | None = None  # puts an agent's settings in force; `history.set_agent` keeps them
