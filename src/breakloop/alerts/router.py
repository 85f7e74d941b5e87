"""What alert rules have told, and what they tell next: a small state machine for each rule and subject, so that a loop
is told of once however often it is seen, and once more when it is over. Pure: it returns what is to be sent and kept;
`service` writes both down in one transaction, and only then accepts the change."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from breakloop.alerts.payload import Payload, timestamp
from breakloop.alerts.rules import Rule
from breakloop.alerts.subjects import ENDS, FADING, FAMILIES, QUIET_S, ends, same_agent, subject
from breakloop.model.events import AGENT_KILLED, Event

STATES_MAX: Final = 5_000
FIRING, RECOVERED = "firing", "recovered"
_FORGOTTEN_S: Final = 30 * 86_400.0  # nobody has said that it is over; the next one is told again
_NEVER: Final = -math.inf


@dataclass(frozen=True, slots=True)
class Standing:
    """How a rule and a subject stand. `active`: it was told, and goes on."""

    family: str
    project: str
    payload: Payload  # the last one that was told or counted
    since: float
    told_at: float = _NEVER
    active: bool = False
    count: int = 0
    until: float = math.inf  # over by then, if nothing more is heard

    def text(self) -> str:
        """Return it as it is kept."""
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, text: str) -> Standing:
        """Read back what `text` gave."""
        return cls(**json.loads(text))


@dataclass(frozen=True, slots=True)
class Notice:
    """One thing to tell to the targets of a rule."""

    rule: Rule
    state: str
    key: str
    payload: Payload  # of what happened now
    about: Payload  # of what it was told for
    since: float
    count: int

    def body(self) -> dict[str, Any]:
        """Return it for the outbox."""
        known: dict[str, Any] = {"rule": self.rule.name, "state": self.state, "key": self.key, "count": self.count}
        return known | {"since": timestamp(self.since), "payload": self.payload, "about": self.about}


Key = tuple[str, str]  # rule, subject


@dataclass(slots=True)
class Change:
    """What a batch of events makes of the standings, and what is to be told. None: forgotten."""

    notices: list[Notice] = field(default_factory=list)
    standings: dict[Key, Standing | None] = field(default_factory=dict)
    last_at: dict[str, float] = field(default_factory=dict)  # when a rule told


class Router:
    """All rules, and how they stand."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.rules = tuple(rules)
        self._known: dict[Key, Standing] = {}
        self._last_at: dict[str, float] = {}

    def last_at(self, rule: str) -> float | None:
        """Return when a rule last told."""
        return self._last_at.get(rule)

    def route(self, told: Iterable[tuple[Event, Payload]], now: float) -> Change:
        """Return what events change; nothing has changed until `accept`."""
        change = Change()
        for event, payload in told:
            for rule in self.rules:
                if event.name in ENDS:
                    self._end(change, rule, event, payload)
                elif event.name == AGENT_KILLED:
                    self._hold(change, rule, event)
                if rule.wants(event):
                    self._begin(change, rule, event, payload)
        self._fade(change, now)
        return change

    def accept(self, change: Change) -> None:
        """What was routed is on disk."""
        known = dict(self._known)
        for key, standing in change.standings.items():
            known.pop(key, None)
            if standing is not None:
                known[key] = standing
        self._known = known
        self._last_at |= change.last_at

    @property
    def known(self) -> Mapping[Key, Standing]:
        """How all of them stand."""
        return self._known

    def _standing(self, change: Change, key: Key) -> Standing | None:
        return change.standings[key] if key in change.standings else self._known.get(key)

    def _begin(self, change: Change, rule: Rule, event: Event, payload: Payload) -> None:
        key = rule.name, subject(event)
        family = FAMILIES.get(event.name, "")
        old = self._standing(change, key)
        new = old or Standing(family, event.project, payload, event.at)
        if not new.active and new.count == 0:
            new = replace(new, since=event.at)
        new = replace(new, payload=payload, count=new.count + 1, until=_until(family, event))
        wait_s = rule.repeat_s or math.inf if new.active else rule.cooldown_s
        if event.at - new.told_at >= wait_s:
            change.notices.append(Notice(rule, FIRING, key[1], payload, payload, new.since, new.count))
            change.last_at[rule.name] = event.at
            new = replace(new, told_at=event.at, active=bool(family), count=new.count if family else 0)
        change.standings[key] = new

    def _end(self, change: Change, rule: Rule, event: Event, payload: Payload) -> None:
        for key, standing in self._of(change, rule):
            if ends(event, standing.family, standing.project, standing.payload["data"]):
                self._over(change, key, rule, payload)

    def _over(self, change: Change, key: Key, rule: Rule, payload: Payload) -> None:
        standing = self._standing(change, key)
        if standing is None:
            return
        if standing.active:
            known = standing.payload, standing.since, standing.count
            change.notices.append(Notice(rule, RECOVERED, key[1], payload, *known))
        change.standings[key] = replace(standing, active=False, count=0, until=math.inf)

    def _hold(self, change: Change, rule: Rule, event: Event) -> None:
        """A loop is not over because its agent is held: it ends when the agent is released."""
        ends_at = event.data.get("expires_at")
        until = float(ends_at) + QUIET_S if isinstance(ends_at, int | float) else math.inf
        for key, standing in self._of(change, rule):
            if standing.family == "loop" and same_agent(event, standing.project, standing.payload["data"]):
                change.standings[key] = replace(standing, until=max(until, standing.until))

    def _fade(self, change: Change, now: float) -> None:
        """End what nothing more was heard of, and forget what nothing depends on any more."""
        rules = {rule.name: rule for rule in self.rules}
        keys = dict.fromkeys([*self._known, *change.standings])
        for key in keys:
            standing, rule = self._standing(change, key), rules[key[0]]
            if standing is None:
                continue
            told = standing.active or now - standing.told_at < max(rule.cooldown_s, QUIET_S)
            if standing.active and standing.until <= now and standing.family in FADING:
                self._over(change, key, rule, _faded(standing, now))
            elif not told or standing.until <= now:
                change.standings[key] = None
        living = [key for key in keys if self._standing(change, key) is not None]
        for key in living[: max(0, len(living) - STATES_MAX)]:
            change.standings[key] = None

    def _of(self, change: Change, rule: Rule) -> list[tuple[Key, Standing]]:
        keys = dict.fromkeys([*self._known, *change.standings])
        found = ((key, self._standing(change, key)) for key in keys if key[0] == rule.name)
        return [(key, standing) for key, standing in found if standing is not None]


def _until(family: str, event: Event) -> float:
    cooldown = event.data.get("cooldown_seconds")
    quiet_s = max(QUIET_S, float(cooldown) if isinstance(cooldown, int | float) else 0.0)
    return event.at + (quiet_s if family in FADING else _FORGOTTEN_S)


def _faded(standing: Standing, now: float) -> Payload:
    """What is told of something that ended without anybody saying so."""
    name = {"loop": "loop.cleared"}.get(standing.family, f"{standing.family}.over")
    data = standing.payload["data"] | {"reason": "nothing more was heard of it"}
    return standing.payload | {"event": name, "timestamp": timestamp(now), "request_id": "", "data": data}
