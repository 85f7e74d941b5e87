"""From events to deliveries: what webhooks want of them, and what alert rules make of them, on disk in one transaction.
Whatever the disk does not take waits in memory, up to a number, and is written later."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from threading import Lock
from typing import Final

from breakloop.alerts import standings
from breakloop.alerts.configured import Configured
from breakloop.alerts.outbox import Entry, Outbox
from breakloop.alerts.payload import Payload, encoded, payload
from breakloop.alerts.router import RECOVERED, Notice, Router
from breakloop.alerts.subjects import FREQUENT, order_key
from breakloop.alerts.thinning import Thinning
from breakloop.alerts.webhooks import Webhooks
from breakloop.clock import Clock
from breakloop.errors import BreakloopError, StateError
from breakloop.model.events import Event

Details = Callable[[Event], Mapping[str, object]]  # what else is known of an event: its incident, money
TARGET: Final = "target:"  # begins the names of the settings' targets in the outbox
_UNKEPT_MAX: Final = 1_000


def no_details(_event: Event) -> Mapping[str, object]:
    """Know nothing else of an event."""
    return {}


class Intake:
    """Takes events, from any thread."""

    def __init__(
        self, clock: Clock, configured: Configured, webhooks: Webhooks, outbox: Outbox, router: Router
    ) -> None:
        self._clock = clock
        self._folding, self._raw = configured.folding, configured.raw
        self._webhooks = webhooks
        self._outbox = outbox
        self._router = router
        self._thinning = Thinning()
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
                    self._outbox.put(entries, now, lambda file: standings.write(file, change))
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

    def _to_webhooks(self, told: Sequence[tuple[Event, Payload]]) -> Iterator[Entry]:
        hooks = self._webhooks.all()
        for event, made in told:
            wanting = [hook for hook in hooks if hook.wants(event.name)]
            if wanting:
                body, key, critical = encoded(made), order_key(event), event.name not in FREQUENT
                yield from (Entry(hook.id, event.name, body, key, critical) for hook in wanting)

    def _told(self, notice: Notice) -> Iterator[Entry]:
        over = notice.state == RECOVERED
        names = [name for name in notice.rule.targets if not over or notice.rule.recovery or name in self._folding]
        for name in names:
            body = _raw(notice) if name in self._raw else notice.body()
            yield Entry(TARGET + name, notice.payload["event"], encoded(body), f"{notice.rule.name}/{notice.key}")


def _raw(notice: Notice) -> Payload:
    """What a webhook gets of a notice: the event's payload, and which rule it was."""
    known = {"rule_name": notice.rule.name, "alert": notice.state, "alert_key": notice.key}
    return notice.payload | {"data": notice.payload["data"] | known}
