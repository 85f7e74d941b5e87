"""`Alerts` takes events, stores what has to be sent about them, and sends it to webhooks and alert targets."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import Any, Final, TypeVar

from breakloop.alerts.channels.base import ChannelSettings, Delivery, Target
from breakloop.alerts.channels.services import WebhookTarget
from breakloop.alerts.delivery import AlertDatabase, DeliveryLoop, Outbox, OutboxEntry
from breakloop.alerts.router import (
    FIRING,
    RECOVERED,
    AlertNotice,
    AlertRouter,
    Payload,
    encoded,
    load_states,
    payload,
    save_states,
)
from breakloop.alerts.rules import FREQUENT, AlertRule, order_key, subject
from breakloop.alerts.transport import DeliveryContext, parse_url, resolve_checked
from breakloop.alerts.webhooks import Webhook, Webhooks
from breakloop.clock import Clock, Throttle
from breakloop.errors import AlertError, StateError
from breakloop.model.events import Event
from breakloop.store.sqlite import SqliteTrouble

T = TypeVar("T")
TARGET: Final = "target:"  # prefix of configured targets in the outbox; webhooks have none
_UNSAVED_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class AlertConfig:
    rules: Sequence[AlertRule] = ()
    targets: Mapping[str, Target] = field(default_factory=dict)  # by name


def configure(
    rules: Sequence[AlertRule],
    targets: Mapping[str, ChannelSettings],
    secrets: Mapping[str, str],
    context: DeliveryContext,
    dashboard_url: str = "",
) -> AlertConfig:
    """Create the targets. Raises `AlertError` with the name of a target that cannot be used."""
    made = {}
    for name, settings in targets.items():
        try:
            made[name] = settings.target(secrets, context, dashboard_url)
        except AlertError as error:
            raise AlertError(f"alert_targets.{name}: {error}") from None
    return AlertConfig(rules, made)


INTERVAL_S: Final = 10.0
_KEYS_MAX: Final = 1_000  # more subjects within one interval are only counted


class EventThrottle(Throttle[tuple[str, str], Event]):
    """Lets one event per subject through in ten seconds, with a count of the others. Rare events are not throttled."""

    def __init__(self) -> None:
        super().__init__(INTERVAL_S, _KEYS_MAX)

    def throttle(self, events: Iterable[Event], now: float) -> list[Event]:
        """Return the last events of intervals that ended, rare events, and the first event of each subject."""
        passed = [replace(last, data={**last.data, "left_out": more}) for _, last, more in self.expired(now)]
        passed += [
            event
            for event in events
            if event.name not in FREQUENT or self.admit((event.name, subject(event)), event, now)
        ]
        return passed


class AlertQueue:
    """Turns events into deliveries, in one transaction. Used from any thread.

    Events that cannot be written stay in memory, up to a limit, and are written later.
    """

    def __init__(
        self, clock: Clock, config: AlertConfig, webhooks: Webhooks, outbox: Outbox, router: AlertRouter
    ) -> None:
        self._clock = clock
        self._targets = config.targets
        self._webhooks = webhooks
        self._outbox = outbox
        self._router = router
        self._throttle = EventThrottle()
        self._unsaved: deque[Event] = deque()
        self._lock = Lock()
        self.project = ""
        self.lost = 0  # events dropped while the file could not be written

    def take(self, events: Sequence[Event]) -> bool:
        """Write the deliveries of events; return whether there is something to send."""
        with self._lock:
            now = self._clock.now()
            self._unsaved.extend(self._throttle.throttle(events, now))
            batch = [(event, payload(event, self.project)) for event in self._unsaved]
            change = self._router.route(batch, now)
            entries = [
                *self._to_webhooks(batch),
                *(one for notice in change.notices for one in self._to_targets(notice)),
            ]
            try:
                if entries or change.states:
                    self._outbox.put(entries, now, lambda file: save_states(file, change))
            except StateError:  # the file has reported it
                self._bound()
                return False
            self._router.accept(change)
            self._unsaved.clear()
            return bool(entries)

    def _bound(self) -> None:
        while len(self._unsaved) > _UNSAVED_MAX:
            self._unsaved.popleft()
            self.lost += 1

    def _to_webhooks(self, batch: Sequence[tuple[Event, Payload]]) -> Iterator[OutboxEntry]:
        hooks = self._webhooks.all()
        for event, made in batch:
            receivers = [hook for hook in hooks if hook.accepts(event.name)]
            if receivers:
                body, key, critical = encoded(made), order_key(event), event.name not in FREQUENT
                yield from (OutboxEntry(hook.id, event.name, body, key, critical) for hook in receivers)

    def _to_targets(self, notice: AlertNotice) -> Iterator[OutboxEntry]:
        rule, over = notice.rule, notice.state == RECOVERED
        for name in dict.fromkeys(rule.targets):
            target = self._targets[name]
            if over and not rule.recovery and not target.always_recovers:
                continue
            body = _raw(notice) if target.raw else notice.body()
            yield OutboxEntry(TARGET + name, notice.payload["event"], encoded(body), f"{rule.name}/{notice.key}")


def _raw(notice: AlertNotice) -> Payload:
    """Return what a webhook gets: the event's payload and the name of the rule."""
    fields = {"rule_name": notice.rule.name, "alert": notice.state, "alert_key": notice.key}
    return notice.payload | {"data": notice.payload["data"] | fields}


