"""`Alerts`: takes events, keeps what is to be told of them, and sends it. The admin plane's `Hooks`, and the job of the
composition root. Everything but `test`, `run` and `close` may wait for the disk: it is called from threads.

From events to deliveries: what webhooks want of them, and what alert rules make of them, on disk in one transaction.
Whatever the disk does not take waits in memory, up to a number, and is written later.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any, Final, TypeVar

from breakloop.alerts import rules
from breakloop.alerts import rules as standings
from breakloop.alerts.base import AlertDatabase, Delivery, DeliveryContext, Target, checked, place
from breakloop.alerts.channels import AlertConfig, WebhookTarget
from breakloop.alerts.delivery import DeliveryLoop, Outbox, OutboxEntry
from breakloop.alerts.rules import (
    FIRING,
    FREQUENT,
    RECOVERED,
    AlertNotice,
    AlertRouter,
    EventThrottle,
    Payload,
    encoded,
    order_key,
    payload,
)
from breakloop.alerts.webhooks import Webhook, Webhooks
from breakloop.clock import Clock
from breakloop.errors import AlertError, BreakloopError, StateError
from breakloop.model.events import Event
from breakloop.store.sqlite import SqliteTrouble

Details = Callable[[Event], Mapping[str, object]]  # what else is known of an event: its incident, money
TARGET: Final = "target:"  # begins the names of the settings' targets in the outbox
_UNKEPT_MAX: Final = 1_000


def no_details(_event: Event) -> Mapping[str, object]:
    """Know nothing else of an event."""
    return {}


class AlertQueue:
    """Takes events, from any thread."""

    def __init__(
        self, clock: Clock, configured: AlertConfig, webhooks: Webhooks, outbox: Outbox, router: AlertRouter
    ) -> None:
        self._clock = clock
        self._folding, self._raw = configured.folding, configured.raw
        self._webhooks = webhooks
        self._outbox = outbox
        self._router = router
        self._thinning = EventThrottle()
        self._unkept: deque[Event] = deque()
        self._lock = Lock()
        self.details: Details = no_details
        self.project = ""
        self.lost = 0  # while the disk failed, beyond what memory holds

    def take(self, events: Sequence[Event]) -> bool:
        """Keep what is to be told of events, on disk; tell whether there is something to send."""
        with self._lock:
            now = self._clock.now()
            self._unkept.extend(self._thinning.pass_on(events, now))
            told = [(event, payload(event, self._known(event), self.project)) for event in self._unkept]
            change = self._router.route(told, now)
            entries = [*self._to_webhooks(told), *(one for notice in change.notices for one in self._told(notice))]
            try:
                if entries or change.standings:
                    self._outbox.put(entries, now, lambda file: rules.write(file, change))
            except StateError:  # the file has reported it
                self._bound()
                return False
            self._router.accept(change)
            self._unkept.clear()
            return bool(entries)

    def _known(self, event: Event) -> Mapping[str, object]:
        try:
            return self.details(event)
        except BreakloopError:  # a history that fails keeps nobody from being told
            return {}

    def _bound(self) -> None:
        while len(self._unkept) > _UNKEPT_MAX:
            self._unkept.popleft()
            self.lost += 1

    def _to_webhooks(self, told: Sequence[tuple[Event, Payload]]) -> Iterator[OutboxEntry]:
        hooks = self._webhooks.all()
        for event, made in told:
            wanting = [hook for hook in hooks if hook.wants(event.name)]
            if wanting:
                body, key, critical = encoded(made), order_key(event), event.name not in FREQUENT
                yield from (OutboxEntry(hook.id, event.name, body, key, critical) for hook in wanting)

    def _told(self, notice: AlertNotice) -> Iterator[OutboxEntry]:
        over = notice.state == RECOVERED
        names = [name for name in notice.rule.targets if not over or notice.rule.recovery or name in self._folding]
        for name in names:
            body = _raw(notice) if name in self._raw else notice.body()
            yield OutboxEntry(TARGET + name, notice.payload["event"], encoded(body), f"{notice.rule.name}/{notice.key}")


def _raw(notice: AlertNotice) -> Payload:
    """What a webhook gets of a notice: the event's payload, and which rule it was."""
    known = {"rule_name": notice.rule.name, "alert": notice.state, "alert_key": notice.key}
    return notice.payload | {"data": notice.payload["data"] | known}


