"""Routes events to alert rules: a small state machine per rule and subject.

A loop leads to one alert however often it is detected, and to one more message when it is over. The router is pure: it
returns the notices to send and the states to store. `service` writes both in one transaction and then accepts the
change, so a restart neither repeats an alert nor forgets to report its end.

The payload of an event is `{event, timestamp, project_id, request_id, data}`. It contains only scalar values of the
event's data: names, digests and counts. Longer data, such as the steps of an incident, stays in the history.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

from breakloop.alerts.delivery import AlertDatabase
from breakloop.alerts.rules import ENDS, FADING, FAMILIES, QUIET_S, AlertRule, ends, same_agent, subject
from breakloop.model.events import AGENT_KILLED, LOOP_DETECTED, Event

Payload = dict[str, Any]

_TEXT_MAX: Final = 2000
_NAMES_MAX: Final = 60
_PRIVATE_FIELDS: Final = frozenset(("steps", "score", "excerpt", "excerpts"))  # even if their value is a string
_LOOP: Final[Mapping[str, object]] = {
    "fingerprint": "",
    "hit_count": 0,
    "model": "",
    "cooldown_seconds": 0,
    "kind": "",
    "evidence": "",
    "action": "",
    "agent": "",
    "caller": "",
    "policy": "",
    "shadow": False,
}


def payload(event: Event, project: str = "") -> Payload:
    data: dict[str, object] = dict(_LOOP) if event.name == LOOP_DETECTED else {}
    for name, value in event.data.items():
        if name not in _PRIVATE_FIELDS and isinstance(value, str | int | float | None) and len(data) < _NAMES_MAX:
            data[name] = _plain(value)
    return {
        "event": event.name,
        "timestamp": timestamp(event.at),
        "project_id": (event.project or project)[:_TEXT_MAX],
        "request_id": event.request_id[:_TEXT_MAX],
        "data": data,
    }


def encoded(value: Mapping[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def timestamp(at: float) -> str:
    """Format a time as in RFC 3339, in UTC."""
    return datetime.fromtimestamp(at, tz=UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _plain(value: float | str | None) -> float | str | None:
    if isinstance(value, str):
        return value[:_TEXT_MAX]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


STATES_MAX: Final = 5_000
FIRING, RECOVERED = "firing", "recovered"
_FORGOTTEN_S: Final = 30 * 86_400.0  # no end was reported; the next event alerts again
_NEVER: Final = -math.inf


@dataclass(frozen=True, slots=True)
class RuleState:
    """The state of a rule for one subject, stored as JSON. `active`: an alert was sent and its cause lasts."""

    family: str
    project: str
    payload: Payload  # of the last event
    since: float
    told_at: float = _NEVER
    active: bool = False
    count: int = 0
    until: float = math.inf  # over by then unless another event arrives


@dataclass(frozen=True, slots=True)
class AlertNotice:
    rule: AlertRule
    state: str
    key: str
    payload: Payload  # of the current event
    about: Payload  # of the event that caused the alert
    since: float
    count: int

    def body(self) -> dict[str, Any]:
        fields: dict[str, Any] = {"rule": self.rule.name, "state": self.state, "key": self.key, "count": self.count}
        return fields | {"since": timestamp(self.since), "payload": self.payload, "about": self.about}


Key = tuple[str, str]  # rule, subject


@dataclass(slots=True)
class RuleStateChange:
    """The effect of a batch of events. A state of None is deleted."""

    notices: list[AlertNotice] = field(default_factory=list)
    states: dict[Key, RuleState | None] = field(default_factory=dict)
    last_at: dict[str, float] = field(default_factory=dict)  # when a rule last alerted


class AlertRouter:
    def __init__(self, rules: Sequence[AlertRule]) -> None:
        self.rules = tuple(rules)
        self._states: dict[Key, RuleState] = {}
        self._last_at: dict[str, float] = {}

    def last_at(self, rule: str) -> float | None:
        return self._last_at.get(rule)

    def route(self, batch: Iterable[tuple[Event, Payload]], now: float) -> RuleStateChange:
        """Return the effect of events; nothing changes until `accept`."""
        change = RuleStateChange()
        for event, payload in batch:
            for rule in self.rules:
                if event.name in ENDS:
                    self._end(change, rule, event, payload)
                elif event.name == AGENT_KILLED:
                    self._hold(change, rule, event)
                if rule.matches(event):
                    self._begin(change, rule, event, payload)
        self._fade(change, now)
        return change

    def accept(self, change: RuleStateChange) -> None:
        """Apply a change that is on disk."""
        states = dict(self._states)
        for key, state in change.states.items():
            states.pop(key, None)
            if state is not None:
                states[key] = state
        self._states = states
        self._last_at |= change.last_at

    @property
    def states(self) -> Mapping[Key, RuleState]:
        return self._states

    def _state(self, change: RuleStateChange, key: Key) -> RuleState | None:
        return change.states[key] if key in change.states else self._states.get(key)

    def _begin(self, change: RuleStateChange, rule: AlertRule, event: Event, payload: Payload) -> None:
        key = rule.name, subject(event)
        family = FAMILIES.get(event.name, "")
        old = self._state(change, key)
        new = old or RuleState(family, event.project, payload, event.at)
        if not new.active and new.count == 0:
            new = replace(new, since=event.at)
        new = replace(new, payload=payload, count=new.count + 1, until=_until(family, event))
        wait_s = rule.repeat_seconds or math.inf if new.active else rule.cooldown_seconds
        if event.at - new.told_at >= wait_s:
            change.notices.append(AlertNotice(rule, FIRING, key[1], payload, payload, new.since, new.count))
            change.last_at[rule.name] = event.at
            new = replace(new, told_at=event.at, active=bool(family), count=new.count if family else 0)
        change.states[key] = new

    def _end(self, change: RuleStateChange, rule: AlertRule, event: Event, payload: Payload) -> None:
        for key, state in self._of(change, rule):
            if ends(event, state.family, state.project, state.payload["data"]):
                self._over(change, key, rule, payload)

    def _over(self, change: RuleStateChange, key: Key, rule: AlertRule, payload: Payload) -> None:
        state = self._state(change, key)
        if state is None:
            return
        if state.active:
            known = state.payload, state.since, state.count
            change.notices.append(AlertNotice(rule, RECOVERED, key[1], payload, *known))
        change.states[key] = replace(state, active=False, count=0, until=math.inf)

    def _hold(self, change: RuleStateChange, rule: AlertRule, event: Event) -> None:
        """A loop lasts while its agent is quarantined: it ends when the agent is released."""
        ends_at = event.data.get("expires_at")
        until = float(ends_at) + QUIET_S if isinstance(ends_at, int | float) else math.inf
        for key, state in self._of(change, rule):
            if state.family == "loop" and same_agent(event, state.project, state.payload["data"]):
                change.states[key] = replace(state, until=max(until, state.until))

    def _fade(self, change: RuleStateChange, now: float) -> None:
        """End conditions without further events, and delete states that no longer matter."""
        rules = {rule.name: rule for rule in self.rules}
        keys = dict.fromkeys([*self._states, *change.states])
        for key in keys:
            state, rule = self._state(change, key), rules[key[0]]
            if state is None:
                continue
            needed = state.active or now - state.told_at < max(rule.cooldown_seconds, QUIET_S)
            if state.active and state.until <= now and state.family in FADING:
                self._over(change, key, rule, _faded(state, now))
            elif not needed or state.until <= now:
                change.states[key] = None
        living = [key for key in keys if self._state(change, key) is not None]
        for key in living[: max(0, len(living) - STATES_MAX)]:
            change.states[key] = None

    def _of(self, change: RuleStateChange, rule: AlertRule) -> list[tuple[Key, RuleState]]:
        keys = dict.fromkeys([*self._states, *change.states])
        found = ((key, self._state(change, key)) for key in keys if key[0] == rule.name)
        return [(key, state) for key, state in found if state is not None]


def _until(family: str, event: Event) -> float:
    cooldown = event.data.get("cooldown_seconds")
    quiet_s = max(QUIET_S, float(cooldown) if isinstance(cooldown, int | float) else 0.0)
    return event.at + (quiet_s if family in FADING else _FORGOTTEN_S)


def _faded(state: RuleState, now: float) -> Payload:
    """Return the payload for a condition that ended without an event."""
    name = {"loop": "loop.cleared"}.get(state.family, f"{state.family}.over")
    data = state.payload["data"] | {"reason": "it did not occur again"}
    return state.payload | {"event": name, "timestamp": timestamp(now), "request_id": "", "data": data}


_LAST: Final = ""  # the key of the row that holds when a rule last alerted


def load_states(database: AlertDatabase, router: AlertRouter) -> None:
    """Restore a router from the database, and delete rows of rules that no longer exist. Raises `StateError`."""
    rows = database.run(lambda file: file.execute("SELECT rule, key, text FROM standing").fetchall())
    names = {rule.name for rule in router.rules}
    change = RuleStateChange()
    for rule, key, text in rows:
        state = _read_state(text) if rule in names and key != _LAST else None
        if rule in names and key == _LAST:
            change.last_at[rule] = float(text)
        elif state is not None:
            change.states[rule, key] = state
    router.accept(change)
    gone = {row[0] for row in rows} - names
    database.run(lambda file: file.executemany("DELETE FROM standing WHERE rule = ?", [(name,) for name in gone]))
    database.on_new.append(lambda file: save_states(file, RuleStateChange(states=dict(router.states))))


def save_states(file: sqlite3.Connection, change: RuleStateChange) -> None:
    for (rule, key), state in change.states.items():
        if state is None:
            file.execute("DELETE FROM standing WHERE rule = ? AND key = ?", (rule, key))
        else:
            file.execute("INSERT OR REPLACE INTO standing VALUES (?, ?, ?)", (rule, key, json.dumps(asdict(state))))
    for rule, at in change.last_at.items():
        file.execute("INSERT OR REPLACE INTO standing VALUES (?, ?, ?)", (rule, _LAST, str(at)))


def _read_state(text: str) -> RuleState | None:
    try:
        return RuleState(**json.loads(text))
    except (ValueError, TypeError):  # written by another version
        return None