TEST: Final = "alert.test"
_TICK_S: Final = 1.0
_PURGE_S: Final = 600.0
_GRACE_S: Final = 2.0
_STOPS_MAX: Final = 50  # calls of stop webhooks at the same time


class Alerts:
    """Alerts of one process, stored in `folder`. `project` is the default project.

    All methods except `test`, `run`, `flush` and `close` may wait for the disk: call them from threads.
    """

    def __init__(
        self, folder: Path, context: DeliveryContext, config: AlertConfig | None = None, *, project: str = ""
    ) -> None:
        self._context = context
        self._config = config or AlertConfig()
        self._project = project
        self._database = AlertDatabase(folder, self._trouble)
        self._webhooks = Webhooks(self._database)
        self._outbox = Outbox(self._database)
        self._router = AlertRouter(self._config.rules)
        self._queue = AlertQueue(context.clock, self._config, self._webhooks, self._outbox, self._router)
        self._queue.project = project
        self._sender = DeliveryLoop(context, self._outbox, self._targets, self._target, self._gone)
        self._purge_at = 0.0
        self._stops: set[asyncio.Task[None]] = set()

    def load(self) -> None:
        """Read the stored state; call this first. Raises `StateError`."""
        self._webhooks.load()
        load_states(self._database, self._router)
        now, known = self._context.clock.now(), self._targets()
        for target in self._outbox.waiting_targets():
            if target not in known:
                self._outbox.give_up(target, "the target no longer exists", now)

    def take(self, events: Sequence[Event]) -> None:
        """Queue the deliveries of events; on disk when this returns."""
        if self._queue.take(events):
            self._sender.wake()

    async def run(self) -> None:
        """Send deliveries, and check once a second for conditions that are over, until the task is cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._sender.run())
            while True:
                await asyncio.sleep(_TICK_S)
                await self._context.in_thread(self.tick)

    def tick(self) -> None:
        """Report conditions that are over, and delete old deliveries."""
        self.take(())
        now = self._context.clock.now()
        if now >= self._purge_at:
            self._purge_at = now + _PURGE_S
            with suppress(StateError):  # the file has reported it
                self._outbox.purge(now)

    async def flush(self) -> None:
        """Send all deliveries that are due. Not to be used while `run` is active."""
        await self._sender.flush()

    async def close(self, grace_s: float = _GRACE_S) -> None:
        """Send for up to `grace_s`, then close the file. The rest is sent after the next start."""
        with suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await self._context.in_thread(lambda: self.take(()))
                await self.flush()
        await self._context.in_thread(self._database.close)

    # -- the admin API -------------------------------------------------------------------------------------------------

    def webhooks(self) -> list[Mapping[str, Any]]:
        """Return webhooks without secrets. Of a URL only the beginning is shown: many services have one in its path or
        query.
        """
        return [self._view(one) for one in self._webhooks.all()]

    def add_webhook(self, url: str, events: Sequence[str], *, allow_private: bool) -> Mapping[str, Any]:
        """Return id and secret, which is not shown again. Raises `AlertError` for a URL that is not allowed."""
        resolve_checked(parse_url(url), self._context.resolve, allow_private=allow_private)
        now = self._context.clock.now()
        made = _checked(lambda: self._webhooks.add(url, events, allow_private=allow_private, now=now))
        return {"id": made.id, "secret": made.secret}

    def rotate_webhook(self, webhook: str) -> Mapping[str, Any]:
        """Return id and a new secret; the old one also signs for a day. Enables a disabled webhook."""
        made = _checked(lambda: self._webhooks.rotate(webhook, self._context.clock.now()))
        if made is None:
            raise AlertError("there is no such webhook")
        return {"id": made.id, "secret": made.secret}

    def remove_webhook(self, webhook: str) -> bool:
        """Delete a webhook and give up its deliveries; return whether it existed."""
        found = _checked(lambda: self._webhooks.remove(webhook))
        _checked(lambda: self._outbox.give_up(webhook, "the webhook was removed", self._context.clock.now()))
        self._sender.forget(webhook)
        return found

    def call_stop(self, url: str, content: Mapping[str, str], *, allow_private: bool) -> None:
        """Send a POST to the stop webhook of an agent, in the background and once. Its URL may contain a token, so only
        the agent is logged.
        """
        agent = content.get("agent", "")
        if len(self._stops) >= _STOPS_MAX:
            self._context.warn("stop_webhook.failed", agent=agent, error="too many others are under way")
            return

        async def call() -> None:
            sent = await self._context.post(url, json.dumps(content).encode(), {}, allow_private=allow_private)
            if not sent.delivered:
                self._context.warn("stop_webhook.failed", agent=agent, error=sent.error or f"status {sent.status}")

        task = asyncio.get_running_loop().create_task(call())
        self._stops.add(task)
        task.add_done_callback(self._stops.discard)

    async def test(self, webhook: str) -> Mapping[str, Any]:
        """Send a test to a webhook or a configured target; return the outcome. It is not retried."""
        target = self._target(webhook) or self._target(TARGET + webhook)
        if target is None:
            raise AlertError("there is no such webhook or target")
        delivery = Delivery("msg_" + secrets.token_hex(12), TEST, self._test_body(webhook))
        outcome = await target.send(delivery)
        return {"id": delivery.id, "delivered": outcome.delivered, "status": outcome.status, "error": outcome.error}

    def deliveries(self, limit: int = 100) -> list[Mapping[str, Any]]:
        """Return waiting and ended deliveries without their bodies, the newest first."""
        found = _checked(lambda: self._outbox.recent(limit))
        return [one | {"webhook": one["webhook"].removeprefix(TARGET)} for one in found]

    def retry(self, delivery: str) -> bool:
        """Send a failed delivery again; return whether it exists."""
        found = _checked(lambda: self._outbox.retry(delivery, self._context.clock.now()))
        self._sender.wake()
        return found

    def rules(self) -> list[Mapping[str, Any]]:
        """Return the configured alert rules, and when each last alerted."""
        return [
            rule.model_dump(exclude={"targets"})
            | {
                "type": ", ".join(rule.type),
                "targets": list(dict.fromkeys(rule.targets)),
                "last_at": self._router.last_at(rule.name),
            }
            for rule in self._router.rules
        ]

    def _targets(self) -> list[str]:
        hooks = [one.id for one in self._webhooks.all() if not one.disabled]
        return hooks + [TARGET + name for name in self._config.targets]

    def _target(self, name: str) -> Target | None:
        if name.startswith(TARGET):
            return self._config.targets.get(name.removeprefix(TARGET))
        hook = self._webhooks.get(name)
        return None if hook is None else WebhookTarget(self._context, hook.url, hook.keys, hook.allow_private)

    def _gone(self, target: str) -> None:
        """Disable a webhook that answered 410. A configured target stays enabled: it was configured by a person."""
        self._context.warn("alerts.disabled", target=target)
        self._webhooks.disable(target, "it answered 410: it no longer accepts deliveries")

    def _view(self, hook: Webhook) -> Mapping[str, Any]:
        return {
            "id": hook.id,
            "url": _beginning(hook.url),
            "events": list(hook.events),
            "allow_private": hook.allow_private,
            "created_at": hook.created_at,
            "state": "disabled" if hook.disabled else self._sender.breaker(hook.id).state,
            "error": hook.disabled,
        }

    def _test_body(self, target: str) -> str:
        event = Event(TEST, self._context.clock.now(), {"message": "breakloop alerts arrive here"})
        made = payload(event, self._project)
        known = self._config.targets.get(target)
        if self._webhooks.get(target) is not None or (known is not None and known.raw):
            return encoded(made)
        notice = {"rule": "test", "state": FIRING, "key": TEST, "count": 1, "since": made["timestamp"]}
        return encoded(notice | {"payload": made, "about": made})

    def _trouble(self, trouble: SqliteTrouble) -> None:
        self._context.warn("alerts.file", problem=f"{trouble.file}: {trouble.wrong or 'works again'}; {trouble.done}")


def _checked(work: Callable[[], T]) -> T:
    """Turn a `StateError` into an `AlertError`."""
    try:
        return work()
    except StateError as error:
        raise AlertError(f"the alerts file cannot be used: {error}") from None


def _beginning(url: str) -> str:
    """Return a URL up to the first part of its path."""
    base, query, _ = url.partition("?")
    shown = "/".join(base.split("/", 4)[:4])
    return shown + ("/***" if len(shown) < len(base) else "") + ("?***" if query else "")