T = TypeVar("T")

TEST: Final = "alert.test"
_TICK_S: Final = 1.0
_PURGE_S: Final = 600.0
_GRACE_S: Final = 2.0


class Alerts:
    """Alerts of one process, in `folder`/alerts.db. `project` is the default one."""

    def __init__(
        self,
        folder: Path,
        means: DeliveryContext,
        configured: AlertConfig | None = None,
        *,
        project: str = "",
        details: Details = no_details,
    ) -> None:
        self._means = means
        self._configured = configured or AlertConfig()
        self._project = project
        self._database = AlertDatabase(folder, self._trouble)
        self._webhooks = Webhooks(self._database)
        self._outbox = Outbox(self._database)
        self._router = AlertRouter(self._configured.rules)
        self._intake = AlertQueue(means.clock, self._configured, self._webhooks, self._outbox, self._router)
        self._intake.details, self._intake.project = details, project
        self._sender = DeliveryLoop(means, self._outbox, self._targets, self._target, self._gone)
        self._purge_at = 0.0

    def load(self) -> None:
        """Read what is kept, before anything else. Raises `StateError`."""
        self._webhooks.load()
        standings.load(self._database, self._router)
        now, known = self._means.clock.now(), self._targets()
        for target in self._outbox.waiting_for():
            if target not in known:
                self._outbox.give_up(target, "the target is no more", now)

    # -- the job -----------------------------------------------------------------------------------------------------

    def take(self, events: Sequence[Event]) -> None:
        """Keep what is to be told of events; on disk when this returns."""
        if self._intake.take(events):
            self._sender.wake()

    async def run(self) -> None:
        """Send, and look once a second whether something is over. Until the task is cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._sender.run())
            while True:
                await asyncio.sleep(_TICK_S)
                await self._means.aside(self.tick)

    def tick(self) -> None:
        """Tell what is over by now, and forget what is old."""
        self.take(())
        now = self._means.clock.now()
        if now >= self._purge_at:
            self._purge_at = now + _PURGE_S
            with suppress(StateError):  # the file has reported it
                self._outbox.purge(now)

    async def flush(self) -> None:
        """Send what is due now. Instead of `run`, not beside it."""
        await self._sender.flush()

    async def close(self, grace_s: float = _GRACE_S) -> None:
        """Send what is due for a moment, then let go. What is left is sent after the next start."""
        with suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await self._means.aside(lambda: self.take(()))
                await self.flush()
        await self._means.aside(self._database.close)

    # -- webhooks (admin.services.Hooks) -----------------------------------------------------------------------------

    def webhooks(self) -> list[Mapping[str, Any]]:
        """Return webhooks without their secrets; of a URL's query, which may hold some, only that there is one."""
        return [self._shown(one) for one in self._webhooks.all()]

    def add_webhook(self, url: str, events: Sequence[str], *, allow_private: bool) -> Mapping[str, Any]:
        """Return id and secret, which is shown this once; raises `AlertError` for a target that is refused."""
        checked(place(url), self._means.resolve, allow_private=allow_private)
        now = self._means.clock.now()
        made = _kept(lambda: self._webhooks.add(url, events, allow_private=allow_private, now=now))
        return {"id": made.id, "secret": made.secret}

    def rotate_webhook(self, webhook: str) -> Mapping[str, Any]:
        """Give it a new secret, and return it; the old one signs beside it for a day. Enables one that was disabled."""
        made = _kept(lambda: self._webhooks.rotate(webhook, self._means.clock.now()))
        if made is None:
            raise AlertError("there is no such webhook")
        return {"id": made.id, "secret": made.secret}

    def remove_webhook(self, webhook: str) -> bool:
        """Send nothing there any more; tell whether there was one."""
        found = _kept(lambda: self._webhooks.remove(webhook))
        _kept(lambda: self._outbox.give_up(webhook, "the webhook was removed", self._means.clock.now()))
        self._sender.forget(webhook)
        return found

    async def test(self, webhook: str) -> Mapping[str, Any]:
        """Send one now, to a webhook or a target of the settings; return what came of it. Nothing is tried again."""
        target = self._target(webhook) or self._target(TARGET + webhook)
        if target is None:
            raise AlertError("there is no such webhook or target")
        parcel = Delivery("msg_" + secrets.token_hex(12), TEST, self._test_body(webhook))
        outcome = await target.send(parcel)
        return {"id": parcel.id, "delivered": outcome.delivered, "status": outcome.status, "error": outcome.error}

    def deliveries(self, most: int = 100) -> list[Mapping[str, Any]]:
        """Return what is under way, was delivered, or was given up; newest first, without what is in them."""
        found = _kept(lambda: self._outbox.listed(most))
        return [one | {"webhook": one["webhook"].removeprefix(TARGET)} for one in found]

    def send_again(self, delivery: str) -> bool:
        """Try one again that was given up; tell whether there is such a one."""
        found = _kept(lambda: self._outbox.again(delivery, self._means.clock.now()))
        self._sender.wake()
        return found

    def rules(self) -> list[Mapping[str, Any]]:
        """Return the alert rules of the settings, and when each last told."""
        return [
            {
                "name": rule.name,
                "type": ", ".join(rule.types),
                "agent": rule.agent,
                "project": rule.project,
                "min_action": rule.min_action,
                "cooldown_seconds": rule.cooldown_s,
                "repeat_seconds": rule.repeat_s,
                "recovery": rule.recovery,
                "shadow": rule.shadow,
                "targets": list(rule.targets),
                "last_at": self._router.last_at(rule.name),
            }
            for rule in self._router.rules
        ]

    def counts(self) -> Mapping[str, int]:
        """Return how many deliveries are in each state, and how many there was no room for; for metrics."""
        states = {"waiting": 0, "delivered": 0, "failed": 0}
        with suppress(StateError):  # the file has reported it
            states |= self._outbox.counts()
        return states | {"dropped": self._outbox.dropped, "lost": self._intake.lost}

    # -- inside ------------------------------------------------------------------------------------------------------

    def _targets(self) -> list[str]:
        hooks = [one.id for one in self._webhooks.all() if not one.disabled]
        return hooks + [TARGET + name for name in self._configured.targets]

    def _target(self, name: str) -> Target | None:
        if name.startswith(TARGET):
            return self._configured.targets.get(name.removeprefix(TARGET))
        hook = self._webhooks.get(name)
        return None if hook is None else WebhookTarget(self._means, hook.url, hook.keys, hook.allow_private)

    def _gone(self, target: str) -> None:
        """A webhook answered that it wants nothing any more. One of the settings stays: a person put it there."""
        self._means.warn("alerts.disabled", target=target)
        self._webhooks.disable(target, "it answered 410: it wants nothing any more")

    def _shown(self, hook: Webhook) -> Mapping[str, Any]:
        base, mark, _ = hook.url.partition("?")
        return {
            "id": hook.id,
            "url": f"{base}?***" if mark else base,
            "events": list(hook.events),
            "allow_private": hook.allow_private,
            "created_at": hook.created_at,
            "state": "disabled" if hook.disabled else self._sender.breaker(hook.id).state,
            "error": hook.disabled,
        }

    def _test_body(self, target: str) -> str:
        event = Event(TEST, self._means.clock.now(), {"message": "alerts of breakloop arrive here"})
        made = payload(event, {}, self._project)
        if self._webhooks.get(target) is not None or target in self._configured.raw:
            return encoded(made)
        notice = {"rule": "test", "state": FIRING, "key": TEST, "count": 1, "since": made["timestamp"]}
        return encoded(notice | {"payload": made, "about": made})

    def _trouble(self, trouble: SqliteTrouble) -> None:
        self._means.warn("alerts.file", problem=f"{trouble.file}: {trouble.wrong or 'well again'}; {trouble.done}")


def _kept(work: Callable[[], T]) -> T:
    """Do something with the file; raises `AlertError` where that fails."""
    try:
        return work()
    except StateError as error:
        raise AlertError(f"the file of alerts cannot be used: {error}") from None
