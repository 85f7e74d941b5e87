"""Alert rules as data: which events a rule is about, and how often it tells. What has been told is
`router`'s business.

What alert rules have told, and what they tell next: a small state machine for each rule and subject, so that a loop
is told of once however often it is seen, and once more when it is over. Pure: it returns what is to be sent and kept;
`service` writes both down in one transaction, and only then accepts the change.

What an event is about, and which events end it: the one place that knows what belongs together. The order of
deliveries, the state of alert rules, and the keys that pagers fold by are made of it.

Events of which there may be one a request are passed on once in ten seconds, with a count of the others: nobody
wants ten thousand messages about one limit. What is rare passes as it is.

What a webhook gets of an event (SPEC G-4): `{event, timestamp, project_id, request_id, data}`. Only single values of
an event's data are in it: names, digests and counts. The steps of an incident, and everything else that is longer, stay
in the history.

How alert rules stand, on disk: read at the start, and written in the same transaction as the deliveries that come of
it, so that a restart neither tells of a loop again nor forgets that it is to tell of its end.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from hashlib import sha256
from typing import Any, Final

from breakloop.alerts.base import AlertDatabase
from breakloop.model import events
from breakloop.model.events import AGENT_KILLED, LOOP_DETECTED, Event

# What goes on until something says that it is over ...
FAMILIES: Final[Mapping[str, str]] = {
    events.LOOP_DETECTED: "loop",
    events.AGENT_KILLED: "kill",
    events.BREAKER_OPENED: "breaker",
    events.STORE_DEGRADED: "store",
    events.BUNDLE_REJECTED: "bundle",
    events.BUNDLE_EXPIRED: "bundle",
    events.WORKER_DIED: "worker",
    events.LIMIT_EXCEEDED: "limit",
    events.SHADOW_WOULD_REJECT: "shadow",
}
# ... and what says so. Everything else happens once.
ENDS: Final[Mapping[str, tuple[str, ...]]] = {
    events.LOOP_CLEARED: ("loop",),
    events.AGENT_RELEASED: ("kill", "loop"),
    events.BREAKER_CLOSED: ("breaker",),
    events.STORE_RECOVERED: ("store",),
    events.BUNDLE_LOADED: ("bundle",),
    events.WORKER_REPLACED: ("worker",),
}
# These are over too when nothing more is heard of them: nobody tells when an agent stops by itself.
FADING: Final = frozenset(("loop", "limit", "shadow"))
QUIET_S: Final = 600.0

# Of these there may be one a request; when there is no room they are dropped first.
FREQUENT: Final = frozenset(
    (
        events.LIMIT_EXCEEDED,
        events.SHADOW_WOULD_REJECT,
        events.DESCRIPTOR_MISSING,
        events.BODY_NOT_UNPACKED,
        events.MODEL_UNKNOWN,
        events.STORE_DEGRADED,
    )
)
# What makes two events of a family, or of a name, the same thing.
_PARTS: Final[Mapping[str, tuple[str, ...]]] = {
    "loop": ("caller", "agent", "shadow"),
    "kill": ("caller", "agent", "binds"),
    "breaker": ("policy", "key", "shadow"),
    "worker": ("process",),
    "store": (),
    "bundle": (),
    "limit": ("policy", "rule", "reason"),
    "shadow": ("policy", "rule", "reason"),
    events.BUDGET_THRESHOLD: ("key", "threshold_percent", "shadow"),
    events.KILL_SWITCH_CHANGED: ("id",),
    events.OVERRIDE_CHANGED: ("name",),
    events.MODEL_UNKNOWN: ("model",),
    events.DESCRIPTOR_MISSING: ("policy", "rule", "descriptor"),
    events.UPSTREAM_FAILED: ("upstream", "cause"),
}
_EVERYWHERE: Final = frozenset(("store", "bundle", "worker"))  # of no project, whatever the event says
_AGENTS: Final = frozenset((events.LOOP_DETECTED, events.LOOP_CLEARED, events.AGENT_KILLED, events.AGENT_RELEASED))


def subject(event: Event) -> str:
    """Return the key of what an event is about: the same for the same thing, and of one length."""
    kind = FAMILIES.get(event.name, event.name)
    names = _PARTS.get(kind, ("agent",))
    return _key(kind, _project(kind, event), *(event.data.get(name) for name in names))


def order_key(event: Event) -> str:
    """Return the key under which deliveries keep their order: a loop and what is done about its agent share one."""
    data = event.data
    if event.name in _AGENTS:
        return _key("agent", event.project, data.get("agent") or data.get("caller"))
    family = FAMILIES.get(event.name) or next(iter(ENDS.get(event.name, ())), event.name)
    names = _PARTS.get(family, ())
    return _key(family, _project(family, event), *(data.get(name) for name in names))


def ends(event: Event, family: str, project: str, data: Mapping[str, Any]) -> bool:
    """Tell whether an event ends what is known under these data. Names that the event leaves empty match all."""
    if family not in ENDS.get(event.name, ()):
        return False
    if family in {"loop", "kill"}:
        same = event.name != events.LOOP_CLEARED or _same_loop(event, data)
        return same and same_agent(event, project, data)
    return all(event.data.get(name) == data.get(name) for name in _PARTS[family])


def same_agent(event: Event, project: str, data: Mapping[str, Any]) -> bool:
    """Tell whether an event is about the agent, or the caller, of these data."""
    said = [(name, event.data.get(name)) for name in ("agent", "caller") if event.data.get(name)]
    return bool(said) and project == event.project and all(value == data.get(name) for name, value in said)


def _same_loop(event: Event, data: Mapping[str, Any]) -> bool:
    """Tell whether it is this loop that is over, and not another one of the same agent."""
    said = [(name, event.data[name]) for name in ("kind", "policy", "shadow") if event.data.get(name)]
    return bool(event.data.get("shadow")) == bool(data.get("shadow")) and all(data.get(n) == value for n, value in said)


def _project(kind: str, event: Event) -> str:
    return "" if kind in _EVERYWHERE else event.project


def _key(kind: str, *parts: object) -> str:
    text = json.dumps([str(part) for part in parts])
    return f"{kind}-{sha256(text.encode()).hexdigest()[:24]}"


TYPES: Final[Mapping[str, tuple[str, ...]]] = {
    "kill_switch": (events.AGENT_KILLED,),
    "loop": (events.LOOP_DETECTED,),
    "budget": (events.BUDGET_THRESHOLD,),
    "breaker": (events.BREAKER_OPENED,),
    "limit": (events.LIMIT_EXCEEDED,),
    "store": (events.STORE_DEGRADED,),
    "bundle": (events.BUNDLE_REJECTED, events.BUNDLE_EXPIRED),
    "shadow": (events.SHADOW_WOULD_REJECT,),
}
ANY: Final = "any"
_WEIGHTS: Final = {"warn": 1, "steer": 2, "throttle": 3, "reject": 4, "cut": 4, "kill": 5}


@dataclass(frozen=True, slots=True)
class AlertRuleConfig:
    """One rule. `types` are words of `TYPES`, `any`, or names of events."""

    name: str
    types: tuple[str, ...]
    targets: tuple[str, ...]
    agent: str = "*"
    project: str = "*"
    min_action: str = ""
    cooldown_s: float = 300.0
    repeat_s: float = 0.0  # 0: what goes on is told once
    recovery: bool = False
    shadow: bool = False

    def wants(self, event: Event) -> bool:
        """Tell whether the rule is about an event."""
        return (
            self._named(event.name)
            and self._fits(event)
            and fnmatchcase(str(event.data.get("agent") or ""), self.agent)
            and fnmatchcase(event.project, self.project)
        )

    def _named(self, name: str) -> bool:
        for one in self.types:
            if name in TYPES.get(one, (one,)):
                return True
            if one == ANY and name not in ENDS and (self.shadow or name != events.SHADOW_WOULD_REJECT):
                return True
        return False

    def _fits(self, event: Event) -> bool:
        data = event.data
        if data.get("shadow") is True and not self.shadow:
            return False
        if event.name == events.BREAKER_OPENED and data.get("alert") is False:
            return False  # the policy says that nobody is to be woken
        if event.name != events.LOOP_DETECTED or not self.min_action:
            return True
        return _WEIGHTS.get(str(data.get("action")), 0) >= _WEIGHTS[self.min_action]


Payload = dict[str, Any]

_TEXT_MAX: Final = 2000
_NAMES_MAX: Final = 60
_PRIVATE_FIELDS: Final = frozenset(
    ("steps", "score", "excerpt", "excerpts")
)  # also where somebody has made a text of them
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


def payload(event: Event, more: Mapping[str, object] | None = None, project: str = "") -> Payload:
    """Return what is told of an event; `more` is what else is known of it, such as its incident."""
    data: dict[str, object] = dict(_LOOP) if event.name == LOOP_DETECTED else {}
    for name, value in (*event.data.items(), *(more or {}).items()):
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
    """Return it as JSON in ASCII."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def timestamp(at: float) -> str:
    """Return a time as RFC 3339 has it, in UTC."""
    return datetime.fromtimestamp(at, tz=UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _plain(value: float | str | None) -> float | str | None:
    if isinstance(value, str):
        return value[:_TEXT_MAX]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


STATES_MAX: Final = 5_000
FIRING, RECOVERED = "firing", "recovered"
_FORGOTTEN_S: Final = 30 * 86_400.0  # nobody has said that it is over; the next one is told again
_NEVER: Final = -math.inf


@dataclass(frozen=True, slots=True)
class RuleState:
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
    def read(cls, text: str) -> RuleState:
        """Read back what `text` gave."""
        return cls(**json.loads(text))


@dataclass(frozen=True, slots=True)
class AlertNotice:
    """One thing to tell to the targets of a rule."""

    rule: AlertRuleConfig
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
class RuleStateChange:
    """What a batch of events makes of the standings, and what is to be told. None: forgotten."""

    notices: list[AlertNotice] = field(default_factory=list)
    standings: dict[Key, RuleState | None] = field(default_factory=dict)
    last_at: dict[str, float] = field(default_factory=dict)  # when a rule told


class AlertRouter:
    """All rules, and how they stand."""

    def __init__(self, rules: Sequence[AlertRuleConfig]) -> None:
        self.rules = tuple(rules)
        self._known: dict[Key, RuleState] = {}
        self._last_at: dict[str, float] = {}

    def last_at(self, rule: str) -> float | None:
        """Return when a rule last told."""
        return self._last_at.get(rule)

    def route(self, told: Iterable[tuple[Event, Payload]], now: float) -> RuleStateChange:
        """Return what events change; nothing has changed until `accept`."""
        change = RuleStateChange()
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

    def accept(self, change: RuleStateChange) -> None:
        """What was routed is on disk."""
        known = dict(self._known)
        for key, standing in change.standings.items():
            known.pop(key, None)
            if standing is not None:
                known[key] = standing
        self._known = known
        self._last_at |= change.last_at

    @property
    def known(self) -> Mapping[Key, RuleState]:
        """How all of them stand."""
        return self._known

    def _standing(self, change: RuleStateChange, key: Key) -> RuleState | None:
        return change.standings[key] if key in change.standings else self._known.get(key)

    def _begin(self, change: RuleStateChange, rule: AlertRuleConfig, event: Event, payload: Payload) -> None:
        key = rule.name, subject(event)
        family = FAMILIES.get(event.name, "")
        old = self._standing(change, key)
        new = old or RuleState(family, event.project, payload, event.at)
        if not new.active and new.count == 0:
            new = replace(new, since=event.at)
        new = replace(new, payload=payload, count=new.count + 1, until=_until(family, event))
        wait_s = rule.repeat_s or math.inf if new.active else rule.cooldown_s
        if event.at - new.told_at >= wait_s:
            change.notices.append(AlertNotice(rule, FIRING, key[1], payload, payload, new.since, new.count))
            change.last_at[rule.name] = event.at
            new = replace(new, told_at=event.at, active=bool(family), count=new.count if family else 0)
        change.standings[key] = new

    def _end(self, change: RuleStateChange, rule: AlertRuleConfig, event: Event, payload: Payload) -> None:
        for key, standing in self._of(change, rule):
            if ends(event, standing.family, standing.project, standing.payload["data"]):
                self._over(change, key, rule, payload)

    def _over(self, change: RuleStateChange, key: Key, rule: AlertRuleConfig, payload: Payload) -> None:
        standing = self._standing(change, key)
        if standing is None:
            return
        if standing.active:
            known = standing.payload, standing.since, standing.count
            change.notices.append(AlertNotice(rule, RECOVERED, key[1], payload, *known))
        change.standings[key] = replace(standing, active=False, count=0, until=math.inf)

    def _hold(self, change: RuleStateChange, rule: AlertRuleConfig, event: Event) -> None:
        """A loop is not over because its agent is held: it ends when the agent is released."""
        ends_at = event.data.get("expires_at")
        until = float(ends_at) + QUIET_S if isinstance(ends_at, int | float) else math.inf
        for key, standing in self._of(change, rule):
            if standing.family == "loop" and same_agent(event, standing.project, standing.payload["data"]):
                change.standings[key] = replace(standing, until=max(until, standing.until))

    def _fade(self, change: RuleStateChange, now: float) -> None:
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

    def _of(self, change: RuleStateChange, rule: AlertRuleConfig) -> list[tuple[Key, RuleState]]:
        keys = dict.fromkeys([*self._known, *change.standings])
        found = ((key, self._standing(change, key)) for key in keys if key[0] == rule.name)
        return [(key, standing) for key, standing in found if standing is not None]


def _until(family: str, event: Event) -> float:
    cooldown = event.data.get("cooldown_seconds")
    quiet_s = max(QUIET_S, float(cooldown) if isinstance(cooldown, int | float) else 0.0)
    return event.at + (quiet_s if family in FADING else _FORGOTTEN_S)


def _faded(standing: RuleState, now: float) -> Payload:
    """What is told of something that ended without anybody saying so."""
    name = {"loop": "loop.cleared"}.get(standing.family, f"{standing.family}.over")
    data = standing.payload["data"] | {"reason": "nothing more was heard of it"}
    return standing.payload | {"event": name, "timestamp": timestamp(now), "request_id": "", "data": data}


INTERVAL_S: Final = 10.0
_KEYS_MAX: Final = 1_000  # more different ones in one interval are only counted


@dataclass(slots=True)
class _Run:
    since: float
    last: Event
    more: int = 0


class EventThrottle:
    """Remembers what was passed on in the last ten seconds. One thread at a time."""

    def __init__(self) -> None:
        self._runs: dict[tuple[str, str], _Run] = {}
        self.left_out = 0  # that no later event tells of

    def pass_on(self, events: Iterable[Event], now: float) -> list[Event]:
        """Return what is told now: rare events, the first of many, and what became of earlier ones."""
        passed = self._ended(now)
        for event in events:
            if event.name not in FREQUENT:
                passed.append(event)
                continue
            key = event.name, subject(event)
            run = self._runs.get(key)
            if run is not None:
                run.more, run.last = run.more + 1, event
            elif len(self._runs) < _KEYS_MAX:
                self._runs[key] = _Run(now, event)
                passed.append(event)
            else:
                self.left_out += 1
        return passed

    def _ended(self, now: float) -> list[Event]:
        over = [key for key, run in self._runs.items() if not 0 <= now - run.since < INTERVAL_S]
        runs = [self._runs.pop(key) for key in over]
        return [replace(run.last, data={**run.last.data, "left_out": run.more - 1}) for run in runs if run.more]


_LAST = ""  # the subject under which it is kept when a rule last told


def load(database: AlertDatabase, router: AlertRouter) -> None:
    """Let a router go on where it was; what belongs to rules that are no more is removed. Raises `StateError`."""
    rows = database.run(lambda file: file.execute("SELECT rule, key, text FROM standing").fetchall())
    names = {rule.name for rule in router.rules}
    change = RuleStateChange()
    for rule, key, text in rows:
        standing = _read(text) if rule in names and key != _LAST else None
        if rule in names and key == _LAST:
            change.last_at[rule] = float(text)
        elif standing is not None:
            change.standings[rule, key] = standing
    router.accept(change)
    gone = {row[0] for row in rows} - names
    database.run(lambda file: file.executemany("DELETE FROM standing WHERE rule = ?", [(name,) for name in gone]))
    database.on_new.append(lambda file: write(file, RuleStateChange(standings=dict(router.known))))


def write(file: sqlite3.Connection, change: RuleStateChange) -> None:
    """Write what has changed."""
    for (rule, key), standing in change.standings.items():
        if standing is None:
            file.execute("DELETE FROM standing WHERE rule = ? AND key = ?", (rule, key))
        else:
            file.execute("INSERT OR REPLACE INTO standing VALUES (?, ?, ?)", (rule, key, standing.text()))
    for rule, at in change.last_at.items():
        file.execute("INSERT OR REPLACE INTO standing VALUES (?, ?, ?)", (rule, _LAST, str(at)))


def _read(text: str) -> RuleState | None:
    try:
        return RuleState.read(text)
    except (ValueError, TypeError):  # of another version
        return None
